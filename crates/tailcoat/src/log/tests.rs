//! The access log as a whole: recorders, rings, writer and targets.

use std::collections::HashSet;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wire::http::{KnownField, Method, Request, RequestHead, Span, Status, Version};

use super::{Client, LogHandle, LogId, Options, Record, Recorder, ServerLog, Style, Subject, start};
use crate::config::{AccessLog, AccessLogFormat, AccessLogTarget, LogLevel};

/// A request that needs no parser.
pub(super) struct TestRequest {
    head: RequestHead,
    bytes: Vec<u8>,
}

impl TestRequest {
    pub(super) fn new(target: &[u8], fields: &[(&str, &[u8])]) -> Self {
        let mut request = Self { head: RequestHead::default(), bytes: Vec::new() };
        request.head.method = Method::Get;
        request.head.method_name = request.push(b"GET");
        request.head.target = request.push(target);
        request.head.version = Version::Http11;
        for (name, value) in fields {
            let (name_span, value_span) = (request.push(name.as_bytes()), request.push(value));
            request.head.push_field(name_span, value_span, KnownField::from_name(name.as_bytes()));
        }
        request
    }

    pub(super) fn with_method(mut self, name: &str) -> Self {
        self.head.method = Method::from_name(name.as_bytes());
        self.head.method_name = self.push(name.as_bytes());
        self
    }

    pub(super) fn subject(&self) -> Subject<'_> {
        Subject::Request(Request { head: &self.head, bytes: &self.bytes })
    }

    fn push(&mut self, bytes: &[u8]) -> Span {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        Span::new(start, self.bytes.len())
    }
}

pub(super) fn record_of(log: LogId, subject: Subject<'_>) -> Record<'_> {
    Record {
        log,
        subject,
        client: Client::Ip(SocketAddr::from(([192, 0, 2, 7], 50_000))),
        host: b"example.com",
        user: b"",
        status: Status::OK,
        content_bytes: 1024,
        unix_us: 784_111_777_123_456,
        duration_us: 1234,
    }
}

/// What a server's log says, for tests to read.
#[derive(Clone, Default)]
pub(super) struct Messages(Arc<Mutex<Vec<u8>>>);

impl Messages {
    pub(super) fn log(&self) -> ServerLog {
        ServerLog::new(LogLevel::Debug, Style::Journal, Box::new(self.clone()))
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Messages {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn file_log(path: &Path, format: AccessLogFormat) -> AccessLog {
    AccessLog { target: AccessLogTarget::File(path.to_owned()), format }
}

fn start_one(log: AccessLog, options: Options, messages: &Messages) -> (LogHandle, LogId, Recorder) {
    let (handle, ids) = start(&[log], options, messages.log()).unwrap();
    let recorder = handle.recorder();
    (handle, ids[0], recorder)
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(10), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_record_becomes_a_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("access.log");
    let messages = Messages::default();
    let (handle, log, mut recorder) =
        start_one(file_log(&path, AccessLogFormat::Combined), Options::default(), &messages);
    let request = TestRequest::new(b"/a?b", &[("Referer", b"http://example.org/"), ("User-Agent", b"curl/8.5.0")]);
    recorder.record(&record_of(log, request.subject()));
    let expect = "192.0.2.7 - - [06/Nov/1994:08:49:37 +0000] \"GET /a?b HTTP/1.1\" 200 1024 \"http://example.org/\" \
                  \"curl/8.5.0\"\n";
    wait_until("the line", || std::fs::read_to_string(&path).unwrap() == expect);
    assert!(handle.shutdown(Duration::from_secs(5)));
    assert_eq!(messages.text(), "");
}

/// Under load, each record is in the log once or counted as dropped: with rings that are large enough and with some that
/// overflow all the time.
#[test]
fn every_record_is_written_once_or_counted() {
    const WORKERS: usize = 4;
    const RECORDS: usize = 20_000;
    for ring_bytes_max in [64 << 10, 1 << 10] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        let template = AccessLogFormat::Template("{method} {target}".into());
        let options = Options { ring_bytes_max, ..Options::default() };
        let (handle, ids) = start(&[file_log(&path, template)], options, Messages::default().log()).unwrap();
        std::thread::scope(|scope| {
            for worker in 0..WORKERS {
                let mut recorder = handle.recorder();
                let log = ids[0];
                scope.spawn(move || {
                    for number in 0..RECORDS {
                        let request =
                            TestRequest::new(format!("/{worker}/{number}").as_bytes(), &[]).with_method("LOAD");
                        recorder.record(&record_of(log, request.subject()));
                    }
                });
            }
        });
        let shared = Arc::clone(&handle.shared);
        assert!(handle.shutdown(Duration::from_secs(5)));
        let dropped = shared.counters[0].dropped.load(Ordering::Relaxed) as usize;
        let written = shared.counters[0].written.load(Ordering::Relaxed) as usize;
        assert_eq!(written + dropped, WORKERS * RECORDS);

        let text = std::fs::read_to_string(&path).unwrap();
        let lines: HashSet<&str> = text.lines().collect();
        assert_eq!((lines.len(), text.lines().count()), (written, written), "each line once");
        for line in lines {
            let (worker, number) = line.strip_prefix("LOAD /").and_then(|rest| rest.split_once('/')).expect(line);
            assert!(worker.parse::<usize>().unwrap() < WORKERS && number.parse::<usize>().unwrap() < RECORDS, "{line}");
        }
    }
}
