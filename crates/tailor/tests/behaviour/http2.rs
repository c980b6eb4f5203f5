//! HTTP/2: concurrent streams, each with its own result, and faults that affect all streams of a connection.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use wire::h2::{EngineTurn, ErrorCode, H2Limits, H2Output, H2ServerConnection, Placement, ServerEvent, StreamId};
use wire::http::{Fields, RequestHead, Status};

use crate::server::FakeServerStream;
use crate::tls::LocalhostCa;
use crate::{bench, failures, in_parallel, longer, percentile_ms, undisturbed};

/// Action of the fake server on a request.
enum H2Action {
    /// Send a response with this status, these fields and this content.
    Reply(u16, &'static [(&'static str, &'static str)], Vec<u8>),
    /// Send the response after this number of further requests.
    ReplyAfter(usize),
    /// Start a response, and reset the stream.
    Reset(ErrorCode),
    /// Send nothing.
    Stall,
    /// Send these bytes between frames.
    Raw(&'static [u8]),
    /// Send a response and GOAWAY.
    ReplyAndGoAway,
    /// Close the connection without GOAWAY.
    Close,
}

/// Running server; it ends with the process.
struct FakeH2Server {
    url: String,
    connections: Arc<AtomicUsize>,
    /// Maximum number of concurrent requests on a connection.
    streams_max: Arc<AtomicUsize>,
}

/// Starts a server that answers each request by `act`, which gets its number, path and content.
fn start(limits: H2Limits, act: impl Fn(usize, &str, &[u8]) -> H2Action + Send + Sync + 'static) -> FakeH2Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    start_on(listener, url, limits, act, |socket| Some(Box::new(socket)))
}

/// Starts a server on a listener; `open` converts each accepted connection, for example to TLS.
fn start_on(
    listener: TcpListener,
    url: String,
    limits: H2Limits,
    act: impl Fn(usize, &str, &[u8]) -> H2Action + Send + Sync + 'static,
    open: impl Fn(TcpStream) -> Option<Box<dyn FakeServerStream>> + Send + Sync + 'static,
) -> FakeH2Server {
    let server = FakeH2Server { url, connections: Arc::default(), streams_max: Arc::default() };
    let (connections, streams_max) = (server.connections.clone(), server.streams_max.clone());
    let (act, open, number) = (Arc::new(act), Arc::new(open), Arc::new(AtomicUsize::new(0)));
    std::thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            connections.fetch_add(1, Ordering::SeqCst);
            let (act, open, number, streams_max) = (act.clone(), open.clone(), number.clone(), streams_max.clone());
            std::thread::spawn(move || {
                let _ = socket.set_nodelay(true);
                if let Some(stream) = open(socket) {
                    // The connection ends when the client closes it, or when an action says so.
                    let _ = FakeH2Connection::new(limits, stream).serve(&*act, &number, &streams_max);
                }
            });
        }
    });
    server
}

struct FakeH2Connection {
    stream: Box<dyn FakeServerStream>,
    connection: H2ServerConnection,
    limits: H2Limits,
    output: H2Output,
    /// Path and received content of each request.
    requests: HashMap<StreamId, (String, Vec<u8>)>,
    responses: HashMap<StreamId, Vec<u8>>,
    waiting: Vec<StreamId>,
}

impl FakeH2Connection {
    fn new(limits: H2Limits, stream: Box<dyn FakeServerStream>) -> Self {
        Self {
            stream,
            connection: H2ServerConnection::new(Duration::ZERO, &limits),
            limits,
            output: H2Output::default(),
            requests: HashMap::new(),
            responses: HashMap::new(),
            waiting: Vec::new(),
        }
    }

    fn turn<T>(&mut self, action: impl FnOnce(&mut H2ServerConnection, &mut EngineTurn<'_>) -> T) -> T {
        let mut turn = EngineTurn { now: Duration::ZERO, limits: &self.limits, output: &mut self.output };
        action(&mut self.connection, &mut turn)
    }

    /// Serves the connection. Returns `None` at its end.
    fn serve(
        &mut self,
        act: &dyn Fn(usize, &str, &[u8]) -> H2Action,
        number: &AtomicUsize,
        streams_max: &AtomicUsize,
    ) -> Option<()> {
        let (mut head, mut text, mut input) = (RequestHead::default(), Vec::new(), Vec::new());
        self.turn(|connection, turn| connection.start(turn));
        loop {
            self.flush()?;
            let mut piece = [0; 16 << 10];
            let length = self.stream.read(&mut piece).ok().filter(|length| *length > 0)?;
            input.extend_from_slice(&piece[..length]);
            let mut at = 0;
            loop {
                text.clear();
                let handled =
                    self.turn(|connection, turn| connection.handle_input(&input[at..], &mut head, &mut text, turn));
                let from = at;
                at += handled.consumed_bytes;
                let whole = match handled.event {
                    ServerEvent::NeedInput => break,
                    ServerEvent::Request(request) => {
                        let path = String::from_utf8_lossy(request.target(&text).path).into_owned();
                        self.requests.insert(request.stream, (path, Vec::new()));
                        streams_max.fetch_max(self.connection.open_streams(), Ordering::SeqCst);
                        (!request.has_content).then_some(request.stream)
                    }
                    ServerEvent::Content { stream, content, is_last } => {
                        let content = &input[from..][content];
                        self.requests.get_mut(&stream)?.1.extend_from_slice(content);
                        let length = content.len();
                        self.turn(|connection, turn| connection.take_content(stream, length, turn));
                        is_last.then_some(stream)
                    }
                    ServerEvent::Closed(_) => return self.flush().and(None),
                    _ => None,
                };
                if let Some(stream) = whole {
                    self.act(stream, act, number)?;
                }
            }
            input.drain(..at);
        }
    }

    fn act(
        &mut self,
        stream: StreamId,
        act: &dyn Fn(usize, &str, &[u8]) -> H2Action,
        number: &AtomicUsize,
    ) -> Option<()> {
        let (path, content) = self.requests.remove(&stream)?;
        match act(number.fetch_add(1, Ordering::SeqCst), &path, &content) {
            H2Action::Reply(status, fields, content) => self.reply(stream, status, fields, content),
            H2Action::ReplyAfter(count) => {
                self.waiting.push(stream);
                if self.waiting.len() > count {
                    // Answer the latest request first.
                    for stream in std::mem::take(&mut self.waiting).into_iter().rev() {
                        self.reply(stream, 200, &[], b"x".to_vec());
                    }
                }
            }
            H2Action::Reset(code) => {
                let fields = Fields::new();
                let _ = self.turn(|connection, turn| {
                    connection.send_response(stream, Status::new(200).unwrap(), &fields, false, turn)
                });
                self.turn(|connection, turn| connection.reset(stream, code, turn));
            }
            H2Action::Stall => {}
            H2Action::Raw(bytes) => {
                self.flush()?;
                self.stream.write_all(bytes).ok()?;
            }
            H2Action::ReplyAndGoAway => {
                self.reply(stream, 200, &[], b"x".to_vec());
                self.turn(|connection, turn| connection.shut_down(turn));
            }
            H2Action::Close => return None,
        }
        Some(())
    }

    fn reply(&mut self, stream: StreamId, status: u16, fields: &[(&str, &str)], content: Vec<u8>) {
        let mut all = Fields::new();
        fields.iter().for_each(|(name, value)| {
            all.push(name, value);
        });
        let status = Status::new(status).unwrap();
        let length = content.len() as u64;
        self.responses.insert(stream, content);
        self.turn(|connection, turn| {
            // If the client has reset the stream, the response fails, and that is fine.
            let _ = connection.send_response(stream, status, &all, false, turn);
            let _ = connection.offer_content(stream, length, true, turn);
        });
    }

    /// Sends as much content as the flow control windows allow.
    fn flush(&mut self) -> Option<()> {
        let mut turn = EngineTurn { now: Duration::ZERO, limits: &self.limits, output: &mut self.output };
        let responses = &self.responses;
        self.connection.poll_output(usize::MAX, &mut turn, |stream, range, out| {
            out.extend_from_slice(&responses[&stream][range.start as usize..range.end as usize]);
            Placement::Copied
        });
        self.stream.write_all(self.output.bytes()).ok()?;
        self.stream.flush().ok()?;
        self.output.clear();
        Some(())
    }
}

fn ok() -> H2Action {
    H2Action::Reply(200, &[], b"x".to_vec())
}

#[test]
fn streams_side_by_side() {
    for (arguments, streams, connections) in [
        (&["--streams", "8"][..], 8, 2),
        (&["-m", "8", "-t", "2"], 8, 2),
        (&["--max-concurrent-streams", "100"], 20, 2), // The server's limit of 20 applies.
        (&[], 1, 2),
        (&["--streams", "8", "--requests-per-connection", "100"], 8, 10),
    ] {
        let server = start(H2Limits { concurrent_streams_max: 20, ..H2Limits::default() }, |_, _, _| ok());
        // The client's first requests can exceed a limit that it does not know yet; the server answers them with
        // REFUSED_STREAM.
        let requests = if streams == 20 { "20" } else { "1000" };
        let (report, _) = bench(&server.url, &[&["--http2", "-c", "2", "-n", requests], arguments].concat());
        assert_eq!((failures(&report), report["served"].to_string()), (vec![], requests.to_owned()), "{arguments:?}");
        assert_eq!(report["load"]["protocol"], "HTTP/2");
        assert!(server.streams_max.load(Ordering::SeqCst) <= streams, "{arguments:?}");
        let used = server.connections.load(Ordering::SeqCst);
        assert!((connections..=connections + 2).contains(&used), "{arguments:?}: {used}");
    }
}

#[test]
fn responses_in_any_order() {
    let server = start(H2Limits::default(), |_, _, _| H2Action::ReplyAfter(9));
    let (report, _) = bench(&server.url, &["--http2", "-c", "1", "--streams", "10", "-n", "500"]);
    assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(500)));
    assert_eq!(server.streams_max.load(Ordering::SeqCst), 10);
}

#[test]
fn contents_of_all_lengths_both_ways() {
    // Longer than a frame, than a stream's initial window, and than the connection's initial window.
    for length in [0, 1, 16_384, 16_385, 65_536, 1_000_000] {
        let content: Vec<u8> = (0..length).map(|index: u32| (index % 251) as u8).collect();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&content).unwrap();
        let path = file.path().to_str().unwrap();
        let server = start(H2Limits::default(), |_, _, content| H2Action::Reply(200, &[], content.to_vec()));
        let body = format!("@{path}");
        for line in [&[][..], &["--line", "100M,latency=1ms"]] {
            let arguments =
                ["--http2", "-c", "2", "--streams", "3", "-n", "12", "--body", &body, "--expect-body", path];
            let (report, _) = bench(&server.url, &[&arguments[..], line].concat());
            assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(12)), "{length} bytes, {line:?}");
        }
    }
}

/// A fault affects only its own stream.
#[test]
fn a_faulty_server_is_counted_to_the_number() {
    const FIELD: &[(&str, &str)] = &[("x-field", "yes")];
    let act = |number: usize, _: &str, _: &[u8]| match number % 10 {
        1 => H2Action::Reply(200, FIELD, b"012345678".to_vec()),
        2 => H2Action::Reset(ErrorCode::INTERNAL_ERROR),
        3 => H2Action::Reply(200, FIELD, b"0123456x89".to_vec()),
        4 => H2Action::Reply(200, &[("x-field", "yes"), ("content-length", "11")], b"0123456789".to_vec()),
        5 => H2Action::Reply(503, FIELD, b"0123456789".to_vec()),
        6 => H2Action::Reply(200, &[("x-field", "no")], b"0123456789".to_vec()),
        7 => H2Action::Reset(ErrorCode::CANCEL),
        8 => H2Action::Stall,
        _ => H2Action::Reply(200, FIELD, b"0123456789".to_vec()),
    };
    let mut body = tempfile::NamedTempFile::new().unwrap();
    body.write_all(b"0123456789").unwrap();
    let limits =
        H2Limits { stream_faults: wire::h2::BudgetLimit { burst: 10_000, per_second: 0 }, ..H2Limits::default() };
    for pace in [&[][..], &["-R", "300"]] {
        let checks = ["--expect-header", "X-Field: yes", "--expect-length", "10", "--expect-body"];
        let measure = |number| {
            let server = start(limits, act);
            let time_out = longer(&["1s", "10s"], number);
            let load = ["--http2", "-c", "2", "--streams", "50", "-n", "300", "--timeout", time_out];
            bench(&server.url, &[&load[..], &checks, &[body.path().to_str().unwrap()], pace].concat())
        };
        let (report, _) = undisturbed(measure, |(report, _)| report["failures"]["time-out"] == 30);
        let expect = [
            ("early close", 60),
            ("malformed response", 30),
            ("time-out", 30),
            ("wrong body", 30),
            ("wrong field", 30),
            ("wrong length", 30),
            ("wrong status", 30),
        ];
        assert_eq!(failures(&report), expect.map(|(name, count)| (name.to_owned(), count)), "{pace:?}");
        assert_eq!((report["served"].as_u64(), report["connections"].as_u64()), (Some(60), Some(2)), "{pace:?}");
    }
}

/// The server has not handled a request with REFUSED_STREAM, so the client sends it again, but not forever.
#[test]
fn refused_streams_are_sent_again() {
    let load = ["--http2", "-c", "2", "--streams", "5", "-n", "300"];
    let server = start(H2Limits::default(), |number, _, _| match number % 3 {
        0 => H2Action::Reset(ErrorCode::REFUSED_STREAM),
        _ => ok(),
    });
    let (report, _) = bench(&server.url, &load);
    assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(300)));
    let server = start(H2Limits::default(), |_, _, _| H2Action::Reset(ErrorCode::REFUSED_STREAM));
    let (report, _) = bench(&server.url, &load);
    assert_eq!((failures(&report), report["served"].as_u64()), (vec![("early close".to_owned(), 300)], Some(0)));
    let details = serde_json::json!({ "early close": { "stream reset: REFUSED_STREAM (7)": 300 } });
    assert_eq!(report["failure_details"], details);
}

/// The class of a silent end does not depend on whether sending or receiving notices it first.
#[test]
fn a_silent_end_has_one_class() {
    let server = start(H2Limits::default(), |number, _, _| if number % 10 == 9 { H2Action::Close } else { ok() });
    let body = "x".repeat(100_000);
    let load = ["--http2", "-c", "4", "--streams", "10", "-n", "400", "--body", &body];
    let (report, _) = bench(&server.url, &load);
    let failed = failures(&report);
    assert!(matches!(failed.as_slice(), [(class, count)] if class == "early close" && *count >= 40), "{failed:?}");
    assert_eq!(report["served"].as_u64().unwrap() + failed[0].1, 400);
}

#[test]
fn what_ends_a_connection() {
    // A response on a stream that the client did not open, a frame that is too long, and HTTP/1.
    const ORPHAN: &[u8] = &[0, 0, 1, 1, 5, 0, 0, 0, 99, 0x88];
    const TOO_LONG: &[u8] = &[255, 255, 255, 0, 0, 0, 0, 0, 1];
    type Row = (&'static str, fn() -> H2Action, &'static str, &'static str);
    let rows: [Row; 3] = [
        ("an end", || H2Action::Close, "early close", "the server "),
        ("an orphan", || H2Action::Raw(ORPHAN), "malformed response", ""),
        ("a frame too long", || H2Action::Raw(TOO_LONG), "malformed response", ""),
    ];
    in_parallel(&rows, |(name, act, class, reason)| {
        let act = *act;
        let server = start(H2Limits::default(), move |_, _, _| act());
        let (report, _) = bench(&server.url, &["--http2", "-c", "2", "--streams", "5", "-n", "60", "--timeout", "60s"]);
        assert_eq!(failures(&report), [((*class).to_owned(), 60)], "{name}");
        assert_eq!(report["served"].as_u64(), Some(0), "{name}");
        assert!(report["failure_reasons"][*class].as_str().unwrap().contains(reason), "{name}: {report}");
    });
}

/// Without TLS only the response shows that a server does not speak HTTP/2.
#[test]
fn a_server_of_http1() {
    let server = crate::server::start(|_| crate::server::FakeServerAction::Reply(crate::server::ok(b"x")));
    let (report, _) = bench(&server.url, &["--http2", "-c", "2", "--streams", "5", "-n", "20"]);
    assert_eq!(failures(&report), [("malformed response".to_owned(), 20)]);
    let reason = report["failure_reasons"]["malformed response"].as_str().unwrap();
    assert!(reason.starts_with("the server answers in HTTP/1;"), "{reason}");
}

#[test]
fn a_server_that_goes_away_in_order_is_no_failure() {
    let act = |number, _: &str, _: &[u8]| if number % 50 == 49 { H2Action::ReplyAndGoAway } else { ok() };
    let server = start(H2Limits::default(), act);
    let (report, _) = bench(&server.url, &["--http2", "-c", "2", "--streams", "7", "-n", "1000"]);
    assert_eq!((failures(&report), report["served"].as_u64()), (vec![], Some(1000)));
    assert!(server.connections.load(Ordering::SeqCst) >= 10, "connections are made anew");
}

#[test]
fn aborts_are_of_streams() {
    let server = start(H2Limits::default(), |_, _, _| H2Action::Reply(200, &[], vec![b'x'; 1 << 20]));
    let arguments = ["--http2", "-c", "2", "--streams", "4", "-n", "60", "--abort", "50%", "--abort-after", "1000"];
    let (report, _) = bench(&server.url, &arguments);
    let (served, aborted) = (report["served"].as_u64().unwrap(), report["aborted"].as_u64().unwrap());
    assert_eq!((failures(&report), served + aborted, report["connections"].as_u64()), (vec![], 60, Some(2)));
    assert!((12..=48).contains(&aborted), "{aborted} of 60");
}

/// A request that falls due while others are in progress on the same connection does not wait for them.
#[test]
fn an_open_loop_uses_all_streams() {
    let act = |_, path: &str, _: &[u8]| if path == "/slow" { H2Action::Stall } else { ok() };
    let mut list = tempfile::NamedTempFile::new().unwrap();
    list.write_all(b"/slow\n/fast\n").unwrap();
    let urls = ["--urls", list.path().to_str().unwrap()];
    let measure = |number| {
        let server = start(H2Limits::default(), act);
        let time_out = longer(&["3s", "10s"], number);
        let load = ["--http2", "-c", "1", "--streams", "100", "-R", "200", "-n", "100", "--timeout", time_out];
        bench(&server.url, &[&load[..], &urls].concat())
    };
    let is_quick = |report: &serde_json::Value| percentile_ms(&report["latency"], 50.0) < 1_000.0;
    let (report, _) = undisturbed(measure, |(report, _)| report["served"] == 50 && is_quick(report));
    assert_eq!((failures(&report), report["served"].as_u64()), (vec![("time-out".to_owned(), 50)], Some(50)));
    assert_eq!(report["waited"].as_u64(), Some(0));
    assert!(is_quick(&report), "none of those answered waits for one that isn't");
}

/// Over TLS, the server must agree to HTTP/2 by ALPN.
#[test]
fn over_tls() {
    for (protocols, served) in [(&[&b"h2"[..], b"http/1.1"][..], 300), (&[b"http/1.1"], 0), (&[], 0)] {
        let authority = LocalhostCa::new(crate::tls::BOTH, protocols);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
        let open = authority.opener();
        let server = start_on(
            listener,
            url,
            H2Limits::default(),
            |_, _, content| H2Action::Reply(200, &[], content.to_vec()),
            open,
        );
        let content = "x".repeat(100_000);
        let arguments =
            ["--http2", "-c", "2", "--streams", "10", "-n", "300", "--body", &content, "--expect-length", "100000"];
        let (report, _) = bench(&server.url, &[&["--cacert", authority.path()], &arguments[..]].concat());
        let expect = if served == 0 { vec![("TLS failure".to_owned(), 300)] } else { vec![] };
        assert_eq!((failures(&report), report["served"].as_u64()), (expect, Some(served)), "{protocols:?}");
    }
}
