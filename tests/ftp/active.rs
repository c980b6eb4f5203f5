//! FTP in active mode: the server connects to the client, and to no other address.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::Command;

use tempfile::TempDir;

use crate::support::TestServer;
use crate::support::ftp::{FtpClient, code};
use crate::support::skips::skip_without;

fn tree() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.txt"), "content").unwrap();
    fs::write(directory.path().join("large.bin"), vec![7; 8 << 20]).unwrap();
    directory
}

fn serve(directory: &TempDir, options: &str) -> TestServer {
    let root = directory.path().display();
    TestServer::run(&format!(
        "site {{\n ftp \"127.0.0.1:0\" {{\n root \"{root}\"\n active-mode on\n write \"all\"\n {options}\n}}\n}}\n"
    ))
}

fn port_command(port: u16) -> String {
    format!("PORT 127,0,0,1,{},{}", port >> 8, port & 255)
}

/// Port of the client for a data connection, and its listener.
fn listen() -> (u16, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    (listener.local_addr().unwrap().port(), listener)
}

#[test]
fn files_and_listings_in_active_mode() {
    let directory = tree();
    let server = serve(&directory, "");
    let mut client = FtpClient::log_in(&server);
    let features = client.command("FEAT");
    assert!(features.contains("\r\n EPRT\r\n"), "{features}");
    for (command, length) in [("RETR a.txt", 7), ("RETR large.bin", 8 << 20), ("NLST", 18)] {
        for is_extended in [false, true] {
            let (port, listener) = listen();
            let named = if is_extended { format!("EPRT |1|127.0.0.1|{port}|") } else { port_command(port) };
            assert_eq!(client.codes(&[&named, command]), [200, 150], "{named} {command}");
            let (mut data, peer) = listener.accept().unwrap();
            assert_eq!(peer.ip(), server.address.ip(), "from the address that the client knows");
            let mut content = Vec::new();
            data.read_to_end(&mut content).unwrap();
            assert_eq!((content.len(), code(&client.reply())), (length, 226), "{command}");
        }
    }
    let (port, listener) = listen();
    assert_eq!(client.codes(&[&port_command(port), "STOR new.txt"]), [200, 150]);
    let (mut data, _) = listener.accept().unwrap();
    data.write_all(b"uploaded").unwrap();
    drop(data);
    assert_eq!(code(&client.reply()), 226);
    assert_eq!(fs::read(directory.path().join("new.txt")).unwrap(), b"uploaded");
    // An address is used once, and passive mode still works.
    assert_eq!(client.codes(&["RETR a.txt"]), [425]);
    assert_eq!(client.text("RETR a.txt"), "content");
    // PASV replaces the address.
    let (port, listener) = listen();
    assert_eq!(client.codes(&[&port_command(port)]), [200]);
    assert_eq!(client.text("RETR a.txt"), "content");
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
}

/// FTP bounce (CERT CA-1997-27; RFC 2577, section 3): only the client's own address, and no ports of services.
#[test]
fn no_bounce_in_active_mode() {
    let directory = tree();
    let server = serve(&directory, "");
    let mut client = FtpClient::log_in(&server);
    let others = [
        "PORT 127,0,0,2,39,16",
        "PORT 10,0,0,1,39,16",
        "PORT 127,0,0,1,0,25",
        "PORT 127,0,0,1,3,255",
        "EPRT |1|127.0.0.2|10000|",
        "EPRT |1|127.0.0.1|22|",
        "EPRT |2|::1|10000|",
    ];
    for other in others {
        assert_eq!(client.codes(&[other, "RETR a.txt"]), [504, 425], "{other}");
    }
    assert_eq!(client.codes(&["PORT 127,0,0,1,0,0", "PORT 127,0,0,1,4", "EPRT |3|x|1|"]), [501, 501, 522]);
    // A rejected address does not leave an earlier one in place.
    let (port, listener) = listen();
    assert_eq!(client.codes(&[&port_command(port), "PORT 127,0,0,2,39,16", "RETR a.txt"]), [200, 504, 425]);
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
    assert_eq!(client.codes(&["EPSV ALL", &port_command(port), "PASV"]), [200, 503, 503]);
}

/// A client that names a port on which it does not listen, and one that accepts no connection.
#[test]
fn clients_that_do_not_listen() {
    let directory = tree();
    let server = serve(&directory, "data-timeout \"2s\"");
    let mut client = FtpClient::log_in(&server);
    // Bound and not listening, so that no other test gets the port.
    let silent = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    silent.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    let port = silent.local_addr().unwrap().as_socket().unwrap().port();
    assert_eq!(client.codes(&[&port_command(port), "RETR a.txt"]), [200, 150]);
    assert_eq!(code(&client.reply()), 425);
    // Its accept queue is full, so that the connection cannot be made.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&"127.0.0.1:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    full.listen(0).unwrap();
    let address = full.local_addr().unwrap().as_socket().unwrap();
    let _first = std::net::TcpStream::connect(address).unwrap();
    assert_eq!(client.codes(&[&port_command(address.port()), "RETR a.txt"]), [200, 150]);
    assert_eq!(code(&client.reply()), 425, "after `data-timeout`");
    assert_eq!(client.text("RETR a.txt"), "content", "the session continues");
    assert_eq!(client.codes(&[&port_command(address.port()), "RETR a.txt"]), [200, 150]);
    client.send(b"ABOR\r\n");
    assert_eq!([code(&client.reply()), code(&client.reply())], [426, 226]);
}

#[test]
fn clients_in_active_mode() {
    let directory = tree();
    let server = serve(&directory, "");
    for option in ["--eprt", "--disable-eprt"] {
        let url = format!("ftp://{}/a.txt", server.address);
        let output = Command::new("curl").args(["-sS", "--max-time", "60", option, "-P", "-", &url]).output();
        let output = output.expect("curl is installed");
        assert_eq!(output.stdout, b"content", "{option}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let script = "import ftplib, io, sys\nftp = ftplib.FTP()\nftp.connect('127.0.0.1', int(sys.argv[1]), timeout=30)\n\
                  ftp.set_pasv(False)\nftp.login()\ncontent = io.BytesIO()\nftp.retrbinary('RETR large.bin', content.write)\n\
                  assert len(content.getvalue()) == 8 << 20\nassert ftp.nlst() == ['a.txt', 'large.bin']\nftp.quit()\n";
    let port = server.address.port().to_string();
    let output = Command::new("python3").args(["-c", script, &port]).output().expect("python3 is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let commands = format!(
        "set ftp:passive-mode no; set net:timeout 20; set net:max-retries 1; open {}; cat a.txt",
        server.address
    );
    match Command::new("lftp").args(["-c", &commands]).output() {
        Ok(output) => assert_eq!(output.stdout, b"content", "{}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => skip_without("lftp"),
    }
}
