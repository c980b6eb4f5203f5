use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use wire::http::{Coding, Fields, Status};

use crate::object_cache::{CachedObject, OpenFile};

/// An answer, in no version's form yet. For HEAD it is the same as for GET: the connection leaves out the content.
pub enum Response {
    /// An object of the cache, whose encoded form is sent as it is: the hot path.
    Cached {
        /// The worker's own reference, so that counting references touches no other core's memory.
        object: Rc<CachedObject>,
        /// Which of the object's representations: see [`Object::representation`](crate::object_cache::Object::representation).
        coding: Coding,
        /// What of it.
        form: Form,
    },
    /// Anything else.
    Built(Box<BuiltResponse>),
}

/// What of a representation is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// 200 with the whole content: `head`.
    Whole,
    /// 304: `not_modified_head`.
    NotModified,
    /// 206 with one range of the content, never empty: `partial_head`, to which the connection adds Content-Range (see
    /// [`wire::http::range::write_content_range`]) and Content-Length.
    Part {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
}

/// An answer built for one request.
#[derive(Debug)]
pub struct BuiltResponse {
    /// Its status.
    pub status: Status,
    /// Its fields, without Date, Server, Connection, Content-Length and Transfer-Encoding, which the connection adds.
    pub fields: Fields,
    /// Its content. An error without content gets the site's error page.
    pub body: Body,
}

impl BuiltResponse {
    /// An answer with this status and nothing else.
    pub fn new(status: Status) -> Box<Self> {
        Box::new(Self { status, fields: Fields::new(), body: Body::default() })
    }
}

/// Content: pieces that are sent one after the other. The connection knows how to send each kind best.
#[derive(Clone, Debug, Default)]
pub struct Body {
    /// The pieces, in order.
    pub segments: Vec<Segment>,
}

impl Body {
    /// Content from memory.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Self {
        Self { segments: vec![Segment::Bytes(bytes.into())] }
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.segments.iter().map(Segment::length).sum()
    }
}

/// A piece of content.
#[derive(Clone, Debug)]
pub enum Segment {
    /// Bytes in memory.
    Bytes(Bytes),
    /// A part of an open file. If the file turns out shorter, or changed since it was opened, the connection is closed
    /// before the response is complete.
    File {
        /// The file, as it was when it was opened.
        file: Arc<OpenFile>,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
}

impl Segment {
    /// Length in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { length, .. } => *length,
        }
    }
}
