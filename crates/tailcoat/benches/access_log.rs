//! Cost of the access log: nanoseconds per record for the worker, and CPU nanoseconds per record for the writer in each
//! format, including write(2) to a file.
//!
//! `cargo bench -p tailcoat --bench access_log -- [DIRECTORY [FORMAT]]`; the log is written to and deleted from
//! DIRECTORY, or else the directory for temporary files.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use tailcoat::config::{AccessLog, AccessLogFormat, AccessLogTarget, LogLevel};
use tailcoat::log::{LogClient, LogId, LogOptions, LogRecord, ServerLog, Subject, start};
use wire::http::{KnownField, Method, Request, RequestHead, Span, Status, Version};

/// Records per batch: as many responses as a busy event loop sends in one turn. The writer works between batches.
const BATCH: u64 = 128;
const BATCHES: u64 = 2000;
const PAUSE: Duration = Duration::from_micros(500);

const FIELDS: [(&str, &str); 6] = [
    ("Host", "www.example.com"),
    ("User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"),
    ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
    ("Accept-Language", "en-US,en;q=0.5"),
    ("Accept-Encoding", "gzip, deflate, br, zstd"),
    ("Referer", "https://www.example.com/library/index.html"),
];

fn main() {
    // Cargo passes `--bench`.
    let mut arguments = env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let directory = arguments.next().map_or_else(env::temp_dir, PathBuf::from);
    let only = arguments.next();
    let template = "{client} {host} \"{request}\" {status} {bytes} {duration_ms} {request.header.accept-language}";
    println!("format     worker ns/record  writer CPU ns/record  dropped");
    for (name, format) in [
        ("combined", AccessLogFormat::Combined),
        ("common", AccessLogFormat::Common),
        ("json", AccessLogFormat::Json),
        ("w3c", AccessLogFormat::W3c),
        ("template", AccessLogFormat::Template(template.into())),
        ("binary", AccessLogFormat::Binary),
    ] {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let (worker_ns, writer_ns, dropped) = measure(&directory, format);
        println!("{name:9} {worker_ns:17.1} {writer_ns:21.1} {dropped:8}");
    }
}

/// Nanoseconds per record for the worker and the writer, and the number of dropped records.
fn measure(directory: &Path, format: AccessLogFormat) -> (f64, f64, u64) {
    let path = directory.join(format!("tailcoat-bench-{}.log", std::process::id()));
    let log = AccessLog { target: AccessLogTarget::File(path.clone()), format };
    let (handle, ids) =
        start(&[log], LogOptions::default(), ServerLog::stderr(LogLevel::Error)).expect("the log opens");
    let mut recorder = handle.recorder();
    let (head, bytes) = request();
    let record = record(ids[0], Request { head: &head, bytes: &bytes });

    let mut recording = Duration::ZERO;
    let mut writer_began_ns = 0;
    for batch in 0..BATCHES {
        // Discards the first tenth, which warms memory and caches.
        if batch == BATCHES / 10 {
            recording = Duration::ZERO;
            writer_began_ns = writer_cpu_ns();
        }
        let began = Instant::now();
        for turn in 0..BATCH {
            recorder.record(&LogRecord { unix_us: record.unix_us + batch * 700 + turn, ..record });
        }
        recording += began.elapsed();
        thread::sleep(PAUSE);
    }
    thread::sleep(LogOptions::default().flush_interval * 2);
    let writer_ns = writer_cpu_ns() - writer_began_ns;
    let dropped = handle.counts(ids[0]).dropped;
    assert!(handle.shutdown(Duration::from_secs(10)), "the writer ends");
    fs::remove_file(&path).expect("the log can be removed");
    let records = (BATCHES - BATCHES / 10) * BATCH;
    (recording.as_nanos() as f64 / records as f64, writer_ns as f64 / records as f64, dropped)
}

fn request() -> (RequestHead, Vec<u8>) {
    let (mut head, mut bytes) = (RequestHead::default(), Vec::new());
    let mut push = |text: &str| {
        let start = bytes.len();
        bytes.extend_from_slice(text.as_bytes());
        Span::new(start, start + text.len())
    };
    head.method = Method::Get;
    head.method_name = push("GET");
    head.target = push("/library/asyncio-task.html?highlight=gather");
    head.version = Version::Http11;
    for (name, value) in FIELDS {
        let (name_span, value_span) = (push(name), push(value));
        head.push_field(name_span, value_span, KnownField::from_name(name.as_bytes()));
    }
    (head, bytes)
}

fn record(log: LogId, request: Request<'_>) -> LogRecord<'_> {
    LogRecord {
        log,
        subject: Subject::Request(request),
        client: LogClient::Ip(SocketAddr::from(([203, 0, 113, 87], 51_234))),
        host: b"www.example.com",
        user: b"",
        tls: None,
        upstream: None,
        cache_status: "",
        request_id: "",
        trace: None,
        bot: None,
        is_complete: true,
        status: Status::OK,
        content_bytes: 10_240,
        unix_us: 1_795_246_911_123_456,
        duration_us: 42,
    }
}

/// CPU time of the writer's thread so far, in nanoseconds (/proc/PID/schedstat: the first number).
fn writer_cpu_ns() -> u64 {
    let threads = fs::read_dir("/proc/self/task").expect("/proc is mounted");
    let is_writer =
        |path: &PathBuf| fs::read_to_string(path.join("comm")).is_ok_and(|name| name.trim() == "access-log");
    let writer = threads.flatten().map(|thread| thread.path()).find(is_writer).expect("the writer runs");
    let schedstat = fs::read_to_string(writer.join("schedstat")).expect("the kernel keeps schedstat");
    schedstat.split(' ').next().and_then(|number| number.parse().ok()).expect("schedstat begins with a number")
}
