//! The origin of a proxy under test: it records what reaches it, and responds as a static site would, or with the bytes of a
//! case.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::client::{PROBE_BODY, PROBE_FILE};
use crate::strict_request::{From, ReadStep, StrictRequest};

/// The target that is answered with the bytes of a case.
pub(crate) const CASE_TARGET: &str = "/case";

/// Time for which a connection stays open after bytes that may be an unfinished response.
const LINGER: Duration = Duration::from_millis(200);

/// Delay of unrequested bytes after a response.
const UNASKED_DELAY: Duration = Duration::from_millis(30);

/// The server, as long as the process runs.
#[derive(Clone, Debug)]
pub struct OriginServer {
    /// Address on which it listens.
    pub address: SocketAddr,
    state: Arc<Mutex<OriginState>>,
}

#[derive(Debug, Default)]
struct OriginState {
    seen: SeenRequests,
    /// Response to [`CASE_TARGET`].
    answer: PreparedResponse,
}

/// Requests that have reached the origin.
#[derive(Clone, Debug, Default)]
pub(crate) struct SeenRequests {
    /// Whole requests, in order.
    pub(crate) requests: Vec<StrictRequest>,
    /// Bytes that are no request with one meaning, with the reason.
    pub(crate) malformed: Vec<(&'static str, Vec<u8>)>,
}

/// Way in which a case's bytes are sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct PreparedResponse {
    pub(crate) bytes: Vec<u8>,
    /// True if the bytes follow a complete response, after the client has read it.
    pub(crate) is_unsolicited: bool,
}

impl OriginServer {
    /// Starts it on a free port of the loopback.
    ///
    /// # Errors
    /// There is none.
    pub fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let origin = Self { address: listener.local_addr()?, state: Arc::default() };
        let server = origin.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = server.clone();
                // `seen` has the end of the connection.
                std::thread::spawn(move || drop(server.serve(stream)));
            }
        });
        Ok(origin)
    }

    /// Requests since the last call.
    pub(crate) fn take_seen(&self) -> SeenRequests {
        std::mem::take(&mut self.state().seen)
    }

    /// Sets the response to [`CASE_TARGET`].
    pub(crate) fn set_answer(&self, answer: PreparedResponse) {
        self.state().answer = answer;
    }

    fn state(&self) -> MutexGuard<'_, OriginState> {
        self.state.lock().expect("no thread panics")
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let (mut input, mut buffer) = (Vec::new(), [0; 16 << 10]);
        loop {
            let request = match ReadStep::read(&input, From::Proxy) {
                ReadStep::Whole(request, length) => {
                    input.drain(..length);
                    request
                }
                ReadStep::Malformed(reason) => {
                    self.state().seen.malformed.push((reason, input));
                    return stream
                        .write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
                }
                ReadStep::Partial { has_head } => {
                    let count = match stream.read(&mut buffer) {
                        Ok(count) => count,
                        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => 0,
                        Err(error) => return Err(error),
                    };
                    if count == 0 {
                        // A content that breaks off is no request. A head that does is none either, but a proxy has it whole.
                        if !input.is_empty() && !has_head {
                            self.state().seen.malformed.push(("a part of a head", input));
                        }
                        return Ok(());
                    }
                    input.extend_from_slice(&buffer[..count]);
                    continue;
                }
            };
            self.state().seen.requests.push(request.clone());
            self.answer(&request, &mut stream)?;
            if !request.is_persistent {
                return Ok(());
            }
        }
    }

    fn answer(&self, request: &StrictRequest, stream: &mut TcpStream) -> std::io::Result<()> {
        if request.target != CASE_TARGET {
            return stream.write_all(&static_answer(request));
        }
        let PreparedResponse { bytes, is_unsolicited } = self.state().answer.clone();
        if is_unsolicited {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")?;
            std::thread::sleep(UNASKED_DELAY);
            return stream.write_all(&bytes);
        }
        // If it is unfinished, the end has to come some time.
        stream.set_read_timeout(Some(LINGER))?;
        for piece in bytes.chunks(64 << 10) {
            stream.write_all(piece)?;
        }
        Ok(())
    }
}

/// As the sites answer that the same cases are sent to directly.
fn static_answer(request: &StrictRequest) -> Vec<u8> {
    const ALLOW: &str = "Allow: GET, HEAD, OPTIONS\r\n";
    let path = request.target.split('?').next().unwrap_or_default();
    let (status, field, content) = match request.method.as_str() {
        "GET" | "HEAD" if path == format!("/{PROBE_FILE}") => ("200 OK", "", PROBE_BODY),
        "GET" | "HEAD" if path == "/" || path == "/index.html" => ("200 OK", "", "<!doctype html>\n"),
        "GET" | "HEAD" => ("404 Not Found", "", "nothing is here\n"),
        "OPTIONS" => ("204 No Content", ALLOW, ""),
        "POST" | "PUT" | "DELETE" | "PATCH" | "TRACE" => ("405 Method Not Allowed", ALLOW, "not allowed\n"),
        _ => ("501 Not Implemented", "", "not implemented\n"),
    };
    let length =
        if status.starts_with("204") { String::new() } else { format!("Content-Length: {}\r\n", content.len()) };
    let content = if request.method == "HEAD" { "" } else { content };
    format!("HTTP/1.1 {status}\r\n{field}{length}\r\n{content}").into_bytes()
}
