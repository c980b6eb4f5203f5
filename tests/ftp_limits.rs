//! FTP: maximum rates, memory, bans, and what operators see.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::TestServer;
use crate::support::ftp::{FtpClient, code};
use crate::support::operated::Operated;
use crate::support::skips::skip;
use crate::support::waiting::eventually;

fn tree() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("small.txt"), "content").unwrap();
    fs::write(directory.path().join("one.bin"), vec![7; 1 << 20]).unwrap();
    fs::write(directory.path().join("large.bin"), vec![7; 24 << 20]).unwrap();
    directory
}

fn configuration(directory: &TempDir, options: &str, of_site: &str) -> String {
    let root = directory.path().display();
    format!("site {{\n {of_site}\n ftp \"127.0.0.1:0\" {{\n root \"{root}\"\n {options}\n}}\n}}\n")
}

/// Uploads content; returns the last reply.
fn upload(client: &mut FtpClient, command: &str, content: &[u8]) -> String {
    let mut data = client.data();
    assert_eq!(code(&client.command(command)), 150);
    data.write_all(content).unwrap();
    drop(data);
    client.reply()
}

/// Transfers keep to their maximum rate, small ones in a row, too. Faster than the clock allows would be wrong; slower
/// may be the machine.
#[test]
fn rates_of_sessions() {
    let directory = tree();
    let server = TestServer::run(&configuration(&directory, "write \"all\"\n session-rate-max \"1MiB\"", ""));
    let mut client = FtpClient::log_in(&server);
    let start = Instant::now();
    assert!(client.transfer("RETR one.bin").0 == vec![7; 1 << 20]);
    assert!(start.elapsed() > Duration::from_millis(800), "{:?}", start.elapsed());
    let start = Instant::now();
    assert_eq!(code(&upload(&mut client, "STOR up.bin", &vec![7; 1 << 20])), 226);
    assert_eq!(client.text("RETR small.txt"), "content");
    assert!(start.elapsed() > Duration::from_millis(800), "{:?}", start.elapsed());
    assert_eq!(fs::read(directory.path().join("up.bin")).unwrap().len(), 1 << 20);
    // As text, in pieces.
    assert_eq!(client.codes(&["TYPE A"]), [200]);
    assert_eq!(client.transfer("RETR one.bin").0.len(), 1 << 20);
    // A paused transfer can be aborted.
    let _data = client.data();
    assert_eq!(code(&client.command("RETR large.bin")), 150);
    client.send(b"ABOR\r\n");
    assert_eq!([code(&client.reply()), code(&client.reply())], [426, 226]);
}

/// All sessions of a site share its rate.
#[test]
fn the_rate_of_a_site() {
    let directory = tree();
    let server = TestServer::run(&configuration(&directory, "site-rate-max \"2MiB\"", ""));
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = FtpClient::log_in(&server);
                assert_eq!(client.transfer("RETR one.bin").0.len(), 1 << 20);
            });
        }
    });
    assert!(start.elapsed() > Duration::from_millis(1_500), "{:?}", start.elapsed());
}

/// `rate-bytes-per-second-min` ends uploads that are too slow; `body-timeout` those that stop.
#[test]
fn slow_uploads_end() {
    let directory = tree();
    let limits = "limits {\n body-timeout \"1s\"\n}\n";
    let server = TestServer::run(&(limits.to_owned() + &configuration(&directory, "write \"all\"", "")));
    let mut client = FtpClient::log_in(&server);
    let mut data = client.data();
    assert_eq!(code(&client.command("STOR stopped.bin")), 150);
    // The time may be over already.
    let _ = data.write_all(b"begin");
    assert_eq!(code(&client.reply()), 426);
    assert!(!directory.path().join("stopped.bin").exists());
    assert_eq!(client.text("RETR small.txt"), "content", "the session continues");
}

#[test]
fn xferlog_has_a_line_for_each_file() {
    let directory = tree();
    let log = directory.path().join(".xferlog");
    let of_site = format!("access-log \"{}\" format=\"xferlog\"", log.display());
    let server = TestServer::run(&configuration(&directory, "write \"all\"", &of_site));
    let mut client = FtpClient::log_in(&server);
    client.text("RETR small.txt");
    client.text("NLST");
    assert_eq!(code(&upload(&mut client, "STOR new file.bin", b"12345")), 226);
    assert_eq!(client.codes(&["TYPE A"]), [200]);
    client.text("RETR small.txt");
    client.transfer("RETR missing.txt");
    drop(client);
    server.end_with_log();
    let text = fs::read_to_string(log).unwrap();
    let seconds_and_rest = text.lines().map(|line| line[25..].split_once(' ').unwrap());
    let (seconds, lines): (Vec<_>, Vec<_>) = seconds_and_rest.unzip();
    assert_eq!(
        lines,
        [
            "127.0.0.1 7 /small.txt b _ o a anonymous ftp 0 * c",
            "127.0.0.1 5 /new_file.bin b _ i a anonymous ftp 0 * c",
            "127.0.0.1 7 /small.txt a _ o a anonymous ftp 0 * c",
            "127.0.0.1 0 /missing.txt a _ o a anonymous ftp 0 * i",
        ],
        "{text}"
    );
    // At least one, and more on a slow machine.
    assert!(seconds.iter().all(|seconds| (1..60).contains(&seconds.parse::<u64>().unwrap())), "{text}");
}

#[test]
fn operators_see_sessions_and_transfers() {
    let directory = tree();
    let operated = Operated::start(&configuration(&directory, "", ""));
    let mut client = FtpClient::connect(&operated.server);
    assert_eq!(client.codes(&["USER root", "PASS x", "USER ftp", "PASS x", "TYPE I"]), [331, 530, 331, 230, 200]);
    let data = client.data();
    assert_eq!(code(&client.command("RETR large.bin")), 150);
    let _idle = FtpClient::log_in(&operated.server);
    eventually("the transfer and the idle session are shown", || {
        let output = operated.order(&["status"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.contains("RETR /large.bin") && text.contains(" of 24.0 MiB") && text.contains(" idle")
    });
    // The log and the counts of a transfer come with its end.
    drop(data);
    assert_eq!(code(&client.reply()), 426);
    client.text("NLST");
    let output = operated.order(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let ftp = &status["ftp"];
    let counts = ["sessions_open", "sessions", "logins", "logins_rejected"].map(|name| ftp[name].as_u64().unwrap());
    assert_eq!(counts, [2, 2, 2, 1], "{ftp}");
    let transfers = serde_json::json!([
        { "direction": "download", "is_complete": false, "count": 1 },
        { "direction": "listing", "is_complete": true, "count": 1 },
    ]);
    assert_eq!(ftp["transfers"], transfers);
    assert!(ftp["sent_bytes"].as_u64() > Some(0) && ftp["live"][0]["user"] == "anonymous", "{ftp}");
}

/// A ban ends sessions with the next command, and closes new connections.
#[test]
fn bans_end_sessions() {
    let directory = tree();
    let operated = Operated::start(&configuration(&directory, "", ""));
    let mut client = FtpClient::log_in(&operated.server);
    let output = operated.order(&["ban", "127.0.0.1"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(code(&client.command("NOOP")), 421);
    let mut rejected = operated.server.connect();
    let mut nothing = Vec::new();
    let _ = rejected.read_to_end(&mut nothing);
    assert!(nothing.is_empty(), "no greeting");
}

/// Many idle sessions: each holds little memory, and none has a process or a thread. `benches/ftp.py sessions` opens
/// 10,000.
#[test]
fn idle_sessions_are_small() {
    const SESSIONS: usize = 300;
    let directory = tree();
    let limits = "limits {\n connections-per-client-max 1000\n}\n";
    let server = TestServer::run(&(limits.to_owned() + &configuration(&directory, "", "")));
    let _first: Vec<FtpClient> = (0..20).map(|_| FtpClient::log_in(&server)).collect();
    let (before_kib, threads) = (server.memory_kib(), server.thread_names().len());
    let mut sessions: Vec<FtpClient> = (0..SESSIONS).map(|_| FtpClient::log_in(&server)).collect();
    let grown_kib = server.memory_kib().saturating_sub(before_kib);
    assert!(grown_kib <= 4 * SESSIONS as u64 + 512, "{grown_kib} KiB for {SESSIONS} sessions");
    assert!(server.thread_names().len() <= threads, "{:?}", server.thread_names());
    assert_eq!(sessions[SESSIONS - 1].text("RETR small.txt"), "content");
}

/// Ten thousand sessions of many clients at once, without a process or thread for any of them. A session that comes later
/// is served like the first.
#[test]
fn ten_thousand_sessions() {
    const SESSIONS: usize = 10_000;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    if maximum < 2 * SESSIONS as u64 {
        return skip("10,000 sessions take more file descriptors than this process may have");
    }
    // Other tests of this process are only given more.
    setrlimit(Resource::Nofile, Rlimit { current: Some(maximum), ..limit }).unwrap();
    let directory = tree();
    let limits = "limits {\n connections-per-network-max 20000\n}\ncache { files-max 100 }\n";
    let server = TestServer::run(&(limits.to_owned() + &configuration(&directory, "", "")));
    let log_in = |number: usize| {
        let mut stream = server.connect_from([127, 1, (number / 50) as u8, 1 + (number % 5) as u8]);
        stream.write_all(b"USER ftp\r\nPASS x\r\n").unwrap();
        stream
    };
    let _first: Vec<_> = (0..100).map(log_in).collect();
    let (before_kib, threads) = (server.memory_kib(), server.thread_names().len());
    let mut sessions: Vec<_> = (100..SESSIONS).map(log_in).collect();
    for stream in &mut sessions {
        let (mut replies, expect) = (Vec::new(), "220 331 230 ");
        while replies.iter().filter(|byte| **byte == b'\n').count() < 3 {
            let mut buffer = [0; 200];
            let count = stream.read(&mut buffer).unwrap();
            assert_ne!(count, 0, "the session is closed");
            replies.extend_from_slice(&buffer[..count]);
        }
        let codes: String = String::from_utf8_lossy(&replies).lines().map(|line| line[..4].to_owned()).collect();
        assert_eq!(codes, expect);
    }
    let grown_kib = server.memory_kib().saturating_sub(before_kib);
    assert!(grown_kib <= 4 * SESSIONS as u64, "{grown_kib} KiB for {SESSIONS} sessions");
    // Threads that wait for disks may have come.
    assert!(server.thread_names().len() < threads + 16, "{:?}", server.thread_names());
    assert_eq!(FtpClient::log_in(&server).text("RETR small.txt"), "content");
    sessions[9_000].write_all(b"NOOP\r\n").unwrap();
    let mut reply = [0; 4];
    sessions[9_000].read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"200 ");
}

/// Memory that FTP sessions hold counts for `client-memory-bytes-max`: uploads before they are written, and replies that a
/// client does not read. The client that holds most loses its connections; others keep theirs.
#[test]
fn sessions_keep_the_memory_budget() {
    const ATTACKER: [u8; 4] = [127, 9, 9, 9];
    let directory = tree();
    for number in 0..2_000 {
        fs::write(directory.path().join(format!("{number:0>200}")), "").unwrap();
    }
    let limits = "limits {\n client-memory-bytes-max \"4MiB\"\n}\n";
    let server = TestServer::run(&(limits.to_owned() + &configuration(&directory, "write \"all\"", "")));
    let mut honest = FtpClient::log_in(&server);
    let mut data = honest.data();
    assert_eq!(code(&honest.command("STOR honest.bin")), 150);
    data.write_all(&[1; 50_000]).unwrap();
    let before_kib = server.memory_kib();
    // Uploads of 100 KB each, which stop before the server has a piece to write.
    let mut held = Vec::new();
    for _ in 0..80 {
        // The server may close any of them meanwhile.
        let Some((client, data)) = begin_upload_from(&server, ATTACKER, 100_000) else { continue };
        held.push((client, data));
    }
    server.await_log("closed connections of the clients that held most memory: connections=");
    assert!(server.memory_kib() < before_kib + (24 << 10), "{} KiB", server.memory_kib() - before_kib);
    // Listings of half a megabyte on control connections.
    for _ in 0..80 {
        let mut stream = server.connect_from(ATTACKER);
        socket2::SockRef::from(&stream).set_recv_buffer_size(4_096).unwrap();
        if stream.write_all(b"USER ftp\r\nPASS x\r\nSTAT .\r\nSTAT .\r\n").is_ok() {
            held.push((stream.try_clone().unwrap(), stream));
        }
    }
    eventually("the listings are made, and their clients lose", || {
        let text = server.log.lock().unwrap().join("\n");
        text.matches("closed connections of the clients").count() > 0
            && FtpClient::log_in(&server).text("RETR small.txt") == "content"
    });
    assert!(server.memory_kib() < before_kib + (24 << 10), "{} KiB", server.memory_kib() - before_kib);
    data.write_all(&[1; 50_000]).unwrap();
    drop(data);
    assert_eq!(code(&honest.reply()), 226);
    assert_eq!(fs::read(directory.path().join("honest.bin")).unwrap().len(), 100_000);
}

/// Paths that idle sessions keep count, too.
#[test]
fn paths_of_sessions_count_as_memory() {
    const SESSIONS: u64 = 100;
    const PATH_BYTES: u64 = 3_900;
    let directory = tree();
    let operated = Operated::start(&configuration(&directory, "write \"all\"", ""));
    let path = "x/".repeat(PATH_BYTES as usize / 2);
    let sessions: Vec<FtpClient> = (0..SESSIONS)
        .map(|_| {
            let mut client = FtpClient::log_in(&operated.server);
            assert_eq!(code(&client.command(&format!("RNFR {path}"))), 350);
            client
        })
        .collect();
    let held_bytes = || {
        let output = operated.order(&["status", "--json"]);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        status["client_memory"]["held_bytes"].as_u64().unwrap()
    };
    // Workers publish their counts in steps of 32 KiB.
    eventually("the paths are counted", || held_bytes() > SESSIONS * PATH_BYTES / 2);
    drop(sessions);
    eventually("ended sessions hold nothing", || held_bytes() < SESSIONS * PATH_BYTES / 2);
}

/// Session of a client that has begun to upload so many bytes; `None` if the server has closed it before.
fn begin_upload_from(server: &TestServer, client: [u8; 4], sent_bytes: usize) -> Option<(TcpStream, TcpStream)> {
    let mut control = server.connect_from(client);
    control.write_all(b"USER ftp\r\nPASS x\r\nTYPE I\r\nEPSV\r\n").ok()?;
    let mut replies = BufReader::new(control.try_clone().unwrap());
    let mut line = String::new();
    while !line.starts_with("229 ") {
        line.clear();
        if replies.read_line(&mut line).ok()? == 0 {
            return None;
        }
    }
    let port: u16 = line.split('|').nth(3)?.parse().ok()?;
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((client, 0)).into()).unwrap();
    socket.connect(&SocketAddr::new(server.address.ip(), port).into()).ok()?;
    let mut data = TcpStream::from(socket);
    control.write_all(b"STOR held.bin\r\n").ok()?;
    data.write_all(&vec![b'x'; sent_bytes]).ok()?;
    Some((control, data))
}

/// Landlock and seccomp apply to a server of FTP alone.
#[test]
fn a_server_of_ftp_is_confined() {
    let directory = tree();
    let server = TestServer::run(&configuration(&directory, "write \"all\"", ""));
    let mut client = FtpClient::log_in(&server);
    assert_eq!(code(&upload(&mut client, "STOR new.bin", b"12345")), 226);
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    for expect in ["Seccomp:\t2", "NoNewPrivs:\t1"] {
        assert!(status.contains(expect), "{status}");
    }
}

/// Transfers continue during reloads. `benches/ftp.py reloads` does 100.
#[test]
fn no_transfer_fails_during_reloads() {
    const RELOADS: usize = 5;
    let directory = tree();
    let config = configuration(&directory, "session-rate-max \"4MiB\"", "");
    let operated = Operated::start(&config);
    std::thread::scope(|scope| {
        let transfers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = FtpClient::log_in(&operated.server);
                    for _ in 0..3 {
                        let (content, reply) = client.transfer("RETR one.bin");
                        assert_eq!((content.len(), code(&reply)), (1 << 20, 226));
                    }
                })
            })
            .collect();
        for number in 0..RELOADS {
            operated.reload(&config.replace("4MiB", &format!("{}MiB", 4 + number)));
        }
        transfers.into_iter().for_each(|transfer| transfer.join().unwrap());
    });
}
