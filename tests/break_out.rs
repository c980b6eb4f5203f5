//! A confined process tries the actions that the server must not be able to do. Each case is a process of its own with
//! one thread, because dropped permissions never come back.

#[path = "support/elsewhere.rs"]
mod elsewhere;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, ExitCode};

use nix::sched::CloneFlags;
use rustix::net::{AddressFamily, SocketType};
use tailcoat::config::{Config, check_file_to_run};
use tailcoat::confinement::{Confined, change_user, confine};
use tailcoat::spawner::{SpawnOrder, Spawner};

type EscapeCase = (&'static str, fn(&Path));

const CASES: [EscapeCase; 9] = [
    ("files", files),
    ("ftp_reading", ftp_reading),
    ("ftp_writing", ftp_writing),
    ("ftp_active", ftp_active),
    ("forwarding", forwarding),
    ("programs", programs),
    ("unconfined", unconfined),
    ("reloads", reloads),
    ("threads", threads),
];

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next().and_then(|argument| argument.into_string().ok());
    match first.as_deref() {
        Some("--case") => {
            let (name, directory) = (arguments.next().unwrap(), arguments.next().unwrap());
            let (_, case) = CASES.iter().find(|(known, _)| *known == name).unwrap();
            case(Path::new(&directory));
            ExitCode::SUCCESS
        }
        // Test runners list the cases with this option.
        Some("--list") => {
            CASES.iter().for_each(|(name, _)| println!("{name}: test"));
            ExitCode::SUCCESS
        }
        _ => run_all(first.filter(|first| !first.starts_with('-')).as_deref()),
    }
}

fn run_all(filter: Option<&str>) -> ExitCode {
    let chosen = CASES.iter().filter(|(name, _)| filter.is_none_or(|filter| name.contains(filter)));
    let failed = chosen.filter(|(name, _)| !succeeds(name)).count();
    ExitCode::from(u8::from(failed > 0))
}

/// Runs a case in a new process, in a directory with a site in it.
fn succeeds(name: &str) -> bool {
    let directory = elsewhere::elsewhere();
    for inner in ["site", "etc", "secret", "other"] {
        fs::create_dir(directory.path().join(inner)).unwrap();
    }
    fs::write(directory.path().join("site/page"), "page").unwrap();
    fs::write(directory.path().join("secret/key"), "key").unwrap();
    symlink(directory.path().join("secret/key"), directory.path().join("site/link")).unwrap();
    let program = std::env::current_exe().unwrap();
    let arguments = [OsString::from("--case"), name.into(), directory.path().into()];
    let has_succeeded = Command::new(program).args(arguments).status().unwrap().success();
    println!("test {name} ... {}", if has_succeeded { "ok" } else { "FAILED" });
    has_succeeded
}

/// Reads this configuration, in which `@DIR@` stands for the directory.
fn read(directory: &Path, text: &str) -> Config {
    let file = directory.join("etc/tailcoat.kdl");
    fs::write(&file, text.replace("@DIR@", directory.to_str().unwrap())).unwrap();
    let checked = check_file_to_run(&file).unwrap();
    checked.config.unwrap_or_else(|| panic!("{}", checked.diagnostics.to_text(false)))
}

/// Confines this process to the needs of this configuration.
fn confine_to(directory: &Path, text: &str) -> Confined {
    let mut config = read(directory, text);
    // The test keeps its user.
    config.server.user = None;
    change_user(&config, false).unwrap();
    let confined = confine(&config, &[directory.join("etc/tailcoat.kdl")]).unwrap();
    assert_eq!(confined.shortcomings(), None, "this kernel lacks the tested features");
    confined
}

#[track_caller]
fn check<T>(what: &str, result: io::Result<T>, expect: Result<(), io::ErrorKind>) {
    assert_eq!(result.map(drop).map_err(|error| error.kind()), expect, "{what}");
}

const REFUSED: Result<(), io::ErrorKind> = Err(io::ErrorKind::PermissionDenied);

const SITE: &str = "site { listen \"127.0.0.1:1\"; root \"@DIR@/site\" }\n";

/// Actions denied to a server of static files.
fn files(directory: &Path) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = UnixListener::bind(directory.join("other/socket")).unwrap();
    confine_to(directory, SITE);
    let at = |name: &str| directory.join(name);
    check("a page", fs::read(at("site/page")), Ok(()));
    check("the site's names", fs::read_dir(at("site")), Ok(()));
    check("its own configuration", fs::read(at("etc/tailcoat.kdl")), Ok(()));
    check("itself", fs::read("/proc/self/stat"), Ok(()));
    check("what is beside the site", fs::read(at("secret/key")), REFUSED);
    check("by a link", fs::read(at("site/link")), REFUSED);
    check("by dots", fs::read(at("site/../secret/key")), REFUSED);
    check("names beside the site", fs::read_dir(at("secret")), REFUSED);
    for path in ["/etc/hostname", "/etc/shadow", "/etc/ssl", "/root", "/proc/1/environ", "/dev/mem"] {
        let path = Path::new(path);
        if path.exists() {
            let opened = if path.is_dir() { fs::read_dir(path).map(drop) } else { File::open(path).map(drop) };
            check(&path.display().to_string(), opened, REFUSED);
        }
    }
    check("changing a page", OpenOptions::new().write(true).open(at("site/page")), REFUSED);
    check("a new page", File::create(at("site/new")), REFUSED);
    check("a page less", fs::remove_file(at("site/page")), REFUSED);
    check("another name for a page", fs::rename(at("site/page"), at("site/other")), REFUSED);
    check("a link to elsewhere", symlink("/etc", at("site/etc")), REFUSED);
    check("a file elsewhere", File::create(std::env::temp_dir().join("tailcoat-broken-out")), REFUSED);
    check("a shell", Command::new("/bin/sh").arg("-c").arg("true").status(), REFUSED);
    check("itself once more", Command::new(std::env::current_exe().unwrap()).arg("--list").status(), REFUSED);
    check("a connection to another server", TcpStream::connect(listener.local_addr().unwrap()), REFUSED);
    check("a local socket, whose permissions hold", UnixStream::connect(at("other/socket")), Ok(()));
    check("a listener, as a reload may bring", TcpListener::bind("127.0.0.1:0"), Ok(()));
    drop(socket);
    system_calls();
}

/// System calls that no part of the server needs.
fn system_calls() {
    let raw = rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, None);
    check("all that passes on the network", raw.map_err(io::Error::from), REFUSED);
    check("another root directory", rustix::process::chroot("/").map_err(io::Error::from), REFUSED);
    check("another user", nix::unistd::setuid(nix::unistd::getuid()).map_err(io::Error::from), REFUSED);
    check("a namespace of its own", nix::sched::unshare(CloneFlags::CLONE_NEWUSER).map_err(io::Error::from), REFUSED);
    check("another host name", rustix::system::sethostname(b"x").map_err(io::Error::from), REFUSED);
}

/// FTP that is read-only.
fn ftp_reading(directory: &Path) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    confine_to(directory, "site { ftp \"127.0.0.1:1\" { root \"@DIR@/site\" } }\n");
    check("a file", fs::read(directory.join("site/page")), Ok(()));
    check("what is beside the root", fs::read(directory.join("secret/key")), REFUSED);
    check("by a link", fs::read(directory.join("site/link")), REFUSED);
    check("a new file", File::create(directory.join("site/new")), REFUSED);
    check("a connection: active mode is off", TcpStream::connect(listener.local_addr().unwrap()), REFUSED);
    check("a port for data", TcpListener::bind("127.0.0.1:0"), Ok(()));
    system_calls();
}

/// FTP with uploads.
fn ftp_writing(directory: &Path) {
    confine_to(directory, "site { ftp \"127.0.0.1:1\" { root \"@DIR@/site\"; write \"all\" } }\n");
    check("a new file", File::create(directory.join("site/new")), Ok(()));
    check("another name", fs::rename(directory.join("site/new"), directory.join("site/page")), Ok(()));
    check("a new directory", fs::create_dir(directory.join("site/sub")), Ok(()));
    check("a file beside the root", File::create(directory.join("other/new")), REFUSED);
    check("a way out", fs::rename(directory.join("site/page"), directory.join("other/page")).map_err(denied), REFUSED);
    check("a key", fs::read(directory.join("secret/key")), REFUSED);
    check("a shell", Command::new("/bin/sh").arg("-c").arg("true").status(), REFUSED);
    system_calls();
}

/// Landlock reports a move between directories with different rights as one between file systems.
fn denied(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::CrossesDevices => io::ErrorKind::PermissionDenied.into(),
        _ => error,
    }
}

/// FTP with active mode.
fn ftp_active(directory: &Path) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    confine_to(directory, "site { ftp \"127.0.0.1:1\" { root \"@DIR@/site\"; active-mode on } }\n");
    check("a connection to a client", TcpStream::connect(listener.local_addr().unwrap()), Ok(()));
    check("a new file", File::create(directory.join("site/new")), REFUSED);
}

/// A reverse proxy can connect and look up names, and no more.
fn forwarding(directory: &Path) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    confine_to(directory, "site { listen \"127.0.0.1:1\"; forward \"http://localhost:1\" }\n");
    check("a connection", TcpStream::connect(listener.local_addr().unwrap()), Ok(()));
    check("how names are looked up", fs::read("/etc/passwd"), Ok(()));
    check("a name", std::net::ToSocketAddrs::to_socket_addrs("localhost:1"), Ok(()));
    check("a key", fs::read(directory.join("secret/key")), REFUSED);
    check("a shell", Command::new("/bin/sh").arg("-c").arg("true").status(), REFUSED);
}

/// Programs run only from granted directories, and reach no files of the server or of other users.
fn programs(directory: &Path) {
    let confined = confine_to(
        directory,
        "server { control-socket \"@DIR@/secret/socket\" }\n\
         site { listen \"127.0.0.1:1\"; root \"@DIR@/secret\"; cgi \"/a/*\" root=\"@DIR@/site\" }\n",
    );
    let spawner = confined.spawner().expect("the configuration has programs");
    let run = |script: &str| run(spawner, script, directory);
    assert_eq!(run("cat site/page"), "page");
    assert_eq!(run("cat secret/key 2>&1 || echo no"), "cat: secret/key: Permission denied\nno\n");
    assert_eq!(run("echo x 2>/dev/null > site/new || echo no"), "no\n");
    assert_eq!(
        run("cp /bin/true $TMPDIR/true-$$ && $TMPDIR/true-$$ 2>/dev/null || echo no; rm $TMPDIR/true-$$"),
        "no\n"
    );
    assert_eq!(run("cat /proc/$PPID/environ 2>/dev/null >/dev/null || echo no"), "no\n");
    assert_eq!(run("unshare --user true 2>/dev/null || echo no"), "no\n");
    assert_eq!(run("grep CapEff /proc/self/status | tr -d '[:space:]'"), "CapEff:0000000000000000");
    reaches_no_server(&run);
    // This holds for the spawner's threads only.
    check("a page, which is the server's here", fs::read(directory.join("secret/key")), Ok(()));
    check("what is the programs'", File::create(std::env::temp_dir().join("tailcoat-broken-out")), REFUSED);
    check("a shell", Command::new("/bin/sh").arg("-c").arg("true").status(), REFUSED);
}

/// Programs run as the server's user, and yet reach none of its threads: neither memory, nor signals, nor limits.
fn reaches_no_server(run: &impl Fn(&str) -> String) {
    let each_thread = |command: &str| run(&format!("for thread in $(ls /proc/$PPID/task); do {command}; done; true"));
    assert!(each_thread("echo $thread").lines().count() > 1, "the spawner's threads are seen");
    assert_eq!(each_thread("cat /proc/$thread/environ 2>/dev/null | head -c 1"), "");
    assert_eq!(each_thread("head -c 1 /proc/$PPID/task/$thread/mem 2>&1 | grep -v 'Permission denied'"), "");
    assert_eq!(each_thread("kill -0 $thread 2>/dev/null && echo $thread"), "");
    assert_eq!(each_thread("prlimit --pid $thread --nofile=8 2>/dev/null && echo $thread"), "");
    assert_eq!(run("kill -0 -- -1 2>/dev/null || echo no other"), "no other\n");
    assert_eq!(run("sleep 60 & kill $! && wait $!; echo $?"), "143\n", "programs may signal their own children");
    assert_eq!(run("ulimit -n 64 && ulimit -n"), "64\n");
    // Programs could share a port that the server opens with SO_REUSEPORT; a port that the kernel chooses, they cannot.
    let listener = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    listener.set_reuse_port(true).unwrap();
    listener.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let taken = listener.local_addr().unwrap().as_socket().unwrap().port();
    let bind = |port: u16| {
        run(&format!(
            "perl -MSocket -e 'socket(my $s, PF_INET, SOCK_STREAM, 0); setsockopt($s, SOL_SOCKET, SO_REUSEPORT, 1); \
             print bind($s, sockaddr_in({port}, INADDR_LOOPBACK)) ? \"bound\" : \"$!\"'"
        ))
    };
    assert_eq!(bind(taken), "Permission denied");
    assert_eq!(bind(0), "bound");
}

fn run(spawner: &Spawner, script: &str, directory: &Path) -> String {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).current_dir(directory).env("TMPDIR", std::env::temp_dir());
    command.stdout(std::process::Stdio::piped());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let started = runtime.block_on(spawner.start(SpawnOrder::new(command, None))).unwrap();
    let output = started.into_child().unwrap().wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Confinement can be disabled.
fn unconfined(directory: &Path) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    confine_to(directory, &format!("confinement {{ files off; connections off; system-calls allow }}\n{SITE}"));
    check("a key", fs::read(directory.join("secret/key")), Ok(()));
    check("a shell", Command::new("/bin/sh").arg("-c").arg("true").status(), Ok(()));
    check("a connection", TcpStream::connect(listener.local_addr().unwrap()), Ok(()));
}

/// Missing permissions of another configuration are found before its use.
fn reloads(directory: &Path) {
    // Read first, because the files are out of reach afterwards.
    let configs = [
        ("", vec![]),
        ("limits { header-fields-max 5 }", vec![]),
        ("site \"a\" { listen \"127.0.0.1:1\"; root \"@DIR@/site\" }", vec![]),
        ("site \"a\" { listen \"127.0.0.1:1\"; root \"@DIR@/other\" }", vec!["reading @DIR@/other"]),
        ("access-log \"@DIR@/other/log\"", vec!["writing to @DIR@/other"]),
        ("site \"a\" { listen \"127.0.0.1:1\"; forward \"http://127.0.0.1:1\" }", vec!["outgoing connections"]),
        ("site \"a\" { listen \"127.0.0.1:1\"; forward \"unix:/nowhere\" }", vec![]),
        (
            "server { buffer-directory \"@DIR@/other\" }\nsite \"a\" { listen \"127.0.0.1:1\"; cgi \"*\" root=\"@DIR@/site\" }",
            vec!["buffering in @DIR@/other", "programs"],
        ),
    ];
    let configs = configs.map(|(text, expect)| (text, read(directory, &format!("{SITE}{text}\n")), expect));
    let confined = confine_to(directory, SITE);
    for (text, config, expect) in configs {
        let expect: Vec<_> = expect.iter().map(|lack| lack.replace("@DIR@", directory.to_str().unwrap())).collect();
        assert_eq!(confined.lacks(&config, &[]), expect, "{text}");
    }
}

/// Fails while another thread exists, which would stay unconfined; later threads inherit the confinement.
fn threads(directory: &Path) {
    let config = read(directory, SITE);
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || receiver.recv());
    assert!(confine(&config, &[]).unwrap_err().to_string().contains("other threads"));
    drop(sender);
    let _ = other.join();
    // The kernel may take a moment to remove the thread.
    while fs::read_dir("/proc/self/task").unwrap().count() > 1 {
        std::thread::yield_now();
    }
    confine_to(directory, SITE);
    let key = directory.join("secret/key");
    let tried = std::thread::spawn(move || (fs::read(key), Command::new("/bin/true").status()));
    let (key, shell) = tried.join().unwrap();
    check("a key", key, REFUSED);
    check("a program", shell, REFUSED);
}
