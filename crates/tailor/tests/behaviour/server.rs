//! Fake server for HTTP/1 that handles each request as a test says.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Action of the fake server on a request.
pub(crate) enum FakeServerAction {
    /// Send this response, and keep the connection open.
    Reply(Vec<u8>),
    /// Wait, then send this response.
    Delay(Duration, Vec<u8>),
    /// Send these bytes, which may be none, and close without close_notify.
    Close(Vec<u8>),
    /// Send these bytes and close the connection properly, with close_notify over TLS.
    End(Vec<u8>),
    /// Send these bytes to the socket, below TLS.
    Raw(Vec<u8>),
    /// Reset the connection.
    Reset,
    /// Send nothing until the client closes.
    Stall,
}

/// Request that the server received.
pub(crate) struct ReceivedRequest {
    /// Number of the request among all requests, from 0.
    pub(crate) number: usize,
    /// Number of the request on its connection, from 0.
    pub(crate) number_on_connection: usize,
    pub(crate) head: String,
    pub(crate) content: Vec<u8>,
}

/// Running server; it ends with the process.
pub(crate) struct FakeServer {
    pub(crate) url: String,
    /// Heads of all requests, in the order of arrival.
    pub(crate) heads: Arc<Mutex<Vec<String>>>,
    pub(crate) connections: Arc<AtomicUsize>,
}

/// Starts a server that answers each request by `act`.
pub(crate) fn start(act: impl Fn(&ReceivedRequest) -> FakeServerAction + Send + Sync + 'static) -> FakeServer {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    start_on(listener, url, act, |stream| Some(Box::new(stream)))
}

/// Transport of a connection: TCP, or TLS over TCP.
pub(crate) trait FakeServerStream: Read + Write {
    /// TCP connection below.
    fn tcp(&self) -> &TcpStream;
    /// Closes the connection properly.
    fn end(&mut self);
}

impl FakeServerStream for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }

    fn end(&mut self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// Starts a server on a listener; `open` converts each accepted connection, for example to TLS.
pub(crate) fn start_on(
    listener: TcpListener,
    url: String,
    act: impl Fn(&ReceivedRequest) -> FakeServerAction + Send + Sync + 'static,
    open: impl Fn(TcpStream) -> Option<Box<dyn FakeServerStream>> + Send + Sync + 'static,
) -> FakeServer {
    let server = FakeServer { url, heads: Arc::default(), connections: Arc::default() };
    let (heads, connections) = (server.heads.clone(), server.connections.clone());
    let (act, open, number) = (Arc::new(act), Arc::new(open), Arc::new(AtomicUsize::new(0)));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            connections.fetch_add(1, Ordering::SeqCst);
            let (act, open, number, heads) = (act.clone(), open.clone(), number.clone(), heads.clone());
            std::thread::spawn(move || {
                if let Some(mut stream) = open(stream) {
                    serve(&mut *stream, &*act, &number, &heads);
                }
            });
        }
    });
    server
}

/// Response with status 200 and this content.
pub(crate) fn ok(content: &[u8]) -> Vec<u8> {
    response("200 OK", "", content)
}

pub(crate) fn response(status: &str, fields: &str, content: &[u8]) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 {status}\r\n{fields}Content-Length: {}\r\n\r\n", content.len()).into_bytes();
    bytes.extend_from_slice(content);
    bytes
}

fn serve(
    stream: &mut dyn FakeServerStream,
    act: &dyn Fn(&ReceivedRequest) -> FakeServerAction,
    number: &AtomicUsize,
    heads: &Mutex<Vec<String>>,
) {
    let _ = stream.tcp().set_nodelay(true);
    let mut buffer = Vec::new();
    for number_on_connection in 0.. {
        let Some((head, content)) = read_request(stream, &mut buffer) else { return };
        let number = number.fetch_add(1, Ordering::SeqCst);
        heads.lock().unwrap().push(head.clone());
        let is_last = head.to_ascii_lowercase().contains("connection: close")
            || (head.contains(" HTTP/1.0\r\n") && !head.to_ascii_lowercase().contains("connection: keep-alive"));
        match act(&ReceivedRequest { number, number_on_connection, head, content }) {
            FakeServerAction::Reply(bytes) => drop(stream.write_all(&bytes)),
            FakeServerAction::Delay(time, bytes) => {
                std::thread::sleep(time);
                let _ = stream.write_all(&bytes);
            }
            FakeServerAction::Close(bytes) => {
                let _ = stream.write_all(&bytes);
                return;
            }
            FakeServerAction::End(bytes) => {
                let _ = stream.write_all(&bytes);
                return stream.end();
            }
            FakeServerAction::Raw(bytes) => drop(stream.tcp().write_all(&bytes)),
            FakeServerAction::Reset => {
                let _ = socket2::SockRef::from(stream.tcp()).set_linger(Some(Duration::ZERO));
                return;
            }
            FakeServerAction::Stall => {
                let _ = stream.read(&mut [0; 1]);
                return;
            }
        }
        if is_last {
            stream.end();
            return;
        }
    }
}

/// Reads a head and the content that its Content-Length announces.
fn read_request(stream: &mut dyn FakeServerStream, buffer: &mut Vec<u8>) -> Option<(String, Vec<u8>)> {
    let head_end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        read_more(stream, buffer)?;
    };
    let head = String::from_utf8_lossy(&buffer[..head_end]).into_owned();
    let length =
        head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse::<usize>().ok()).unwrap_or(0);
    while buffer.len() < head_end + length {
        read_more(stream, buffer)?;
    }
    let content = buffer[head_end..head_end + length].to_vec();
    buffer.drain(..head_end + length);
    Some((head, content))
}

fn read_more(stream: &mut dyn FakeServerStream, buffer: &mut Vec<u8>) -> Option<()> {
    let mut piece = [0; 16 << 10];
    match stream.read(&mut piece) {
        Ok(length @ 1..) => {
            buffer.extend_from_slice(&piece[..length]);
            Some(())
        }
        _ => None,
    }
}
