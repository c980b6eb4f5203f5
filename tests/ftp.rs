//! FTP: sessions, transfers, listings, and common clients.

mod active;

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::ftp::{FtpClient, code};
use crate::support::operated::Operated;
use crate::support::port::free_port;
use crate::support::skips::skip_without;
use crate::support::waiting::eventually;
use crate::support::{PATIENCE, TestServer};

/// Length of `large.bin` in [`tree`]; more than objects in memory may have, and more than sockets hold.
const LARGE_BYTES: usize = 24 << 20;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
}

/// Directory with files of several sizes and permissions.
fn tree() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &[u8]| fs::write(directory.path().join(name), content).unwrap();
    fs::create_dir(directory.path().join("sub dir")).unwrap();
    write("a.txt", b"one\ntwo\n");
    write("b.txt", b"");
    write("large.bin", &pattern(LARGE_BYTES));
    write("sub dir/c.txt", b"below");
    write("caf\u{e9}.txt", b"utf-8");
    write(".secret", b"secret");
    write("line\nend.txt", b"x");
    write("private.txt", b"private");
    fs::set_permissions(directory.path().join("private.txt"), fs::Permissions::from_mode(0o600)).unwrap();
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_026_940_035);
    let file = fs::File::options().write(true).open(directory.path().join("a.txt")).unwrap();
    file.set_modified(old).unwrap();
    directory
}

/// Runs a server whose only site serves this directory over FTP with these options.
fn serve(directory: &TempDir, options: &str) -> TestServer {
    TestServer::run(&configuration(directory, options))
}

fn configuration(directory: &TempDir, options: &str) -> String {
    let root = directory.path().display();
    format!("site {{\n permission-rule\n ftp \"127.0.0.1:0\" {{\n root \"{root}\"\n {options}\n}}\n}}\n")
}

#[test]
fn a_session() {
    let directory = tree();
    let server = serve(&directory, "");
    let mut client = FtpClient::connect(&server);
    assert_eq!(client.codes(&["PWD", "USER root", "PASS x", "USER ftp", "PASS"]), [530, 331, 530, 331, 230]);
    assert_eq!(client.command("PWD"), "257 \"/\" is the current directory.\r\n");
    assert_eq!(
        client.codes(&["CWD sub dir", "CWD missing", "CWD c.txt", "SIZE c.txt", "TYPE I"]),
        [250, 550, 550, 550, 200]
    );
    assert_eq!(client.command("SIZE c.txt"), "213 5\r\n");
    assert_eq!(client.codes(&["CDUP", "CDUP", "SIZE sub dir", "MDTM missing"]), [250, 250, 550, 550]);
    assert_eq!(client.command("MDTM a.txt"), "213 20020717210715\r\n");
    let facts = client.command("MLST a.txt");
    assert!(facts.starts_with("250-Facts:\r\n type=file;size=8;modify=20020717210715;perm=r;unique="), "{facts}");
    assert!(facts.ends_with("; /a.txt\r\n250 End\r\n"), "{facts}");
    let features = client.command("FEAT");
    for feature in [" EPSV", " MDTM", " MLST type*;size*;modify*;perm*;unique*;", " REST STREAM", " SIZE", " UTF8"] {
        assert!(features.contains(&format!("\r\n{feature}\r\n")), "{features}");
    }
    for absent in ["AUTH", "EPRT", "HOST", "MFMT"] {
        assert!(!features.contains(absent), "{features}");
    }
    let status = client.command("STAT");
    assert!(status.starts_with("211-Status:\r\n Connected from 127.0.0.1\r\n Logged in\r\n TYPE: I"), "{status}");
    let listing = client.command("STAT a.txt");
    assert_eq!(
        listing,
        "213-Status of /a.txt:\r\n -r--r--r--   1 ftp      ftp             8 Jul 17  2002 a.txt\r\n213 End\r\n"
    );
    // Everything that changes the tree, and active mode.
    let rejected =
        ["STOR x", "APPE x", "STOU", "DELE a.txt", "MKD x", "RMD x", "RNFR a.txt", "MFMT 20020717210715 a.txt"];
    assert_eq!(client.codes(&rejected), [550; 8]);
    assert_eq!(
        client.codes(&["PORT 127,0,0,1,10,10", "EPRT |1|127.0.0.1|2570|", "AUTH TLS", "FOO"]),
        [500, 500, 502, 500]
    );
    assert_eq!(
        client.codes(&["RETR a.txt", "EPSV 2", "EPSV 1", "NOOP", "ABOR", "QUIT"]),
        [425, 522, 229, 200, 226, 221]
    );
    assert_eq!(client.reply(), "", "the server closes the connection");
}

#[test]
fn files_arrive_whole_and_in_parts() {
    let directory = tree();
    let server = serve(&directory, "");
    let mut client = FtpClient::log_in(&server);
    assert_eq!(client.text("RETR a.txt"), "one\ntwo\n");
    assert_eq!(client.text("RETR sub dir/c.txt"), "below");
    assert_eq!(client.text("RETR b.txt"), "");
    let large = pattern(LARGE_BYTES);
    for _ in 0..2 {
        let (content, reply) = client.transfer("RETR large.bin");
        assert_eq!(reply, "226 Transfer complete.\r\n");
        assert!(content == large, "{} bytes", content.len());
    }
    for offset in [1, LARGE_BYTES - 3, LARGE_BYTES] {
        assert_eq!(code(&client.command(&format!("REST {offset}"))), 350);
        let (content, reply) = client.transfer("RETR large.bin");
        assert!(code(&reply) == 226 && content == large[offset..], "{offset}: {reply} {}", content.len());
    }
    assert_eq!(code(&client.command("REST 9")), 350);
    assert_eq!(code(&client.transfer("RETR a.txt").1), 554, "past the end");
    assert_eq!(client.text("RETR a.txt"), "one\ntwo\n", "the position is used once");
    // ASCII, small and large.
    assert_eq!(code(&client.command("TYPE A")), 200);
    assert_eq!(client.text("RETR a.txt"), "one\r\ntwo\r\n");
    let lines = "line of text\n".repeat(200_000);
    fs::write(directory.path().join("lines.txt"), &lines).unwrap();
    assert!(client.text("RETR lines.txt") == lines.replace('\n', "\r\n"));
}

#[test]
fn listings_show_what_http_would_serve() {
    let directory = tree();
    let server = serve(&directory, "");
    let mut client = FtpClient::log_in(&server);
    let names = "a.txt\r\nb.txt\r\ncaf\u{e9}.txt\r\nlarge.bin\r\nsub dir\r\n";
    assert_eq!(client.text("NLST"), names);
    assert_eq!(client.text("NLST -a"), names, "hidden files stay hidden");
    assert_eq!(client.text("NLST [ab].txt"), "a.txt\r\nb.txt\r\n");
    assert_eq!(client.text("NLST sub dir"), "sub dir/c.txt\r\n");
    assert_eq!(client.text("NLST /sub dir/*"), "/sub dir/c.txt\r\n");
    let long = client.text("LIST");
    let lines: Vec<&str> = long.lines().collect();
    assert_eq!(lines.len(), 5);
    assert_eq!(lines[0], "-r--r--r--   1 ftp      ftp             8 Jul 17  2002 a.txt");
    assert!(lines[4].starts_with("dr-xr-xr-x ") && lines[4].ends_with(" sub dir"), "{long}");
    assert_eq!(client.text("LIST -la a.txt"), format!("{}\r\n", lines[0]));
    let facts = client.text("MLSD");
    assert!(facts.starts_with("type=file;size=8;modify=20020717210715;perm=r;unique="), "{facts}");
    assert!(facts.contains("\r\ntype=dir;modify=") && facts.lines().count() == 5, "{facts}");
    assert_eq!(client.command("OPTS MLST size;"), "200 MLST OPTS size;\r\n");
    assert!(client.text("MLSD").starts_with("size=8; a.txt\r\nsize=0; b.txt\r\n"));
    assert_eq!(code(&client.transfer("MLSD a.txt").1), 501);
    for hidden in ["RETR .secret", "LIST .secret", "RETR private.txt", "RETR missing", "LIST missing", "NLST *.gz/x"] {
        assert_eq!(code(&client.transfer(hidden).1), 550, "{hidden}");
    }
    assert_eq!(
        client.codes(&["SIZE .secret", "SIZE private.txt", "MLST .secret", "SIZE ../../../etc/passwd"]),
        [550; 4]
    );
}

#[test]
fn transfers_can_be_aborted_and_watched() {
    let directory = tree();
    let server = serve(&directory, "");
    let mut client = FtpClient::log_in(&server);
    let mut data = client.data();
    assert_eq!(code(&client.command("RETR large.bin")), 150);
    assert_eq!(code(&client.command("NOOP")), 200);
    assert!(client.command("STAT").contains("Transfer in progress: "));
    // As Telnet sends it (RFC 959, section 4.1.3), and after it a command that had to wait.
    client.send(b"\xff\xf4\xff\xf2ABOR\r\nPWD\r\n");
    assert_eq!([code(&client.reply()), code(&client.reply()), code(&client.reply())], [426, 226, 257]);
    assert!(data.read_to_end(&mut Vec::new()).is_err(), "an aborted transfer does not look complete");
    assert_eq!(client.text("RETR a.txt"), "one\ntwo\n");
    // As urgent data, which Python's ftplib sends.
    let _data = client.data();
    assert_eq!(code(&client.command("RETR large.bin")), 150);
    client.send_urgent(b"ABOR\r\n");
    assert_eq!([code(&client.reply()), code(&client.reply())], [426, 226]);
    // Pipelined commands wait for the transfer.
    let mut data = client.data();
    client.send(b"RETR large.bin\r\nPWD\r\nSYST\r\n");
    assert_eq!(code(&client.reply()), 150);
    let mut content = Vec::new();
    data.read_to_end(&mut content).unwrap();
    assert_eq!(content.len(), LARGE_BYTES);
    assert_eq!([code(&client.reply()), code(&client.reply()), code(&client.reply())], [226, 257, 215]);
}

#[test]
fn passive_mode_for_nat_and_firewalls() {
    let directory = tree();
    // Without a port of another test between them.
    let mut pairs = std::iter::repeat_with(|| (free_port(), free_port()));
    let (first, last) = pairs.find(|(first, last)| first + 1 == *last).unwrap();
    let server = serve(&directory, &format!("passive-address \"203.0.113.7\"\n passive-ports {first} {last}"));
    let mut client = FtpClient::log_in(&server);
    let port = client.passive().port();
    assert!((first..=last).contains(&port), "{port}");
    let reply = client.command("PASV");
    assert!(reply.starts_with("227 Entering Passive Mode (203,0,113,7,"), "{reply}");
    assert_eq!(client.codes(&["EPSV ALL", "PASV"]), [200, 503]);
}

#[test]
fn access_log_and_metrics() {
    let directory = tree();
    let log = directory.path().join(".access.log");
    let config =
        configuration(&directory, "").replace("site {", &format!("site {{\n access-log \"{}\"", log.display()));
    let server = TestServer::run(&config);
    let mut client = FtpClient::log_in(&server);
    client.text("RETR a.txt");
    client.text("NLST sub dir");
    client.transfer("RETR missing file");
    drop(client);
    server.end_with_log();
    let text = fs::read_to_string(log).unwrap();
    let requests: Vec<String> = text
        .lines()
        .map(|line| line.split_once(" - anonymous [").unwrap_or_else(|| panic!("{line}")).1)
        .map(|line| line.split_once("] ").unwrap().1.to_owned())
        .collect();
    assert_eq!(requests.len(), 3, "{text}");
    assert_eq!(requests[0], r#""RETR /a.txt FTP" 226 8 "-" "-""#);
    assert!(requests[1].starts_with(r#""NLST /sub"#) && requests[1].contains(r#"dir FTP" 226 15 "#), "{text}");
    assert!(requests[2].contains(r#"file FTP" 550 0 "#), "{text}");
}

#[test]
fn virtual_hosts() {
    let (one, other) = (tree(), tempfile::tempdir().unwrap());
    fs::write(other.path().join("other.txt"), "other").unwrap();
    let port = free_port();
    let site = |name: &str, root: &TempDir| {
        format!("site \"{name}\" {{\n ftp \"127.0.0.1:{port}\" {{ root \"{}\" }}\n}}\n", root.path().display())
    };
    let server = TestServer::run(&(site("one.example", &one) + &site("other.example", &other)));
    let mut client = FtpClient::connect(&server);
    assert!(client.command("FEAT").contains("\r\n HOST\r\n"));
    assert_eq!(
        client.codes(&["HOST third.example", "HOST Other.Example", "USER ftp", "PASS x", "HOST one.example"]),
        [504, 220, 331, 230, 503]
    );
    assert_eq!(client.text("NLST"), "other.txt\r\n");
    let mut client = FtpClient::log_in(&server);
    assert!(client.text("NLST").starts_with("a.txt\r\n"), "the first site is the default");
}

#[test]
fn served_beside_http_from_the_same_cache() {
    let directory = tree();
    let port = free_port();
    let server = TestServer::serve(directory.path(), &["--ftp", &format!("127.0.0.1:{port}")]);
    server.await_log(&format!("Serving at ftp://127.0.0.1:{port}/"));
    let head = server.exchange(b"GET /a.txt HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert!(head.ends_with("one\ntwo\n"), "{head}");
    let stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut client = FtpClient::over(stream);
    assert_eq!(client.codes(&["USER ftp", "PASS x", "TYPE I"]), [331, 230, 200]);
    assert_eq!(client.text("RETR a.txt"), "one\ntwo\n");
    fs::write(directory.path().join("a.txt"), "changed").unwrap();
    eventually("the change is seen", || client.text("RETR a.txt") == "changed");
}

#[test]
fn reloads_keep_sessions_and_transfers() {
    let directory = tree();
    let before = configuration(&directory, "");
    let operated = Operated::start(&before);
    let mut client = FtpClient::log_in(&operated.server);
    let mut data = client.data();
    assert_eq!(code(&client.command("RETR large.bin")), 150);
    // Below the first root, for which the process has permissions.
    let root = directory.path().display();
    operated.reload(&before.replace(&format!("{root}\""), &format!("{root}/sub dir\"")));
    let mut content = Vec::new();
    data.read_to_end(&mut content).unwrap();
    assert_eq!((content.len(), code(&client.reply())), (LARGE_BYTES, 226));
    assert_eq!(client.text("NLST"), "c.txt\r\n", "the session continues with the new root");
    // The next configuration uses the listener for HTTP.
    operated.reload("site {\n listen \"127.0.0.1:0\"\n respond \"/\" 200 \"x\"\n}\n");
    client.send(b"NOOP\r\n");
    assert_eq!(code(&client.reply()), 421);
    assert_eq!(client.reply(), "");
}

#[test]
fn an_upgrade_keeps_sessions_and_transfers() {
    let directory = tree();
    let mut operated = Operated::start(&configuration(&directory, ""));
    let mut client = FtpClient::log_in(&operated.server);
    let mut data = client.data();
    assert_eq!(code(&client.command("RETR large.bin")), 150);
    operated.upgrade();
    let mut newer = FtpClient::log_in(&operated.server);
    assert_eq!(newer.text("RETR a.txt"), "one\ntwo\n");
    let mut content = Vec::new();
    data.read_to_end(&mut content).unwrap();
    assert_eq!((content.len(), code(&client.reply())), (LARGE_BYTES, 226));
    assert_eq!(client.text("RETR a.txt"), "one\ntwo\n", "the old process serves its sessions until they end");
}

#[test]
fn a_stop_lets_transfers_finish() {
    let directory = tree();
    let mut server = serve(&directory, "");
    let (mut idle, mut busy) = (FtpClient::log_in(&server), FtpClient::log_in(&server));
    let mut data = busy.data();
    assert_eq!(code(&busy.command("RETR large.bin")), 150);
    server.signal("TERM");
    assert_eq!(code(&idle.reply()), 421);
    let mut content = Vec::new();
    data.read_to_end(&mut content).unwrap();
    assert_eq!((content.len(), code(&busy.reply())), (LARGE_BYTES, 226));
    assert_eq!(code(&busy.reply()), 421);
    assert!(server.wait());
}

#[test]
fn curl_downloads_lists_and_resumes() {
    let directory = tree();
    let server = serve(&directory, "");
    let url = |path: &str| format!("ftp://{}/{path}", server.address);
    let curl = |arguments: &[&str]| {
        let output = Command::new("curl").args(["-sS", "--max-time", "60"]).args(arguments).output();
        let output = output.expect("curl is installed");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    assert_eq!(curl(&[&url("a.txt")]), b"one\ntwo\n");
    assert!(curl(&[&url("large.bin")]) == pattern(LARGE_BYTES));
    assert_eq!(curl(&["--disable-epsv", &url("sub%20dir/c.txt")]), b"below");
    assert_eq!(curl(&["-r", "2-4", &url("a.txt")]), b"e\nt");
    assert!(curl(&["-C", "1000", &url("large.bin")]) == pattern(LARGE_BYTES)[1000..]);
    let names = curl(&["-l", &url("")]);
    assert!(names.starts_with(b"a.txt\n") || names.starts_with(b"a.txt\r\n"));
    let head = String::from_utf8(curl(&["-I", &url("a.txt")])).unwrap();
    assert!(
        head.contains("Last-Modified: Wed, 17 Jul 2002 21:07:15 GMT") && head.contains("Content-Length: 8"),
        "{head}"
    );
    // Several files over one connection.
    assert_eq!(curl(&[&url("a.txt"), &url("sub%20dir/c.txt"), &url("a.txt")]), b"one\ntwo\nbelowone\ntwo\n");
}

#[test]
fn pythons_ftplib() {
    let directory = tree();
    let server = serve(&directory, "");
    let script = r#"
import ftplib, io, sys
ftp = ftplib.FTP()
ftp.connect("127.0.0.1", int(sys.argv[1]), timeout=30)
ftp.encoding = "utf-8"
ftp.login()
assert ftp.pwd() == "/"
assert ftp.nlst() == ["a.txt", "b.txt", "café.txt", "large.bin", "sub dir"], ftp.nlst()
facts = dict(ftp.mlsd("", ["type", "size"]))
assert facts["a.txt"] == {"type": "file", "size": "8"}, facts
assert facts["sub dir"] == {"type": "dir"}, facts
lines = []
ftp.retrlines("RETR a.txt", lines.append)
assert lines == ["one", "two"], lines
ftp.cwd("sub dir")
content = io.BytesIO()
ftp.retrbinary("RETR c.txt", content.write)
assert content.getvalue() == b"below"
ftp.cwd("..")
assert ftp.size("large.bin") == 24 << 20
parts = io.BytesIO()
ftp.retrbinary("RETR large.bin", parts.write, rest=1 << 20)
assert len(parts.getvalue()) == 23 << 20
data = ftp.transfercmd("RETR large.bin")
data.recv(1000)
reply = ftp.abort()
assert reply[:3] == "426" or reply[:3] == "226", reply
if reply[:3] == "426":
    assert ftp.voidresp().startswith("226")
data.close()
ftp.set_pasv(True)
for name in ["STOR x", "DELE a.txt"]:
    try:
        ftp.voidcmd(name)
        raise SystemExit(name)
    except ftplib.error_perm as error:
        assert str(error).startswith("550"), error
ftp.close()
"#;
    let port = server.address.port().to_string();
    let output = Command::new("python3").args(["-c", script, &port]).output().expect("python3 is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn lftp_mirrors() {
    let directory = tree();
    for number in 0..50 {
        fs::write(directory.path().join(format!("sub dir/{number}")), number.to_string()).unwrap();
    }
    let (server, copy) = (serve(&directory, ""), tempfile::tempdir().unwrap());
    let commands = format!(
        "set ssl:verify-certificate no; set net:timeout 20; set net:max-retries 1; open {}; mirror -P 4 / {}",
        server.address,
        copy.path().display()
    );
    let output = match Command::new("lftp").args(["-c", &commands]).output() {
        Ok(output) => output,
        Err(_) => return skip_without("lftp"),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::read(copy.path().join("large.bin")).unwrap() == pattern(LARGE_BYTES));
    assert_eq!(fs::read(copy.path().join("sub dir/49")).unwrap(), b"49");
    assert_eq!(fs::read_dir(copy.path()).unwrap().count(), 5);
}

#[test]
fn wget_mirrors_and_resumes() {
    let directory = tree();
    let (server, copy) = (serve(&directory, ""), tempfile::tempdir().unwrap());
    let wget = |arguments: &[&str]| {
        let mut wget = Command::new("wget");
        wget.args(["-q", "-T", "30", "-t", "1"]).args(arguments).current_dir(copy.path());
        let output = wget.output().expect("wget is installed");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let url = format!("ftp://{}", server.address);
    wget(&["-m", "-nH", "-X", "none", &format!("{url}/")]);
    assert!(fs::read(copy.path().join("large.bin")).unwrap() == pattern(LARGE_BYTES));
    assert_eq!(fs::read(copy.path().join("sub dir/c.txt")).unwrap(), b"below");
    fs::File::options().write(true).open(copy.path().join("large.bin")).unwrap().set_len(1_000_000).unwrap();
    wget(&["-c", &format!("{url}/large.bin")]);
    assert!(fs::read(copy.path().join("large.bin")).unwrap() == pattern(LARGE_BYTES));
}

#[test]
fn ncftp_gets_and_puts() {
    let directory = tree();
    let (server, copy) = (serve(&directory, "write \"all\""), tempfile::tempdir().unwrap());
    let port = server.address.port().to_string();
    let local = copy.path().display().to_string();
    let get = ["-V", "-t", "30", "-P", &port, "-R", "127.0.0.1", &local, "/sub dir", "/large.bin"];
    let output = match Command::new("ncftpget").args(get).output() {
        Ok(output) => output,
        Err(_) => return skip_without("ncftpget"),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::read(copy.path().join("large.bin")).unwrap() == pattern(LARGE_BYTES));
    assert_eq!(fs::read(copy.path().join("sub dir/c.txt")).unwrap(), b"below");
    fs::rename(copy.path().join("large.bin"), copy.path().join("again.bin")).unwrap();
    let file = copy.path().join("again.bin").display().to_string();
    let put = ["-V", "-t", "30", "-P", &port, "127.0.0.1", "/", &file];
    let output = Command::new("ncftpput").args(put).output().expect("it comes with ncftpget");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::read(directory.path().join("again.bin")).unwrap() == pattern(LARGE_BYTES));
}
