//! FTP over TLS: explicit and implicit, with common clients, and attacks on it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::support::ftp::{FtpClient, code};
use crate::support::operated::Operated;
use crate::support::port::free_port;
use crate::support::skips::skip_without;
use crate::support::tls::{TestCa, handshake};
use crate::support::waiting::eventually;
use crate::support::{TestServer, tailcoat};

/// Length of `large.bin`; more than sockets hold.
const LARGE_BYTES: usize = 24 << 20;

/// Directory with files, and one with a certificate.
struct Secured {
    files: TempDir,
    keys: TempDir,
    ca: TestCa,
}

impl Secured {
    fn new() -> Self {
        let (files, keys, ca) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), TestCa::new());
        fs::write(files.path().join("a.txt"), "one\ntwo\n").unwrap();
        fs::write(files.path().join("large.bin"), pattern()).unwrap();
        fs::create_dir(files.path().join("sub")).unwrap();
        fs::write(files.path().join("sub/c.txt"), "below").unwrap();
        ca.sign(&["localhost", "127.0.0.1"]).write(keys.path(), "site");
        fs::write(keys.path().join("ca.pem"), ca.pem()).unwrap();
        Self { files, keys, ca }
    }

    fn key(&self, name: &str) -> String {
        self.keys.path().join(name).display().to_string()
    }

    fn serve(&self, options: &str) -> TestServer {
        self.serve_beside(options, "")
    }

    fn serve_beside(&self, options: &str, of_site: &str) -> TestServer {
        let (root, certificate, key) = (self.files.path().display(), self.key("site.pem"), self.key("site.key"));
        TestServer::run(&format!(
            "site {{\n certificate \"{certificate}\" key=\"{key}\"\n {of_site}\n ftp \"127.0.0.1:0\" {{\n \
             root \"{root}\"\n {options}\n}}\n}}\n"
        ))
    }

    fn curl(&self, arguments: &[&str]) -> Output {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "60", "--cacert", &self.key("ca.pem")]).args(arguments);
        curl.output().expect("curl is installed")
    }

    fn python(&self, script: &str, port: u16) {
        let script = [PREAMBLE, script].concat();
        let arguments = ["-c", &script, &port.to_string(), &self.key("ca.pem")];
        let output = Command::new("python3").args(arguments).output().expect("python3 is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

fn pattern() -> Vec<u8> {
    (0..LARGE_BYTES).map(|at| (at ^ at >> 8 ^ at >> 16) as u8).collect()
}

/// Python's client, which does not resume sessions by itself, and one that does. Both see an end without `close_notify`
/// as an error.
const PREAMBLE: &str = r#"
import ftplib, io, socket, ssl, sys
port = int(sys.argv[1])
contexts = {}
def context(version):
    if version not in contexts:
        contexts[version] = ssl.create_default_context(cafile=sys.argv[2])
        contexts[version].maximum_version = version or ssl.TLSVersion.TLSv1_3
    return contexts[version]
class Reusing(ftplib.FTP_TLS):
    source = None
    def ntransfercmd(self, command, rest=None):
        data, size = ftplib.FTP.ntransfercmd(self, command, rest)
        if self._prot_p:
            session = (self.source or self).sock.session
            data = self.context.wrap_socket(data, server_hostname=self.host, session=session,
                                            suppress_ragged_eofs=False)
        return data, size
def connect(kind, version=None, protect=True):
    ftp = kind(context=context(version))
    ftp.encoding = "utf-8"
    ftp.connect("127.0.0.1", port, timeout=30)
    ftp.auth()
    ftp.login()
    if protect:
        ftp.prot_p()
    return ftp
def fetch(ftp, name):
    content = io.BytesIO()
    ftp.retrbinary("RETR " + name, content.write)
    return content.getvalue()
def fails(code, run, ftp=None):
    try:
        try:
            run()
        except OSError:
            # The data connection ended early; the reply says why.
            ftp.voidresp()
    except ftplib.Error as error:
        assert str(error).startswith(code), error
    else:
        raise SystemExit("no " + code)
"#;

#[test]
fn curl_with_explicit_and_implicit_tls() {
    let secured = Secured::new();
    let implicit = free_port();
    let server = secured.serve(&format!("require-tls on\n implicit-tls \"127.0.0.1:{implicit}\""));
    let explicit = format!("ftp://{}", server.address);
    for base in [explicit.clone(), format!("ftps://127.0.0.1:{implicit}")] {
        for version in ["--tls-max 1.3", "--tls-max 1.2"] {
            let (one, large, other) =
                (format!("{base}/a.txt"), format!("{base}/large.bin"), format!("{base}/sub/c.txt"));
            let mut arguments: Vec<&str> = version.split(' ').collect();
            arguments.extend(["--ssl-reqd", &one, &large, &other]);
            let output = secured.curl(&arguments);
            assert!(output.status.success(), "{base}: {}", String::from_utf8_lossy(&output.stderr));
            assert!(output.stdout == [b"one\ntwo\n", pattern().as_slice(), b"below"].concat(), "{base} {version}");
        }
    }
    let output = secured.curl(&[&format!("{explicit}/a.txt")]);
    assert_eq!(output.status.code(), Some(67), "a login without TLS is denied");
    let output = secured.curl(&["--ftp-ssl-control", &format!("{explicit}/a.txt")]);
    assert!(!output.status.success() && output.stdout.is_empty(), "PROT C is denied");
}

#[test]
fn data_connections_resume_the_session_of_their_control_connection() {
    let secured = Secured::new();
    let server = secured.serve("");
    secured.python(
        r#"
for version in [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]:
    ftp = connect(Reusing, version)
    assert fetch(ftp, "a.txt") == b"one\ntwo\n"
    assert fetch(ftp, "sub/c.txt") == b"below"
    assert len(fetch(ftp, "large.bin")) == 24 << 20
    assert ftp.nlst() == ["a.txt", "large.bin", "sub"]
    # The session of another client, as an attacker has it.
    other = connect(Reusing, version)
    ftp.source = other
    fails("522", lambda: fetch(ftp, "a.txt"), ftp)
    ftp.source = None
    assert fetch(ftp, "a.txt") == b"one\ntwo\n", "the session continues"
    # No session at all.
    plain = connect(ftplib.FTP_TLS, version)
    fails("522", lambda: fetch(plain, "a.txt"), plain)
    plain.prot_c()
    assert fetch(plain, "a.txt") == b"one\ntwo\n"
    for one in [ftp, other, plain]:
        one.quit()
"#,
        server.address.port(),
    );
}

#[test]
fn clients_that_cannot_resume_are_allowed_by_option() {
    let secured = Secured::new();
    let server = secured.serve("require-session-reuse off");
    secured.python(
        r#"
ftp = connect(ftplib.FTP_TLS)
assert fetch(ftp, "a.txt") == b"one\ntwo\n"
assert len(fetch(ftp, "large.bin")) == 24 << 20
ftp.quit()
"#,
        server.address.port(),
    );
}

#[test]
fn lftp_mirrors_with_tls() {
    let secured = Secured::new();
    let implicit = free_port();
    let server = secured.serve(&format!("require-tls on\n implicit-tls \"127.0.0.1:{implicit}\""));
    for url in [format!("ftp://{}", server.address), format!("ftps://127.0.0.1:{implicit}")] {
        let copy = tempfile::tempdir().unwrap();
        let commands = format!(
            "set ssl:ca-file {}; set ftp:ssl-force yes; set ftp:ssl-allow-anonymous yes; set ftp:ssl-protect-data yes; set ftp:ssl-protect-list yes; \
             set net:timeout 20; set net:max-retries 2; open {url}; mirror -P 3 / {}",
            secured.key("ca.pem"),
            copy.path().display()
        );
        let output = match Command::new("lftp").args(["-c", &commands]).output() {
            Ok(output) => output,
            Err(_) => return skip_without("lftp"),
        };
        assert!(output.status.success(), "{url}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(fs::read(copy.path().join("large.bin")).unwrap() == pattern(), "{url}");
        assert_eq!(fs::read(copy.path().join("sub/c.txt")).unwrap(), b"below");
    }
}

#[test]
fn wget_mirrors_with_tls() {
    let secured = Secured::new();
    let implicit = free_port();
    let server = secured.serve(&format!("require-tls on\n implicit-tls \"127.0.0.1:{implicit}\""));
    for (option, port) in [("--ftps-resume-ssl", server.address.port()), ("--ftps-implicit", implicit)] {
        let copy = tempfile::tempdir().unwrap();
        let mut wget = Command::new("wget");
        wget.args([
            "-q",
            "-T",
            "30",
            "-t",
            "1",
            "-m",
            "-nH",
            option,
            &format!("--ca-certificate={}", secured.key("ca.pem")),
        ]);
        let output = wget.arg(format!("ftps://127.0.0.1:{port}/")).current_dir(copy.path()).output();
        let output = output.expect("wget is installed");
        assert!(output.status.success(), "{option}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(fs::read(copy.path().join("large.bin")).unwrap() == pattern(), "{option}");
        assert_eq!(fs::read(copy.path().join("sub/c.txt")).unwrap(), b"below");
    }
}

#[test]
fn lftp_mirrors_to_the_server_with_tls() {
    let secured = Secured::new();
    let server = secured.serve("require-tls on\n write \"all\"");
    let source = tempfile::tempdir().unwrap();
    fs::create_dir_all(source.path().join("in/deep")).unwrap();
    fs::write(source.path().join("large.bin"), pattern()).unwrap();
    for number in 0..20 {
        fs::write(source.path().join(format!("in/deep/{number}.txt")), number.to_string()).unwrap();
    }
    let commands = format!(
        "set ssl:ca-file {}; set ftp:ssl-force yes; set ftp:ssl-allow-anonymous yes; set ftp:ssl-protect-data yes; \
         set net:timeout 20; set net:max-retries 2; open ftp://{}; mirror -R -P 3 {} /copy",
        secured.key("ca.pem"),
        server.address,
        source.path().display()
    );
    let output = match Command::new("lftp").args(["-c", &commands]).output() {
        Ok(output) => output,
        Err(_) => return skip_without("lftp"),
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let copy = secured.files.path().join("copy");
    assert!(fs::read(copy.join("large.bin")).unwrap() == pattern());
    assert_eq!(fs::read_dir(copy.join("in/deep")).unwrap().count(), 20);
    assert_eq!(fs::read(copy.join("in/deep/19.txt")).unwrap(), b"19");
}

#[test]
fn required_tls() {
    let secured = Secured::new();
    let server = secured.serve("require-tls on");
    let mut client = FtpClient::connect(&server);
    assert_eq!(client.codes(&["USER ftp", "PBSZ 0", "PROT P", "AUTH KERBEROS_V4"]), [530, 503, 503, 504]);
    let features = client.command("FEAT");
    for feature in [" AUTH TLS", " PBSZ", " PROT"] {
        assert!(features.contains(&format!("\r\n{feature}\r\n")), "{features}");
    }
    secured.python(
        r#"
ftp = connect(Reusing, protect=False)
fails("521", lambda: fetch(ftp, "a.txt"))
ftp.voidcmd("PBSZ 0")
fails("534", lambda: ftp.voidcmd("PROT C"))
fails("536", lambda: ftp.voidcmd("PROT E"))
ftp.prot_p()
assert fetch(ftp, "a.txt") == b"one\ntwo\n"
ftp.quit()
"#,
        server.address.port(),
    );
}

/// Commands that a third party adds after AUTH, before the client encrypts (CVE-2011-0411 and others), are dropped.
#[test]
fn no_injection_before_tls() {
    let secured = Secured::new();
    let server = secured.serve("");
    let client = std::sync::Arc::new(secured.ca.client(None));
    let stream = server.connect();
    let mut control = FtpClient::over(stream.try_clone().unwrap());
    control.send(b"AUTH TLS\r\nUSER ftp\r\nPASS x\r\nCWD sub\r\n");
    assert_eq!(code(&control.reply()), 234);
    let mut stream = handshake(stream, &client, "localhost").unwrap();
    use std::io::Read;
    stream.write_all(b"PWD\r\nQUIT\r\n").unwrap();
    let mut replies = String::new();
    // Ends with `close_notify`, or this is an error.
    stream.read_to_string(&mut replies).unwrap();
    let codes: Vec<u16> = replies.lines().map(code).collect();
    assert_eq!(codes, [530, 221], "{replies}");
    // Sent after the reply, they are no TLS.
    let mut control = FtpClient::connect(&server);
    assert_eq!(code(&control.command("AUTH TLS")), 234);
    control.send(b"USER ftp\r\nPASS x\r\n");
    assert!(!control.reply().starts_with('3'), "an alert, and no reply");
}

/// Login, directory and protection do not outlive AUTH.
#[test]
fn auth_begins_a_new_login() {
    let secured = Secured::new();
    let server = secured.serve("");
    let stream = server.connect();
    let mut control = FtpClient::over(stream.try_clone().unwrap());
    assert_eq!(control.codes(&["USER ftp", "PASS x", "CWD sub", "AUTH TLS"]), [331, 230, 250, 234]);
    let client = std::sync::Arc::new(secured.ca.client(None));
    let mut stream = handshake(stream, &client, "localhost").unwrap();
    use std::io::Read;
    stream.write_all(b"PWD\r\nUSER ftp\r\nPASS x\r\nPWD\r\nAUTH TLS\r\nQUIT\r\n").unwrap();
    let mut replies = String::new();
    stream.read_to_string(&mut replies).unwrap();
    let codes: Vec<u16> = replies.lines().map(code).collect();
    assert_eq!(codes, [530, 331, 230, 257, 503, 221], "{replies}");
    assert!(replies.contains("257 \"/\""), "{replies}");
}

/// An upload over TLS whose connection is cut, without `close_notify`, does not appear: a third party can cut any TCP
/// connection. With `keep-partial`, the same user can resume it; SIZE tells where.
#[test]
fn cut_uploads_do_not_appear_and_can_be_resumed() {
    let secured = Secured::new();
    let users = secured.key("users");
    fs::write(&users, format!("ann:{SECRET}\nbob:{SECRET}\n")).unwrap();
    let options = format!("require-tls on\n write \"users\"\n keep-partial on\n users \"{users}\"");
    let server = secured.serve(&options);
    secured.python(
        r#"
def log_in(user):
    ftp = Reusing(context=context(None))
    ftp.connect("127.0.0.1", port, timeout=30)
    ftp.auth()
    ftp.login(user, "secret")
    ftp.prot_p()
    ftp.voidcmd("TYPE I")
    return ftp
def cut(ftp, command, content, rest=None):
    data = ftp.transfercmd(command, rest)
    data.sendall(content)
    # Closes the socket below TLS.
    socket.socket(fileno=data.detach()).close()
    fails("426", lambda: ftp.voidresp())
ann, bob = log_in("ann"), log_in("bob")
content = bytes(range(256)) * 4096
cut(ann, "STOR new.bin", content[:300_000])
assert "new.bin" not in ann.nlst(), ann.nlst()
fails("550", lambda: ann.sendcmd("MLST new.bin"))
fails("550", lambda: fetch(ann, "new.bin"))
kept = ann.size("new.bin")
assert 0 < kept <= 300_000, kept
fails("550", lambda: bob.size("new.bin"))
# A second cut, then the rest.
cut(ann, "STOR new.bin", content[kept:500_000], kept)
kept = ann.size("new.bin")
fails("554", lambda: ann.transfercmd("STOR new.bin", 900_000))
assert ann.size("new.bin") == kept
ann.storbinary("STOR new.bin", io.BytesIO(content[kept:]), rest=kept)
assert fetch(bob, "new.bin") == content
# An older file stays as it is until the new one is complete. APPE resumes, too.
cut(ann, "STOR a.txt", b"new content, of which ")
assert fetch(bob, "a.txt") == b"one\ntwo\n"
kept = ann.size("a.txt")
ann.storbinary("APPE a.txt", io.BytesIO(b"new content, of which more"[kept:]))
assert fetch(bob, "a.txt") == b"new content, of which more"
assert ann.size("a.txt") == 26
fails("550", lambda: ann.delete(".tailcoat-partial-0"))
"#,
        server.address.port(),
    );
    let names = fs::read_dir(secured.files.path()).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().all(|name| !name.starts_with('.')), "no part is left: {names:?}");
}

/// Without `keep-partial`, a cut upload leaves nothing.
#[test]
fn cut_uploads_leave_nothing() {
    let secured = Secured::new();
    let server = secured.serve("require-tls on\n write \"all\"");
    secured.python(
        r#"
for version in [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]:
    ftp = connect(Reusing, version)
    for name in ["new.bin", "a.txt"]:
        data = ftp.transfercmd("STOR " + name)
        data.sendall(b"x" * 200_000)
        socket.socket(fileno=data.detach()).close()
        fails("426", lambda: ftp.voidresp())
    fails("550", lambda: ftp.size("new.bin"))
    assert fetch(ftp, "a.txt") == b"one\ntwo\n"
"#,
        server.address.port(),
    );
    eventually("the parts are removed", || fs::read_dir(secured.files.path()).unwrap().count() == 3);
}

/// TLS sessions and transfers under way survive reloads and an upgrade. New sessions come to the new process.
#[test]
fn reloads_and_upgrades_keep_tls_sessions() {
    let secured = Secured::new();
    let (root, certificate, key) = (secured.files.path().display(), secured.key("site.pem"), secured.key("site.key"));
    let config = format!(
        "site {{\n certificate \"{certificate}\" key=\"{key}\"\n ftp \"127.0.0.1:0\" {{\n root \"{root}\"\n \
         require-tls on\n session-rate-max \"8MiB\"\n}}\n}}\n"
    );
    let mut operated = Operated::start(&config);
    let script = [
        PREAMBLE,
        r#"
ftp = connect(Reusing)
print("begun", flush=True)
for _ in range(2):
    assert len(fetch(ftp, "large.bin")) == 24 << 20
assert fetch(ftp, "a.txt") == b"one\ntwo\n"
sys.stdin.readline()
assert fetch(ftp, "a.txt") == b"one\ntwo\n", "the session goes on after the upgrade"
ftp.quit()
"#,
    ]
    .concat();
    let mut client = Command::new("python3")
        .args(["-c", &script, &operated.server.address.port().to_string(), &secured.key("ca.pem")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 is installed");
    let mut line = String::new();
    BufReader::new(client.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "begun\n");
    for rate in ["9MiB", "10MiB", "11MiB"] {
        operated.reload(&config.replace("8MiB", rate));
    }
    operated.upgrade();
    secured.python(
        "ftp = connect(Reusing)\nassert fetch(ftp, 'a.txt') == b'one\\ntwo\\n'\nftp.quit()\n",
        operated.server.address.port(),
    );
    client.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(client.wait().unwrap().success());
}

/// Cross-protocol attack (ALPACA): a client that asks for HTTP by ALPN reaches no FTP server with the same certificate.
#[test]
fn no_handshake_for_http() {
    let secured = Secured::new();
    let server = secured.serve("");
    let mut client = secured.ca.client(None);
    client.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = server.connect();
    let mut control = FtpClient::over(stream.try_clone().unwrap());
    assert_eq!(code(&control.command("AUTH TLS")), 234);
    let error = handshake(stream, &std::sync::Arc::new(client), "localhost").unwrap_err();
    assert!(error.to_string().contains("NoApplicationProtocol"), "{error}");
}

#[test]
fn serve_offers_tls_for_ftp_too() {
    let secured = Secured::new();
    let port = free_port();
    let (certificate, key) = (secured.key("site.pem"), secured.key("site.key"));
    let arguments = ["--tls-cert", &certificate, "--tls-key", &key, "--ftp", &format!("127.0.0.1:{port}")];
    let server = TestServer::serve(secured.files.path(), &arguments);
    server.await_log(&format!("Serving at ftp://127.0.0.1:{port}/"));
    let url = format!("ftp://127.0.0.1:{port}/a.txt");
    let output = secured.curl(&["--ssl-reqd", &url]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, b"one\ntwo\n");
    assert_eq!(secured.curl(&[&url]).stdout, b"one\ntwo\n", "and without TLS");
}

#[test]
fn configurations_of_tls_are_checked() {
    let check = |options: &str| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tailcoat.kdl");
        fs::write(&file, format!("site {{\n ftp \"127.0.0.1:2121\" {{\n root \"/\"\n {options}\n}}\n}}\n")).unwrap();
        let output = tailcoat().args(["check", "-c"]).arg(&file).output().unwrap();
        assert!(!output.status.success(), "{options}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for options in ["require-tls on", "implicit-tls \"127.0.0.1:2990\""] {
        let messages = check(options);
        assert!(messages.contains("`ftp` needs TLS, but the site has no certificate"), "{messages}");
    }
}

/// Hash of `secret` (bcrypt, lowest cost).
const SECRET: &str = "$2y$04$GXaETfDlsBW4DvwQRwWIV.UBj7SvKQjVLNPnLWju4glZXf38pZMVC";

#[test]
fn users_log_in_with_passwords_and_see_their_homes() {
    let secured = Secured::new();
    let users = secured.key("users");
    fs::write(&users, format!("ann:{SECRET}\n../etc:{SECRET}\n")).unwrap();
    for home in ["ann", "bob", "anonymous"] {
        fs::create_dir(secured.files.path().join(home)).unwrap();
        fs::write(secured.files.path().join(home).join("own.txt"), home).unwrap();
    }
    let log = secured.key("access.log");
    let server = secured
        .serve_beside(&format!("require-tls on\n users \"{users}\"\n user-homes on"), &format!("access-log \"{log}\""));
    let url = |user: &str, path: &str| format!("ftp://{user}{}/{path}", server.address);
    let fetch = |user: &str, path: &str| secured.curl(&["--ssl-reqd", &url(user, path)]);
    let output = fetch("ann:secret@", "own.txt");
    assert_eq!(output.stdout, b"ann", "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fetch("ann:secret@", "../bob/own.txt").status.code(), Some(9), "no way out of the home");
    assert_eq!(fetch("ann:secret@", "/bob/own.txt").status.code(), Some(9));
    for wrong in ["ann:wrong@", "bob:secret@", "..%2fetc:secret@", "ftp:a@", ""] {
        assert_eq!(fetch(wrong, "own.txt").status.code(), Some(67), "{wrong}");
    }
    secured.python(
        r#"
ftp = Reusing(context=context(None))
ftp.connect("127.0.0.1", port, timeout=30)
ftp.auth()
fails("530", lambda: ftp.login("ann", "wrong"))
ftp.login("ann", "secret")
ftp.prot_p()
assert ftp.pwd() == "/"
assert ftp.nlst() == ["own.txt"], ftp.nlst()
assert " /own.txt" in ftp.sendcmd("MLST own.txt")
fails("550", lambda: ftp.cwd("../bob"))
assert fetch(ftp, "/../own.txt") == b"ann"
# Another login begins without rights.
ftp.sendcmd("USER bob")
fails("530", lambda: ftp.nlst())
fails("530", lambda: ftp.sendcmd("PASS secret"))
fails("530", lambda: ftp.nlst())
ftp.quit()
"#,
        server.address.port(),
    );
    // The file is read again.
    fs::write(&users, format!("bob:{SECRET}\n")).unwrap();
    eventually("the file is read again", || fetch("bob:secret@", "own.txt").stdout == b"bob");
    server.end_with_log();
    let text = fs::read_to_string(log).unwrap();
    assert!(text.contains(" - ann [") && text.contains(r#""RETR /own.txt FTP" 226 3 "#), "{text}");
}

#[test]
fn anonymous_clients_beside_users() {
    let secured = Secured::new();
    let users = secured.key("users");
    fs::write(&users, format!("ann:{SECRET}\n")).unwrap();
    let server = secured.serve(&format!("users \"{users}\"\n anonymous on"));
    let mut client = FtpClient::connect(&server);
    assert_eq!(
        client.codes(&["USER ann", "PASS secret", "USER ftp", "PASS x", "SIZE a.txt"]),
        [331, 230, 331, 230, 550]
    );
    assert_eq!(client.text("RETR a.txt"), "one\r\ntwo\r\n");
}
