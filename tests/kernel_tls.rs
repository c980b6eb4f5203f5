//! Large files that the kernel encrypts (kTLS). Where its module is not loaded, as on most build machines, only the log
//! line about that is tested. `cargo xtask kernel-tls` runs these tests in a virtual machine that has it.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{cipher_suite as suites, default_provider};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, SupportedCipherSuite};
use tempfile::TempDir;

use crate::support::operated::Operated;
use crate::support::real_server::is_installed;
use crate::support::skips::{skip, skip_without};
use crate::support::tls::{TestCa, TlsStream, connect, handshake};
use crate::support::waiting::{await_read, eventually};
use crate::support::{TestServer, tailcoat};

/// Size of `large`: more than all buffers between server and client hold.
const LARGE_BYTES: usize = 16 << 20;

/// Size of `medium`, from which on these tests use the kernel.
const MEDIUM_BYTES: usize = 1 << 20;

/// The kernel sends a file only after it has been unchanged for some time.
const SETTLING_TIME: Duration = Duration::from_secs(11);

/// Site of all tests, with a certificate for `a.example`.
static SITE: LazyLock<(TestCa, TempDir)> = LazyLock::new(|| {
    let (authority, directory) = (TestCa::new(), tempfile::tempdir().expect("a directory"));
    let path = directory.path();
    authority.sign(&["a.example"]).write(path, "a.example");
    std::fs::create_dir(path.join("files")).expect("it can be made");
    for (name, length) in [("large", LARGE_BYTES), ("medium", MEDIUM_BYTES), ("small", MEDIUM_BYTES - 1)] {
        std::fs::write(path.join("files").join(name), content(0, length)).expect("it can be written");
    }
    // The time of an inode's last change cannot be set.
    std::thread::sleep(SETTLING_TIME);
    (authority, directory)
});

/// Runs one test at a time, because the kernel's counters are global.
static TURN: Mutex<()> = Mutex::new(());

/// Waits for the test's turn. Skips and returns `None` where the kernel has no TLS.
fn turn() -> Option<MutexGuard<'static, ()>> {
    if counted("TlsTxSw").is_none() {
        skip("the kernel module `tls` is not loaded; `cargo xtask kernel-tls` tests with one");
        return None;
    }
    Some(TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Counter of the kernel (linux/snmp.h).
fn counted(what: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/net/tls_stat").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(char::is_whitespace))?;
    line.trim().parse().ok()
}

/// Number of connections that the kernel has encrypted.
fn kernel_connections() -> u64 {
    counted("TlsTxSw").expect("the module is loaded")
}

/// Content of all files, from their start. No two pieces of it are equal.
static CONTENT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let words = (0..LARGE_BYTES as u64 / 8).map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    words.flatten().collect()
});

fn content(from: usize, to: usize) -> &'static [u8] {
    &CONTENT[from..to]
}

/// Time limits are generous: an emulated machine is slow.
fn config(directory: &Path, more: &str) -> String {
    let path = directory.display();
    format!(
        "server {{\n kernel-tls on\n kernel-tls-bytes-min \"1MiB\"\n{more}}}\n\
         site \"a.example\" {{\n listen \"127.0.0.1:0\" tls=on\n certificate \"{path}/a.example.pem\" \
         key=\"{path}/a.example.key\"\n root \"{path}/files\"\n}}\n\
         limits {{\n head-timeout \"5m\"\n idle-timeout \"5m\"\n write-timeout \"5m\"\n}}\n"
    )
}

fn server() -> TestServer {
    TestServer::run(&config(SITE.1.path(), " workers 1\n"))
}

fn client() -> Arc<ClientConfig> {
    Arc::new(SITE.0.client(None))
}

fn client_of(suite: SupportedCipherSuite) -> Arc<ClientConfig> {
    let provider = CryptoProvider { cipher_suites: vec![suite], ..default_provider() };
    let version = if suite.tls13().is_some() { &TLS13 } else { &TLS12 };
    Arc::new(SITE.0.client_with(provider, &[version], None))
}

fn get(name: &str, more: &str) -> Vec<u8> {
    format!("GET /{name} HTTP/1.1\r\nHost: a.example\r\n{more}\r\n").into_bytes()
}

/// Reads a response; returns its status and content.
fn read_response(stream: &mut impl Read) -> (u16, Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).expect("a head comes");
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).expect("heads are text");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("there is a status");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).expect("there is a length");
    let mut content = vec![0; length.parse().expect("it is a number")];
    stream.read_exact(&mut content).expect("content comes");
    (status, content)
}

/// Requests a file, and compares the content.
fn expect_file(stream: &mut TlsStream, name: &str, length: usize) {
    stream.write_all(&get(name, "")).expect("the server reads");
    expect_response(stream, 200, 0, length);
}

fn expect_response(stream: &mut impl Read, status: u16, from: usize, to: usize) {
    let (is, comes) = read_response(stream);
    assert_eq!(is, status);
    // Avoids assert_eq, which would print both.
    assert!(comes == content(from, to), "{} bytes came, not {}, or others", comes.len(), to - from);
}

#[test]
fn files_are_whole_by_all_suites() {
    let Some(_turn) = turn() else { return };
    let server = server();
    for suite in [
        suites::TLS13_AES_128_GCM_SHA256,
        suites::TLS13_AES_256_GCM_SHA384,
        suites::TLS13_CHACHA20_POLY1305_SHA256,
        suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ] {
        let before = kernel_connections();
        let mut stream = connect(&server, &client_of(suite), "a.example").expect("the handshake succeeds");
        expect_file(&mut stream, "small", MEDIUM_BYTES - 1);
        assert_eq!(kernel_connections(), before, "{suite:?}: nothing large has been sent");
        expect_file(&mut stream, "large", LARGE_BYTES);
        assert_eq!(kernel_connections(), before + 1, "{suite:?}");
        // Later requests go the same way.
        expect_file(&mut stream, "small", MEDIUM_BYTES - 1);
        for (range, from, to) in
            [("0-0", 0, 1), ("77777-3333333", 77_777, 3_333_334), ("-5", LARGE_BYTES - 5, LARGE_BYTES)]
        {
            stream.write_all(&get("large", &format!("Range: bytes={range}\r\n"))).expect("the server reads");
            expect_response(&mut stream, 206, from, to);
        }
        stream.write_all(&get("none", "")).expect("the server reads");
        assert_eq!(read_response(&mut stream).0, 404);
        expect_file(&mut stream, "medium", MEDIUM_BYTES);
        assert_eq!(kernel_connections(), before + 1, "{suite:?}");
    }
}

#[test]
fn what_is_small_or_comes_by_http_2_stays_here() {
    let Some(_turn) = turn() else { return };
    if !is_installed("curl") {
        skip_without("curl");
        return;
    }
    let server = server();
    let before = kernel_connections();
    for (name, version, length, expect) in [
        ("small", "--http1.1", MEDIUM_BYTES - 1, 0),
        ("large", "--http2", LARGE_BYTES, 0),
        ("medium", "--http1.1", MEDIUM_BYTES, 1),
    ] {
        let port = server.address.port();
        let mut command = Command::new("curl");
        command.args(["-sSk", version, "--connect-to", &format!("a.example:{port}:127.0.0.1:{port}")]);
        let output = command.arg(format!("https://a.example:{port}/{name}")).output().expect("curl starts");
        assert!(output.stdout == content(0, length), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(kernel_connections() - before, expect, "{name} {version}");
    }
}

#[test]
fn requests_may_come_while_a_file_goes() {
    let Some(_turn) = turn() else { return };
    let server = server();
    for suite in [suites::TLS13_AES_256_GCM_SHA384, suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256] {
        let mut stream = connect(&server, &client_of(suite), "a.example").expect("the handshake succeeds");
        // Together with the first request; then while the file is sent; in pieces.
        stream.write_all(&[get("large", ""), get("small", "")].concat()).expect("the server reads");
        await_read(&stream.sock);
        stream.write_all(&get("medium", "")).expect("the server reads");
        let last = get("medium", "Connection: close\r\n");
        stream.write_all(&last[..20]).expect("the server reads");
        expect_response(&mut stream, 200, 0, LARGE_BYTES);
        expect_response(&mut stream, 200, 0, MEDIUM_BYTES - 1);
        expect_response(&mut stream, 200, 0, MEDIUM_BYTES);
        stream.write_all(&last[20..]).expect("the server reads");
        expect_response(&mut stream, 200, 0, MEDIUM_BYTES);
        // Without the close_notify alert, the end would be an error.
        assert_eq!(stream.read(&mut [0]).expect("the end has a close_notify"), 0);
    }
}

/// The kernel may have accepted the last bytes before TCP has them: the end of the connection must not drop them.
#[test]
fn slow_clients_get_all_of_what_is_last() {
    let Some(_turn) = turn() else { return };
    let server = server();
    for suite in [suites::TLS13_AES_128_GCM_SHA256, suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384] {
        let socket = server.connect();
        socket2::SockRef::from(&socket).set_recv_buffer_size(128 << 10).expect("buffers have a size");
        let mut stream = handshake(socket, &client_of(suite), "a.example").expect("the handshake succeeds");
        stream.write_all(&get("large", "Connection: close\r\n")).expect("the server reads");
        await_read(&stream.sock);
        let mut comes = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        loop {
            match stream.read(&mut buffer).expect("the end has a close_notify") {
                0 => break,
                count => comes.extend_from_slice(&buffer[..count]),
            }
            // A slow client, at the end of the content.
            if comes.len() > LARGE_BYTES - (512 << 10) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        assert!(comes.ends_with(content(LARGE_BYTES - MEDIUM_BYTES, LARGE_BYTES)), "{} bytes came", comes.len());
    }
}

#[test]
fn clients_that_break_off_disturb_no_other() {
    let Some(_turn) = turn() else { return };
    let server = server();
    let before = counted("TlsCurrTxSw").expect("the module is loaded");
    let mut stays = connect(&server, &client(), "a.example").expect("the handshake succeeds");
    for breaks in 0..12 {
        let mut stream = connect(&server, &client(), "a.example").expect("the handshake succeeds");
        stream.write_all(&get("large", "")).expect("the server reads");
        stream.read_exact(&mut [0; 100_000]).expect("content comes");
        match breaks % 3 {
            0 => socket2::SockRef::from(&stream.sock).set_linger(Some(Duration::ZERO)).expect("it can be reset"),
            1 => stream.sock.shutdown(Shutdown::Both).expect("it can be ended"),
            _ => {
                stream.conn.send_close_notify();
                stream.flush().expect("the server reads");
            }
        }
    }
    // Bytes that are no record, or not one of this client.
    let mut garbles = connect(&server, &client(), "a.example").expect("the handshake succeeds");
    expect_file(&mut garbles, "medium", MEDIUM_BYTES);
    garbles.sock.write_all(b"\x17\x03\x03\x00\x20garbled garbled garbled garbled!").expect("the server reads");
    let error = garbles.read(&mut [0]).expect_err("it is told so");
    assert!(error.to_string().contains("BadRecordMac"), "{error}");
    expect_file(&mut stays, "large", LARGE_BYTES);
    drop(stays);
    eventually("no connection is left", || counted("TlsCurrTxSw") == Some(before));
}

/// True if the kernel's version can change a connection's key.
fn changes_keys() -> bool {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("the kernel has a version");
    let mut numbers =
        text.split(|letter: char| !letter.is_ascii_digit()).filter_map(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(14))
}

/// The client has a new key, and requests one from the server.
#[test]
fn clients_change_keys() {
    let Some(_turn) = turn() else { return };
    let server = server();
    for suite in [suites::TLS13_AES_128_GCM_SHA256, suites::TLS13_CHACHA20_POLY1305_SHA256] {
        let mut stream = connect(&server, &client_of(suite), "a.example").expect("the handshake succeeds");
        // rustls sends the responses before the first file.
        stream.conn.refresh_traffic_keys().expect("TLS 1.3 has new keys");
        expect_file(&mut stream, "medium", MEDIUM_BYTES);
        if !changes_keys() {
            stream.conn.refresh_traffic_keys().expect("TLS 1.3 has new keys");
            stream.write_all(&get("medium", "")).expect("the server reads");
            stream.read(&mut [0]).expect_err("nothing may be sent with the old key");
            continue;
        }
        for _ in 0..3 {
            stream.conn.refresh_traffic_keys().expect("TLS 1.3 has new keys");
            expect_file(&mut stream, "medium", MEDIUM_BYTES);
            // During a file.
            stream.write_all(&get("large", "")).expect("the server reads");
            stream.conn.refresh_traffic_keys().expect("TLS 1.3 has new keys");
            stream.write_all(&get("small", "")).expect("the server reads");
            expect_response(&mut stream, 200, 0, LARGE_BYTES);
            expect_response(&mut stream, 200, 0, MEDIUM_BYTES - 1);
        }
    }
}

/// Output of a program so far.
#[derive(Clone, Default)]
struct ProgramOutput(Arc<Mutex<Vec<u8>>>);

impl ProgramOutput {
    fn by(mut output: impl Read + Send + 'static) -> Self {
        let said = Self::default();
        let of_thread = said.clone();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                of_thread.0.lock().expect("no thread panics with it").extend_from_slice(&buffer[..count]);
            }
        });
        said
    }

    fn count(&self, text: &[u8]) -> usize {
        memchr::memmem::find_iter(&self.0.lock().expect("no thread panics with it"), text).count()
    }

    fn expect(&self, text: &[u8], count: usize) {
        eventually(&format!("{count} x {text:?} is printed"), || self.count(text) >= count);
    }
}

/// The client has a new key, and requests none: no concern of the kernel.
#[test]
fn clients_change_their_own_key() {
    let Some(_turn) = turn() else { return };
    if !is_installed("openssl") {
        skip_without("openssl");
        return;
    }
    let server = server();
    let mut command = Command::new("openssl");
    command.args(["s_client", "-tls1_3", "-servername", "a.example", "-connect", &server.address.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut client = command.spawn().expect("it starts");
    let mut input = client.stdin.take().expect("it is piped");
    let content_end = content(MEDIUM_BYTES - 1_000, MEDIUM_BYTES);
    let output = ProgramOutput::by(client.stdout.take().expect("it is piped"));
    let notices = ProgramOutput::by(client.stderr.take().expect("it is piped"));
    for round in 1..=3 {
        input.write_all(&get("medium", "")).expect("it takes input");
        output.expect(content_end, round);
        // A line with this letter orders a new key.
        input.write_all(b"k\n").expect("it takes input");
        notices.expect(b"KEYUPDATE", round);
    }
    client.kill().expect("it has not ended");
    client.wait().expect("it ends");
}

#[test]
fn files_go_on_through_reloads_and_upgrades() {
    let Some(_turn) = turn() else { return };
    let text = config(SITE.1.path(), "");
    let mut operated = Operated::start(&text);
    let mut stream = connect(&operated.server, &client(), "a.example").expect("the handshake succeeds");
    stream.write_all(&get("large", "")).expect("the server reads");
    stream.flush().expect("the server reads");
    await_read(&stream.sock);
    operated.reload(&text.replace("1MiB", "2MiB"));
    expect_response(&mut stream, 200, 0, LARGE_BYTES);
    stream.write_all(&get("large", "")).expect("the server reads");
    await_read(&stream.sock);
    operated.upgrade();
    expect_response(&mut stream, 200, 0, LARGE_BYTES);
    let before = kernel_connections();
    let mut stream = connect(&operated.server, &client(), "a.example").expect("the new process takes it");
    expect_file(&mut stream, "medium", MEDIUM_BYTES);
    assert_eq!(kernel_connections(), before, "it is below the new limit");
    expect_file(&mut stream, "large", LARGE_BYTES);
    assert_eq!(kernel_connections(), before + 1);
}

#[test]
fn it_is_said_once_where_the_kernel_can_not() {
    if counted("TlsTxSw").is_some() {
        skip("this kernel has kernel TLS");
        return;
    }
    let (authority, directory) = (TestCa::new(), tempfile::tempdir().expect("a directory"));
    let path = directory.path();
    authority.sign(&["a.example"]).write(path, "a.example");
    std::fs::create_dir(path.join("files")).expect("it can be made");
    std::fs::write(path.join("files/large"), content(0, LARGE_BYTES)).expect("it can be written");
    let (file, errors) = (path.join("tailcoat.kdl"), path.join("errors"));
    std::fs::write(&file, config(path, "")).expect("it can be written");
    let server = TestServer::run_logging(&config(path, ""), &errors);
    for _ in 0..2 {
        let client = Arc::new(authority.client(None));
        let mut stream = connect(&server, &client, "a.example").expect("the handshake succeeds");
        expect_file(&mut stream, "large", LARGE_BYTES);
    }
    server.end_with_log();
    let said = std::fs::read_to_string(&errors).expect("there is a log");
    assert_eq!(said.matches("kernel TLS (kTLS) is not available").count(), 1, "{said}");
    assert!(said.contains("modprobe tls"), "{said}");
    let output = tailcoat().arg("doctor").arg("-c").arg(&file).output().expect("the built binary starts");
    let found = String::from_utf8_lossy(&output.stdout);
    assert!(found.contains("function: kernel TLS (kTLS) is not available"), "{found}");
}
