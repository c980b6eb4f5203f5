//! Uploads that a client begins fast and then holds: they cost neither space nor time of other clients.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::support::h2::H2Client;
use crate::support::operated::Operated;
use crate::support::upstream::ScriptStep::{Read as Await, Write as Send};
use crate::support::upstream::ScriptedUpstream;
use crate::support::waiting::eventually_some;
use crate::support::{PATIENCE, TestServer, read_until};

/// Length that stalled uploads declare.
const DECLARED_BYTES: usize = 100 << 20;

/// Server whose uploads are buffered, with these limits.
fn server(limits: &str) -> (Operated, ScriptedUpstream) {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let upstream = ScriptedUpstream::start(vec![vec![Await("END"), Send(answer)]]);
    let config = format!(
        "server {{\n buffer-directory \"@DIR@\"\n}}\nlimits {{ {limits} }}\n\
         upstream \"u\" {{ server \"http://{}\"; connections-max 4 }}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"u\"\n}}\n",
        upstream.address
    );
    (Operated::start(&config), upstream)
}

/// Starts an upload of this client, and sends so many bytes of it.
fn begin(server: &TestServer, client: [u8; 4], length: usize, sent_bytes: usize) -> TcpStream {
    let mut stream = server.connect_from(client);
    write!(stream, "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n").unwrap();
    // The server may stop reading.
    stream.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
    let _ = stream.write_all(&vec![b'x'; sent_bytes]);
    stream
}

/// Head of the response to a client that sends a byte now and then.
fn drip_until_answered(stream: &mut TcpStream) -> String {
    let start = Instant::now();
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    loop {
        assert!(start.elapsed() < PATIENCE, "the server responds");
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer) {
            Ok(count) => return String::from_utf8_lossy(&buffer[..count]).into_owned(),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => panic!("{error}"),
        }
        let _ = stream.write_all(b"y");
    }
}

/// Issue 17: six clients filled the files, and held them with a byte a second.
#[test]
fn an_upload_that_stands_still_makes_room_for_others() {
    let limits = "buffered-file-bytes-max \"2MiB\"; buffered-file-bytes-per-client-max \"1MiB\"";
    let (operated, _upstream) = server(limits);
    let server = &operated.server;
    let mut stalled: Vec<_> = [2, 3].map(|client| begin(server, [127, 0, 0, client], DECLARED_BYTES, 1_000_000)).into();
    // This one stands still, too, but its client holds less than the others.
    let mut small = begin(server, [127, 0, 0, 4], 200_000, 100_000);
    // Uploads count as stalled once they have stood still for five seconds.
    sleep(Duration::from_secs(6));
    let mut stream = begin(server, [127, 0, 0, 5], 700_000, 0);
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&[&[b'x'; 700_000 - 3][..], b"END"].concat()).unwrap();
    let head = read_until(&mut stream, "\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let answers = eventually_some("one of the stalled uploads ends", || {
        let answers = stalled.iter_mut().filter_map(|stream| {
            stream.set_nonblocking(true).unwrap();
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).ok()?;
            Some(String::from_utf8_lossy(&buffer[..count]).into_owned())
        });
        let answers: Vec<_> = answers.collect();
        (!answers.is_empty()).then_some(answers)
    });
    for head in answers {
        assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("Retry-After: "), "{head}");
    }
    small.write_all(&[&[b'x'; 100_000 - 3][..], b"END"].concat()).unwrap();
    assert!(read_until(&mut small, "\r\n\r\n").starts_with("HTTP/1.1 200 "), "the smaller one goes on");
}

/// Issue 17: a client that had sent all there was room for waited for `body-timeout`, and got 408.
#[test]
fn an_upload_without_room_gets_503_and_not_408() {
    let limits = "buffered-file-bytes-per-client-max \"1MiB\"; body-timeout \"5s\"; write-timeout \"60s\"";
    let (operated, _upstream) = server(limits);
    // One block more than there is room for, so that all of it may be read; and much more.
    for sent_bytes in [(1 << 20) + (128 << 10), 2 << 20] {
        let mut stream = begin(&operated.server, [127, 0, 0, 2], DECLARED_BYTES, sent_bytes);
        let head = read_until(&mut stream, "\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("Retry-After: "), "{sent_bytes}: {head}");
    }
}

const SHORT_CREDIT: &str = "write-timeout \"1s\"; body-timeout \"2s\"; rate-bytes-per-second-min \"10KiB\"";

/// Issue 17: the megabyte counted for 100 seconds.
#[test]
fn a_fast_beginning_does_not_pay_for_a_slow_upload() {
    let (operated, _upstream) = server(SHORT_CREDIT);
    let start = Instant::now();
    let mut stream = begin(&operated.server, [127, 0, 0, 2], DECLARED_BYTES, 1 << 20);
    let head = drip_until_answered(&mut stream);
    assert!(head.starts_with("HTTP/1.1 408 "), "{head}");
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

/// HTTP/2: a byte now and then also kept all other time limits away.
#[test]
fn a_fast_beginning_does_not_pay_for_a_slow_upload_over_http2() {
    for burst_bytes in [10, 1 << 20] {
        let (operated, _upstream) = server(SHORT_CREDIT);
        let start = Instant::now();
        let mut client = H2Client::connect(&operated.server);
        let stream = client.ask("POST", "/", &[], false);
        client.send(stream, &vec![b'x'; burst_bytes], false);
        loop {
            client.wait_or_end(Duration::from_millis(200));
            if client.answers[&stream].is_complete {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(30), "{burst_bytes}: the server responds");
            client.send(stream, b"y", false);
        }
        assert_eq!(client.answers[&stream].status(), 408, "{burst_bytes}");
    }
}
