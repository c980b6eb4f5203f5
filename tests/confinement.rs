//! The server as another user, and confined: what it still does, and reloads that need more permissions.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
#[cfg(feature = "modules")]
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::support::elsewhere::elsewhere;
#[cfg(feature = "modules")]
use crate::support::guests::guests;
use crate::support::operated::Operated;
use crate::support::skips::skip;
use crate::support::waiting::{eventually, eventually_some};
use crate::support::{TestServer, ask, write_program};

/// Line of a process's status in `/proc`.
fn status(process: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn get(server: &TestServer, path: &str) -> String {
    ask(server, &format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"))
}

/// Only root can switch users.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Free port below 1024.
fn low_port() -> Option<u16> {
    (600..1024).find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
}

#[test]
fn root_becomes_another_and_keeps_low_ports() {
    let (true, Some(port)) = (is_root(), low_port()) else {
        skip("it takes root, and ports that only root may bind");
        return;
    };
    let directory = elsewhere();
    fs::write(directory.path().join("page"), "a page").unwrap();
    let other = low_port()
        .filter(|other| *other != port)
        .or_else(|| (port + 1..1024).find(|other| TcpListener::bind(("127.0.0.1", *other)).is_ok()))
        .unwrap();
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let config = |listen: &str| {
        format!(
            "server {{ user \"nobody\"; workers 1; control-socket \"{home}/run/control.sock\" }}\n\
             access-log \"{home}/log/access.log\"\n\
             site {{ listen {listen}; root \"{root}\" }}\n",
            home = home.path().display(),
            root = directory.path().display()
        )
    };
    let file = home.path().join("tailcoat.kdl");
    fs::write(&file, config(&format!("\"127.0.0.1:{port}\""))).unwrap();
    let server = TestServer::run_from(&file);
    assert!(get(&server, "/page").ends_with("a page"));
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    let all_of = |id: u32| [id; 4].map(|id| id.to_string()).join(" ");
    assert_eq!(status(server.id(), "Uid"), all_of(nobody.uid.as_raw()));
    assert_eq!(status(server.id(), "Gid"), all_of(nobody.gid.as_raw()));
    assert_eq!(status(server.id(), "Groups"), nobody.gid.to_string());
    // CAP_NET_BIND_SERVICE and no other capability.
    for sets in ["CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status(server.id(), sets), "0000000000000400", "{sets}");
    }
    assert_eq!(status(server.id(), "NoNewPrivs"), "1");
    assert_eq!(status(server.id(), "Seccomp"), "2");
    // Root made the directories for the log and the socket; another low port is still within reach.
    fs::write(&file, config(&format!("\"127.0.0.1:{port}\" \"127.0.0.1:{other}\""))).unwrap();
    let reload = crate::support::tailcoat().arg("reload").arg("-c").arg(&file).output().unwrap();
    assert!(reload.status.success(), "{}", String::from_utf8_lossy(&reload.stderr));
    assert!(std::net::TcpStream::connect(("127.0.0.1", other)).is_ok());
    let log = home.path().join("log/access.log");
    eventually("the request is logged", || fs::read_to_string(&log).is_ok_and(|log| log.contains("GET /page")));
}

#[test]
fn what_cannot_be_read_by_its_user_is_said() {
    if !is_root() {
        skip("it takes root");
        return;
    }
    let directory = elsewhere();
    let closed = directory.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::write(closed.join("page"), "a page").unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let root = directory.path().display();
    let server = TestServer::run(&format!(
        "server {{ user \"nobody\"; workers 1 }}\nsite {{ listen \"127.0.0.1:0\"; root \"{root}\" }}\n"
    ));
    assert!(get(&server, "/closed/page").starts_with("HTTP/1.1 403 "), "root could have read it");
}

#[test]
fn a_reload_that_needs_more_becomes_an_upgrade() {
    let other = elsewhere();
    fs::write(other.path().join("page"), "elsewhere").unwrap();
    let site = |root: &Path| format!("site {{ listen \"127.0.0.1:0\"; root \"{}\" }}\n", root.display());
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("site")).unwrap();
    fs::write(directory.path().join("site/page"), "here").unwrap();
    let config = site(&directory.path().join("site"));
    let operated = Operated::start_in(directory, &config);
    assert!(get(&operated.server, "/page").ends_with("here"));
    // Another root below a granted directory: the same process.
    operated.reload(&site(operated.path()));
    assert!(get(&operated.server, "/site/page").ends_with("here"));
    assert!(!operated.file("errors.log").contains("serves now"));
    // Another root outside: a new process, without a failed request.
    operated.write_config(&site(other.path()));
    let output = operated.order(&["reload"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    // The old process accepts no connections by now.
    assert!(get(&operated.server, "/page").ends_with("elsewhere"));
    let expect =
        [&*format!("reading {}", other.path().display()), "serves now; this one ends after its open requests: pid="];
    // Another process copies the log.
    let log = eventually_some("the upgrade is logged", || {
        let log = operated.file("errors.log");
        let (whole, _) = log.rsplit_once('\n')?;
        expect.iter().all(|text| whole.contains(text)).then(|| whole.to_owned())
    });
    // Reports about errors stay the same: the launcher, which can read the files, makes them.
    operated.write_config("site { listen \"127.0.0.1:0\"; root \"/nowhere/at/all\" ; roof }\n");
    let output = operated.order(&["reload"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("unknown option `roof`"));
    assert!(get(&operated.server, "/page").ends_with("elsewhere"));
    assert!(operated.order(&["reload"]).status.code() == Some(3));
    end_successors(&log);
}

/// Ends the processes that a log names as new servers.
fn end_successors(log: &str) {
    for line in log.lines().filter(|line| line.contains("serves now")) {
        let process = line.split(" pid=").nth(1).unwrap();
        let _ = Command::new("kill").arg(process).status();
    }
}

#[test]
fn programs_see_neither_keys_nor_the_server() {
    let directory = elsewhere();
    let at = |name: &str| directory.path().join(name);
    for inner in ["site/cgi", "keys"] {
        fs::create_dir_all(at(inner)).unwrap();
    }
    fs::write(at("keys/passwords"), "anna:$2y$05$bvIG6Nmid91Mu9RcmmWZfO5HJIMCT8riNW0hEp8f6/FuA2/mHZFpe\n").unwrap();
    let script = format!(
        "#!/bin/sh\necho 'Content-Type: text/plain'\necho\ncat {keys} 2>&1\ncat /proc/$PPID/environ 2>&1\necho x > {keys}\n\
         echo written > $$.out 2>/dev/null || echo not written\n",
        keys = at("keys/passwords").display()
    );
    write_program(&at("site/cgi/look"), &script);
    let server = TestServer::run(&format!(
        "server {{ workers 1 }}\nsite {{ listen \"127.0.0.1:0\"; basic-auth \"/private/*\" \"{}\"; \
         cgi \"/cgi/*\" root=\"{}\" }}\n",
        at("keys/passwords").display(),
        at("site").display()
    ));
    let said = get(&server, "/cgi/look");
    assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
    assert_eq!(said.matches("Permission denied").count(), 2, "{said}");
    assert!(said.contains("not written") && !said.contains("anna"), "{said}");
    assert!(get(&server, "/private/x").starts_with("HTTP/1.1 401 "), "the server itself reads them");
}

/// True if the kernel can keep programs from sending signals to other processes, as since Linux 6.12.
fn confines_signals() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(12))
}

#[test]
fn programs_can_neither_end_nor_order_the_server() {
    let directory = elsewhere();
    let at = |name: &str| directory.path().join(name);
    for inner in ["site/cgi", "run"] {
        fs::create_dir_all(at(inner)).unwrap();
    }
    let socket = at("run/control.sock");
    let end = if confines_signals() { "kill -TERM $PPID 2>&1" } else { "echo not permitted" };
    let script = format!(
        "#!/bin/sh\necho 'Content-Type: text/plain'\necho\n{end}\n\
         exec perl -MSocket -e 'socket(my $s, PF_UNIX, SOCK_STREAM, 0); connect($s, sockaddr_un(\"{}\")) or die; \
         syswrite($s, \"{{}}\\n\"); print <$s>'\n",
        socket.display()
    );
    write_program(&at("site/cgi/attack"), &script);
    let server = TestServer::run(&format!(
        "server {{ workers 1; control-socket \"{}\" }}\nsite {{ listen \"127.0.0.1:0\"; cgi \"/cgi/*\" root=\"{}\" }}\n",
        socket.display(),
        at("site").display()
    ));
    let said = get(&server, "/cgi/attack");
    assert!(said.to_lowercase().contains("not permitted"), "{said}");
    assert!(said.contains(r#"{"refused":"the command must prove"#), "{said}");
    assert!(get(&server, "/cgi/attack").starts_with("HTTP/1.1 200 "), "the server is still there");
    let status = crate::support::tailcoat().args(["status", "--socket"]).arg(&socket).output().unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
}

/// `cargo xtask kernel-tls` runs it on an older kernel.
#[test]
fn a_kernel_that_confines_less_is_reported_of_once() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    write_program(&script, "#!/bin/sh\necho 'Content-Type: text/plain'\necho\necho an answer\n");
    let config = "site { listen \"127.0.0.1:0\"; cgi \"/script\" root=\"@DIR@\" }\n";
    let operated = Operated::start_in(directory, config);
    assert!(get(&operated.server, "/script").contains("an answer"));
    operated.reload(config);
    assert!(get(&operated.server, "/script").contains("an answer"));
    // Another process copies the log.
    eventually("it is reported of", || confines_signals() || operated.file("errors.log").contains("Landlock"));
    let log = operated.file("errors.log");
    let reported: Vec<_> = log.lines().filter(|line| line.contains("Landlock")).collect();
    match reported[..] {
        [] => assert!(confines_signals(), "{log}"),
        [line] => assert!(line.contains("signals from programs"), "{line}"),
        _ => panic!("{log}"),
    }
}

#[cfg(feature = "modules")]
#[test]
fn memory_of_modules_is_kept_beside_programs() {
    let (true, Some(guests)) = (is_root() && tailcoat::modules::open_page_map(), guests()) else {
        skip("it takes root, PAGEMAP_SCAN of the kernel, and modules");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let config = format!(
        "modules {{ compile-wait \"5m\"; compiled off }}\n\
         site {{ listen \"127.0.0.1:0\"; cgi \"/cgi/*\" root=\"@DIR@\"; module \"*\" \"{}\" }}\n",
        guests.display()
    );
    // A user who cannot read the `/proc` files of root's processes, like those of an undumpable process.
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    let operated = Operated::start_with(directory, &config, |command| {
        command.uid(nobody.uid.as_raw()).gid(nobody.gid.as_raw());
    });
    let open = fs::read_dir(format!("/proc/{}/fd", operated.server.id())).unwrap();
    let open: Vec<_> = open.filter_map(|file| fs::read_link(file.unwrap().path()).ok()).collect();
    assert!(open.iter().any(|file| file.ends_with("pagemap")), "{open:?}");
}

#[test]
fn the_launcher_ignores_what_is_for_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let config = "site { listen \"127.0.0.1:0\"; respond \"/\" 200 }\n";
    let mut operated = Operated::start_in(directory, config);
    let children = format!("/proc/{0}/task/{0}/children", operated.server.id());
    let is_launcher = |process: &u32| {
        let said = fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
        said.split('\0').nth(1) == Some("launcher")
    };
    let children = fs::read_to_string(&children).unwrap();
    let children = children.split_whitespace().map(|process| process.parse::<u32>().unwrap());
    let launcher = children.into_iter().find(is_launcher).expect("one of its children is the launcher");
    // The process has started, but may not have installed its signal handlers.
    eventually("it catches signals", || {
        let status = fs::read_to_string(format!("/proc/{launcher}/status")).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
        let caught = u64::from_str_radix(caught.trim(), 16).unwrap();
        [1, 2, 3, 10, 12, 15].iter().all(|signal| caught >> (signal - 1) & 1 != 0)
    });
    for signal in ["HUP", "USR1", "USR2", "INT", "QUIT", "TERM"] {
        let _ = Command::new("kill").arg(format!("-{signal}")).arg(launcher.to_string()).status();
    }
    let successor = operated.upgrade();
    assert!(Operated::is_running(successor));
    eventually("each server has its own", || !Operated::is_running(launcher));
}
