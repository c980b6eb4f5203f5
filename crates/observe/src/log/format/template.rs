//! Log lines from a text with fields in braces.

use std::fmt;

use super::super::record::{CAPTURED_FIELDS_MAX, Capture, CapturedField, LogClient, RecordValue, StoredRecord, Tag};
use super::date::DateTexts;
use super::escape::{EscapeSet, push_escaped, push_quoted};
use super::number::{push_decimal, push_digits, push_timestamp};
use super::{clf, json, version_name};
use crate::config::AccessLogFormat;

/// Text with fields in braces, one line per record: `{client} "{method} {target}" {status}`. `{{` and `}}` are literal
/// braces.
///
/// [`LogTemplate::FIELDS`] lists the fields; `request.header.NAME` is a field of the request. Values from clients are
/// escaped so that a parser can split the line: in a value between `"`, as in the combined format; in other values also
/// the space and the punctuation that the text has outside quotes.
///
/// A text that is a JSON object, `{{"path": "{path}", "status": {status}, "user": {user}}}`, writes such objects:
/// values between quotes are escaped as in JSON, others are written as numbers, strings or `null`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTemplate {
    pieces: Vec<LogTemplatePiece>,
    capture: Capture,
    kind: TemplateKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum LogTemplatePiece {
    Literal(Box<[u8]>),
    Field { field: Field, in_quotes: bool },
}

/// Syntax of a template's lines.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TemplateKind {
    /// Text; these bytes are escaped outside quotes.
    Text { separators: Box<EscapeSet> },
    /// JSON objects.
    Json,
}

/// Style of a value.
#[derive(Clone, Copy)]
enum ValueStyle<'a> {
    /// In quotes.
    Quoted,
    /// Outside quotes, with these bytes escaped.
    Bare(&'a EscapeSet),
    /// As part of a JSON string.
    JsonPart,
    /// As a JSON value.
    Json,
}

impl ValueStyle<'_> {
    /// Appends a value that may come from a client.
    fn push_value(self, out: &mut Vec<u8>, value: RecordValue<'_>) {
        match self {
            Self::Quoted => push_quoted(out, value),
            Self::Bare(separators) => push_escaped(out, value, separators),
            Self::JsonPart => json::push_part(out, value),
            Self::Json if value.bytes.is_empty() => out.extend_from_slice(b"null"),
            Self::Json => self.push_text(out, |out| json::push_part(out, value)),
        }
    }

    /// Appends a text that cannot come from a client.
    fn push_text(self, out: &mut Vec<u8>, push: impl FnOnce(&mut Vec<u8>)) {
        let is_string = matches!(self, Self::Json);
        out.extend(is_string.then_some(b'"'));
        push(out);
        out.extend(is_string.then_some(b'"'));
    }

    /// Appends a number; the mark for no value if there is none.
    fn push_known(self, out: &mut Vec<u8>, number: Option<u64>, push: fn(&mut Vec<u8>, u64)) {
        match (number, self) {
            (Some(number), _) => push(out, number),
            (None, Self::Quoted | Self::Bare(_)) => out.push(b'-'),
            (None, Self::JsonPart) => {}
            (None, Self::Json) => out.extend_from_slice(b"null"),
        }
    }

    fn is_json(self) -> bool {
        matches!(self, Self::Json | Self::JsonPart)
    }
}

macro_rules! fields {
    ($($field:ident = $name:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Field {
            $($field,)*
            /// Field of the request at this index of the capture.
            Request(u8),
        }

        impl LogTemplate {
            /// Names of the fields. The configuration knows their meanings (`LOG_FIELDS`).
            pub const FIELDS: &[&str] = &[$($name,)*];
        }

        impl Field {
            fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$field),)* _ => None }
            }
        }
    };
}

fields! {
    Client = "client";
    ClientPort = "client_port";
    User = "user";
    Time = "time";
    TimeRfc3339 = "time_rfc3339";
    TimeUnix = "time_unix";
    RequestLine = "request";
    Method = "method";
    Target = "target";
    Path = "path";
    Query = "query";
    Version = "version";
    Host = "host";
    Status = "status";
    ContentBytes = "bytes";
    DurationUs = "duration_us";
    DurationMs = "duration_ms";
    DurationS = "duration_s";
    Referer = "referer";
    UserAgent = "user_agent";
    TlsVersion = "tls_version";
    TlsCipherSuite = "tls_cipher_suite";
    TlsServerName = "tls_server_name";
    TlsClient = "tls_client";
    Upstream = "upstream";
    UpstreamStatus = "upstream_status";
    UpstreamTries = "upstream_tries";
    UpstreamConnectUs = "upstream_connect_us";
    UpstreamFirstByteUs = "upstream_first_byte_us";
    UpstreamDurationUs = "upstream_duration_us";
    UpstreamConnectS = "upstream_connect_s";
    UpstreamFirstByteS = "upstream_first_byte_s";
    UpstreamDurationS = "upstream_duration_s";
    CacheStatus = "cache_status";
    RequestId = "request_id";
    TraceId = "trace_id";
    SpanId = "span_id";
    Completion = "completion";
    BotClass = "bot_class";
    BotScore = "bot_score";
    BotName = "bot_name";
    BotSignals = "bot_signals";
    Ja4 = "ja4";
    Http2Fingerprint = "http2_fingerprint";
    Country = "country";
    Asn = "asn";
}

/// Prefix of the names of request fields.
const REQUEST_FIELD_PREFIX: &str = "request.header.";

/// Error in a template, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    /// Offset of the error in the text, in bytes.
    pub offset: usize,
    /// Length of the error in bytes.
    pub length: usize,
    /// Kind of the error.
    pub kind: TemplateErrorKind,
}

/// Kind of an error in a template.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TemplateErrorKind {
    /// No field has this name.
    UnknownField {
        /// Name as written.
        name: String,
        /// Most similar name, if one is similar.
        nearest: Option<&'static str>,
    },
    /// A brace is not closed.
    Unclosed,
    /// A closing brace without an opening one.
    Unopened,
    /// A control character outside the braces; a line feed would make one record two lines.
    ControlCharacter,
    /// More request fields than a record holds.
    TooManyRequestFields,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            TemplateErrorKind::UnknownField { name, nearest: Some(nearest) } => {
                write!(f, "unknown log field `{name}`; did you mean `{nearest}`?")
            }
            TemplateErrorKind::UnknownField { name, nearest: None } => {
                write!(f, "unknown log field `{name}`; use ")?;
                LogTemplate::FIELDS.iter().try_for_each(|name| write!(f, "{name}, "))?;
                f.write_str("or request.header.NAME")
            }
            TemplateErrorKind::Unclosed => f.write_str("`{` is not closed; write `{{` for a brace"),
            TemplateErrorKind::Unopened => f.write_str("`}` closes nothing; write `}}` for a brace"),
            TemplateErrorKind::ControlCharacter => {
                f.write_str("control characters other than tabs are not allowed in a log line")
            }
            TemplateErrorKind::TooManyRequestFields => {
                write!(f, "a log line can have at most {CAPTURED_FIELDS_MAX} fields of the request")
            }
        }
    }
}

impl std::error::Error for TemplateError {}

impl LogTemplate {
    /// Parses a template.
    ///
    /// # Errors
    /// The error and its position.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let (at, pieces, literal, capture) = Default::default();
        let mut parser =
            TemplateParser { text, is_object: AccessLogFormat::is_object(text), at, pieces, literal, capture };
        parser.parse()?;
        let TemplateParser { pieces, capture, is_object, .. } = parser;
        let kind = if is_object {
            TemplateKind::Json
        } else {
            TemplateKind::Text { separators: separators_of(&pieces).into() }
        };
        Ok(Self { pieces, capture, kind })
    }

    pub(super) fn capture(&self) -> &Capture {
        &self.capture
    }

    /// Appends a record, as a line.
    pub(super) fn push_line(&self, out: &mut Vec<u8>, record: &StoredRecord<'_>, dates: &mut DateTexts) {
        for piece in &self.pieces {
            match piece {
                LogTemplatePiece::Literal(literal) => out.extend_from_slice(literal),
                LogTemplatePiece::Field { field, in_quotes } => {
                    let style = match (&self.kind, in_quotes) {
                        (TemplateKind::Text { .. }, true) => ValueStyle::Quoted,
                        (TemplateKind::Text { separators }, false) => ValueStyle::Bare(separators),
                        (TemplateKind::Json, true) => ValueStyle::JsonPart,
                        (TemplateKind::Json, false) => ValueStyle::Json,
                    };
                    field.push(out, record, dates, style);
                }
            }
        }
        out.push(b'\n');
    }
}

impl Field {
    /// Appends the value of this field.
    fn push(self, out: &mut Vec<u8>, record: &StoredRecord<'_>, dates: &mut DateTexts, style: ValueStyle<'_>) {
        let numbers = || record.upstream_numbers();
        match self {
            Self::Client => style.push_text(out, |out| clf::push_client(out, record.client)),
            Self::ClientPort => {
                let port = match record.client {
                    LogClient::Ip(address) => Some(u64::from(address.port())),
                    LogClient::Unix => None,
                };
                style.push_known(out, port, push_decimal);
            }
            Self::User => style.push_value(out, record.value(Tag::USER)),
            Self::Time => {
                style.push_text(out, |out| out.extend_from_slice(dates.at(record.unix_us / 1_000_000).common()));
            }
            Self::TimeRfc3339 => style.push_text(out, |out| push_timestamp(out, record.unix_us, dates)),
            Self::TimeUnix => push_seconds(out, record.unix_us),
            Self::RequestLine if record.version.is_none() => style.push_value(out, record.value(Tag::MALFORMED)),
            Self::RequestLine if style.is_json() => style.push_text(out, |out| json::push_request_line(out, record)),
            Self::RequestLine => clf::push_request_line(out, record),
            Self::Method => style.push_value(out, record.method()),
            Self::Target => style.push_value(out, record.value(Tag::TARGET)),
            Self::Path => style.push_value(out, record.path_and_query().0),
            Self::Query => style.push_value(out, record.path_and_query().1),
            Self::Version => {
                let bytes = record.version.map_or(&b""[..], |version| version_name(version));
                style.push_value(out, RecordValue { bytes, cut: false });
            }
            Self::Host => style.push_value(out, record.value(Tag::HOST)),
            Self::Status => push_decimal(out, u64::from(record.status)),
            Self::ContentBytes => push_decimal(out, record.content_bytes),
            Self::DurationUs => push_decimal(out, record.duration_us),
            Self::DurationMs => {
                push_decimal(out, record.duration_us / 1000);
                out.push(b'.');
                push_digits::<3>(out, record.duration_us);
            }
            Self::DurationS => push_seconds(out, record.duration_us),
            Self::Referer => style.push_value(out, record.value(Tag::REFERER)),
            Self::UserAgent => style.push_value(out, record.value(Tag::USER_AGENT)),
            Self::TlsVersion => style.push_value(out, record.value(Tag::TLS_VERSION)),
            Self::TlsCipherSuite => style.push_value(out, record.value(Tag::TLS_CIPHER_SUITE)),
            Self::TlsServerName => style.push_value(out, record.value(Tag::TLS_SERVER_NAME)),
            Self::TlsClient => style.push_value(out, record.value(Tag::TLS_CLIENT)),
            Self::Upstream => style.push_value(out, record.value(Tag::UPSTREAM)),
            Self::UpstreamStatus => style.push_known(out, numbers().status, push_decimal),
            Self::UpstreamTries => style.push_known(out, numbers().tries, push_decimal),
            Self::UpstreamConnectUs => style.push_known(out, numbers().connect_us, push_decimal),
            Self::UpstreamFirstByteUs => style.push_known(out, numbers().first_byte_us, push_decimal),
            Self::UpstreamDurationUs => style.push_known(out, numbers().duration_us, push_decimal),
            Self::UpstreamConnectS => style.push_known(out, numbers().connect_us, push_seconds),
            Self::UpstreamFirstByteS => style.push_known(out, numbers().first_byte_us, push_seconds),
            Self::UpstreamDurationS => style.push_known(out, numbers().duration_us, push_seconds),
            Self::CacheStatus => style.push_value(out, record.value(Tag::CACHE_STATUS)),
            Self::RequestId => style.push_value(out, record.value(Tag::REQUEST_ID)),
            Self::TraceId => style.push_value(out, record.value(Tag::TRACE_ID)),
            Self::SpanId => style.push_value(out, record.value(Tag::SPAN_ID)),
            Self::BotClass => style.push_value(out, record.value(Tag::BOT_CLASS)),
            Self::BotScore => style.push_value(out, record.value(Tag::BOT_SCORE)),
            Self::BotName => style.push_value(out, record.value(Tag::BOT_NAME)),
            Self::BotSignals => style.push_value(out, record.value(Tag::BOT_SIGNALS)),
            Self::Ja4 => style.push_value(out, record.value(Tag::JA4)),
            Self::Http2Fingerprint => style.push_value(out, record.value(Tag::HTTP2_FINGERPRINT)),
            Self::Country => style.push_value(out, record.value(Tag::COUNTRY)),
            Self::Asn => style.push_value(out, record.value(Tag::ASN)),
            Self::Completion => {
                let completion: &[u8] = if record.is_complete() { b"complete" } else { b"aborted" };
                style.push_text(out, |out| out.extend_from_slice(completion));
            }
            Self::Request(index) => style.push_value(out, record.captured(usize::from(index))),
        }
    }
}

/// Appends microseconds as seconds.
fn push_seconds(out: &mut Vec<u8>, us: u64) {
    push_decimal(out, us / 1_000_000);
    out.push(b'.');
    push_digits::<6>(out, us);
}

/// Bytes that a value outside quotes must not contain: those of the template's own text, except letters and digits.
fn separators_of(pieces: &[LogTemplatePiece]) -> EscapeSet {
    let mut separators = EscapeSet::WORD;
    let mut in_quotes = false;
    for piece in pieces {
        let LogTemplatePiece::Literal(literal) = piece else { continue };
        for byte in literal {
            in_quotes ^= *byte == b'"';
            if !in_quotes && byte.is_ascii_punctuation() {
                separators = separators.with(*byte);
            }
        }
    }
    separators
}

struct TemplateParser<'a> {
    text: &'a str,
    is_object: bool,
    at: usize,
    pieces: Vec<LogTemplatePiece>,
    literal: Vec<u8>,
    capture: Capture,
}

impl TemplateParser<'_> {
    fn parse(&mut self) -> Result<(), TemplateError> {
        let mut in_quotes = false;
        while let Some(byte) = self.text.as_bytes().get(self.at).copied() {
            let is_doubled = self.text.as_bytes().get(self.at + 1) == Some(&byte);
            match byte {
                b'{' | b'}' if is_doubled => {
                    self.literal.push(byte);
                    self.at += 1;
                }
                b'{' => {
                    let field = self.parse_field()?;
                    self.end_literal();
                    self.pieces.push(LogTemplatePiece::Field { field, in_quotes });
                }
                b'}' => return Err(self.error(1, TemplateErrorKind::Unopened)),
                0..=8 | 10..=31 | 127 => return Err(self.error(1, TemplateErrorKind::ControlCharacter)),
                _ => {
                    in_quotes ^= byte == b'"' && !(self.is_object && self.is_escaped());
                    self.literal.push(byte);
                }
            }
            self.at += 1;
        }
        self.end_literal();
        Ok(())
    }

    /// Parses a field up to its closing brace.
    fn parse_field(&mut self) -> Result<Field, TemplateError> {
        let inside = &self.text[self.at + 1..];
        let Some(length) = inside.find(['{', '}']).filter(|end| inside.as_bytes()[*end] == b'}') else {
            return Err(self.error(1, TemplateErrorKind::Unclosed));
        };
        let name = &inside[..length];
        let field = match name.strip_prefix(REQUEST_FIELD_PREFIX) {
            Some(request_field) if is_token(request_field) => self.capture_field(request_field)?,
            _ => Field::from_name(name).ok_or_else(|| {
                let kind = TemplateErrorKind::UnknownField { name: name.to_owned(), nearest: nearest_field(name) };
                self.error(length + 2, kind)
            })?,
        };
        self.capture.host |= field == Field::Host;
        self.capture.referer |= field == Field::Referer;
        self.capture.user_agent |= field == Field::UserAgent;
        self.capture.tls |= name.starts_with("tls_");
        self.capture.outcome |= matches!(field, Field::RequestId | Field::Completion);
        self.capture.trace |= matches!(field, Field::TraceId | Field::SpanId);
        self.capture.bot |= name.starts_with("bot_") || matches!(name, "ja4" | "http2_fingerprint" | "country" | "asn");
        self.capture.upstream |= name == "cache_status" || name.starts_with("upstream");
        self.at += length + 1;
        Ok(field)
    }

    /// Index of a request field in the capture.
    fn capture_field(&mut self, name: &str) -> Result<Field, TemplateError> {
        let field = CapturedField::new(name);
        let fields = &mut self.capture.fields;
        let index = match fields.iter().position(|other| *other == field) {
            Some(index) => index,
            None if fields.len() == CAPTURED_FIELDS_MAX => {
                return Err(self.error(name.len(), TemplateErrorKind::TooManyRequestFields));
            }
            None => {
                fields.push(field);
                fields.len() - 1
            }
        };
        Ok(Field::Request(index as u8))
    }

    /// True if a JSON backslash precedes the next byte.
    fn is_escaped(&self) -> bool {
        let backslashes = self.literal.iter().rev().take_while(|byte| **byte == b'\\').count();
        !backslashes.is_multiple_of(2)
    }

    fn end_literal(&mut self) {
        if !self.literal.is_empty() {
            self.pieces.push(LogTemplatePiece::Literal(std::mem::take(&mut self.literal).into_boxed_slice()));
        }
    }

    fn error(&self, length: usize, kind: TemplateErrorKind) -> TemplateError {
        TemplateError { offset: self.at, length, kind }
    }
}

/// True if a text can be the name of a header field (RFC 9110, section 5.6.2).
fn is_token(text: &str) -> bool {
    let is_token_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_token_byte)
}

/// Most similar field name, if one is similar enough.
fn nearest_field(name: &str) -> Option<&'static str> {
    let distance_max = name.len() / 3 + 1;
    let distances = LogTemplate::FIELDS.iter().map(|known| (strsim::osa_distance(name, known), *known));
    distances.filter(|(distance, _)| *distance <= distance_max).min().map(|(_, known)| known)
}
