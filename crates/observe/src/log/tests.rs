//! Access logs as a whole: recorders, rings, writer and targets.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, Mode, OFlags};
use wire::http::{KnownField, Method, Request, RequestHead, Span, Status, Version};

use super::{
    LineStyle, LogClient, LogHandle, LogId, LogOptions, LogRecord, Recorder, ServerLog, Subject, convert, start,
};
use crate::config::{AccessLog, AccessLogFormat, AccessLogTarget, LogLevel};

/// Request for tests that need no parser.
pub(super) struct LogTestRequest {
    head: RequestHead,
    bytes: Vec<u8>,
}

impl LogTestRequest {
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

pub(super) fn record_of(log: LogId, subject: Subject<'_>) -> LogRecord<'_> {
    LogRecord {
        log,
        subject,
        client: LogClient::Ip(SocketAddr::from(([192, 0, 2, 7], 50_000))),
        host: b"example.com",
        tls: None,
        upstream: None,
        cache_status: "",
        request_id: "",
        trace: None,
        bot: None,
        is_complete: true,
        user: b"",
        status: Status::OK,
        content_bytes: 1024,
        unix_us: 784_111_777_123_456,
        duration_us: 1234,
    }
}

/// Lines of a server log, for tests.
#[derive(Clone, Default)]
pub(super) struct Messages(Arc<Mutex<Vec<u8>>>);

impl Messages {
    pub(super) fn log(&self) -> ServerLog {
        ServerLog::new(LogLevel::Debug, LineStyle::Journal, Box::new(self.clone()))
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

fn start_one(log: AccessLog, options: LogOptions, messages: &Messages) -> (LogHandle, LogId, Recorder) {
    let (handle, ids) = start(&[log], options, messages.log()).unwrap();
    let recorder = handle.recorder();
    (handle, ids[0], recorder)
}

/// Longest wait for an event; only a failure takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_record_becomes_a_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("access.log");
    let messages = Messages::default();
    let (handle, log, mut recorder) =
        start_one(file_log(&path, AccessLogFormat::Combined), LogOptions::default(), &messages);
    let request = LogTestRequest::new(b"/a?b", &[("Referer", b"http://example.org/"), ("User-Agent", b"curl/8.5.0")]);
    recorder.record(&record_of(log, request.subject()));
    let expect = "192.0.2.7 - - [06/Nov/1994:08:49:37 +0000] \"GET /a?b HTTP/1.1\" 200 1024 \"http://example.org/\" \
                  \"curl/8.5.0\"\n";
    wait_until("the line", || std::fs::read_to_string(&path).unwrap() == expect);
    assert!(handle.shutdown(PATIENCE));
    assert_eq!(messages.text(), "");
}

/// Under load, each record is in the log once or counted as dropped, both with large rings and with rings that
/// overflow.
#[test]
fn every_record_is_written_once_or_counted() {
    const WORKERS: usize = 4;
    const RECORDS: usize = 20_000;
    for ring_bytes_max in [64 << 10, 1 << 10] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        let template = AccessLogFormat::Template("{method} {target}".into());
        let options = LogOptions { ring_bytes_max, ..LogOptions::default() };
        let messages = Messages::default();
        let (handle, ids) = start(&[file_log(&path, template)], options, messages.log()).unwrap();
        std::thread::scope(|scope| {
            for worker in 0..WORKERS {
                let mut recorder = handle.recorder();
                let log = ids[0];
                scope.spawn(move || {
                    for number in 0..RECORDS {
                        let request =
                            LogTestRequest::new(format!("/{worker}/{number}").as_bytes(), &[]).with_method("LOAD");
                        recorder.record(&record_of(log, request.subject()));
                    }
                });
            }
        });
        let state = Arc::clone(&handle.view().logs[0]);
        assert!(handle.shutdown(PATIENCE));
        let dropped = state.counters.dropped.load(Ordering::Relaxed) as usize;
        let written = state.counters.written.load(Ordering::Relaxed) as usize;
        assert_eq!(written + dropped, WORKERS * RECORDS);
        assert_eq!(messages.text().contains(&format!("dropped_total={dropped}")), dropped > 0);

        let text = std::fs::read_to_string(&path).unwrap();
        let lines: HashSet<&str> = text.lines().collect();
        assert_eq!((lines.len(), text.lines().count()), (written, written), "each line once");
        for line in lines {
            let (worker, number) = line.strip_prefix("LOAD /").and_then(|rest| rest.split_once('/')).expect(line);
            assert!(worker.parse::<usize>().unwrap() < WORKERS && number.parse::<usize>().unwrap() < RECORDS, "{line}");
        }
    }
}

#[test]
fn a_reopened_log_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (path, old_path) = (directory.path().join("access.log"), directory.path().join("access.log.1"));
    let messages = Messages::default();
    let (handle, log, mut recorder) =
        start_one(file_log(&path, AccessLogFormat::W3c), LogOptions::default(), &messages);
    let mut record = |target: &[u8]| recorder.record(&record_of(log, LogTestRequest::new(target, &[]).subject()));

    record(b"/before");
    std::fs::rename(&path, &old_path).unwrap();
    handle.reopen();
    wait_until("the new file", || path.exists());
    record(b"/after");
    // A directory takes the place of the file: the old file stays in use, and the error is logged.
    wait_until("the line", || std::fs::read_to_string(&path).unwrap().contains("/after"));
    std::fs::rename(&path, directory.path().join("access.log.0")).unwrap();
    std::fs::create_dir(&path).unwrap();
    handle.reopen();
    wait_until("the message", || messages.text().contains("reopening access log failed"));
    record(b"/still");
    assert!(handle.shutdown(PATIENCE));

    let lines = |path: &Path| -> Vec<String> {
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.starts_with("#Version: 1.0\n"), "each file begins with the directives");
        let entries = text.lines().filter(|line| !line.starts_with('#'));
        entries.map(|line| line.split(' ').nth(5).unwrap().to_owned()).collect()
    };
    assert_eq!(lines(&old_path), ["/before"]);
    assert_eq!(lines(&directory.path().join("access.log.0")), ["/after", "/still"]);
}

#[test]
fn several_logs() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let target = || AccessLogFormat::Template("{target}".into());
    let logs = [file_log(&path("a"), target()), file_log(&path("b"), target()), file_log(&path("a"), target())];
    let (handle, ids) = start(&logs, LogOptions::default(), Messages::default().log()).unwrap();
    assert_eq!(ids[0], ids[2], "equal logs are opened once");
    let mut recorder = handle.recorder();
    for (log, target) in ids.iter().zip(["/0", "/1", "/2"]) {
        recorder.record(&record_of(*log, LogTestRequest::new(target.as_bytes(), &[]).subject()));
    }
    assert!(handle.shutdown(PATIENCE));
    assert_eq!(std::fs::read_to_string(path("a")).unwrap(), "/0\n/2\n");
    assert_eq!(std::fs::read_to_string(path("b")).unwrap(), "/1\n");
}

#[test]
fn logs_that_cannot_be() {
    let directory = tempfile::tempdir().unwrap();
    let (path, missing) = (directory.path().join("a"), directory.path().join("none/a"));
    let check = |logs: &[AccessLog], expect: String| {
        let error = start(logs, LogOptions::default(), Messages::default().log()).unwrap_err();
        assert_eq!(error.to_string(), expect);
    };
    let syslog = |facility: &str, format| AccessLog { target: AccessLogTarget::Syslog(facility.into()), format };
    check(
        &[file_log(&missing, AccessLogFormat::Common)],
        format!(
            "cannot open access log {}: No such file or directory (os error 2); create the directory {}",
            missing.display(),
            missing.parent().unwrap().display()
        ),
    );
    check(
        &[file_log(&path, AccessLogFormat::Common), file_log(&path, AccessLogFormat::Json)],
        format!("access log {} is configured with two formats", path.display()),
    );
    check(
        &[file_log(&path, AccessLogFormat::Template("{sttus}".into()))],
        format!("cannot open access log {}: unknown log field `sttus`; did you mean `status`?", path.display()),
    );
    check(
        &[syslog("daemon", AccessLogFormat::Binary)],
        "cannot open access log syslog:daemon: the binary format needs a file or standard output".into(),
    );
    let facilities = super::FACILITIES.join(", ");
    check(
        &[syslog("damon", AccessLogFormat::Common)],
        format!("cannot open access log syslog:damon: unknown facility; use one of {facilities}"),
    );
}

/// A pipe without a reader accepts some lines; the rest waits and is dropped at last, while another log continues. A
/// late reader gets whole lines only.
#[test]
fn a_pipe_without_a_reader() {
    let directory = tempfile::tempdir().unwrap();
    let (pipe, file) = (directory.path().join("pipe"), directory.path().join("file"));
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let messages = Messages::default();
    let options = LogOptions { ring_bytes_max: 8 << 20, pending_bytes_max: 100_000, ..LogOptions::default() };
    let template = || AccessLogFormat::Template("{target} {request.header.x} end".into());
    let logs = [file_log(&pipe, template()), file_log(&file, template())];
    let (handle, ids) = start(&logs, options, messages.log()).unwrap();
    let mut recorder = handle.recorder();
    let filler = [b'x'; 100];
    let recorded = 5000;
    for number in 0..recorded {
        let request = LogTestRequest::new(format!("/{number}").as_bytes(), &[("X", &filler)]);
        for log in &ids {
            recorder.record(&record_of(*log, request.subject()));
        }
        if number % 100 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    wait_until("the other log", || handle.counts(ids[1]).written == recorded);
    wait_until("the report", || messages.text().contains("writing access log failed"));
    let is_dropping = handle.counts(ids[0]).dropped > 0;
    assert!(is_dropping && handle.counts(ids[1]).dropped == 0);

    // Opens without blocking: the writer writes the waiting lines, and then the pipe is empty.
    let mut reader =
        std::fs::File::from(rustix::fs::open(&pipe, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap());
    let mut text = Vec::new();
    wait_until("the rest", || {
        let _ = reader.read_to_end(&mut text);
        let counts = handle.counts(ids[0]);
        counts.written + counts.dropped == recorded
    });
    let _ = reader.read_to_end(&mut text);
    let text = String::from_utf8(text).unwrap();
    let lines: HashSet<&str> = text.lines().collect();
    assert_eq!(lines.len() as u64, handle.counts(ids[0]).written);
    assert!(text.ends_with('\n') && lines.iter().all(|line| line.starts_with('/') && line.ends_with("x end")));
    assert!(handle.shutdown(PATIENCE));
}

#[test]
fn a_target_that_takes_nothing_delays_the_end_no_longer_than_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let messages = Messages::default();
    let (handle, log, mut recorder) =
        start_one(file_log(&pipe, AccessLogFormat::Combined), LogOptions::default(), &messages);
    for _ in 0..3000 {
        recorder.record(&record_of(log, LogTestRequest::new(b"/", &[]).subject()));
    }
    let state = Arc::clone(&handle.view().logs[0]);
    let began = Instant::now();
    handle.shutdown(Duration::from_millis(200));
    assert!(began.elapsed() < PATIENCE);
    let counts = || {
        let counters = &state.counters;
        counters.written.load(Ordering::Relaxed) + counters.dropped.load(Ordering::Relaxed)
    };
    wait_until("the count", || counts() == 3000);
}

#[test]
fn logs_change_while_requests_are_under_way() {
    let directory = tempfile::tempdir().unwrap();
    let log = |name: &str| file_log(&directory.path().join(name), AccessLogFormat::Template("{target}".into()));
    let lines = |name: &str| std::fs::read_to_string(directory.path().join(name)).unwrap_or_default();
    let (handle, ids) = start(&[log("a"), log("b")], LogOptions::default(), Messages::default().log()).unwrap();
    let mut recorder = handle.recorder();
    let record = |recorder: &mut Recorder, log: LogId, target: &str| {
        recorder.record(&record_of(log, LogTestRequest::new(target.as_bytes(), &[]).subject()));
    };
    record(&mut recorder, ids[0], "/1");
    // A log that cannot be opened changes nothing.
    let missing = AccessLog { target: AccessLogTarget::File("/dev/null/none".into()), format: AccessLogFormat::Json };
    assert!(handle.prepare(&[log("c"), missing], LogOptions::default()).is_err());
    let options = LogOptions { ring_bytes_max: 128 << 10, ..LogOptions::default() };
    let change = handle.prepare(&[log("b"), log("c"), log("c")], options).unwrap();
    let new = change.ids.clone();
    assert_eq!((new[0], new[1]), (ids[1], new[2]), "a log keeps its id");
    handle.apply(change);
    // Before and after the recorder knows of it.
    record(&mut recorder, ids[0], "/2");
    recorder.apply(&handle.view());
    record(&mut recorder, new[1], "/3");
    wait_until("the lines", || lines("a") == "/1\n/2\n" && lines("c") == "/3\n");
    // The file is closed, so that a removed file stays removed until a request that began before has ended.
    std::fs::remove_file(directory.path().join("a")).unwrap();
    record(&mut recorder, ids[1], "/4");
    wait_until("the line", || lines("b") == "/4\n");
    assert!(!directory.path().join("a").exists());
    record(&mut recorder, ids[0], "/5");
    wait_until("the late line", || lines("a") == "/5\n");
    // A log that returns.
    let change = handle.prepare(&[log("a")], options).unwrap();
    assert_eq!(change.ids, [ids[0]]);
    handle.apply(change);
    recorder.apply(&handle.view());
    record(&mut recorder, ids[0], "/6");
    assert!(handle.shutdown(PATIENCE));
    assert_eq!(lines("a"), "/5\n/6\n");
}

/// On a disk that fills up and has space again later, lines are whole at any time, and all missing ones are counted.
///
/// The disk is a small tmpfs in its own mount namespace; without permission for that, the test does nothing.
#[test]
fn a_full_disk() {
    if let Some(disk) = std::env::var_os("DISK") {
        // The process in the namespace.
        full_disk(disk.as_ref(), AccessLogFormat::Combined);
        return full_disk(disk.as_ref(), AccessLogFormat::Binary);
    }
    let directory = tempfile::tempdir().unwrap();
    let test = std::env::current_exe().unwrap();
    let script = "mount -t tmpfs -o size=64k none \"$DISK\" || exit 77\n\
                  exec \"$0\" --exact log::tests::a_full_disk --nocapture";
    let output = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script])
        .arg(test)
        .env("DISK", directory.path())
        .output();
    match output {
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains("a_full_disk") => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        other => eprintln!("not tested, as a tmpfs cannot be mounted: {other:?}"),
    }
}

fn full_disk(disk: &Path, format: AccessLogFormat) {
    let (path, filler) = (disk.join("access.log"), disk.join("filler"));
    std::fs::write(&filler, [0; 20_000]).unwrap();
    let messages = Messages::default();
    let options = LogOptions {
        pending_bytes_max: 10_000,
        flush_interval: Duration::from_millis(10),
        report_interval: Duration::from_millis(10),
        ..LogOptions::default()
    };
    let (handle, log, mut recorder) = start_one(file_log(&path, format.clone()), options, &messages);
    let mut recorded = 0;
    let mut record = |records: u64| {
        for _ in 0..records {
            let request = LogTestRequest::new(format!("/{recorded}").as_bytes(), &[("User-Agent", b"agent")]);
            recorder.record(&record_of(log, request.subject()));
            recorded += 1;
            std::thread::sleep(Duration::from_micros(100));
        }
    };
    let whole_text = || -> Option<String> {
        let mut text = std::fs::read(&path).unwrap();
        if format == AccessLogFormat::Binary {
            let log = std::mem::take(&mut text);
            let report = convert(&log[..], &mut text, &AccessLogFormat::Combined).unwrap();
            if !report.damage.is_empty() {
                return None;
            }
        }
        String::from_utf8(text).ok().filter(|text| text.is_empty() || text.ends_with("\"agent\"\n"))
    };
    let lines = || -> Vec<u64> {
        let mut text = None;
        // Between a short write and its repair, the writer may wait for its turn.
        wait_until("whole lines and blocks", || {
            text = whole_text();
            text.is_some()
        });
        text.unwrap().lines().map(|line| line.split(' ').nth(6).unwrap()[1..].parse().unwrap()).collect()
    };
    record(2000);
    wait_until("the report", || messages.text().contains("No space left on device"));
    wait_until("dropped records", || handle.counts(log).dropped > 0);
    lines();
    std::fs::remove_file(&filler).unwrap();
    wait_until("the end of the trouble", || messages.text().contains("access log recovered"));
    record(5);
    let state = Arc::clone(&handle.view().logs[0]);
    assert!(handle.shutdown(PATIENCE));
    let written = lines();
    assert!(written.is_sorted_by(|left, right| left < right), "each once, in order");
    assert_eq!(written.last(), Some(&2004));
    assert_eq!(state.counters.written.load(Ordering::Relaxed), written.len() as u64);
    assert_eq!(state.counters.dropped.load(Ordering::Relaxed), 2005 - written.len() as u64);
    std::fs::remove_file(&path).unwrap();
}
