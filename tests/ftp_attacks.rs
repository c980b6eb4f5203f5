//! Attacks over FTP, by name.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::ftp::{FtpClient, code};
use crate::support::waiting::{eventually, eventually_some};
use crate::support::{PATIENCE, TestServer, read_until};

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
    let mut slow = server.connect();
    read_until(&mut slow, "220 Ready.\r\n");
    slow.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut reply = [0; 4];
    eventually("bytes that complete no command do not prolong the time", || {
        // The server may have closed the connection.
        let _ = slow.write_all(b"N");
        slow.read_exact(&mut reply).is_ok()
    });
    assert_eq!(&reply, b"421 ");
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
    // On a slow machine, its time may end before the other asks, and then the other has the port for a while.
    eventually("the port is in use", || code(&first.command("EPSV")) == 229 && code(&second.command("EPSV")) == 425);
    eventually("the port is free", || code(&second.command("EPSV")) == 229);
    assert_eq!(code(&first.command("RETR a.txt")), 425, "its port is gone");
}

/// A client that never opens the data connection, and one that never reads from it.
#[test]
fn data_connections_have_time_limits() {
    let directory = tree();
    let server = serve(&directory, "data-timeout \"1s\"", "");
    let mut client = FtpClient::log_in(&server);
    // The time may end before the transfer begins.
    eventually("a transfer begins", || {
        client.passive();
        code(&client.command("RETR a.txt")) == 150
    });
    assert_eq!(code(&client.reply()), 425);
    assert_eq!(code(&client.command("NOOP")), 200, "the session continues");
    let server = serve(&directory, "", "limits { write-timeout \"1s\" }");
    let mut client = FtpClient::log_in(&server);
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
    let (names, reply) = client.transfer(&format!("NLST {}b", "*a".repeat(120)));
    assert!(names.is_empty() && [226, 450].contains(&code(&reply)), "{reply}");
    assert_eq!(code(&client.transfer(&format!("LIST {}", "*/".repeat(500))).1), 550, "one level alone");
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
    // The server may still have to close the first one.
    let greeted = || {
        let mut stream = server.connect();
        stream.read_exact(&mut [0; 4]).is_ok().then_some(stream)
    };
    let _open: Vec<_> = (0..3).map(|_| eventually_some("a connection is served", greeted)).collect();
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

/// A crowd of strangers at the passive port cannot make the client's transfer fail.
#[test]
fn strangers_cannot_end_a_transfer() {
    let directory = tree();
    let server = serve(&directory, "", "");
    let mut client = FtpClient::log_in(&server);
    let address = client.passive();
    assert_eq!(code(&client.command("RETR a.txt")), 150);
    let strangers: Vec<_> = (0..100).map(|_| connect_from([127, 0, 0, 2], address)).collect();
    let mut own = connect_from([127, 0, 0, 1], address);
    let mut content = String::new();
    own.read_to_string(&mut content).unwrap();
    assert_eq!((content.as_str(), code(&client.reply())), ("content", 226));
    drop(strangers);
}

/// Directory traversal, through every command that has a path.
#[test]
fn no_path_leads_out_of_the_root() {
    let (directory, outside) = (tree(), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("victim.txt"), "victim").unwrap();
    let name = outside.path().file_name().unwrap().to_str().unwrap();
    std::os::unix::fs::symlink(outside.path(), directory.path().join("absolute")).unwrap();
    std::os::unix::fs::symlink(format!("../{name}"), directory.path().join("relative")).unwrap();
    std::os::unix::fs::symlink("absolute", directory.path().join("twice")).unwrap();
    fs::create_dir(directory.path().join("sub")).unwrap();
    let server = serve(&directory, "write \"all\"", "");
    let mut client = FtpClient::log_in(&server);
    let ways = [
        format!("../{name}"),
        format!("/../{name}"),
        format!("sub/../../{name}"),
        format!("/sub/./..//../{name}/"),
        "absolute".to_owned(),
        "relative".to_owned(),
        "twice".to_owned(),
        "sub/../absolute".to_owned(),
        outside.path().display().to_string(),
        "/proc/self/cwd".to_owned(),
    ];
    for way in &ways {
        assert_eq!(code(&client.command(&format!("CWD {way}"))), 550, "{way}");
        let victim = format!("{way}/victim.txt");
        for command in ["SIZE", "MDTM", "MLST", "DELE", "MFMT 20020717210715"] {
            assert_eq!(code(&client.command(&format!("{command} {victim}"))), 550, "{command} {victim}");
        }
        for command in ["RETR", "NLST", "STOR", "APPE"] {
            assert_eq!(code(&client.transfer(&format!("{command} {victim}")).1), 550, "{command} {victim}");
        }
        assert_eq!(client.codes(&["RNFR a.txt", &format!("RNTO {way}/a.txt")]), [350, 550], "{way}");
        assert_eq!(client.codes(&[&format!("RNFR {victim}"), "RNTO stolen.txt"]), [350, 550], "{way}");
        assert_eq!(client.codes(&[&format!("MKD {way}/new"), &format!("RMD {way}/new")]), [550, 550], "{way}");
    }
    // A renamed link still leads nowhere, and a relative one stays in its directory.
    for (from, to, expect) in
        [("relative", "sub/relative", 550), ("relative", "renamed", 250), ("absolute", "sub/absolute", 250)]
    {
        let renamed = client.codes(&[&format!("RNFR {from}"), &format!("RNTO {to}"), &format!("CWD {to}")]);
        assert_eq!(renamed, [350, expect, 550], "{from} {to}");
    }
    assert_eq!(client.codes(&["CWD sub"]), [250]);
    assert_eq!(client.codes(&["CWD ..", "CWD ..", "CWD ../../.."]), [250; 3]);
    assert_eq!(client.command("PWD"), "257 \"/\" is the current directory.\r\n");
    assert_eq!(fs::read(outside.path().join("victim.txt")).unwrap(), b"victim");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

/// Hidden files cannot be made, read or named, by any command, nor through patterns.
#[test]
fn hidden_files_stay_hidden() {
    let directory = tree();
    fs::write(directory.path().join(".htpasswd"), "secret").unwrap();
    fs::create_dir(directory.path().join(".git")).unwrap();
    fs::write(directory.path().join(".git/config"), "secret").unwrap();
    let server = serve(&directory, "write \"all\"", "");
    let mut client = FtpClient::log_in(&server);
    for path in [".htpasswd", ".git/config", "./.git/../.git/config", "/.git/config"] {
        for command in ["SIZE", "MDTM", "MLST", "DELE", "MKD", "RMD", "CWD", "MFMT 20020717210715"] {
            assert_eq!(code(&client.command(&format!("{command} {path}"))), 550, "{command} {path}");
        }
        for command in ["RETR", "STOR", "APPE", "LIST", "NLST -a"] {
            assert_eq!(code(&client.transfer(&format!("{command} {path}")).1), 550, "{command} {path}");
        }
        assert_eq!(client.codes(&["RNFR a.txt", &format!("RNTO {path}")]), [350, 550], "{path}");
        assert_eq!(client.codes(&[&format!("RNFR {path}"), "RNTO shown.txt"]), [350, 550], "{path}");
    }
    assert_eq!(client.text("NLST .*"), "");
    assert_eq!(code(&client.transfer("NLST .git/*").1), 550);
    assert!(!client.text("LIST -a").contains("ht"));
}

/// Positions and sizes that no file has.
#[test]
fn positions_beyond_all_files() {
    let directory = tree();
    let server = serve(&directory, "write \"all\"\n stored-bytes-max \"1MiB\"", "");
    let mut client = FtpClient::log_in(&server);
    for position in ["8", "9223372036854775807", "18446744073709551615"] {
        for command in ["RETR a.txt", "STOR a.txt"] {
            assert_eq!(code(&client.command(&format!("REST {position}"))), 350);
            assert_eq!(code(&client.transfer(command).1), 554, "{position} {command}");
        }
    }
    assert_eq!(client.codes(&["REST 18446744073709551616", "REST -1", "REST 0x1", "REST"]), [501; 4]);
    assert_eq!(client.codes(&["ALLO 18446744073709551615", "ALLO x", "ALLO"]), [202; 3]);
    assert_eq!(client.text("RETR a.txt"), "content");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "no part is left");
}

/// Telnet commands, bytes 255 and control characters in names; names that are too long.
#[test]
fn names_of_any_bytes() {
    let directory = tree();
    let server = serve(&directory, "write \"all\"", "");
    let mut client = FtpClient::log_in(&server);
    let mut raw = |bytes: &[u8]| {
        client.send(&[bytes, b"\r\n"].concat());
        client.reply()
    };
    // IAC IAC is the byte 255; IAC NOP is nothing; replies double the byte again.
    assert!(raw(b"MKD a\xff\xffb").starts_with("257 \"/a"));
    assert!(
        fs::read_dir(directory.path())
            .unwrap()
            .any(|entry| { std::os::unix::ffi::OsStrExt::as_bytes(&*entry.unwrap().file_name()) == b"a\xffb" })
    );
    assert_eq!(code(&raw(b"RMD a\xff\xff\xff\xf1b")), 250);
    assert_eq!(raw(b"MKD quo\"te"), "257 \"/quo\"\"te\" created.\r\n");
    assert_eq!(code(&raw(b"MKD \x1b[2J\x07")), 257);
    // Line ends, in any form.
    for name in [&b"MKD a\r\0b"[..], b"MKD a\0b", b"MKD a\nb", b"MKD a\rb"] {
        let reply = raw(name);
        assert!([500, 553].contains(&code(&reply)), "{}: {reply}", name.escape_ascii());
    }
    let long = "x".repeat(300);
    let reply = raw(format!("MKD {long}").as_bytes());
    assert_eq!(reply.as_bytes()[0], b'5', "{reply}");
    let deep = "d/".repeat(1_900);
    assert_eq!(code(&raw(format!("CWD {deep}").as_bytes())), 550);
    for _ in 0..5 {
        assert!([550, 553].contains(&code(&raw(format!("CWD {deep}").as_bytes()))));
    }
    assert_eq!(code(&raw(b"NOOP")), 200);
}

/// Passive ports of many sessions use up the file descriptors. Other clients of HTTP and FTP are still served: idle
/// sessions make room.
#[test]
fn exhaustion_of_descriptors_by_pasv() {
    let directory = tree();
    let (port, ftp_port) = (crate::support::port::free_port(), crate::support::port::free_port());
    let mut command = std::process::Command::new("sh");
    let root = directory.path().display().to_string();
    let config = directory.path().join(".tailcoat.kdl");
    let text = format!(
        "limits {{ connections-per-client-max 500; connections-per-network-max 500 }}\n\
         site {{\n listen \"127.0.0.1:{port}\"\n root \"{root}\"\n ftp \"127.0.0.1:{ftp_port}\"\n}}\n"
    );
    fs::write(&config, text).unwrap();
    let program = crate::support::tailcoat();
    command
        .args(["-c", "ulimit -n 300; exec \"$@\"", "sh"])
        .arg(program.get_program())
        .args(["run", "-c"])
        .arg(&config);
    let _server = TestServer::start(command);
    let ftp = SocketAddr::from(([127, 0, 0, 1], ftp_port));
    let mut held = Vec::new();
    let mut rejected = 0;
    for number in 0..400_u32 {
        let mut stream = connect_from([127, 3, (number / 50) as u8, 1], ftp);
        let _ = stream.write_all(b"USER ftp\r\nPASS x\r\nEPSV\r\n");
        let (mut replies, mut buffer) = (String::new(), [0; 512]);
        while !replies.contains("229 ") {
            match stream.read(&mut buffer) {
                Ok(count @ 1..) => replies.push_str(&String::from_utf8_lossy(&buffer[..count])),
                _ => break,
            }
            if replies.contains("425 ") {
                rejected += 1;
                break;
            }
        }
        held.push(stream);
    }
    let mut http = TcpStream::connect(("127.0.0.1", port)).unwrap();
    http.set_read_timeout(Some(PATIENCE)).unwrap();
    http.write_all(b"GET /a.txt HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    let _ = http.read_to_string(&mut answer);
    assert!(answer.ends_with("content"), "{answer:?}; {rejected} rejected");
    let mut client = FtpClient::over(connect_from([127, 0, 0, 1], ftp));
    assert_eq!(client.codes(&["USER ftp", "PASS x", "TYPE I"]), [331, 230, 200]);
    eventually("a transfer", || {
        let reply = client.command("EPSV");
        let Some(port) = reply.split('|').nth(3).and_then(|port| port.parse().ok()) else { return false };
        let mut data = connect_from([127, 0, 0, 1], SocketAddr::new(ftp.ip(), port));
        let begun = client.command("RETR a.txt");
        let mut content = String::new();
        let is_read = code(&begun) == 150 && data.read_to_string(&mut content).is_ok();
        is_read && content == "content" && code(&client.reply()) == 226
    });
    drop(held);
}
