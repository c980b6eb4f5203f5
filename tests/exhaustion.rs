//! Exhausted system resources: file descriptors, processes, disk space. The server keeps running, logs it once, and
//! recovers by itself. (`tests/limits.rs` covers connections meanwhile, `log/tests.rs` a full disk under access logs.)

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use crate::support::operated::Operated;
use crate::support::scarce::{LittleMemory, SmallDisk};
use crate::support::skips::skip;
use crate::support::upstream::{ScriptStep, ScriptedUpstream};
use crate::support::waiting::{eventually, settled};
use crate::support::{PATIENCE, TestServer, ask, read_until, tailcoat, write_program};

fn get(server: &TestServer, path: &str) -> String {
    ask(server, &format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"))
}

/// Site with pages, a program and a directory for logs, readable by all users.
fn site() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for number in 0..20 {
        fs::write(directory.path().join(format!("{number}.html")), format!("page {number}")).unwrap();
    }
    let program = directory.path().join("program.cgi");
    write_program(&program, "#!/bin/sh\necho Content-Type: text/plain\necho\necho ran\n");
    directory
}

fn count(text: &str, part: &str) -> usize {
    text.lines().filter(|line| line.contains(part)).count()
}

#[test]
fn no_descriptors_are_reported_of_once() {
    let site = "site {\n listen \"127.0.0.1:0\"\n respond \"/\" 200 \"hello\"\n}\n";
    let operated = Operated::start(site);
    assert!(get(&operated.server, "/").starts_with("HTTP/1.1 200 "));
    // The server limits its connections by the file descriptors that it may have at its start, so it loses them later.
    let free = settled("all workers have started", || free_descriptor(&operated.server));
    limit_descriptors(&operated.server, free + 20);
    let reported = || count(&operated.file("errors.log"), "accepting a connection failed");
    for _ in 0..3 {
        // Connections without a byte would wait in the kernel (TCP_DEFER_ACCEPT).
        let idle: Vec<TcpStream> = (0..100)
            .map(|_| {
                let mut stream = operated.server.connect();
                stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
                stream
            })
            .collect();
        assert!(get(&operated.server, "/").starts_with("HTTP/1.1 200 "), "idle connections make room");
        eventually("it is logged", || reported() > 0);
        drop(idle);
    }
    limit_descriptors(&operated.server, 1024);
    assert!(get(&operated.server, "/").starts_with("HTTP/1.1 200 "), "it has them again");
    assert_eq!(reported(), 1);
}

/// Number of the next file descriptor that a server opens: the lowest that is free.
fn free_descriptor(server: &TestServer) -> u32 {
    let open = fs::read_dir(format!("/proc/{}/fd", server.id())).unwrap();
    let open: Vec<u32> = open.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    (0..).find(|number| !open.contains(number)).unwrap()
}

/// Lets a running server open only file descriptors with numbers below this.
fn limit_descriptors(server: &TestServer, descriptors: u32) {
    let mut command = Command::new("prlimit");
    command.args(["--pid", &server.id().to_string(), &format!("--nofile={descriptors}:")]);
    assert!(command.status().unwrap().success());
}

/// A write beyond RLIMIT_FSIZE raises SIGXFSZ, which kills a process that does not handle it.
#[test]
fn a_log_at_the_limit_of_file_size_ends_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let site = format!(
        "site {{\n listen \"127.0.0.1:0\"\n respond \"/\" 200 \"hello\"\n access-log {:?}\n}}\n",
        log.to_str().unwrap()
    );
    let operated = Operated::start_with(directory, &site, |command| {
        let program = command.get_program().to_owned();
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        *command = Command::new("sh");
        command.args(["-c", "ulimit -f 16; exec \"$@\"", "sh"]).arg(program).args(arguments);
    });
    // About 100 bytes per line; the limit is 8 or 16 KiB, depending on the shell.
    for _ in 0..400 {
        assert!(get(&operated.server, "/").starts_with("HTTP/1.1 200 "));
    }
    eventually("the log has reached the limit", || fs::metadata(&log).unwrap().len() >= 8 << 10);
    assert!(get(&operated.server, "/").starts_with("HTTP/1.1 200 "), "the server goes on");
    assert!(fs::metadata(&log).unwrap().len() <= 16 << 10);
}

/// Files and upstreams that cannot be opened get an error response. It is not held against the upstream, and ends with
/// the shortage.
#[test]
fn no_descriptors_for_files_and_servers() {
    let upstream = ScriptedUpstream::start(
        (0..40)
            .map(|_| {
                vec![
                    ScriptStep::Read("\r\n\r\n"),
                    ScriptStep::Write("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nthere"),
                ]
            })
            .collect(),
    );
    let directory = site();
    let config = format!(
        "upstream \"app\" {{\n server \"http://{}\"\n fail-max 1\n idle-max 0\n last-resort off\n}}\n\
         site {{\n listen \"127.0.0.1:0\"\n root \"@DIR@\"\n forward \"app\" path=\"/app\"\n}}\n",
        upstream.address
    );
    let operated = Operated::start_in(directory, &config);
    let server = &operated.server;
    assert!(get(server, "/app").ends_with("there"));
    let mut kept = server.connect();
    let mut ask_on = |path: &str| {
        kept.write_all(format!("HEAD {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).unwrap();
        let head = read_until(&mut kept, "\r\n\r\n");
        head[9..12].to_owned()
    };
    assert_eq!(ask_on("/missing"), "404");
    settled("all workers have started", || free_descriptor(server));
    // Not the next free number, because one that is closed later would be below the limit.
    limit_descriptors(server, 3);
    for number in 0..3 {
        assert_eq!(ask_on(&format!("/{number}.html")), "503");
        assert_eq!(ask_on("/app"), "503");
    }
    limit_descriptors(server, 1024);
    assert!(get(server, "/1.html").ends_with("page 1"), "it can again");
    assert!(get(server, "/app").ends_with("there"), "nothing was held against the server");
}

/// User id for this test only, because the kernel counts processes by user.
const USER: u32 = 54_321;

/// Limit of processes of that user.
const PROCESSES: u32 = 60;

/// Other processes of the same user that use up the limit, until this is dropped.
struct Others(Child);

impl Others {
    fn start() -> Self {
        let script = format!("for i in $(seq {}); do sleep 60 & done; echo ready; wait", PROCESSES + 20);
        let mut command = Command::new("setpriv");
        let user = USER.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "sh", "-c", &script]);
        let mut child = command.process_group(0).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0; 5]).unwrap();
        Self(child)
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_raw(self.0.id() as i32).unwrap();
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}

#[test]
fn no_processes_are_left() {
    if !rustix::process::geteuid().is_root() {
        skip("only root can start a server of another user");
        return;
    }
    let directory = site();
    let config = directory.path().join("tailcoat.kdl");
    fs::write(
        &config,
        format!(
            "server {{ workers 1; user \"{USER}\" }}\nsite {{ listen \"127.0.0.1:0\"; root \"{0}\"; cgi \"*.cgi\" root=\"{0}\" }}\n",
            directory.path().display()
        ),
    )
    .unwrap();
    let mut command = Command::new("bash");
    command.args(["-c", &format!("ulimit -u {PROCESSES}; exec \"$@\"",), "bash"]).arg(tailcoat().get_program());
    command.arg("run").arg("-c").arg(&config);
    let server = TestServer::start(command);
    assert!(get(&server, "/program.cgi").contains("ran"));
    let others = Others::start();
    for number in 0..20 {
        assert!(get(&server, "/program.cgi").starts_with("HTTP/1.1 503 "));
        assert!(get(&server, &format!("/{number}.html")).ends_with(&format!("page {number}")), "files need none");
    }
    drop(others);
    let start = Instant::now();
    while !get(&server, "/program.cgi").contains("ran") {
        assert!(start.elapsed() < PATIENCE, "it can again");
    }
}

/// The container has less memory than the files need, with compression in three ways; the cache adapts to it.
#[test]
fn less_memory_than_files() {
    const MEMORY_BYTES: u64 = 128 << 20;
    const FILES: usize = 1_500;
    const FILE_BYTES: usize = 100 << 10;
    let Some(group) = LittleMemory::new(MEMORY_BYTES) else {
        skip("no control group can be made here; run the tests as root");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mut words = fastrand::Rng::with_seed(1);
    let mut text = String::new();
    while text.len() < FILE_BYTES + FILES * 20 {
        text.push_str(["some ", "text ", "of ", "a ", "page ", "\n"][words.usize(..6)]);
        text.push(words.alphanumeric());
    }
    for number in 0..FILES {
        let content = format!("page {number} {}", &text[number * 20..][..FILE_BYTES]);
        fs::write(directory.path().join(format!("{number}.html")), content).unwrap();
    }
    let config = "site {\n listen \"127.0.0.1:0\"\n root \"@DIR@\"\n}\n";
    let operated = Operated::start_with(directory, config, |command| group.run_inside(command));
    std::thread::scope(|scope| {
        for (client, coding) in ["br", "gzip", "zstd", "identity", "br", "gzip", "zstd", "identity"].iter().enumerate()
        {
            let server = &operated.server;
            scope.spawn(move || {
                for number in (0..FILES).skip(client % 3).step_by(3) {
                    let answer = ask(
                        server,
                        &format!(
                            "GET /{number}.html HTTP/1.1\r\nHost: h\r\nAccept-Encoding: {coding}\r\nConnection: close\r\n\r\n"
                        ),
                    );
                    assert!(answer.starts_with("HTTP/1.1 200 "), "{number}, {coding}: {answer:.200}");
                }
            });
        }
    });
    assert_eq!(operated.running(), [operated.server.id()]);
    assert!(group.kills().is_none_or(|kills| kills == 0));
    let memory = operated.server.memory_kib();
    assert!(memory < MEMORY_BYTES >> 10, "{memory} KiB");
    assert!(get(&operated.server, "/1.html").contains("page 1 "));
}

#[test]
fn no_room_for_logs_and_state() {
    let Some(disk) = SmallDisk::new(256) else {
        skip("no file system can be mounted here; run the tests as root");
        return;
    };
    let directory = site();
    let config = format!(
        "access-log \"{}/access.log\"\nsite {{\n listen \"127.0.0.1:0\"\n root \"{}\"\n}}\n",
        disk.path().display(),
        directory.path().display()
    );
    let operated = Operated::start(&config);
    assert!(get(&operated.server, "/1.html").ends_with("page 1"));
    let filler = disk.path().join("filler");
    let _ = fs::write(&filler, vec![0; 1 << 20]);
    for _ in 0..50 {
        let path = format!("/{}", "x".repeat(3_000));
        assert!(get(&operated.server, &path).starts_with("HTTP/1.1 404 "), "it serves all the same");
    }
    // A state file is whole or missing.
    let state = tailcoat()
        .args(["serve", "--tls", "--listen", "127.0.0.1:0"])
        .arg(directory.path())
        .env("STATE_DIRECTORY", disk.path())
        .output()
        .unwrap();
    assert!(!state.status.success());
    for entry in fs::read_dir(disk.path()).unwrap().map(|entry| entry.unwrap()) {
        assert!(!entry.file_name().to_string_lossy().ends_with(".new"), "{:?}", entry.file_name());
    }
    fs::remove_file(&filler).unwrap();
    let start = Instant::now();
    while !operated_log(&disk).contains("GET /2.html") {
        get(&operated.server, "/2.html");
        assert!(start.elapsed() < PATIENCE, "it logs again");
    }
    let log = operated_log(&disk);
    // The last line may be incomplete.
    let (whole, _) = log.rsplit_once('\n').unwrap();
    for line in whole.lines() {
        assert!(line.starts_with("127.0.0.1 ") && line.contains("\" "), "{line}");
    }
    assert!(count(&operated.file("errors.log"), "No space left") <= 2, "{}", operated.file("errors.log"));
}

fn operated_log(disk: &SmallDisk) -> String {
    fs::read_to_string(disk.path().join("access.log")).unwrap_or_default()
}
