//! Responses in the form of HTTP/1, gathered in the thread's output buffer.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

use wire::h1::{DATE_BYTES, write_head};
use wire::http::Status;
use wire::http::range::write_content_range;

use crate::handler::{BuiltResponse, Form, Response, Segment};
use crate::object_cache::{Content, Representation};

/// Content in memory up to this size is copied behind its head, so that one plain write sends both and several responses
/// share it; larger content is sent from where it is.
const COPY_BYTES_MAX: usize = 16 << 10;

/// When this much is gathered, it is sent before the next request is answered.
const GATHER_BYTES_MAX: usize = 64 << 10;

/// Bytes to send, and content to send behind them.
#[derive(Debug, Default)]
pub struct Output {
    /// Heads and small content.
    pub bytes: Vec<u8>,
    /// Content that is sent from where it is, after `bytes`.
    pub tail: VecDeque<Segment>,
}

/// What a response says about the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistence {
    /// Another request may follow.
    Persistent,
    /// The same, to a client of HTTP/1.0, which has to be told.
    PersistentHttp10,
    /// This is the last response.
    Close,
}

/// What the encoder needs to know besides the response.
#[derive(Clone, Copy, Debug)]
pub struct Manner<'a> {
    /// The text of the Date field.
    pub date: &'a [u8; DATE_BYTES],
    /// The Connection field.
    pub persistence: Persistence,
    /// The request was HEAD: no content is sent.
    pub is_head: bool,
    /// Whether there is a Server field.
    pub server_field: bool,
}

impl Output {
    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.tail.is_empty()
    }

    /// Drops what has not been sent.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.tail.clear();
    }

    /// Whether it should be sent before anything is added.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= GATHER_BYTES_MAX || !self.tail.is_empty()
    }

    /// Adds a response. Returns its status and the length of the content that is sent.
    pub fn write_response(&mut self, response: Response, manner: Manner<'_>) -> (Status, u64) {
        match response {
            Response::Cached { object, coding, form } => {
                self.write_representation(object.object.representation(coding), form, manner)
            }
            Response::Built(response) => (response.status, self.write_built(*response, manner)),
        }
    }

    fn write_representation(
        &mut self,
        representation: &Representation,
        form: Form,
        manner: Manner<'_>,
    ) -> (Status, u64) {
        let complete_length = representation.content.length();
        let (status, offset, length) = match form {
            Form::Whole => {
                representation.head.write(manner.date, &mut self.bytes);
                (Status::OK, 0, complete_length)
            }
            Form::NotModified => {
                representation.not_modified_head.write(manner.date, &mut self.bytes);
                (Status::NOT_MODIFIED, 0, 0)
            }
            Form::Part { offset, length } => {
                representation.partial_head.write(manner.date, &mut self.bytes);
                self.bytes.extend_from_slice(b"Content-Range: ");
                write_content_range(&(offset..offset + length), complete_length, &mut self.bytes);
                // Writing to a vector does not fail.
                let _ = write!(self.bytes, "\r\nContent-Length: {length}\r\n");
                (Status::PARTIAL_CONTENT, offset, length)
            }
        };
        self.end_head(manner.persistence);
        if manner.is_head || length == 0 {
            return (status, 0);
        }
        match &representation.content {
            Content::Memory(content) => {
                let range = offset as usize..(offset + length) as usize;
                if range.len() <= COPY_BYTES_MAX {
                    // The hot path: a copy, without a reference to the content that all workers share.
                    self.bytes.extend_from_slice(&content[range]);
                } else {
                    self.tail.push_back(Segment::Bytes(content.slice(range)));
                }
            }
            Content::File(file) => self.tail.push_back(Segment::File { file: Arc::clone(file), offset, length }),
        }
        (status, length)
    }

    fn write_built(&mut self, mut response: BuiltResponse, manner: Manner<'_>) -> u64 {
        if manner.server_field {
            response.fields.push("Server", SERVER);
        }
        let length = response.body.length();
        if !response.status.has_no_content() {
            response.fields.push("Content-Length", length.to_string());
        }
        write_head(&mut self.bytes, response.status, manner.date, &response.fields);
        self.end_head(manner.persistence);
        if manner.is_head || response.status.has_no_content() {
            return 0;
        }
        response.body.segments.into_iter().for_each(|segment| self.write_content(segment));
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
        });
    }
}

/// The value of the Server field.
pub const SERVER: &str = "tailcoat";
