//! Attacks over FTP, by name.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::ftp::{FtpClient, code};
use crate::support::waiting::eventually;
use crate::support::{PATIENCE, TestServer};

fn tree() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.txt"), "content").unwrap();
    fs::write(directory.path().join("large.bin"), vec![7; 24 << 20]).unwrap();
    directory
}

fn serve(directory: &TempDir, options: &str, more: &str) -> TestServer {
    let root = directory.path().display();
    TestServer::run(&format!("{more}\nsite {{\n ftp \"127.0.0.1:0\" {{\n root \"{root}\"\n {options}\n}}\n}}\n"))
}

fn connect_from(client: [u8; 4], address: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((client, 0)).into()).unwrap();
    socket.connect(&address.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Port stealing: another client connects to the passive port first.
#[test]
fn a_stranger_gets_no_data() {
    let directory = tree();
    let server = serve(&directory, "", "");
    let mut client = FtpClient::log_in(&server);
    let address = client.passive();
    let mut strangers: Vec<_> = (2..6).map(|last| connect_from([127, 0, 0, last], address)).collect();
    let mut own = connect_from([127, 0, 0, 1], address);
    assert_eq!(code(&client.command("RETR a.txt")), 150);
    let mut content = String::new();
    own.read_to_string(&mut content).unwrap();
    assert_eq!((content.as_str(), code(&client.reply())), ("content", 226));
    for stranger in &mut strangers {
        let mut stolen = Vec::new();
        // Closed, or reset.
        let _ = stranger.read_to_end(&mut stolen);
        assert!(stolen.is_empty());
    }
}

/// FTP bounce (CERT CA-1997-27): the server must not connect to addresses that a client names.
#[test]
fn no_bounce() {
    let directory = tree();
    let server = serve(&directory, "", "");
    let victim = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    victim.set_nonblocking(true).unwrap();
    let port = victim.local_addr().unwrap().port();
    let mut client = FtpClient::log_in(&server);
    let command = format!("PORT 127,0,0,1,{},{}", port >> 8, port & 255);
    assert_eq!(client.codes(&[&command, "RETR a.txt"]), [500, 425]);
    assert_eq!(client.codes(&[&format!("EPRT |1|127.0.0.1|{port}|"), "LIST"]), [500, 425]);
    assert!(victim.accept().is_err(), "no connection");
}

/// Names with line ends, which a careless client could be made to send, do not become commands.
#[test]
fn no_injection_by_line_ends() {
    let directory = tree();
    let server = serve(&directory, "", "");
    let mut client = FtpClient::log_in(&server);
    client.send(b"CWD x\nPWD\r\nSYST\r\n");
    assert_eq!([code(&client.reply()), code(&client.reply())], [500, 215], "PWD is not a command of its own");
    client.send(b"SIZE a.txt\0.jpg\r\n");
    assert_eq!(code(&client.reply()), 500);
    client.send(b"CWD a\r\0b\r\n");
    assert_eq!(code(&client.reply()), 553);
    // Requests of HTTP (cross-protocol attack from a browser).
    client.send(b"POST / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!([code(&client.reply()), code(&client.reply()), code(&client.reply())], [500, 500, 500]);
}

/// A command without end, and one that ends too late.
#[test]
fn long_and_slow_commands() {
    let directory = tree();
    let server = serve(&directory, "session-idle-timeout \"2s\"", "");
    let mut client = FtpClient::connect(&server);
    client.send(&vec![b'A'; 5_000]);
    assert_eq!(code(&client.reply()), 500);
    let mut slow = FtpClient::connect(&server);
    let start = Instant::now();
    // Bytes that complete no command do not prolong the time.
    for _ in 0..6 {
        slow.send(b"N");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(code(&slow.reply()), 421);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

/// Exhaustion of passive ports: a session has one, and it is free again after `data-timeout`.
#[test]
fn passive_ports_come_back() {
    let directory = tree();
    let port = crate::support::port::free_port();
    let server = serve(&directory, &format!("passive-ports {port} {port}\n data-timeout \"1s\""), "");
    let (mut first, mut second) = (FtpClient::log_in(&server), FtpClient::log_in(&server));
    for _ in 0..100 {
        assert_eq!(first.passive().port(), port);
    }
    assert_eq!(code(&second.command("EPSV")), 425);
    eventually("the port is free", || code(&second.command("EPSV")) == 229);
    assert_eq!(code(&first.command("RETR a.txt")), 425, "its port is gone");
}

/// A client that never opens the data connection, and one that never reads from it.
#[test]
fn data_connections_have_time_limits() {
    let directory = tree();
    let server = serve(&directory, "data-timeout \"1s\"", "limits { write-timeout \"1s\" }");
    let mut client = FtpClient::log_in(&server);
    client.passive();
    assert_eq!(code(&client.command("RETR a.txt")), 150);
    assert_eq!(code(&client.reply()), 425);
    let data = client.data();
    assert_eq!(code(&client.command("RETR large.bin")), 150);
    assert_eq!(code(&client.reply()), 426);
    drop(data);
    assert_eq!(client.text("RETR a.txt"), "content", "the session continues");
}

/// Glob bombs: patterns that make a careless matcher try for ever.
#[test]
fn glob_bombs() {
    let directory = tree();
    for number in 0..200 {
        fs::write(directory.path().join("a".repeat(200) + &number.to_string()), "").unwrap();
    }
    let server = serve(&directory, "", "");
    let mut client = FtpClient::log_in(&server);
    let start = Instant::now();
    let (names, reply) = client.transfer(&format!("NLST {}b", "*a".repeat(120)));
    assert!(names.is_empty() && [226, 450].contains(&code(&reply)), "{reply}");
    assert_eq!(code(&client.transfer(&format!("LIST {}", "*/".repeat(500))).1), 550, "one level alone");
    assert!(start.elapsed() < Duration::from_secs(10));
}

/// Many logins with wrong names, and many connections of one client.
#[test]
fn logins_and_connections_have_limits() {
    let directory = tree();
    let server = serve(&directory, "", "limits { connections-per-client-max 3 }");
    let mut client = FtpClient::connect(&server);
    for _ in 0..2 {
        assert_eq!(client.codes(&["USER root", "PASS x"]), [331, 530]);
    }
    assert_eq!(client.codes(&["USER root", "PASS x"]), [331, 421]);
    assert_eq!(client.reply(), "");
    drop(client);
    let _open: Vec<_> = (0..3).map(|_| FtpClient::connect(&server)).collect();
    let mut rejected = server.connect();
    let mut nothing = Vec::new();
    let _ = rejected.write_all(b"NOOP\r\n");
    let _ = rejected.read_to_end(&mut nothing);
    assert!(nothing.is_empty(), "no greeting");
}

/// Thousands of pipelined commands are answered in order, and hold little memory.
#[test]
fn pipelined_commands() {
    let directory = tree();
    let server = serve(&directory, "", "");
    let mut client = FtpClient::log_in(&server);
    client.send("NOOP\r\nSYST\r\n".repeat(5_000).as_bytes());
    for _ in 0..5_000 {
        assert_eq!([code(&client.reply()), code(&client.reply())], [200, 215]);
    }
}
