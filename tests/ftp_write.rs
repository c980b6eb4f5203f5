//! Uploads and other changes over FTP.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::process::Command;

use tempfile::TempDir;

use crate::support::ftp::{FtpClient, code};
use crate::support::port::free_port;
use crate::support::skips::skip_without;
use crate::support::waiting::eventually;
use crate::support::{PATIENCE, TestServer, ask, tailcoat};

fn serve(directory: &TempDir, options: &str) -> TestServer {
    let root = directory.path().display();
    TestServer::run(&format!("site {{\n ftp \"127.0.0.1:0\" {{\n root \"{root}\"\n {options}\n}}\n}}\n"))
}

/// Uploads content; returns the last reply.
fn upload(client: &mut FtpClient, command: &str, content: &[u8]) -> String {
    let mut data = client.data();
    let begun = client.command(command);
    if code(&begun) != 150 {
        return begun;
    }
    data.write_all(content).unwrap();
    drop(data);
    client.reply()
}

fn names(directory: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(directory.path()).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn files_are_uploaded_and_changed() {
    let directory = tempfile::tempdir().unwrap();
    let server = serve(&directory, "write \"all\"");
    let read = |name: &str| fs::read(directory.path().join(name)).unwrap();
    let mut client = FtpClient::log_in(&server);
    let large: Vec<u8> = (0..3_000_000_u32).map(|at| (at ^ at >> 8) as u8).collect();
    assert_eq!(upload(&mut client, "STOR large.bin", &large), "226 Transfer complete.\r\n");
    assert!(read("large.bin") == large);
    assert_eq!(code(&upload(&mut client, "STOR a.txt", b"one")), 226);
    assert_eq!(code(&upload(&mut client, "APPE a.txt", b" two")), 226);
    assert_eq!(read("a.txt"), b"one two");
    assert_eq!(code(&upload(&mut client, "APPE new.txt", b"new")), 226);
    assert_eq!(code(&client.command("REST 4")), 350);
    assert_eq!(code(&upload(&mut client, "STOR a.txt", b"three")), 226);
    assert_eq!(read("a.txt"), b"one three");
    assert_eq!(code(&client.command("REST 99")), 350);
    assert_eq!(code(&upload(&mut client, "STOR a.txt", b"x")), 554);
    assert_eq!(client.codes(&["TYPE A"]), [200]);
    assert_eq!(code(&upload(&mut client, "STOR lines.txt", b"one\r\ntwo\r\n")), 226);
    assert_eq!(read("lines.txt"), b"one\ntwo\n");
    assert_eq!(client.codes(&["TYPE I"]), [200]);
    assert_eq!(client.command("MKD sub"), "257 \"/sub\" created.\r\n");
    assert_eq!(
        client.codes(&["MKD sub", "RNFR a.txt", "RNTO sub/b.txt", "RMD sub", "RNTO x"]),
        [550, 350, 250, 550, 503]
    );
    assert_eq!(client.command("MFMT 20020717210715 sub/b.txt"), "213 Modify=20020717210715; /sub/b.txt\r\n");
    assert_eq!(client.command("MDTM sub/b.txt"), "213 20020717210715\r\n");
    assert_eq!(
        client.codes(&["DELE sub", "DELE sub/b.txt", "DELE missing", "RMD sub", "RMD new.txt"]),
        [550, 250, 550, 250, 501]
    );
    let reply = upload(&mut client, "STOU", b"unique");
    assert_eq!(code(&reply), 226);
    assert_eq!(names(&directory).len(), 4);
    assert!(names(&directory)[3].starts_with("upload-"));
    assert!(client.command("FEAT").contains("\r\n MFMT\r\n"));
    assert!(client.command("MLST new.txt").contains("perm="));
}

#[test]
fn incomplete_uploads_leave_nothing() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.txt"), "old").unwrap();
    let server = serve(&directory, "write \"all\"\n stored-bytes-max \"1KiB\"");
    let mut client = FtpClient::log_in(&server);
    // Aborted.
    let mut data = client.data();
    assert_eq!(code(&client.command("STOR a.txt")), 150);
    data.write_all(b"new").unwrap();
    client.send(b"ABOR\r\n");
    assert_eq!([code(&client.reply()), code(&client.reply())], [426, 226]);
    // Reset by the client.
    let data = client.data();
    assert_eq!(code(&client.command("STOR a.txt")), 150);
    socket2::SockRef::from(&data).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(data);
    assert_eq!(code(&client.reply()), 426);
    // Too large.
    assert_eq!(code(&upload(&mut client, "STOR a.txt", &[7; 2_000])), 552);
    // The control connection ends.
    let mut data = client.data();
    assert_eq!(code(&client.command("STOR a.txt")), 150);
    data.write_all(b"new").unwrap();
    drop(client);
    eventually("no part is left", || names(&directory) == ["a.txt"]);
    assert_eq!(fs::read(directory.path().join("a.txt")).unwrap(), b"old");
}

#[test]
fn changes_stay_below_the_root() {
    let (directory, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(outside.path().join("victim.txt"), "victim").unwrap();
    symlink(outside.path(), directory.path().join("out")).unwrap();
    symlink(outside.path().join("victim.txt"), directory.path().join("link.txt")).unwrap();
    fs::write(directory.path().join(".htpasswd"), "secret").unwrap();
    let server = serve(&directory, "write \"all\"");
    let mut client = FtpClient::log_in(&server);
    let rejected = [
        "DELE out/victim.txt",
        "MKD out/x",
        "RMD out/x",
        "DELE ../x",
        "MFMT 20020717210715 out/victim.txt",
        "DELE .htpasswd",
        "MKD .git",
        "RMD /",
        "DELE .",
        "MKD ..",
    ];
    for command in rejected {
        assert_eq!(code(&client.command(command)), 550, "{command}");
    }
    for command in ["STOR out/new.txt", "APPE out/victim.txt", "STOR .hidden", "STOR /", "APPE link.txt"] {
        assert_eq!(code(&upload(&mut client, command, b"x")), 550, "{command}");
    }
    assert_eq!(client.codes(&["RNFR out/victim.txt", "RNTO stolen.txt"]), [350, 550]);
    // A link is replaced, not followed.
    assert_eq!(code(&upload(&mut client, "STOR link.txt", b"own")), 226);
    assert_eq!(fs::read(directory.path().join("link.txt")).unwrap(), b"own");
    assert_eq!(fs::read(outside.path().join("victim.txt")).unwrap(), b"victim");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

/// Clients can make no program, and read the source of none, even by renaming directories or through links.
#[test]
fn programs_cannot_be_made_or_read() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("cgi-bin")).unwrap();
    fs::create_dir(directory.path().join("open")).unwrap();
    fs::write(directory.path().join("cgi-bin/run"), "source").unwrap();
    fs::write(directory.path().join("a.php"), "source").unwrap();
    fs::write(directory.path().join("b.txt"), "text").unwrap();
    symlink("cgi-bin", directory.path().join("link")).unwrap();
    let root = directory.path().display();
    let port = free_port();
    let _server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n ftp \"127.0.0.1:{port}\" {{\n write \"all\"\n}}\n root \"{root}\"\n \
         cgi \"/cgi-bin/*\" root=\"{root}\"\n}}\n"
    ));
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut client = FtpClient::over(stream);
    assert_eq!(client.codes(&["USER ftp", "PASS x", "TYPE I"]), [331, 230, 200]);
    for command in ["STOR cgi-bin/new", "STOR c.php", "APPE cgi-bin/run", "STOR link/new"] {
        assert_eq!(code(&upload(&mut client, command, b"x")), 550, "{command}");
    }
    for [from, to] in [
        ["b.txt", "cgi-bin/b"],
        ["b.txt", "b.php"],
        ["b.txt", "link/b"],
        ["a.php", "a.txt"],
        ["cgi-bin/run", "run.txt"],
        ["link/run", "run.txt"],
        ["open", "other"],
        ["cgi-bin", "other"],
        ["link", "cgi-bin/link"],
    ] {
        let renamed = client.codes(&[&format!("RNFR {from}"), &format!("RNTO {to}")]);
        assert_eq!(renamed, [350, 550], "{from} {to}");
    }
    assert_eq!(client.codes(&["DELE cgi-bin/run", "DELE a.php", "MKD cgi-bin/sub"]), [550; 3]);
    for command in ["RETR a.php", "RETR cgi-bin/run"] {
        assert_eq!(code(&client.transfer(command).1), 550, "{command}");
    }
    assert_eq!(client.codes(&["RNFR b.txt", "RNTO open/b.txt", "SIZE open/b.txt"]), [350, 250, 213]);
}

/// Links that stay below the root are followed, as over HTTP. With `user-homes`, the operator can link a common
/// directory into all homes.
#[test]
fn homes_and_links_below_the_root() {
    let (directory, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["ann", "bob", "common"] {
        fs::create_dir(directory.path().join(name)).unwrap();
        fs::write(directory.path().join(name).join("own.txt"), name).unwrap();
    }
    symlink("../common", directory.path().join("ann/shared")).unwrap();
    symlink("/etc", directory.path().join("ann/out")).unwrap();
    let users = keys.path().join("users");
    fs::write(&users, "ann:$2y$04$GXaETfDlsBW4DvwQRwWIV.UBj7SvKQjVLNPnLWju4glZXf38pZMVC\n").unwrap();
    let server = serve(&directory, &format!("write \"users\"\n user-homes on\n users \"{}\"", users.display()));
    let mut client = FtpClient::connect(&server);
    assert_eq!(client.codes(&["USER ann", "PASS secret", "TYPE I"]), [331, 230, 200]);
    assert_eq!(client.text("RETR shared/own.txt"), "common");
    assert_eq!(client.text("NLST"), "own.txt\r\nshared\r\n", "a link out of the root is not listed");
    assert_eq!(code(&upload(&mut client, "STOR shared/new.txt", b"new")), 226);
    assert_eq!(fs::read(directory.path().join("common/new.txt")).unwrap(), b"new");
    assert_eq!(client.codes(&["CWD ../bob", "SIZE /../bob/own.txt", "CWD out", "DELE out/passwd"]), [550; 4]);
    assert_eq!(client.codes(&["RNFR own.txt", "RNTO ../bob/x", "MKD /../bob/x"]), [350, 550, 550]);
    assert!(!directory.path().join("bob/x").exists());
    // The home itself belongs to the operator, also while it is missing.
    assert_eq!(client.codes(&["MFMT 20020717210715 /", "RNFR /", "RNTO /x", "DELE /"]), [550, 350, 550, 550]);
    fs::rename(directory.path().join("ann"), directory.path().join("old")).unwrap();
    assert_eq!(client.codes(&["MKD /", "LIST"]), [550, 425]);
    for command in ["STOR /", "APPE /"] {
        assert_eq!(code(&upload(&mut client, command, b"x")), 550, "{command}");
    }
    fs::create_dir(directory.path().join("ann")).unwrap();
    assert_eq!(client.codes(&["RMD /", "CWD /"]), [550, 250]);
    assert_eq!(names(&directory), ["ann", "bob", "common", "old"]);
}

#[test]
fn only_users_write() {
    let (directory, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let users = keys.path().join("users");
    fs::write(&users, "ann:$2y$04$GXaETfDlsBW4DvwQRwWIV.UBj7SvKQjVLNPnLWju4glZXf38pZMVC\n").unwrap();
    let server = serve(&directory, &format!("write \"users\"\n anonymous on\n users \"{}\"", users.display()));
    let mut client = FtpClient::log_in(&server);
    assert_eq!(code(&upload(&mut client, "STOR a.txt", b"x")), 550);
    assert_eq!(client.codes(&["MKD x", "DELE x", "RNFR x"]), [550, 550, 550]);
    assert_eq!(client.codes(&["USER ann", "PASS secret", "TYPE I"]), [331, 230, 200]);
    assert_eq!(code(&upload(&mut client, "STOR a.txt", b"x")), 226);
    assert_eq!(client.codes(&["USER ftp", "PASS x", "DELE a.txt"]), [331, 230, 550]);
}

#[test]
fn curl_and_lftp_upload() {
    let (directory, source) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = serve(&directory, "write \"all\"");
    fs::create_dir(source.path().join("sub")).unwrap();
    fs::write(source.path().join("a.txt"), "content").unwrap();
    fs::write(source.path().join("sub/b.bin"), vec![7; 1 << 20]).unwrap();
    let file = source.path().join("a.txt").display().to_string();
    let url = format!("ftp://{}/new/dir/a.txt", server.address);
    let output = Command::new("curl").args(["-sS", "--ftp-create-dirs", "-T", &file, &url]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read(directory.path().join("new/dir/a.txt")).unwrap(), b"content");
    let commands = format!(
        "set net:timeout 20; set net:max-retries 1; open {}; mirror -R {} /copy",
        server.address,
        source.path().display()
    );
    let output = match Command::new("lftp").args(["-c", &commands]).output() {
        Ok(output) => output,
        Err(_) => return skip_without("lftp"),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read(directory.path().join("copy/a.txt")).unwrap(), b"content");
    assert_eq!(fs::read(directory.path().join("copy/sub/b.bin")).unwrap(), vec![7; 1 << 20]);
}

/// Transfer commands without a data connection, as in RFC 1123, section 4.1.2.7.
#[test]
fn transfers_need_pasv_first() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.txt"), "content").unwrap();
    let server = serve(&directory, "write \"all\"");
    let mut client = FtpClient::log_in(&server);
    for command in ["STOR a.txt", "STOU", "APPE a.txt", "RETR a.txt", "LIST", "NLST", "MLSD"] {
        assert_eq!(client.codes(&[command, "NOOP"]), [425, 200], "{command}");
    }
    // REST belongs to the failed command.
    assert_eq!(client.codes(&["REST 3", "RETR a.txt"]), [350, 425]);
    assert_eq!(client.text("RETR a.txt"), "content");
    assert_eq!(names(&directory), ["a.txt"]);
}

/// APPE, and STOR after REST, copy the present file. The copy must show nothing that clients cannot read, and keeps the
/// permissions.
#[test]
fn appending_shows_no_private_file() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let make = |name: &str, mode: u32| {
        fs::write(path(name), "secret").unwrap();
        fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    make("private.txt", 0o600);
    make("group.txt", 0o664);
    let root = directory.path().display();
    let server = TestServer::run(&format!(
        "site {{\n permission-rule\n ftp \"127.0.0.1:0\" {{\n root \"{root}\"\n write \"all\"\n}}\n}}\n"
    ));
    let mut client = FtpClient::log_in(&server);
    assert_eq!(code(&upload(&mut client, "APPE private.txt", b" more")), 550);
    assert_eq!(client.codes(&["REST 6"]), [350]);
    assert_eq!(code(&upload(&mut client, "STOR private.txt", b" more")), 550);
    assert_eq!(code(&client.transfer("RETR private.txt").1), 550);
    assert_eq!(fs::read(path("private.txt")).unwrap(), b"secret");
    assert_eq!(code(&upload(&mut client, "APPE group.txt", b" more")), 226);
    assert_eq!(fs::read(path("group.txt")).unwrap(), b"secret more");
    assert_eq!(fs::metadata(path("group.txt")).unwrap().permissions().mode() & 0o777, 0o664);
    assert_eq!(names(&directory).len(), 2, "no part is left");
    // Without the rule, clients can read the file anyway; other users of the machine still cannot.
    let server = serve(&directory, "write \"all\"");
    let mut client = FtpClient::log_in(&server);
    assert_eq!(code(&upload(&mut client, "APPE private.txt", b" more")), 226);
    assert_eq!(fs::metadata(path("private.txt")).unwrap().permissions().mode() & 0o777, 0o600);
}

/// Large files are appended in place when the upload is complete. Uploads at the same time all remain, and one that is cut
/// or too long changes nothing.
#[test]
fn large_files_are_appended_in_place() {
    use std::os::unix::fs::MetadataExt;
    const LARGE_BYTES: usize = 3 << 20;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for name in ["log.txt", "linked.txt", "target.txt"] {
        fs::write(path(name), vec![b'a'; LARGE_BYTES]).unwrap();
    }
    fs::hard_link(path("linked.txt"), path("snapshot.txt")).unwrap();
    symlink("target.txt", path("link.txt")).unwrap();
    let count = names(&directory).len();
    let server = serve(&directory, "write \"all\"\n stored-bytes-max \"3200KiB\"");
    let content = |name: &str| fs::read(path(name)).unwrap();
    let inode = |name: &str| fs::metadata(path(name)).unwrap().ino();
    let shares_blocks = shares_blocks(&directory);
    let before = inode("log.txt");
    let mut client = FtpClient::log_in(&server);
    assert_eq!(code(&upload(&mut client, "APPE log.txt", b"one")), 226);
    assert_eq!(client.codes(&[&format!("REST {}", LARGE_BYTES + 3)]), [350]);
    assert_eq!(code(&upload(&mut client, "STOR log.txt", b"two")), 226);
    assert!(content("log.txt").len() == LARGE_BYTES + 6 && content("log.txt").ends_with(b"aonetwo"));
    assert!(inode("log.txt") == before || shares_blocks, "the file was copied");
    // Two at once: each appears when it is complete.
    let mut other = FtpClient::log_in(&server);
    let mut data = [other.data(), client.data()];
    assert_eq!([code(&other.command("APPE log.txt")), code(&client.command("APPE log.txt"))], [150, 150]);
    data[0].write_all(b"four").unwrap();
    data[1].write_all(b"three").unwrap();
    let [first, second] = data;
    drop(second);
    assert_eq!(code(&client.reply()), 226);
    assert!(content("log.txt").ends_with(b"twothree"));
    drop(first);
    assert_eq!(code(&other.reply()), 226);
    assert!(content("log.txt").ends_with(b"twothreefour"));
    let length = content("log.txt").len();
    // Cut by ABOR, by a reset, and by the limit.
    let mut data = client.data();
    assert_eq!(code(&client.command("APPE log.txt")), 150);
    data.write_all(b"lost").unwrap();
    client.send(b"ABOR\r\n");
    assert_eq!([code(&client.reply()), code(&client.reply())], [426, 226]);
    let data = client.data();
    assert_eq!(code(&client.command("APPE log.txt")), 150);
    socket2::SockRef::from(&data).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(data);
    assert_eq!(code(&client.reply()), 426);
    assert_eq!(code(&upload(&mut client, "APPE log.txt", &vec![7; 200 << 10])), 552);
    assert_eq!(content("log.txt").len(), length);
    // Other names of a file keep their content, and a link is replaced.
    assert_eq!(code(&upload(&mut client, "APPE linked.txt", b"more")), 226);
    assert!(content("snapshot.txt").len() == LARGE_BYTES && content("linked.txt").len() == LARGE_BYTES + 4);
    assert_eq!(code(&upload(&mut client, "APPE link.txt", b"more")), 226);
    assert!(content("target.txt").len() == LARGE_BYTES && content("link.txt").len() == LARGE_BYTES + 4);
    assert!(fs::symlink_metadata(path("link.txt")).unwrap().is_file());
    // A file that shrinks meanwhile has no such position any more, and APPE makes a file that has gone.
    assert_eq!(client.codes(&[&format!("REST {length}")]), [350]);
    let data = client.data();
    assert_eq!(code(&client.command("STOR log.txt")), 150);
    fs::write(path("log.txt"), "short").unwrap();
    drop(data);
    assert_eq!(code(&client.reply()), 554);
    let mut data = client.data();
    assert_eq!(code(&client.command("APPE log.txt")), 150);
    fs::remove_file(path("log.txt")).unwrap();
    data.write_all(b"new").unwrap();
    drop(data);
    assert_eq!(code(&client.reply()), 226);
    assert_eq!(content("log.txt"), b"new");
    assert_eq!(names(&directory).len(), count, "{:?}", names(&directory));
}

/// Appending at the same time loses nothing, whether the file is copied or not.
#[test]
fn appending_at_once_loses_nothing() {
    const SESSIONS: usize = 6;
    const LINES: usize = 15;
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("large.log"), vec![b'\n'; 2 << 20]).unwrap();
    let server = serve(&directory, "write \"all\"");
    std::thread::scope(|scope| {
        for session in 0..SESSIONS {
            let server = &server;
            scope.spawn(move || {
                let mut client = FtpClient::log_in(server);
                for line in 0..LINES {
                    let content = format!("{session} {line}\n");
                    for command in ["APPE large.log", "APPE small.log"] {
                        assert_eq!(code(&upload(&mut client, command, content.as_bytes())), 226, "{command}");
                    }
                }
            });
        }
    });
    let mut expect: Vec<_> =
        (0..SESSIONS).flat_map(|session| (0..LINES).map(move |line| format!("{session} {line}"))).collect();
    expect.sort();
    for name in ["large.log", "small.log"] {
        let text = fs::read_to_string(directory.path().join(name)).unwrap();
        let mut lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
        lines.sort_unstable();
        assert_eq!(lines, expect, "{name}");
    }
}

/// A user's incomplete APPE is kept with the file that it continues, so that SIZE tells where to go on.
#[test]
fn a_cut_append_can_be_resumed() {
    const LARGE_BYTES: usize = 2 << 20;
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("log.txt"), vec![b'a'; LARGE_BYTES]).unwrap();
    let server = serve(&directory, "write \"all\"\n keep-partial on");
    let mut client = FtpClient::log_in(&server);
    let cut = |client: &mut FtpClient, command: &str| {
        let mut data = client.data();
        assert_eq!(code(&client.command(command)), 150);
        data.write_all(b"one").unwrap();
        // The server has written the piece when it keeps it.
        eventually("the bytes arrive", || client.command("STAT").contains("progress: 3 bytes"));
        socket2::SockRef::from(&data).set_linger(Some(std::time::Duration::ZERO)).unwrap();
        drop(data);
        assert_eq!(code(&client.reply()), 426);
    };
    for (name, length) in [("log.txt", LARGE_BYTES), ("new.txt", 0)] {
        cut(&mut client, &format!("APPE {name}"));
        eventually("the part is kept", || client.command(&format!("SIZE {name}")) == format!("213 {}\r\n", length + 3));
        assert_eq!(fs::metadata(path(name)).map_or(0, |metadata| metadata.len()), length as u64);
        assert_eq!(code(&upload(&mut client, &format!("APPE {name}"), b"two")), 226);
        let content = fs::read(path(name)).unwrap();
        assert!(content.len() == length + 6 && content.ends_with(b"onetwo"), "{name}");
    }
    assert_eq!(names(&directory), ["log.txt", "new.txt"]);
}

/// True if copies of files share their blocks in the file system of this directory.
fn shares_blocks(directory: &TempDir) -> bool {
    let (from, to) = (directory.path().join("link.txt"), directory.path().join("clone"));
    let copied = Command::new("cp").args(["--reflink=always"]).args([&from, &to]).output().unwrap();
    fs::remove_file(to).unwrap();
    copied.status.success()
}

/// Incomplete uploads are hidden even where hidden files are shown, over FTP and HTTP.
#[test]
fn incomplete_uploads_are_hidden() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(".shown"), "hidden").unwrap();
    let port = free_port();
    let root = directory.path().display();
    let server = TestServer::run(&format!(
        "site {{\n listen \"127.0.0.1:0\"\n root \"{root}\"\n hidden\n browse\n ftp \"127.0.0.1:{port}\" \
         {{\n write \"all\"\n}}\n}}\n"
    ));
    let mut clients = [0, 1].map(|_| {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut client = FtpClient::over(stream);
        assert_eq!(client.codes(&["USER ftp", "PASS x", "TYPE I"]), [331, 230, 200]);
        client
    });
    let [uploading, client] = &mut clients;
    let mut data = uploading.data();
    assert_eq!(code(&uploading.command("STOR new.txt")), 150);
    data.write_all(b"part").unwrap();
    let temporary = names(&directory).into_iter().find(|name| name.starts_with(".tailcoat-")).unwrap();
    for command in ["NLST", "NLST -a", "NLST .*", "NLST -a /"] {
        let listed = client.text(command);
        assert!(!listed.contains("tailcoat"), "{command}: {listed}");
    }
    assert!(client.text("MLSD").contains(".shown") && !client.text("MLSD").contains("tailcoat"));
    for command in ["RETR", "LIST"] {
        assert_eq!(code(&client.transfer(&format!("{command} {temporary}")).1), 550, "{command}");
    }
    for command in ["SIZE", "MLST", "DELE", "MDTM"] {
        assert_eq!(code(&client.command(&format!("{command} {temporary}"))), 550, "{command}");
    }
    let get = |path: &str| ask(&server, &format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
    assert!(get("/.shown").starts_with("HTTP/1.1 200 "));
    assert!(get(&format!("/{temporary}")).starts_with("HTTP/1.1 404 "));
    let listed = get("/");
    assert!(listed.contains(".shown") && !listed.contains("tailcoat-"), "{listed}");
    drop(data);
    assert_eq!(code(&uploading.reply()), 226);
    assert_eq!(names(&directory), [".shown", "new.txt"]);
}

/// Users cannot make an operator's link lead elsewhere by moving it, or a directory around it.
#[test]
fn links_cannot_be_moved_to_lead_elsewhere() {
    let (directory, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["ann/a/b", "ann/bob", "ann/plain/sub", "ann/free", "bob"] {
        fs::create_dir_all(directory.path().join(name)).unwrap();
    }
    fs::write(directory.path().join("bob/secret.txt"), "secret").unwrap();
    fs::write(directory.path().join("ann/bob/own.txt"), "own").unwrap();
    symlink("../../bob", directory.path().join("ann/a/b/link")).unwrap();
    symlink("../sub", directory.path().join("ann/plain/sub/inside")).unwrap();
    symlink("own.txt", directory.path().join("ann/bob/beside.txt")).unwrap();
    let users = keys.path().join("users");
    fs::write(&users, "ann:$2y$04$GXaETfDlsBW4DvwQRwWIV.UBj7SvKQjVLNPnLWju4glZXf38pZMVC\n").unwrap();
    let server = serve(&directory, &format!("write \"users\"\n user-homes on\n users \"{}\"", users.display()));
    let mut client = FtpClient::connect(&server);
    assert_eq!(client.codes(&["USER ann", "PASS secret", "TYPE I"]), [331, 230, 200]);
    for (from, to, expect) in [
        ("a/b/link", "a/link", 550),
        ("a/b/link", "free/link", 550),
        ("a/b", "b", 550),
        ("a", "free/a", 550),
        ("bob/beside.txt", "beside.txt", 550),
        // In the same directory, a link leads to the same place.
        ("a/b/link", "a/b/other", 250),
        ("a/b", "a/c", 250),
        ("a", "d", 250),
        // The whole of it moves.
        ("plain", "free/plain", 250),
        ("bob", "free/bob", 250),
    ] {
        assert_eq!(client.codes(&[&format!("RNFR {from}"), &format!("RNTO {to}")]), [350, expect], "{from} {to}");
    }
    assert_eq!(client.text("NLST free/plain/sub"), "free/plain/sub/inside\r\n");
    assert_eq!(client.text("RETR free/bob/beside.txt"), "own");
    // Trees deeper than any that is in use are not searched.
    let mut path = "free".to_owned();
    for _ in 0..80 {
        path.push_str("/x");
        assert_eq!(code(&client.command(&format!("MKD {path}"))), 257);
    }
    assert_eq!(client.codes(&["RNFR free/x", "RNTO x", "RNFR free/x", "RNTO free/y"]), [350, 450, 350, 250]);
}

/// `check` warns if FTP reaches programs that it does not protect.
#[test]
fn programs_without_protection_are_reported() {
    let check = |root: &str, options: &str, of_http: &str| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tailcoat.kdl");
        let text = format!(
            "site {{\n listen \"127.0.0.1:8080\"\n {of_http}\n ftp \"127.0.0.1:2121\" {{\n {root}\n {options}\n}}\n}}\n"
        );
        fs::write(&file, text).unwrap();
        let output = tailcoat().args(["check", "-c"]).arg(&file).output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let own = "root \"/tmp/www\"\n cgi \"/cgi-bin/*\" root=\"/tmp/www\"";
    for (root, options, of_http, expect) in [
        ("", "write \"all\"", own, None),
        ("root \"/tmp/www\"", "write \"all\"", own, None),
        ("root \"/tmp/other\"", "write \"all\"", own, None),
        ("root \"/tmp/www-2\"", "write \"all\"", own, None),
        ("root \"/tmp\"", "write \"all\"", own, Some("change")),
        ("root \"/tmp\"", "", own, Some("read")),
        ("root \"/tmp/www/cgi-bin\"", "write \"all\"", own, Some("change")),
        ("", "write \"all\"", "root \"/tmp/www\"\n cgi \"/run/*\" root=\"/tmp/www/programs\"", Some("change")),
    ] {
        let output = check(root, options, of_http);
        let warns = |verb: &str| output.contains(&format!("FTP clients can {verb} programs in /tmp/www"));
        match expect {
            Some(verb) => assert!(warns(verb), "{root} {options}: {output}"),
            None => assert!(!warns("change") && !warns("read"), "{root} {options}: {output}"),
        }
    }
}
