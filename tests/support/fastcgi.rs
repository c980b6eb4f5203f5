//! FastCGI application that follows a test's script.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use super::PATIENCE;
use super::waiting::eventually;

/// Application that runs the test's script for each request.
pub(crate) struct Application {
    pub(crate) address: SocketAddr,
    requests: Receiver<FastCgiRequest>,
    /// Number of requests it has received, whether answered or not.
    received: Arc<AtomicUsize>,
}

/// Request as received by the end of its response.
#[derive(Clone, Debug, Default)]
pub(crate) struct FastCgiRequest {
    pub(crate) parameters: Vec<(String, String)>,
    pub(crate) content: Vec<u8>,
    pub(crate) is_kept: bool,
    /// Number of its connection, from 0.
    pub(crate) connection: usize,
    /// True if the server closed the connection before the response was complete.
    pub(crate) is_aborted: bool,
}

/// Action of an application after it has received a whole request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Write(Vec<u8>),
    /// Repeats the record until the server closes the connection.
    Flood(Vec<u8>),
    /// Sleeps for this many milliseconds.
    Pause(u64),
    /// Waits until the test has come to the same barrier.
    Meet(Arc<Barrier>),
    /// Waits until the server closes the connection.
    AwaitClose,
    /// Closes the connection.
    Close,
}

impl FastCgiRequest {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

impl Application {
    pub(crate) fn start(acts: impl Fn(&FastCgiRequest) -> Vec<Act> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, requests) = channel();
        let acts = Arc::new(acts);
        let received = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&received);
        std::thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                let (acts, sender, counted) = (Arc::clone(&acts), sender.clone(), Arc::clone(&counted));
                std::thread::spawn(move || {
                    let mut stream = stream.unwrap();
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    while let Some(mut request) = read_request(&mut stream) {
                        request.connection = connection;
                        counted.fetch_add(1, Ordering::SeqCst);
                        let goes_on = act(&mut stream, &acts(&request), &mut request);
                        let is_kept = request.is_kept;
                        // The test may have dropped the receiver.
                        let _ = sender.send(request);
                        if !goes_on || !is_kept {
                            break;
                        }
                    }
                });
            }
        });
        Self { address, requests, received }
    }

    /// Application that sends this response to each request.
    pub(crate) fn answering(answer: Vec<u8>) -> Self {
        Self::start(move |_| vec![Act::Write(answer.clone())])
    }

    /// Waits until it has received a request.
    #[track_caller]
    pub(crate) fn await_request(&self) {
        eventually("the application has a request", || self.received.load(Ordering::SeqCst) > 0);
    }

    /// Next request that was answered.
    pub(crate) fn request(&self) -> FastCgiRequest {
        self.requests.recv_timeout(PATIENCE).expect("a request has been answered")
    }

    pub(crate) fn try_request(&self) -> Option<FastCgiRequest> {
        self.requests.try_recv().ok()
    }
}

/// Encodes a record of the connection's request.
pub(crate) fn record(record_type: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = (content.len() as u16).to_be_bytes();
    [&[1, record_type, 0, 1, high, low, 0, 0], content].concat()
}

pub(crate) fn output(text: &str) -> Vec<u8> {
    record(6, text.as_bytes())
}

pub(crate) fn error(text: &str) -> Vec<u8> {
    record(7, text.as_bytes())
}

pub(crate) fn end() -> Vec<u8> {
    record(3, &[0; 8])
}

/// Encodes a whole response.
pub(crate) fn answer(text: &str) -> Vec<u8> {
    let mut records = Vec::new();
    text.as_bytes().chunks(65_535).for_each(|piece| records.extend(record(6, piece)));
    records.extend(output(""));
    records.extend(end());
    records
}

/// Reads a request up to the end of its content; `None` at the end of the connection.
fn read_request(stream: &mut TcpStream) -> Option<FastCgiRequest> {
    let (mut request, mut parameters) = (FastCgiRequest::default(), Vec::new());
    loop {
        let mut header = [0; 8];
        stream.read_exact(&mut header).ok()?;
        assert_eq!((header[0], header[2], header[3]), (1, 0, 1), "version and request");
        let mut content = vec![0; usize::from(u16::from_be_bytes([header[4], header[5]]))];
        stream.read_exact(&mut content).ok()?;
        stream.read_exact(&mut vec![0; usize::from(header[6])]).ok()?;
        match (header[1], content.is_empty()) {
            (1, _) => {
                assert_eq!(content[..2], [0, 1], "a responder");
                request.is_kept = content[2] == 1;
            }
            (4, false) => parameters.extend(content),
            (4, true) => request.parameters = pairs(&parameters),
            (5, false) => request.content.extend(content),
            (5, true) => return Some(request),
            (other, _) => panic!("a record of type {other}"),
        }
    }
}

fn pairs(mut bytes: &[u8]) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    while !bytes.is_empty() {
        let (name, value) = (take_length(&mut bytes), take_length(&mut bytes));
        let mut take = |length: usize| {
            let (text, rest) = bytes.split_at(length);
            bytes = rest;
            String::from_utf8_lossy(text).into_owned()
        };
        let (name, value) = (take(name), take(value));
        pairs.push((name, value));
    }
    pairs
}

fn take_length(bytes: &mut &[u8]) -> usize {
    let count = if bytes[0] < 128 { 1 } else { 4 };
    let (length, rest) = bytes.split_at(count);
    *bytes = rest;
    length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)) & 0x7fff_ffff
}

/// Runs the actions; returns true if the connection can take another request.
fn act(stream: &mut TcpStream, acts: &[Act], request: &mut FastCgiRequest) -> bool {
    for act in acts {
        match act {
            Act::Write(bytes) => {
                if stream.write_all(bytes).is_err() {
                    request.is_aborted = true;
                    return false;
                }
            }
            Act::Flood(bytes) => while stream.write_all(bytes).is_ok() {},
            Act::Pause(milliseconds) => std::thread::sleep(Duration::from_millis(*milliseconds)),
            Act::Meet(barrier) => {
                barrier.wait();
            }
            Act::AwaitClose => {
                request.is_aborted = matches!(stream.read(&mut [0]), Ok(0) | Err(_));
                return false;
            }
            Act::Close => return false,
        }
    }
    true
}
