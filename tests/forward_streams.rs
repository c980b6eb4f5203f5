//! Forwarded content as a stream: of any length, as slow as its receiver, in no more memory than short content.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use crate::support::{PATIENCE, TestServer, read_until};

/// Size far beyond the memory limit. Also run with 2 GiB, which takes minutes without optimisation.
const LONG_BYTES: u64 = 128 << 20;

/// Memory that long content may add, in KiB: the server's buffers, and the allocator's reserve.
const MEMORY_KIB_MAX: u64 = 4 << 10;

/// Upstream that runs `act` on its first connection.
fn upstream(act: impl FnOnce(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || act(listener.accept().unwrap().0));
    address
}

fn front(upstream: SocketAddr) -> TestServer {
    TestServer::run(&format!(
        "limits {{ body-bytes-max \"8GiB\" }}\nserver {{ workers 1 }}\n\
         site {{\n listen \"127.0.0.1:0\"\n forward \"http://{upstream}\"\n respond \"/here\" 200 \"here\"\n}}\n"
    ))
}

/// Sends a small request, so that the server allocates what any request needs.
fn warm_up(server: &TestServer) -> u64 {
    let mut stream = server.connect();
    stream.write_all(b"GET /here HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    read_until(&mut stream, "here");
    server.resident_kib_max()
}

/// Writes this many bytes, chunked or not.
fn write_long(stream: &mut TcpStream, is_chunked: bool) {
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..LONG_BYTES / piece.len() as u64 {
        if is_chunked {
            stream.write_all(b"100000\r\n").unwrap();
        }
        stream.write_all(&piece).unwrap();
        if is_chunked {
            stream.write_all(b"\r\n").unwrap();
        }
    }
    if is_chunked {
        stream.write_all(b"0\r\n\r\n").unwrap();
    }
}

/// Counts the `x` bytes until the end.
fn count_x(stream: &mut TcpStream, until: Option<u64>) -> u64 {
    let (mut buffer, mut count) = (vec![0; 1 << 20], 0);
    while until.is_none_or(|until| count < until) {
        match stream.read(&mut buffer).unwrap() {
            0 => break,
            read => count += buffer[..read].iter().map(|&byte| u64::from(byte == b'x')).sum::<u64>(),
        }
    }
    count
}

#[test]
fn long_contents_cost_no_memory() {
    for is_chunked in [false, true] {
        let framing =
            if is_chunked { "Transfer-Encoding: chunked".to_owned() } else { format!("Content-Length: {LONG_BYTES}") };
        let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{framing}\r\n\r\n");
        let down = front(upstream(move |mut stream| {
            read_until(&mut stream, "\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            write_long(&mut stream, is_chunked);
        }));
        let before = warm_up(&down);
        let mut stream = down.connect();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
        assert_eq!(count_x(&mut stream, None), LONG_BYTES, "down, {framing}");
        let cost = down.resident_kib_max() - before;
        assert!(cost <= MEMORY_KIB_MAX, "down, {framing}: {cost} KiB");

        let up = front(upstream(|mut stream| {
            let count = count_x(&mut stream, Some(LONG_BYTES));
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: 10\r\nX-Count: {count}\r\n\r\n0123456789");
            stream.write_all(head.as_bytes()).unwrap();
        }));
        let before = warm_up(&up);
        let mut stream = up.connect();
        write!(stream, "PUT / HTTP/1.1\r\nHost: h\r\n{framing}\r\n\r\n").unwrap();
        write_long(&mut stream, is_chunked);
        let answer = read_until(&mut stream, "0123456789");
        assert!(answer.contains(&format!("X-Count: {LONG_BYTES}\r\n")), "up, {framing}: {answer}");
        let cost = up.resident_kib_max() - before;
        assert!(cost <= MEMORY_KIB_MAX, "up, {framing}: {cost} KiB");
    }
}

/// Writes until the server accepts nothing for a while; returns the number of bytes.
fn write_until_stuck(stream: &mut TcpStream) -> usize {
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let (piece, mut count) = (vec![b'x'; 1 << 20], 0);
    loop {
        match stream.write(&piece) {
            Ok(written) => count += written,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => return count,
            Err(error) => panic!("{error}"),
        }
        assert!(count < 1 << 30, "it takes all that comes");
    }
}

/// The kernel's buffers of both connections fill, ours do not grow.
#[test]
fn who_reads_slowly_is_sent_to_slowly() {
    let (sender, written) = std::sync::mpsc::channel();
    let down = front(upstream(move |mut stream| {
        read_until(&mut stream, "\r\n\r\n");
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n").unwrap();
        sender.send(write_until_stuck(&mut stream)).unwrap();
    }));
    let before = warm_up(&down);
    let mut stream = down.connect();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    let written = written.recv_timeout(PATIENCE).unwrap();
    assert!(written > 0 && down.resident_kib_max() - before <= MEMORY_KIB_MAX, "{written} bytes down");
    drop(stream);

    let up = front(upstream(|stream| {
        let _open = stream;
        loop {
            std::thread::park();
        }
    }));
    let before = warm_up(&up);
    for fields in ["Content-Length: 4294967296\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\nffffffff\r\n"] {
        let mut stream = up.connect();
        write!(stream, "PUT / HTTP/1.1\r\nHost: h\r\n{fields}").unwrap();
        let written = write_until_stuck(&mut stream);
        assert!(up.resident_kib_max() - before <= MEMORY_KIB_MAX, "{fields}: {written} bytes up");
    }
}
