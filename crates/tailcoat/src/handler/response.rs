use std::borrow::Cow;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll};

use bytes::Bytes;
use wire::http::{ContentCoding, Fields, Status};

use crate::config::FieldAction;
use crate::object_cache::{CachedObject, OpenFile};

/// An answer, in no version's form yet. For HEAD it is the same as for GET: the connection leaves out the content.
pub enum Response {
    /// An object of the cache, whose encoded form is sent as it is: the hot path.
    Cached {
        /// The worker's own reference, so that counting references touches no other core's memory.
        object: Rc<CachedObject>,
        /// Which of the object's representations: see [`Object::representation`](crate::object_cache::Object::representation).
        coding: ContentCoding,
        /// What of it.
        form: Form,
    },
    /// The same, with changes of its fields.
    Changed(Box<ChangedResponse>),
    /// Anything else.
    Built(Box<BuiltResponse>),
}

impl Response {
    /// Takes the way to another server out, if the answer is a change of protocols.
    pub fn take_tunnel(&mut self) -> Option<Tunnel> {
        let Self::Built(response) = self else { return None };
        response.forwarded.as_mut()?.tunnel.take()
    }
}

/// An object of the cache, with changes of its fields: see [`Response::Cached`].
pub struct ChangedResponse {
    /// The object.
    pub object: Rc<CachedObject>,
    /// Which of its representations.
    pub coding: ContentCoding,
    /// What of it.
    pub form: Form,
    /// What is changed, in order.
    pub changes: Vec<FieldChange>,
}

/// A change of a message's fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChange {
    /// What is done.
    pub action: FieldAction,
    /// Name of the field.
    pub name: String,
    /// Its value, without CR, LF and NUL. If it is empty, there is no such line.
    pub value: Vec<u8>,
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
    /// Its fields, without Connection, Content-Length and Transfer-Encoding, which the connection adds. It also adds Date
    /// and Server, unless another server's are there.
    pub fields: Fields,
    /// Its content. An error without content gets the site's error page, unless another server made it.
    pub body: Body,
    /// What another server said that made it.
    pub forwarded: Option<Box<Forwarded>>,
    /// Why the request was refused, for the server's log and nobody else; empty if its status says it all.
    pub reason: &'static str,
}

/// What is kept of another server's response besides status, fields and content.
#[derive(Debug, Default)]
pub struct Forwarded {
    /// The reason phrase, where versions have one.
    pub reason: Cow<'static, [u8]>,
    /// The Content-Length of a response without content, which tells that of another (HEAD, 304; RFC 9110, section 8.6).
    pub content_length: Option<u64>,
    /// Where a script sends the request on to: a path of the site, and a query perhaps (RFC 3875, section 6.2.2).
    pub local_redirect: Option<Vec<u8>>,
    /// How often that may happen.
    pub local_redirects_max: u32,
    /// The way to the other server after 101 (Switching Protocols): the connection becomes a tunnel.
    pub tunnel: Option<Tunnel>,
}

impl Response {
    /// Where a script sends the request on to, and how often that may happen.
    pub fn local_redirect(&self) -> Option<(&[u8], u32)> {
        let Self::Built(response) = self else { return None };
        let forwarded = response.forwarded.as_ref()?;
        Some((forwarded.local_redirect.as_deref()?, forwarded.local_redirects_max))
    }
}

impl BuiltResponse {
    /// An answer with this status and nothing else.
    pub fn new(status: Status) -> Box<Self> {
        Self::with_fields(status, Fields::new(), Body::default())
    }

    /// A refusal with this status, and why.
    pub fn refusal(status: Status, reason: &'static str) -> Box<Self> {
        let mut response = Self::new(status);
        response.reason = reason;
        response
    }

    /// An answer of ours.
    pub fn with_fields(status: Status, fields: Fields, body: Body) -> Box<Self> {
        Box::new(Self { status, fields, body, forwarded: None, reason: "" })
    }
}

/// Content: pieces that are sent one after the other. The connection knows how to send each kind best.
#[derive(Debug, Default)]
pub struct Body {
    /// The pieces that are there, in order.
    pub segments: Vec<Segment>,
    /// What comes after them.
    pub stream: Option<ContentStream>,
}

impl Body {
    /// Content from memory.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Self {
        Self::from_segments(vec![Segment::Bytes(bytes.into())])
    }

    /// Content from these pieces.
    pub fn from_segments(segments: Vec<Segment>) -> Self {
        Self { segments, stream: None }
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.stream.is_none()
    }

    /// Length in bytes; `None` if it is not known before the end.
    pub fn length(&self) -> Option<u64> {
        let streamed = self.stream.as_ref().map_or(Some(0), |stream| stream.length)?;
        Some(streamed + self.segments.iter().map(Segment::length).sum::<u64>())
    }
}

/// Content that comes while it is sent.
pub struct ContentStream {
    /// Where it comes from.
    pub source: Box<dyn ContentSource>,
    /// Its length in bytes, if that is known. The source never gives more; if it gives less, the connection is closed.
    pub length: Option<u64>,
}

impl fmt::Debug for ContentStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContentStream").field("length", &self.length).finish_non_exhaustive()
    }
}

/// A source of content, asked for more when the client has taken what there was.
pub trait ContentSource {
    /// Puts content at the beginning of `buffer` (which is not empty), or says that there is no more.
    ///
    /// # Errors
    /// The content can't be completed: the connection is closed, so that what was sent does not look whole.
    fn poll_fill(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<Filled>>;

    /// Takes note that the client takes nothing now, so that the source may read ahead on its behalf. Wakes the task when
    /// it should be called again.
    fn poll_ahead(&mut self, _task: &mut Task<'_>) {}
}

/// What a [`ContentSource`] gave.
#[derive(Debug)]
pub enum Filled {
    /// So many bytes, at least one.
    Content(usize),
    /// The end, and trailer fields.
    End(Option<Box<Fields>>),
}

/// The way to a server that speaks another protocol from now on (RFC 9110, section 7.8).
pub struct Tunnel {
    /// Bytes go both ways.
    pub stream: Box<dyn TunnelStream>,
    /// What the server has already sent.
    pub early: Vec<u8>,
    /// How long it may be silent both ways.
    pub idle_timeout_ms: u64,
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel").field("early", &self.early.len()).finish_non_exhaustive()
    }
}

/// A stream of bytes both ways.
pub trait TunnelStream {
    /// Reads what has come into `buffer`; 0 is the end.
    fn poll_read(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Sends what is taken of `bytes`.
    fn poll_write(&mut self, task: &mut Task<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Says that nothing more will be sent.
    fn poll_shutdown(&mut self, task: &mut Task<'_>) -> Poll<io::Result<()>>;
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

    /// Bytes of memory that only this piece keeps, such as content that a module has made. Cached content has its own limit.
    pub fn own_bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) if bytes.is_unique() => bytes.len(),
            Self::Bytes(_) | Self::File { .. } => 0,
        }
    }
}
