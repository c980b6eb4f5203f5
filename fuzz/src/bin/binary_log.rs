//! Binary logs, written and converted.

#![no_main]

use std::net::{IpAddr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use tailcoat_fuzz::config::AccessLogFormat;
use tailcoat_fuzz::log::{
    BotRecord, ConvertReport, LogClient, LogRecord, Subject, UpstreamRecord, convert, first_log, write,
};
use tailcoat_fuzz::take_number;
use wire::h1::{HeadLimits, parse_request_head};
use wire::http::{Request, RequestHead, Status};

const VALUE_BYTES_MAX: usize = 40;
const FORMATS: [AccessLogFormat; 3] = [AccessLogFormat::Json, AccessLogFormat::Common, AccessLogFormat::Combined];

/// Line of the input: client, host, user, upstream, then the request's first line and its fields, separated by
/// `|`.
struct Line<'a> {
    client: LogClient,
    texts: [&'a [u8]; 3],
    bytes: Vec<u8>,
    head: Option<RequestHead>,
}

impl<'a> Line<'a> {
    fn read(line: &'a [u8]) -> Self {
        let mut parts = line.split(|byte| *byte == b'|');
        let mut next = || parts.next().unwrap_or_default();
        let client = str::from_utf8(next()).ok().and_then(|text| text.parse::<IpAddr>().ok());
        let client =
            client.map_or(LogClient::Unix, |address| LogClient::Ip(SocketAddr::new(address, line.len() as u16)));
        let texts = [next(), next(), next()];
        let mut bytes: Vec<u8> = parts.flat_map(|part| [part, b"\r\n"].concat()).collect();
        bytes.extend_from_slice(b"\r\n");
        let mut head = RequestHead::default();
        let parsed = parse_request_head(&bytes, &mut head, &HeadLimits::default());
        Self { client, texts, head: matches!(parsed, Ok(Some(_))).then_some(head), bytes }
    }

    fn record(&self, number: u64) -> LogRecord<'_> {
        let [host, user, upstream] = self.texts;
        let upstream = str::from_utf8(upstream).ok().filter(|server| !server.is_empty());
        let upstream = upstream.map(|server| UpstreamRecord {
            server,
            tries: number as u32,
            status: Status::new(number as u16),
            connect_us: Some(number),
            ..UpstreamRecord::default()
        });
        let is_plain = |text: &[u8]| text.iter().all(|byte| byte.is_ascii_graphic());
        LogRecord {
            log: first_log(),
            subject: match &self.head {
                Some(head) => Subject::Request(Request { head, bytes: &self.bytes }),
                None => Subject::Malformed(&self.bytes),
            },
            client: self.client,
            // Routing lets no other bytes through.
            host: if is_plain(host) { host } else { b"" },
            user,
            tls: None,
            upstream,
            cache_status: if number.is_multiple_of(2) { "hit" } else { "" },
            request_id: "",
            trace: None,
            bot: number.is_multiple_of(5).then(BotRecord::default),
            is_complete: number.is_multiple_of(3),
            status: Status::new((number % 600) as u16).unwrap_or(Status::OK),
            content_bytes: number,
            unix_us: number,
            duration_us: number / 2,
        }
    }
}

// The input is a number, records up to a line `--`, and bytes that are in the log before and after the records.
fuzz_target!(|input: &[u8]| {
    let (number, rest) = take_number(input);
    let (lines, noise) = match rest.windows(4).position(|window| window == b"\n--\n") {
        Some(at) => (&rest[..at], &rest[at + 4..]),
        None => (rest, &b""[..]),
    };
    let lines: Vec<_> = lines.split(|byte| *byte == b'\n').map(Line::read).collect();
    let records: Vec<_> = lines.iter().map(|line| line.record(number)).collect();
    let log = write(&records, &AccessLogFormat::Binary, VALUE_BYTES_MAX);
    for format in FORMATS {
        let expect = write(&records, &format, VALUE_BYTES_MAX);
        let (text, report) = converted(&log, &format);
        assert_eq!(String::from_utf8_lossy(&text), String::from_utf8_lossy(&expect));
        assert_eq!(report, ConvertReport { records: records.len() as u64, ..ConvertReport::default() });
        assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), records.len(), "no value makes a line");
        assert!(text.iter().all(|byte| (b' '..=b'~').contains(byte) || *byte == b'\n'));
        if format == AccessLogFormat::Json {
            check_json(&text, &lines);
        }
        // Damage costs what is damaged, and is reported.
        let noisy = [noise, &log, noise].concat();
        let (text, report) = converted(&noisy, &format);
        assert!(text.windows(expect.len()).any(|window| window == expect), "{report:?}");
        assert!(report.skipped_bytes <= 2 * noise.len() as u64 && report.records >= records.len() as u64);
        let damaged: u64 = report.damage.iter().map(|damage| damage.bytes).sum();
        assert!(damaged <= report.skipped_bytes);
    }
});

fn converted(log: &[u8], format: &AccessLogFormat) -> (Vec<u8>, ConvertReport) {
    let mut text = Vec::new();
    let report = convert(log, &mut text, format).expect("a log in memory");
    (text, report)
}

/// Short values of text come back as they were.
fn check_json(text: &[u8], lines: &[Line<'_>]) {
    for (json, line) in text.split(|byte| *byte == b'\n').zip(lines) {
        let json: serde_json::Value = serde_json::from_slice(json).expect("a line of JSON");
        let Some(head) = &line.head else { continue };
        let target = Request { head, bytes: &line.bytes }.target();
        if let Ok(target) = str::from_utf8(target)
            && target.len() <= VALUE_BYTES_MAX
        {
            assert_eq!(json["target"].as_str(), Some(target));
        }
    }
}
