//! Records as text. Every format escapes values from clients, so that they cannot forge a line, a field or a terminal
//! command.

mod clf;
mod date;
mod escape;
mod json;
mod number;
mod template;
#[cfg(test)]
mod tests;
mod w3c;
mod xferlog;

use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) use date::DateTexts;
pub use number::push_address;
pub use template::{LogTemplate, TemplateError, TemplateErrorKind};
use wire::http::Version;

use super::binary::BlockWriter;
use super::record::{Capture, LoggedProtocol, StoredRecord};
use super::stream::Unit;
use crate::config::AccessLogFormat;

/// Formatter of records for one log.
#[derive(Debug)]
pub(super) struct Formatter {
    kind: FormatKind,
    dates: DateTexts,
}

#[derive(Debug)]
enum FormatKind {
    Common,
    Combined,
    Json,
    W3c,
    Xferlog,
    Template(Box<LogTemplate>),
    Binary(BlockWriter),
}

impl Formatter {
    /// # Errors
    /// The template is invalid.
    pub(super) fn new(format: &AccessLogFormat) -> Result<Self, TemplateError> {
        let kind = match format {
            AccessLogFormat::Common => FormatKind::Common,
            AccessLogFormat::Combined => FormatKind::Combined,
            AccessLogFormat::Json => FormatKind::Json,
            AccessLogFormat::W3c => FormatKind::W3c,
            AccessLogFormat::Xferlog => FormatKind::Xferlog,
            AccessLogFormat::Template(text) => FormatKind::Template(Box::new(LogTemplate::parse(text)?)),
            AccessLogFormat::Binary => FormatKind::Binary(BlockWriter::default()),
        };
        Ok(Self { kind, dates: DateTexts::default() })
    }

    /// Request fields that the format needs.
    pub(super) fn capture(&self) -> Capture {
        match &self.kind {
            FormatKind::Common | FormatKind::Xferlog => Capture::default(),
            FormatKind::Combined => Capture { referer: true, user_agent: true, ..Capture::default() },
            FormatKind::Template(template) => template.capture().clone(),
            FormatKind::W3c => Capture { host: true, referer: true, user_agent: true, tls: true, ..Capture::default() },
            FormatKind::Json | FormatKind::Binary(_) => Capture {
                host: true,
                referer: true,
                user_agent: true,
                tls: true,
                upstream: true,
                outcome: true,
                trace: true,
                bot: true,
                fields: Vec::new(),
            },
        }
    }

    /// Unit of the output: lines or blocks.
    pub(super) fn unit(&self) -> Unit {
        match &self.kind {
            FormatKind::Common
            | FormatKind::Combined
            | FormatKind::Json
            | FormatKind::Xferlog
            | FormatKind::Template(_) => Unit::Line,
            FormatKind::W3c => Unit::LineOrDirective,
            FormatKind::Binary(_) => Unit::Block,
        }
    }

    /// Appends the start of a file.
    pub(super) fn push_start(&mut self, now: SystemTime, out: &mut Vec<u8>) {
        if matches!(self.kind, FormatKind::W3c) {
            let unix_seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            w3c::push_directives(out, unix_seconds, &mut self.dates);
        }
    }

    /// Appends a record.
    pub(super) fn append(&mut self, record: &StoredRecord<'_>, out: &mut Vec<u8>) {
        match &mut self.kind {
            FormatKind::Common => clf::push_line(out, record, &mut self.dates, false),
            FormatKind::Combined => clf::push_line(out, record, &mut self.dates, true),
            FormatKind::Json => json::push_line(out, record, &mut self.dates),
            FormatKind::W3c => w3c::push_line(out, record, &mut self.dates),
            FormatKind::Xferlog => xferlog::push_line(out, record, &mut self.dates),
            FormatKind::Template(template) => template.push_line(out, record, &mut self.dates),
            FormatKind::Binary(block) => block.append(record, out),
        }
    }

    /// Appends a remark on dropped records. Only W3C has a syntax for remarks; other text formats would show it as a
    /// record.
    pub(super) fn push_remark(&mut self, dropped: u64, out: &mut Vec<u8>) {
        if matches!(self.kind, FormatKind::W3c) {
            w3c::push_remark(out, dropped);
        }
    }

    /// Completes the unit that must be whole before it is written.
    pub(super) fn seal(&mut self, out: &mut [u8]) {
        if let FormatKind::Binary(block) = &mut self.kind {
            block.seal(out);
        }
    }
}

/// `HTTP/1.1` and so on.
fn version_name(version: LoggedProtocol) -> &'static [u8] {
    match version {
        LoggedProtocol::Http(Version::Http10) => b"HTTP/1.0",
        LoggedProtocol::Http(Version::Http11) => b"HTTP/1.1",
        LoggedProtocol::Http(Version::Http2) => b"HTTP/2.0",
        LoggedProtocol::Http(Version::Http3) => b"HTTP/3.0",
        LoggedProtocol::Ftp => b"FTP",
    }
}
