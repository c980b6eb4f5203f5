//! Upgrade of a running server: the new binary takes over, or nothing changes.

use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use crate::support::operated::Operated;
use crate::support::port::free_port;
use crate::support::skips::skip;
use crate::support::tls::{TestCa, connect};
use crate::support::upstream::{ScriptStep, ScriptedUpstream};
use crate::support::waiting::{eventually, eventually_some, stays};
use crate::support::{PATIENCE, read_until};

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";

const SITE: &str = "site {\n listen \"127.0.0.1:0\" \"unix:@DIR@/web.sock\"\n respond \"/\" 200 \"hello\"\n}\n";

fn ask(stream: &mut (impl Read + Write)) -> String {
    stream.write_all(GET).unwrap();
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    while !bytes.ends_with(b"hello") {
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "ended: {:?}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn another_process_takes_over_and_what_is_under_way_goes_on() {
    let chat = ScriptedUpstream::start(vec![vec![
        ScriptStep::Read("\r\n\r\n"),
        ScriptStep::Write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"),
        ScriptStep::Echo,
    ]]);
    let site = SITE.replace("respond", &format!("forward \"http://{}\" path=\"/chat\"\n respond", chat.address));
    let mut operated =
        Operated::start(&format!("access-log \"@DIR@/access.log\" format=\"{{path}} {{status}}\"\n{site}"));
    let old = operated.server.id();
    let (mut idle, mut socket) = (operated.server.connect(), operated.server.connect());
    ask(&mut idle);
    socket.write_all(b"GET /chat HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").unwrap();
    read_until(&mut socket, "101 Switching Protocols");
    let new = operated.upgrade();
    assert_ne!(new, old);
    ask(&mut operated.server.connect());
    // A client with an idle connection may send one more request.
    let answer = ask(&mut idle);
    assert!(answer.contains("Connection: close"), "{answer}");
    socket.write_all(b"still there").unwrap();
    read_until(&mut socket, "still there");
    assert!(Operated::is_running(old));
    drop(socket);
    eventually("the old process ends", || !Operated::is_running(old));
    // Socket files are where they were, and orders reach the new process.
    let mut unix = UnixStream::connect(operated.path().join("web.sock")).unwrap();
    ask(&mut unix);
    operated.reload(&site.replace("hello", "other hello"));
    ask(&mut operated.server.connect());
    let newest = operated.upgrade();
    ask(&mut operated.server.connect());
    operated.signal("TERM");
    eventually("the newest process ends", || !Operated::is_running(newest));
    assert!(!operated.path().join("web.sock").exists(), "its file goes with the last");
    let mut lines: Vec<String> = operated.file("access.log").lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines[lines.len() - 1], "/chat 101");
    assert!(lines.iter().filter(|line| *line == "/ 200").count() >= 3, "{lines:?}");
}

/// `log tail` shows the requests of the new process, and ends when there are no more.
#[test]
fn the_log_is_followed_across_it() {
    let mut operated = Operated::start(&format!("access-log \"@DIR@/access.log\"\n{SITE}"));
    let address = operated.server.address;
    let mut command = crate::support::tailcoat();
    command.args(["log", "tail", "--format", "{path}", "--socket"]).arg(operated.path().join("control.sock"));
    let mut tail = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let shown = std::sync::Arc::<std::sync::Mutex<String>>::default();
    let (of_thread, mut stdout) = (std::sync::Arc::clone(&shown), tail.stdout.take().unwrap());
    let reading = std::thread::spawn(move || {
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = stdout.read(&mut buffer) {
            of_thread.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    });
    let asked_until_shown = |path: &str| {
        eventually(path, || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
            stream.read_to_end(&mut Vec::new()).unwrap();
            shown.lock().unwrap().contains(&format!("{path}\n"))
        });
    };
    asked_until_shown("/before");
    operated.upgrade();
    asked_until_shown("/after");
    operated.signal("TERM");
    assert!(tail.wait().unwrap().success());
    reading.join().unwrap();
    let mut said = String::new();
    tail.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "tailcoat: a new process took over; its lines follow\ntailcoat: the server stopped\n");
}

#[test]
fn one_that_does_not_start_changes_nothing() {
    let operated = Operated::start(SITE);
    let mut stream = operated.server.connect();
    ask(&mut stream);
    for (script, reported) in [
        ("#!/bin/sh\nexit 7\n", "exit status: 7"),
        ("#!/bin/sh\nkill -SEGV $$\n", "signal: 11"),
        ("no program at all", "cannot start "),
        ("#!/bin/sh\nexec <&- sleep 100\n", "rejected the handover"),
        ("#!/none\n", "cannot start "),
    ] {
        operated.replace_binary(Some(script));
        let output = operated.order(&["upgrade"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{script}: {said}");
        assert!(said.contains(reported), "{script}: {said}");
        eventually(reported, || operated.file("errors.log").contains(reported));
        let answer = ask(&mut stream);
        assert!(!answer.contains("Connection: close"), "{script}");
        ask(&mut operated.server.connect());
    }
    operated.replace_binary(None);
    operated.write_config("site {");
    let output = operated.order(&["upgrade"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("configuration has errors"), "{said}");
    ask(&mut stream);
    operated.write_config(SITE);
    let output = operated.order(&["set", "limit", "idle-timeout", "30s"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ask(&mut stream);
    assert_eq!(operated.running(), [operated.server.id()]);
}

#[test]
fn one_that_hangs_is_killed_in_time() {
    let directory = tempfile::tempdir().unwrap();
    let pids = directory.path().join("pids");
    let operated = Operated::start_in(directory, SITE);
    operated.write_config(SITE);
    let config = operated.file("tailcoat.kdl").replace("upgrade-timeout \"60s\"", "upgrade-timeout \"500ms\"");
    std::fs::write(operated.path().join("tailcoat.kdl"), config).unwrap();
    assert!(operated.order(&["reload"]).status.success());
    operated.replace_binary(Some(&format!("#!/bin/sh\necho $$ > {}\nexec sleep 1000\n", pids.display())));
    // On a busy machine, the script may be killed before it has written its id.
    let process = eventually_some("it writes its id", || {
        let output = operated.order(&["upgrade"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("was not ready within 0.5 s"), "{said}");
        operated.file("pids").trim().parse().ok()
    });
    eventually("it is killed", || !Operated::is_running(process));
    ask(&mut operated.server.connect());
}

#[test]
fn sessions_of_tls_outlive_it() {
    let authority = TestCa::new();
    let directory = tempfile::tempdir().unwrap();
    authority.sign(&["a.example"]).write(directory.path(), "a");
    let mut operated = Operated::start_in(
        directory,
        "site \"a.example\" {\n listen \"127.0.0.1:0\" tls=on\n certificate \"@DIR@/a.pem\" key=\"@DIR@/a.key\"\n \
         respond \"/\" 200 \"hello\"\n}\n",
    );
    let client = Arc::new(authority.client(None));
    let mut first = connect(&operated.server, &client, "a.example").unwrap();
    first.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").unwrap();
    // The ticket comes before the response.
    let _ = first.read(&mut [0; 4096]).unwrap();
    for _ in 0..2 {
        operated.upgrade();
        let mut again = connect(&operated.server, &client, "a.example").unwrap();
        assert_eq!(again.conn.handshake_kind(), Some(rustls::HandshakeKind::Resumed));
        again.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").unwrap();
        let _ = again.read(&mut [0; 4096]).unwrap();
    }
    operated.signal("TERM");
}

/// Messages to systemd, in the order of sd_notify(3).
#[test]
fn systemd_is_reported_of_all_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notify.sock");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let next = || {
        let mut message = [0; 4096];
        let length = socket.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..length]).into_owned()
    };
    let mut operated = Operated::start_with(directory, SITE, |command| _ = command.env("NOTIFY_SOCKET", &path));
    assert_eq!(next().trim(), "READY=1");
    operated.reload(SITE);
    let reloading = next();
    assert!(reloading.starts_with("RELOADING=1") && reloading.contains("MONOTONIC_USEC="), "{reloading}");
    assert_eq!(next().trim(), "READY=1");
    operated.write_config("site {");
    assert!(!operated.order(&["reload"]).status.success());
    assert!(next().starts_with("RELOADING=1"));
    assert_eq!(next().trim(), "READY=1", "the configuration in use is ready again");
    operated.write_config(SITE);
    let new = operated.upgrade();
    assert_eq!(next().trim(), format!("MAINPID={new}"));
    assert_eq!(next().trim(), "READY=1");
    operated.signal("TERM");
    assert_eq!(next().trim(), "STOPPING=1");
}

/// Issue 17, defect 12: an old process that still has open requests keeps no address from the new one.
#[test]
fn an_address_that_was_removed_can_be_listened_on_again() {
    let hanging = ScriptedUpstream::start(vec![vec![ScriptStep::Read("\r\n\r\n"), ScriptStep::Read("never")]]);
    let port = free_port();
    let without = SITE.replace(
        "respond",
        &format!(
            "forward \"http://{}\" path=\"/hang\" {{\n first-byte-timeout \"10m\"\n }}\n respond",
            hanging.address
        ),
    );
    let with = format!(
        "{without}site {{\n listen \"127.0.0.1:{port}\" \"unix:@DIR@/other.sock\"\n respond \"/\" 200 \"hello\"\n}}\n"
    );
    let mut operated = Operated::start(&with);
    let is_there = |operated: &Operated| {
        let mut tcp = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        ask(&mut tcp);
        ask(&mut UnixStream::connect(operated.path().join("other.sock")).unwrap());
    };
    is_there(&operated);
    let mut slow = operated.server.connect();
    slow.write_all(b"GET /hang HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let first = operated.server.id();
    // Removed, upgraded, added.
    operated.reload(&without);
    operated.upgrade();
    operated.reload(&with);
    is_there(&operated);
    // Removed by an upgrade, added.
    operated.write_config(&without);
    operated.upgrade();
    operated.reload(&with);
    is_there(&operated);
    // Removed, added by an upgrade.
    operated.reload(&without);
    operated.write_config(&with);
    operated.upgrade();
    is_there(&operated);
    // Upgraded, removed, and added once the serving process has closed it.
    operated.reload(&without);
    eventually("it is closed", || {
        let connected =
            std::net::TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), Duration::from_millis(500));
        connected.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    });
    operated.reload(&with);
    is_there(&operated);
    assert!(Operated::is_running(first), "the first process still has a request under way");
    drop(slow);
    operated.signal("TERM");
}

/// Sockets that systemd has opened, and keeps: they are handed over even while no site uses them.
#[test]
fn inherited_sockets_are_handed_on() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (with, without) = (SITE.replace(" \"unix", " \"systemd:web\" \"unix"), SITE);
    // The shell moves the socket from its standard input to the place where systemd would put it.
    let inherit = |command: &mut std::process::Command| {
        let arguments: Vec<_> = command.get_args().map(|argument| argument.to_owned()).collect();
        let script = format!(
            "exec 3<&0 </dev/null; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=web; {}",
            arguments[1].to_str().unwrap()
        );
        *command = std::process::Command::new("bash");
        command.arg("-c").arg(script).args(&arguments[2..]);
    };
    let input = std::process::Stdio::from(std::os::fd::OwnedFd::from(listener));
    let mut operated = Operated::start_with_input(tempfile::tempdir().unwrap(), &with, inherit, input);
    let connect = || {
        let stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let mut kept = connect();
    ask(&mut kept);
    operated.upgrade();
    assert!(ask(&mut kept).contains("Connection: close"));
    eventually("the first process ends", || operated.running().len() == 1);
    ask(&mut connect());
    operated.reload(without);
    operated.upgrade();
    eventually("the second process ends", || operated.running().len() == 1);
    // Clients that connect while no site uses the socket wait.
    let mut waiting = connect();
    operated.reload(&with);
    ask(&mut waiting);
    ask(&mut connect());
    operated.signal("TERM");
    eventually("the last process ends", || operated.running().is_empty());
    // The process that copies the log has inherited the socket as well, and ends with the last writer.
    eventually("the socket is closed", || std::net::TcpStream::connect(address).is_err());
}

/// A server killed at any time leaves nothing that prevents the next start.
#[test]
fn a_killed_server_starts_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    let mut operated = Operated::start_in(directory, SITE);
    operated.upgrade();
    operated.signal("KILL");
    eventually("both are gone", || operated.running().is_empty());
    let again = crate::support::TestServer::run_from(&path.join("tailcoat.kdl"));
    ask(&mut again.connect());
    assert!(operated.order(&["reload"]).status.success(), "its control socket is there again");
}

/// As process 1 of a container it stays, because its end would kill the others, and forwards signals.
#[test]
fn the_first_process_of_a_container_stays() {
    let directory = tempfile::tempdir().unwrap();
    let may = std::process::Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "true"]).status();
    if !may.is_ok_and(|status| status.success()) {
        skip("no process namespace can be made here; run the tests as root");
        return;
    }
    let operated = Operated::start_with(directory, SITE, |command| {
        let inner: Vec<_> = command.get_args().skip(2).map(|argument| argument.to_owned()).collect();
        let copying = command.get_args().nth(1).unwrap().to_owned();
        *command = std::process::Command::new("bash");
        command.arg("-c").arg(copying);
        command.arg("bash").args(["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]).args(&inner[1..]);
    });
    // The message has the process id inside the container, which differs out here.
    let output = operated.order(&["upgrade"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    ask(&mut operated.server.connect());
    eventually("the old workers have ended", || operated.file("errors.log").contains("serves now"));
    stays("it serves after the old workers have ended", Duration::from_millis(500), || {
        ask(&mut operated.server.connect()).ends_with("hello")
    });
    assert!(operated.order(&["upgrade"]).status.success());
    ask(&mut operated.server.connect());
    assert!(operated.order(&["reload"]).status.success());
    let first = std::process::Command::new("pgrep")
        .args(["-P", &operated.server.id().to_string(), "tailcoat"])
        .output()
        .unwrap();
    let first = String::from_utf8_lossy(&first.stdout).trim().to_owned();
    assert!(std::process::Command::new("kill").args(["-TERM", &first]).status().unwrap().success());
    eventually("all have ended", || operated.running().is_empty());
}
