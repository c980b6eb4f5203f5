//! Hostile servers: the run must end in time, count each request once, and not crash.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::{bench, failures, in_parallel};

/// Limit from which a run counts as hanging; no machine is this slow.
const RUN_MAX: Duration = Duration::from_secs(120);

/// Starts a server that runs `act` once on each connection, after the first bytes of a request.
fn start(act: impl Fn(&mut TcpStream) -> std::io::Result<()> + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let act = act.clone();
            std::thread::spawn(move || {
                let _ = stream.set_nodelay(true);
                let _ = stream.read(&mut [0; 4096]);
                let _ = act(&mut stream);
            });
        }
    });
    url
}

/// Starts a server that writes `first`, then `again` endlessly, with a pause after each.
pub(crate) fn flood(first: &'static [u8], again: &'static [u8], pause: Duration) -> String {
    start(move |stream| {
        stream.write_all(first)?;
        loop {
            stream.write_all(again)?;
            std::thread::sleep(pause);
        }
    })
}

/// Name, URL of the server, and the class in which each request must end.
type HostileCase<'a> = (&'a str, String, &'a str);

fn check(rows: &[HostileCase<'_>]) {
    in_parallel(rows, |(name, url, class)| {
        // Except for rows that test the timeout, it is so long that a busy machine cannot reach it.
        let time_out = if *class == "time-out" { "200ms" } else { "60s" };
        for arguments in [&[][..], &["--pipeline", "4"], &["-R", "50"]] {
            let begin = Instant::now();
            let (report, code) = bench(url, &[&["-c", "2", "-n", "8", "--timeout", time_out], arguments].concat());
            assert!(begin.elapsed() < RUN_MAX, "{name} {arguments:?}: {:?}", begin.elapsed());
            assert_eq!(failures(&report), [((*class).to_owned(), 8)], "{name} {arguments:?}");
            assert_eq!((report["served"].as_u64(), code), (Some(0), 1), "{name} {arguments:?}");
        }
    });
}

const NO_PAUSE: Duration = Duration::ZERO;
const SHORT_PAUSE: Duration = Duration::from_millis(1);

#[test]
fn heads_without_end() {
    let fields = b"X-Field: 0123456789012345678901234567890123456789\r\n";
    check(&[
        ("fields", flood(b"HTTP/1.1 200 OK\r\n", fields, NO_PAUSE), "malformed response"),
        ("a long field", flood(b"HTTP/1.1 200 OK\r\nX: ", &[b'x'; 1000], NO_PAUSE), "malformed response"),
        ("byte by byte", flood(b"HTTP/1.1 200 OK\r\nX: ", b"x", SHORT_PAUSE), "time-out"),
        ("interim responses", flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n", NO_PAUSE), "time-out"),
        ("interim responses, slowly", flood(b"", b"HTTP/1.1 103 x\r\n\r\n", SHORT_PAUSE), "time-out"),
        ("switching protocols", flood(b"HTTP/1.1 101 x\r\n\r\n", b"x", NO_PAUSE), "malformed response"),
        ("blank lines", flood(b"\r\n\r\n\r\n", b"\r\n", NO_PAUSE), "malformed response"),
        ("zeros", flood(b"", &[0; 4096], NO_PAUSE), "malformed response"),
    ]);
}

#[test]
fn bodies_without_end() {
    let huge = b"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n";
    let large = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n";
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let until_the_end = b"HTTP/1.1 200 OK\r\n\r\n";
    check(&[
        ("a length of 16 EiB", flood(huge, &[b'x'; 65_536], NO_PAUSE), "time-out"),
        ("byte by byte", flood(large, b"x", SHORT_PAUSE), "time-out"),
        ("until the end, which never comes", flood(until_the_end, &[b'x'; 65_536], NO_PAUSE), "time-out"),
        ("chunks of a byte", flood(chunked, b"1\r\nx\r\n", NO_PAUSE), "time-out"),
    ]);
}

#[test]
fn framing_that_is_none() {
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answers = [
        ("a length past 64 bits", "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551616\r\n\r\n".to_owned()),
        ("a negative length", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n".to_owned()),
        ("two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab".to_owned()),
        ("a chunk past 64 bits", format!("{CHUNKED}fffffffffffffffff\r\n")),
        ("a chunk size of letters", format!("{CHUNKED}xyz\r\n")),
        ("a chunk longer than its size", format!("{CHUNKED}1\r\nabc\r\n")),
        ("an extension without end", format!("{CHUNKED}1;{}\r\n", "a".repeat(2 << 20))),
        ("trailers without end", format!("{CHUNKED}0\r\n{}", "X-A: 1\r\n".repeat(20_000))),
        ("another protocol", "SSH-2.0-OpenSSH_9.2\r\n".to_owned()),
    ];
    check(&answers.map(|(name, answer)| {
        let url = start(move |stream| {
            stream.write_all(answer.as_bytes())?;
            // Wait until the client closes.
            while stream.read(&mut [0; 4096])? > 0 {}
            Ok(())
        });
        (name, url, "malformed response")
    }));
}

#[test]
fn unrequested_bytes() {
    // The server answers each request twice. The first response is too long, and the second must not count for another
    // request.
    let url = start(|stream| {
        loop {
            stream.write_all(&b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx".repeat(2))?;
            if stream.read(&mut [0; 4096])? == 0 {
                return Ok(());
            }
        }
    });
    let (report, _) = bench(&url, &["-c", "2", "-n", "100"]);
    assert_eq!((failures(&report), report["served"].as_u64()), (vec![("wrong length".to_owned(), 100)], Some(0)));
}

#[test]
fn connections_that_are_closed_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    std::thread::spawn(move || listener.incoming().for_each(drop));
    for arguments in [&["-n", "100"][..], &["-R", "100", "-d", "1s"]] {
        let begin = Instant::now();
        let (report, _) = bench(&url, &[&["-c", "2"], arguments].concat());
        let failed: u64 = failures(&report).iter().map(|(_, count)| count).sum();
        assert_eq!((failed, report["served"].as_u64()), (100, Some(0)), "{arguments:?}: {report}");
        assert!(begin.elapsed() < RUN_MAX, "{:?}", begin.elapsed());
    }
}

/// Frames that the client must respond to, from a server that reads none of the responses.
#[test]
fn floods_of_http2() {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    let rows = [("settings", SETTINGS.repeat(10_000)), ("pings", PING.repeat(10_000))];
    let rows = rows.map(|(name, frames)| (name, flood(&SETTINGS, frames.leak(), NO_PAUSE)));
    in_parallel(&rows, |(name, url)| {
        for arguments in [&["--http2"][..], &["--http2", "--streams", "4"], &["--http2", "-R", "50"]] {
            let begin = Instant::now();
            let (report, code) = bench(url, &[&["-c", "2", "-n", "8", "--timeout", "500ms"], arguments].concat());
            assert!(begin.elapsed() < RUN_MAX, "{name} {arguments:?}: {:?}", begin.elapsed());
            assert_eq!(failures(&report), [("time-out".to_owned(), 8)], "{name} {arguments:?}");
            assert_eq!((report["served"].as_u64(), code), (Some(0), 1), "{name} {arguments:?}");
        }
    });
}
