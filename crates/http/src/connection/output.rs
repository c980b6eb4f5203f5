//! HTTP/1 responses, gathered in the thread's output buffer.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

use bytes::Bytes;
use wire::h1::{CHUNK_SIZE_LINE_BYTES_MAX, DATE_BYTES, write_chunk_size_line, write_fields, write_status_line};
use wire::http::range::write_content_range;
use wire::http::{ContentCoding, Fields, Status, push_decimal};

use super::exchange::{ALT_SVC, AlternativeService, HeadPolicy};
use super::stream::{StreamFraming, StreamedContent};
use crate::config::FieldAction;
use crate::handler::{Body, BuiltResponse, ChangedResponse, FieldChange, Form, Response, SERVER, Segment};
use crate::object_cache::{Object, ObjectContent, StoredResponse};

/// Maximum size of content that is copied after its head. One plain write then sends both, and several responses share
/// it. Larger content is sent without a copy.
const COPY_BYTES_MAX: usize = 16 << 10;

/// Longest content that is read from the file of a disk cache's entry and sent with its head: a sendfile, and looking for the
/// pages first, would cost more than the copy.
const READ_BYTES_MAX: u64 = 32 << 10;

/// Output of this size is sent before the next request is answered.
const GATHER_BYTES_MAX: usize = 64 << 10;

/// Bytes to send, followed by content that is not copied.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// Heads and small content.
    pub bytes: Vec<u8>,
    /// Content sent without a copy, after `bytes`.
    pub tail: VecDeque<Segment>,
    /// Streamed content, after `tail`.
    pub stream: Option<Box<StreamedContent>>,
}

/// Persistence of a connection, as a response states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persistence {
    /// Another request may follow.
    Persistent,
    /// Another request may follow; an HTTP/1.0 client needs a field that says so.
    PersistentHttp10,
    /// This response is the last.
    Close,
    /// This response is the last in HTTP, because another protocol follows.
    Upgrade,
}

/// Data that the encoder needs in addition to the response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodingContext<'a> {
    /// Text of the Date field.
    pub date: &'a [u8; DATE_BYTES],
    /// Current time, in milliseconds of the monotonic clock, for the ages of stored responses.
    pub now_ms: u64,
    /// Persistence for the Connection field.
    pub persistence: Persistence,
    /// True if the request was HEAD, so that no content is sent.
    pub is_head: bool,
    /// True if responses have a Server field.
    pub server_field: bool,
    /// Alternative to tell of, unless the response has the field.
    pub alternative: Option<&'a AlternativeService>,
    /// True if the client supports chunked coding, which HTTP/1.0 lacks.
    pub may_chunk: bool,
}

impl Output {
    /// True if there is nothing to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && !self.has_tail()
    }

    /// True if content follows `bytes`.
    pub(crate) fn has_tail(&self) -> bool {
        !self.tail.is_empty() || self.stream.is_some()
    }

    /// Drops output that has not been sent.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        // A tail is rare, and dropping an empty one has a cost, too.
        if self.has_tail() {
            self.clear_tail();
        }
    }

    #[cold]
    fn clear_tail(&mut self) {
        self.tail.clear();
        self.stream = None;
    }

    /// True if the output must be sent before more is added.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= GATHER_BYTES_MAX || self.has_tail()
    }

    /// Adds an interim response.
    pub(crate) fn write_interim(&mut self, status: Status, fields: &Fields) {
        write_status_line(&mut self.bytes, status, status.reason().as_bytes());
        write_fields(&mut self.bytes, fields);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Adds a response. Returns its status, and the length of its content without streamed content.
    pub(crate) fn write_response(&mut self, response: Response, encoding: EncodingContext<'_>) -> (Status, u64) {
        match response {
            Response::Cached { object, coding, form } => {
                self.write_object(&object.object, (coding, form), &[], encoding)
            }
            Response::Changed(response) => {
                let ChangedResponse { object, coding, form, changes } = *response;
                self.write_object(&object.object, (coding, form), &changes, encoding)
            }
            Response::Built(response) => (response.status, self.write_built(*response, encoding)),
        }
    }

    fn write_object(
        &mut self,
        object: &Object,
        (coding, form): (ContentCoding, Form),
        changes: &[FieldChange],
        encoding: EncodingContext<'_>,
    ) -> (Status, u64) {
        let head_start = self.bytes.len();
        let representation = match form {
            Form::Whole => object.representation(coding),
            Form::NotModified | Form::Part { .. } => object.complete_representation(coding),
        };
        let mut head = &representation.head;
        let complete_length = representation.content.length();
        let (status, offset, length) = match form {
            Form::Whole => {
                head.h1.write(encoding.date, &mut self.bytes);
                (representation.status, 0, complete_length)
            }
            Form::NotModified => {
                head = &representation.not_modified_head;
                head.h1.write(encoding.date, &mut self.bytes);
                (Status::NOT_MODIFIED, 0, 0)
            }
            Form::Part { offset, length } => {
                head = &representation.partial_head;
                head.h1.write(encoding.date, &mut self.bytes);
                self.bytes.extend_from_slice(b"Content-Range: ");
                write_content_range(&(offset..offset + length), complete_length, &mut self.bytes);
                self.bytes.extend_from_slice(b"\r\n");
                self.write_content_length(length);
                (Status::PARTIAL_CONTENT, offset, length)
            }
        };
        if let Some(response) = object.response() {
            self.write_age(response, encoding.now_ms);
        }
        for change in changes {
            change_head(&mut self.bytes, head_start, change);
        }
        if let Some(alternative) = encoding.alternative
            && !head.has_alternative
            && !AlternativeService::is_changed_by(changes)
        {
            self.bytes.extend_from_slice(alternative.h1());
        }
        self.end_head(encoding.persistence);
        if encoding.is_head || length == 0 {
            return (status, 0);
        }
        match &representation.content {
            ObjectContent::Memory(content) => {
                let range = offset as usize..(offset + length) as usize;
                if range.len() <= COPY_BYTES_MAX {
                    // Hot path: a copy avoids the reference count of content that all workers share.
                    self.bytes.extend_from_slice(&content[range]);
                } else {
                    self.tail.push_back(Segment::Bytes(content.slice(range)));
                }
            }
            ObjectContent::File(file)
                if file.is_entry()
                    && length <= READ_BYTES_MAX
                    && file.append_now(offset, length as usize, &mut self.bytes) => {}
            ObjectContent::File(file) => self.tail.push_back(Segment::File { file: Arc::clone(file), offset, length }),
        }
        (status, length)
    }

    /// Adds the fields that change while a response is stored (RFC 9111, section 5.1; RFC 9211, section 2).
    fn write_age(&mut self, response: &StoredResponse, now_ms: u64) {
        let stored = &response.stored;
        self.bytes.extend_from_slice(b"Age: ");
        push_decimal(&mut self.bytes, stored.age_seconds(now_ms));
        self.bytes.extend_from_slice(b"\r\n");
        if response.has_cache_status {
            let ttl = stored.remaining_ms(now_ms).div_euclid(1_000);
            // Writing to a vector does not fail.
            let _ = write!(self.bytes, "Cache-Status: tailcoat; hit; ttl={ttl}\r\n");
        }
    }

    fn write_content_length(&mut self, length: u64) {
        self.bytes.extend_from_slice(b"Content-Length: ");
        push_decimal(&mut self.bytes, length);
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn write_built(&mut self, response: BuiltResponse, encoding: EncodingContext<'_>) -> u64 {
        let policy = HeadPolicy::of(&response, encoding.is_head, encoding.server_field);
        self.write_built_head(&response, policy, encoding);
        let is_chunked = response.body.length().is_none() && encoding.may_chunk;
        if let Some(length) = policy.content_length {
            self.write_content_length(length);
        } else if policy.has_content && encoding.may_chunk {
            self.bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        self.end_head(encoding.persistence);
        if policy.has_content { self.write_body(response.body, is_chunked) } else { 0 }
    }

    fn write_built_head(&mut self, response: &BuiltResponse, policy: HeadPolicy, encoding: EncodingContext<'_>) {
        let BuiltResponse { status, fields, forwarded, .. } = response;
        let reason = forwarded.as_ref().map_or(status.reason().as_bytes(), |forwarded| &forwarded.reason);
        write_status_line(&mut self.bytes, *status, reason);
        if policy.adds_date {
            self.bytes.extend_from_slice(b"Date: ");
            self.bytes.extend_from_slice(encoding.date);
            self.bytes.extend_from_slice(b"\r\n");
        }
        write_fields(&mut self.bytes, fields);
        if policy.adds_server {
            self.bytes.extend_from_slice(b"Server: ");
            self.bytes.extend_from_slice(SERVER.as_bytes());
            self.bytes.extend_from_slice(b"\r\n");
        }
        if let Some(alternative) = encoding.alternative.filter(|_| !fields.has(ALT_SVC)) {
            self.bytes.extend_from_slice(alternative.h1());
        }
    }

    /// Adds content; returns its length without streamed content.
    fn write_body(&mut self, body: Body, is_chunked: bool) -> u64 {
        let length = body.segments.iter().map(Segment::length).sum();
        for segment in body.segments {
            if is_chunked {
                let mut line = [0; CHUNK_SIZE_LINE_BYTES_MAX];
                let line_bytes = write_chunk_size_line(&mut line, segment.length() as usize);
                let line = Bytes::copy_from_slice(&line[CHUNK_SIZE_LINE_BYTES_MAX - line_bytes..]);
                self.write_content(Segment::Bytes(line));
                self.write_content(segment);
                self.write_content(Segment::Bytes(Bytes::from_static(b"\r\n")));
            } else {
                self.write_content(segment);
            }
        }
        self.stream = body.stream.map(|stream| {
            let framing = match stream.length {
                Some(length) => StreamFraming::Length(length),
                None if is_chunked => StreamFraming::Chunked,
                None => StreamFraming::UntilClose,
            };
            Box::new(StreamedContent::new(stream.source, framing))
        });
        length
    }

    fn write_content(&mut self, segment: Segment) {
        match &segment {
            Segment::Bytes(bytes) if bytes.len() <= COPY_BYTES_MAX && self.tail.is_empty() => {
                self.bytes.extend_from_slice(bytes);
            }
            _ => self.tail.push_back(segment),
        }
    }

    fn end_head(&mut self, persistence: Persistence) {
        self.bytes.extend_from_slice(match persistence {
            Persistence::Persistent => b"\r\n",
            Persistence::PersistentHttp10 => b"Connection: keep-alive\r\n\r\n",
            Persistence::Close => b"Connection: close\r\n\r\n",
            Persistence::Upgrade => b"Connection: upgrade\r\n\r\n",
        });
    }
}

/// Changes the field lines of the head that begins at `start` and does not have its final empty line yet.
fn change_head(bytes: &mut Vec<u8>, start: usize, change: &FieldChange) {
    let FieldChange { action, name, value } = change;
    let mut at = start;
    // The status line cannot match a field name, because it contains a slash.
    while at < bytes.len() {
        let end = memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |length| at + length + 1);
        let line = &bytes[at..end];
        let is_it = line.get(name.len()) == Some(&b':') && line[..name.len()].eq_ignore_ascii_case(name.as_bytes());
        match action {
            FieldAction::Set if is_it => {
                bytes.drain(at..end);
                continue;
            }
            FieldAction::Default if is_it => return,
            _ => {}
        }
        at = end;
    }
    if !value.is_empty() {
        for piece in [name.as_bytes(), b": ", value, b"\r\n"] {
            bytes.extend_from_slice(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_heads() {
        const BEFORE: &str = "HTTP/1.1 200 OK\r\nX-A: of the response before\r\n\r\nX-A: content\r\n";
        const HEAD: &str = "HTTP/1.1 200 OK\r\nDate: now\r\nX-A: 1\r\nX-AB: 2\r\nx-a: 3\r\nETag: \"X-A: 4\"\r\n";
        let check = |action: FieldAction, name: &str, value: &str, expect: &str| {
            let mut bytes = format!("{BEFORE}{HEAD}").into_bytes();
            let change = FieldChange { action, name: name.into(), value: value.into() };
            change_head(&mut bytes, BEFORE.len(), &change);
            assert_eq!(String::from_utf8(bytes).unwrap(), format!("{BEFORE}{expect}"), "{action:?} {name} {value}");
        };
        let without = "HTTP/1.1 200 OK\r\nDate: now\r\nX-AB: 2\r\nETag: \"X-A: 4\"\r\n";
        check(FieldAction::Set, "X-A", "", without);
        check(FieldAction::Set, "x-A", "5", &format!("{without}x-A: 5\r\n"));
        check(FieldAction::Set, "X", "", HEAD);
        check(FieldAction::Set, "HTTP", "", HEAD);
        check(FieldAction::Add, "X-A", "5", &format!("{HEAD}X-A: 5\r\n"));
        check(FieldAction::Add, "X-A", "", HEAD);
        check(FieldAction::Default, "x-ab", "5", HEAD);
        check(FieldAction::Default, "X-B", "5", &format!("{HEAD}X-B: 5\r\n"));
        check(FieldAction::Set, "ETag", "", "HTTP/1.1 200 OK\r\nDate: now\r\nX-A: 1\r\nX-AB: 2\r\nx-a: 3\r\n");
    }
}
