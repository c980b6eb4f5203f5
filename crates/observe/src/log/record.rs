//! A request's record: borrowed as the worker has it, and in the compact form that rings and binary logs hold.
//!
//! The compact form is little-endian and self-contained:
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | length of the whole record |
//! | 4..6 | log (0 in files) |
//! | 6..8 | status |
//! | 8..16 | time, microseconds since 1970 |
//! | 16..24 | duration, microseconds |
//! | 24..32 | bytes of content sent |
//! | 32..48 | client address; IPv4 in the first four |
//! | 48..50 | client port |
//! | 50 | kind of client: 0 unix socket, 4 IPv4, 6 IPv6 |
//! | 51 | version: 0 unknown, 1 FTP, 10, 11, 20, 30 |
//! | 52 | method: 0 none, 1..=9 as in [`METHODS`], 255 by name |
//! | 53 | FTP: 1 for ASCII, 2 for an anonymous client |
//! | 54..56 | reserved, 0 |
//! | 56.. | values, each: tag, flags (1: cut), length (2 bytes), bytes |
//!
//! A reader skips values with tags it does not know, so that new ones can be added without a new version.

use std::fmt;
use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use wire::http::trace_context::{SpanId, TraceId};
use wire::http::{KnownField, Method, Request, Status, Version};

/// Id of the log that a record is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LogId(pub(super) u16);

impl LogId {
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Logged data of a request and its response.
#[derive(Clone, Copy, Debug)]
pub struct LogRecord<'a> {
    /// Id of the log.
    pub log: LogId,
    /// The request.
    pub subject: Subject<'a>,
    /// Sender of the request.
    pub client: LogClient,
    /// Host as routing found it: lower case, without port; empty for none.
    pub host: &'a [u8],
    /// User that access control found; empty for none.
    pub user: &'a [u8],
    /// TLS parameters of the connection, if it uses TLS.
    pub tls: Option<TlsRecord<'a>>,
    /// Upstream server that the request was forwarded to, if any.
    pub upstream: Option<UpstreamRecord<'a>>,
    /// Result of the response cache; empty without a cache.
    pub cache_status: &'a str,
    /// Identifier that rules gave the request; empty for none.
    pub request_id: &'a str,
    /// Trace and span of the request, if traces are on.
    pub trace: Option<(TraceId, SpanId)>,
    /// Program and place of the client, as far as they are known; `None` if the log does not have them.
    pub bot: Option<BotRecord<'a>>,
    /// True if the whole response was sent.
    pub is_complete: bool,
    /// Status of the response.
    pub status: Status,
    /// Bytes of content sent, without the head.
    pub content_bytes: u64,
    /// Time at which the request's head was complete, in microseconds since 1970.
    pub unix_us: u64,
    /// Microseconds from then until the kernel accepted the response. Workers read the clock once for a batch of
    /// events, so this is 0 for a response that did not have to wait.
    pub duration_us: u64,
}

/// Logged data of a TLS connection. Empty means unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlsRecord<'a> {
    /// Version, such as `TLSv1.3`.
    pub version: &'a str,
    /// Cipher suite, such as `TLS13_AES_128_GCM_SHA256`.
    pub cipher_suite: &'a str,
    /// Server name that the client requested (SNI).
    pub server_name: &'a str,
    /// Subject of the client's certificate (RFC 4514).
    pub client: &'a str,
}

/// Logged data of a client's program and place. Empty means unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BotRecord<'a> {
    /// Class, by the handling of bots.
    pub class: &'a str,
    /// Score.
    pub score: &'a str,
    /// Crawler that the client claims to be, or agent that has signed the request.
    pub name: &'a str,
    /// Names of the signals, separated by commas.
    pub signals: &'a str,
    /// JA4 fingerprint of the TLS handshake.
    pub ja4: &'a str,
    /// Fingerprint of the beginning of an HTTP/2 connection.
    pub http2_fingerprint: &'a str,
    /// Country of the address.
    pub country: &'a str,
    /// Number of the autonomous system of the address.
    pub asn: &'a str,
}

/// Logged data of the upstream server that a request was forwarded to. Times are in microseconds since the first
/// request for a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpstreamRecord<'a> {
    /// Server as configured, the last one tried; the name of the upstream if none was available.
    pub server: &'a str,
    /// Requests for a connection, the first included.
    pub tries: u32,
    /// Status of the upstream response.
    pub status: Option<Status>,
    /// Time until a connection was available.
    pub connect_us: Option<u64>,
    /// Time until the head of the response arrived.
    pub first_byte_us: Option<u64>,
    /// Time until the response was complete or was dropped.
    pub duration_us: Option<u64>,
}

/// Input from a client.
#[derive(Clone, Copy, Debug)]
pub enum Subject<'a> {
    /// A request.
    Request(Request<'a>),
    /// First bytes of a malformed request, logged up to the end of the first line.
    Malformed(&'a [u8]),
    /// A transfer over FTP.
    Ftp(FtpSubject<'a>),
}

/// Transfer over FTP.
#[derive(Clone, Copy, Debug)]
pub struct FtpSubject<'a> {
    /// Command.
    pub command: &'static str,
    /// Path, as the client sees it.
    pub path: &'a [u8],
    /// Further facts.
    pub flags: FtpFlags,
}

/// Facts of a transfer over FTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FtpFlags {
    /// True for type A.
    pub is_ascii: bool,
    /// True for a client that has logged in without a password.
    pub is_anonymous: bool,
}

/// Protocol of a logged request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoggedProtocol {
    Http(Version),
    Ftp,
}

/// Sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogClient {
    /// An address and port.
    Ip(SocketAddr),
    /// A process on this machine, over a unix socket.
    Unix,
}

impl LogClient {
    /// True for the addresses that a proxy on the same machine connects from: a unix socket, 127.0.0.1 or ::1.
    pub fn is_local_proxy(self) -> bool {
        match self {
            Self::Ip(address) => {
                let address = address.ip().to_canonical();
                address == Ipv4Addr::LOCALHOST || address == Ipv6Addr::LOCALHOST
            }
            Self::Unix => true,
        }
    }
}

impl fmt::Display for LogClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.ip().to_canonical().fmt(f),
            Self::Unix => f.write_str("unix"),
        }
    }
}

/// Request data that a log's format needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Capture {
    pub(super) host: bool,
    pub(super) referer: bool,
    pub(super) user_agent: bool,
    /// TLS parameters of the connection.
    pub(super) tls: bool,
    /// Upstream server, and the result of the response cache.
    pub(super) upstream: bool,
    /// The request's identifier, and its completion.
    pub(super) outcome: bool,
    /// Trace and span.
    pub(super) trace: bool,
    /// The client's program and place.
    pub(super) bot: bool,
    /// Further request fields that a template names.
    pub(super) fields: Vec<CapturedField>,
}

/// A request field that a template names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CapturedField {
    pub(super) name: Box<[u8]>,
    pub(super) known: KnownField,
}

impl CapturedField {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.as_bytes().into(), known: KnownField::from_name(name.as_bytes()) }
    }

    fn of<'a>(&self, request: &Request<'a>) -> Option<&'a [u8]> {
        if self.known == KnownField::Other { request.field_by_name(&self.name) } else { request.field(self.known) }
    }
}

/// Parts of a request that a log needs.
#[derive(Clone, Copy, Debug)]
pub struct LogNeeds<'a> {
    pub(super) capture: &'a Capture,
    pub(super) value_bytes_max: usize,
}

impl LogNeeds<'_> {
    /// Bytes of a value that are logged; a longer one is cut and marked.
    pub fn value_bytes_max(&self) -> usize {
        self.value_bytes_max
    }

    /// True if the client's program and place are logged.
    pub fn has_bot(&self) -> bool {
        self.capture.bot
    }

    /// Indices of the field lines that are logged.
    pub fn field_lines(&self, request: &Request<'_>) -> impl Iterator<Item = usize> {
        let Capture { referer, user_agent, fields, .. } = self.capture;
        let known = [(*referer, KnownField::Referer), (*user_agent, KnownField::UserAgent)];
        let known = known.into_iter().filter_map(|(is_needed, field)| is_needed.then_some(field));
        let request = *request;
        let lines = &request.head.fields;
        let first = move |known: KnownField| lines.iter().position(|line| line.known == known);
        let named = fields.iter().filter_map(move |field| match field.known {
            KnownField::Other => {
                lines.iter().position(|line| line.name.of(request.bytes).eq_ignore_ascii_case(&field.name))
            }
            known => first(known),
        });
        known.filter_map(first).chain(named)
    }
}

/// Methods in the order of their codes, which start at 1.
const METHODS: [(Method, &[u8]); 9] = [
    (Method::Get, b"GET"),
    (Method::Head, b"HEAD"),
    (Method::Post, b"POST"),
    (Method::Put, b"PUT"),
    (Method::Delete, b"DELETE"),
    (Method::Connect, b"CONNECT"),
    (Method::Options, b"OPTIONS"),
    (Method::Trace, b"TRACE"),
    (Method::Patch, b"PATCH"),
];

const METHOD_NONE: u8 = 0;
const METHOD_BY_NAME: u8 = 255;

const VERSION_FTP: u8 = 1;

const CLIENT_UNIX: u8 = 0;
const CLIENT_IPV4: u8 = 4;
const CLIENT_IPV6: u8 = 6;

/// Bytes before the values.
const FIXED_BYTES: usize = 56;
/// Bytes before a value's content.
const VALUE_HEAD_BYTES: usize = 4;
const FLAG_CUT: u8 = 1;
/// Offset of the flags of FTP.
const FLAGS_AT: usize = 53;

/// Kind of a value: its first byte in the compact form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag(u8);

impl Tag {
    pub(super) const METHOD: Self = Self(1);
    pub(super) const TARGET: Self = Self(2);
    pub(super) const HOST: Self = Self(3);
    pub(super) const REFERER: Self = Self(4);
    pub(super) const USER_AGENT: Self = Self(5);
    pub(super) const USER: Self = Self(6);
    /// First line of a malformed request.
    pub(super) const MALFORMED: Self = Self(7);
    /// Upstream server that the request was forwarded to.
    pub(super) const UPSTREAM: Self = Self(8);
    /// Decimal numbers separated by spaces, `-` for unknown: tries, status, and the times.
    const UPSTREAM_NUMBERS: Self = Self(9);
    pub(super) const CACHE_STATUS: Self = Self(10);
    pub(super) const TLS_VERSION: Self = Self(11);
    pub(super) const TLS_CIPHER_SUITE: Self = Self(12);
    pub(super) const TLS_SERVER_NAME: Self = Self(13);
    pub(super) const TLS_CLIENT: Self = Self(14);
    pub(super) const REQUEST_ID: Self = Self(15);
    /// Present if the response was not sent completely.
    const ABORTED: Self = Self(16);
    pub(super) const TRACE_ID: Self = Self(17);
    pub(super) const SPAN_ID: Self = Self(18);
    pub(super) const BOT_CLASS: Self = Self(19);
    pub(super) const BOT_SCORE: Self = Self(20);
    pub(super) const BOT_NAME: Self = Self(21);
    pub(super) const BOT_SIGNALS: Self = Self(22);
    pub(super) const JA4: Self = Self(23);
    pub(super) const HTTP2_FINGERPRINT: Self = Self(24);
    pub(super) const COUNTRY: Self = Self(25);
    pub(super) const ASN: Self = Self(26);
    /// First field that a template names; the next ones follow.
    const CAPTURED: Self = Self(128);

    fn captured(index: usize) -> Self {
        Self(Self::CAPTURED.0 + index as u8)
    }
}

/// Number of tags, including the unused 0, without those of captured fields.
const TAGS: usize = Tag::ASN.0 as usize + 1;

/// Fields that a template may name.
pub(super) const CAPTURED_FIELDS_MAX: usize = 127;

/// Appends the compact form of a record.
pub(super) fn encode(record: &LogRecord<'_>, capture: &Capture, value_bytes_max: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&fixed_part(record));
    let mut push = |tag: Tag, value: &[u8]| push_value(out, tag, value, value_bytes_max);
    match &record.subject {
        Subject::Request(request) => {
            if request.method() == Method::Other {
                push(Tag::METHOD, request.method_name());
            }
            push(Tag::TARGET, request.target());
            if capture.referer {
                push(Tag::REFERER, request.field(KnownField::Referer).unwrap_or_default());
            }
            if capture.user_agent {
                push(Tag::USER_AGENT, request.field(KnownField::UserAgent).unwrap_or_default());
            }
            for (index, field) in capture.fields.iter().enumerate() {
                push(Tag::captured(index), field.of(request).unwrap_or_default());
            }
        }
        Subject::Malformed(bytes) => push(Tag::MALFORMED, first_line(bytes, value_bytes_max)),
        Subject::Ftp(ftp) => {
            push(Tag::METHOD, ftp.command.as_bytes());
            push(Tag::TARGET, first_line(ftp.path, value_bytes_max));
        }
    }
    if capture.host {
        push(Tag::HOST, record.host);
    }
    if capture.tls
        && let Some(tls) = &record.tls
    {
        push(Tag::TLS_VERSION, tls.version.as_bytes());
        push(Tag::TLS_CIPHER_SUITE, tls.cipher_suite.as_bytes());
        push(Tag::TLS_SERVER_NAME, tls.server_name.as_bytes());
        push(Tag::TLS_CLIENT, first_line(tls.client.as_bytes(), value_bytes_max));
    }
    if capture.upstream {
        push(Tag::CACHE_STATUS, record.cache_status.as_bytes());
        if let Some(upstream) = &record.upstream {
            push(Tag::UPSTREAM, first_line(upstream.server.as_bytes(), value_bytes_max));
            push(Tag::UPSTREAM_NUMBERS, upstream_numbers(upstream).as_bytes());
        }
    }
    if capture.outcome {
        push(Tag::REQUEST_ID, record.request_id.as_bytes());
        push(Tag::ABORTED, if record.is_complete { b"" } else { b"1" });
    }
    if capture.trace
        && let Some((trace_id, span_id)) = record.trace
    {
        push(Tag::TRACE_ID, trace_id.to_string().as_bytes());
        push(Tag::SPAN_ID, span_id.to_string().as_bytes());
    }
    if capture.bot
        && let Some(bot) = &record.bot
    {
        for (tag, text) in [
            (Tag::BOT_CLASS, bot.class),
            (Tag::BOT_SCORE, bot.score),
            (Tag::BOT_NAME, bot.name),
            (Tag::BOT_SIGNALS, bot.signals),
            (Tag::JA4, bot.ja4),
            (Tag::HTTP2_FINGERPRINT, bot.http2_fingerprint),
            (Tag::COUNTRY, bot.country),
            (Tag::ASN, bot.asn),
        ] {
            push(tag, first_line(text.as_bytes(), value_bytes_max));
        }
    }
    // Names of users may contain any byte, because no parser restricts them. Few requests have one.
    if !record.user.is_empty() {
        push(Tag::USER, first_line(record.user, value_bytes_max));
    }
    let record_bytes = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&record_bytes.to_le_bytes());
}

/// Bytes before the values; the length is inserted later.
fn fixed_part(record: &LogRecord<'_>) -> [u8; FIXED_BYTES] {
    let mut fixed = [0; FIXED_BYTES];
    fixed[4..6].copy_from_slice(&record.log.0.to_le_bytes());
    fixed[6..8].copy_from_slice(&record.status.code().to_le_bytes());
    fixed[8..16].copy_from_slice(&record.unix_us.to_le_bytes());
    fixed[16..24].copy_from_slice(&record.duration_us.to_le_bytes());
    fixed[24..32].copy_from_slice(&record.content_bytes.to_le_bytes());
    if let LogClient::Ip(address) = record.client {
        fixed[50] = match address.ip() {
            IpAddr::V4(ip) => {
                fixed[32..36].copy_from_slice(&ip.octets());
                CLIENT_IPV4
            }
            IpAddr::V6(ip) => {
                fixed[32..48].copy_from_slice(&ip.octets());
                CLIENT_IPV6
            }
        };
        fixed[48..50].copy_from_slice(&address.port().to_le_bytes());
    }
    match &record.subject {
        Subject::Request(request) => {
            fixed[51] = version_code(request.head.version);
            fixed[52] = method_code(request.method());
        }
        Subject::Ftp(ftp) => {
            fixed[51] = VERSION_FTP;
            fixed[52] = METHOD_BY_NAME;
            fixed[FLAGS_AT] = u8::from(ftp.flags.is_ascii) | u8::from(ftp.flags.is_anonymous) << 1;
        }
        Subject::Malformed(_) => {}
    }
    fixed
}

fn upstream_numbers(upstream: &UpstreamRecord<'_>) -> String {
    let mut text = upstream.tries.to_string();
    let status = upstream.status.map(|status| u64::from(status.code()));
    for number in [status, upstream.connect_us, upstream.first_byte_us, upstream.duration_us] {
        match number {
            // Writing to a string does not fail.
            Some(number) => drop(write!(text, " {number}")),
            None => text.push_str(" -"),
        }
    }
    text
}

fn push_value(out: &mut Vec<u8>, Tag(tag): Tag, value: &[u8], value_bytes_max: usize) {
    if value.is_empty() {
        return;
    }
    let (value, flags) = match value.get(..value_bytes_max) {
        Some(cut) if cut.len() < value.len() => (cut, FLAG_CUT),
        _ => (value, 0),
    };
    let [low, high] = (value.len() as u16).to_le_bytes();
    out.extend_from_slice(&[tag, flags, low, high]);
    out.extend_from_slice(value);
}

/// First line of a malformed request. No value in a record contains a line feed; the binary format relies on that.
fn first_line(bytes: &[u8], value_bytes_max: usize) -> &[u8] {
    // Keeps one byte more than the limit, so that a cut value is marked.
    let bytes = &bytes[..bytes.len().min(value_bytes_max + 1)];
    let line = &bytes[..memchr::memchr(b'\n', bytes).unwrap_or(bytes.len())];
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn method_code(method: Method) -> u8 {
    match METHODS.iter().position(|(known, _)| *known == method) {
        Some(index) => index as u8 + 1,
        None => METHOD_BY_NAME,
    }
}

fn method_name(code: u8) -> Option<&'static [u8]> {
    METHODS.get(usize::from(code).checked_sub(1)?).map(|(_, name)| *name)
}

fn version_code(version: Version) -> u8 {
    match version {
        Version::Http10 => 10,
        Version::Http11 => 11,
        Version::Http2 => 20,
        Version::Http3 => 30,
    }
}

/// Value of a record in compact form; empty if absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordValue<'a> {
    pub(super) bytes: &'a [u8],
    /// True if the value was longer.
    pub(super) cut: bool,
}

/// Numbers of an upstream server: see [`UpstreamRecord`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UpstreamNumbers {
    pub(super) tries: Option<u64>,
    pub(super) status: Option<u64>,
    pub(super) connect_us: Option<u64>,
    pub(super) first_byte_us: Option<u64>,
    pub(super) duration_us: Option<u64>,
}

impl UpstreamNumbers {
    fn parse(bytes: &[u8]) -> Self {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let mut numbers = text.split(' ').map(|number| number.parse().ok());
        let mut next = || numbers.next().flatten();
        Self { tries: next(), status: next(), connect_us: next(), first_byte_us: next(), duration_us: next() }
    }
}

/// Decoded compact record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredRecord<'a> {
    pub(super) log: LogId,
    pub(super) status: u16,
    pub(super) unix_us: u64,
    pub(super) duration_us: u64,
    pub(super) content_bytes: u64,
    pub(super) client: LogClient,
    pub(super) version: Option<LoggedProtocol>,
    method_code: u8,
    /// Offset of each value in the record, by tag; 0 if absent. Formats read only some values, so decoding all of them
    /// would cost more.
    values: [u32; TAGS],
    /// Whole record.
    bytes: &'a [u8],
}

impl<'a> StoredRecord<'a> {
    /// Length in bytes of the record at the start of `bytes`; `None` if there are too few bytes.
    pub(super) fn length(bytes: &[u8]) -> Option<usize> {
        bytes.first_chunk().map(|length| u32::from_le_bytes(*length) as usize)
    }

    /// Decodes a whole record; `None` if it is malformed.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (fixed, mut rest) = bytes.split_first_chunk::<FIXED_BYTES>()?;
        if Self::length(fixed)? != bytes.len() {
            return None;
        }
        let method_code = fixed[52];
        if !matches!(method_code, METHOD_NONE | METHOD_BY_NAME) {
            method_name(method_code)?;
        }
        let mut values = [0; TAGS];
        while !rest.is_empty() {
            let start = bytes.len() - rest.len();
            let (tag, _) = take_value(&mut rest)?;
            if let Some(known) = values.get_mut(usize::from(tag.0)) {
                *known = start as u32;
            }
        }
        Some(Self {
            log: LogId(u16_at(fixed, 4)),
            status: u16_at(fixed, 6),
            unix_us: u64_at(fixed, 8),
            duration_us: u64_at(fixed, 16),
            content_bytes: u64_at(fixed, 24),
            client: decode_client(fixed)?,
            version: decode_version(fixed[51])?,
            method_code,
            values,
            bytes,
        })
    }

    /// Appends the record in the form of a binary log.
    pub(super) fn push_to_file(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(self.bytes);
        out[start + 4..start + 6].fill(0);
    }

    /// Value as sent; empty if absent.
    pub(super) fn value(&self, tag: Tag) -> RecordValue<'a> {
        match self.values[usize::from(tag.0)] {
            0 => RecordValue::default(),
            start => take_value(&mut &self.bytes[start as usize..]).map_or(RecordValue::default(), |(_, value)| value),
        }
    }

    /// Method; empty for a malformed request.
    pub(super) fn method(&self) -> RecordValue<'a> {
        self.known_method().map_or_else(|| self.value(Tag::METHOD), |bytes| RecordValue { bytes, cut: false })
    }

    /// Method if it is one of [`METHODS`], whose names need no escaping.
    pub(super) fn known_method(&self) -> Option<&'static [u8]> {
        method_name(self.method_code).filter(|_| !self.has(Tag::METHOD))
    }

    /// Facts of a transfer over FTP.
    pub(super) fn ftp_flags(&self) -> FtpFlags {
        let flags = self.bytes[FLAGS_AT];
        FtpFlags { is_ascii: flags & 1 != 0, is_anonymous: flags & 2 != 0 }
    }

    pub(super) fn upstream_numbers(&self) -> UpstreamNumbers {
        match self.value(Tag::UPSTREAM_NUMBERS).bytes {
            [] => UpstreamNumbers::default(),
            text => UpstreamNumbers::parse(text),
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        !self.has(Tag::ABORTED)
    }

    fn has(&self, tag: Tag) -> bool {
        self.values[usize::from(tag.0)] != 0
    }

    /// Parts of the target before and after its first question mark.
    pub(super) fn path_and_query(&self) -> (RecordValue<'a>, RecordValue<'a>) {
        let target = self.value(Tag::TARGET);
        let RecordValue { bytes, cut } = target;
        match memchr::memchr(b'?', bytes) {
            Some(at) => (RecordValue { bytes: &bytes[..at], cut: false }, RecordValue { bytes: &bytes[at + 1..], cut }),
            None => (target, RecordValue::default()),
        }
    }

    /// Request field at this index of the log's template.
    pub(super) fn captured(&self, index: usize) -> RecordValue<'a> {
        let mut rest = &self.bytes[FIXED_BYTES..];
        while let Some((tag, value)) = take_value(&mut rest) {
            if tag == Tag::captured(index) {
                return value;
            }
        }
        RecordValue::default()
    }
}

fn decode_client(fixed: &[u8; FIXED_BYTES]) -> Option<LogClient> {
    let mut octets = [0; 16];
    octets.copy_from_slice(&fixed[32..48]);
    let ip = match fixed[50] {
        CLIENT_UNIX => return Some(LogClient::Unix),
        CLIENT_IPV4 => IpAddr::V4(Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3])),
        CLIENT_IPV6 => IpAddr::V6(Ipv6Addr::from(octets)),
        _ => return None,
    };
    Some(LogClient::Ip(SocketAddr::new(ip, u16_at(fixed, 48))))
}

fn decode_version(code: u8) -> Option<Option<LoggedProtocol>> {
    let version = match code {
        0 => return Some(None),
        VERSION_FTP => return Some(Some(LoggedProtocol::Ftp)),
        10 => Version::Http10,
        11 => Version::Http11,
        20 => Version::Http2,
        30 => Version::Http3,
        _ => return None,
    };
    Some(Some(LoggedProtocol::Http(version)))
}

fn take_value<'a>(rest: &mut &'a [u8]) -> Option<(Tag, RecordValue<'a>)> {
    let ([tag, flags, low, high], after) = rest.split_first_chunk::<VALUE_HEAD_BYTES>()?;
    let (bytes, after) = after.split_at_checked(usize::from(u16::from_le_bytes([*low, *high])))?;
    *rest = after;
    Some((Tag(*tag), RecordValue { bytes, cut: flags & FLAG_CUT != 0 }))
}

fn u16_at(fixed: &[u8; FIXED_BYTES], at: usize) -> u16 {
    u16::from_le_bytes([fixed[at], fixed[at + 1]])
}

fn u64_at(fixed: &[u8; FIXED_BYTES], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&fixed[at..at + 8]);
    u64::from_le_bytes(bytes)
}
