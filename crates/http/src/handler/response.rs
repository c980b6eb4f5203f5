use std::borrow::Cow;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};

use bytes::Bytes;
use wire::http::{ContentCoding, Fields, Status};

use crate::config::{FieldAction, ResponseCompression};
use crate::object_cache::{CachedObject, ObjectContent, OpenFile};
use crate::upstream::StickyField;

/// A response in no HTTP version's form yet. For HEAD it is the same as for GET: the connection leaves out the
/// content.
pub enum Response {
    /// Cached object whose encoded form is sent unchanged: the hot path.
    Cached {
        /// The worker's own reference: counting it touches no other core's memory.
        object: Rc<CachedObject>,
        /// Representation of the object: see [`Object::representation`](crate::object_cache::Object::representation).
        coding: ContentCoding,
        /// Form of the representation to send.
        form: Form,
    },
    /// Cached object with changed fields.
    Changed(Box<ChangedResponse>),
    /// Any other response.
    Built(Box<BuiltResponse>),
}

impl Response {
    /// Status of the response.
    pub fn status(&self) -> Status {
        let (object, coding, form) = match self {
            Self::Built(response) => return response.status,
            Self::Cached { object, coding, form } => (object, *coding, form),
            Self::Changed(changed) => (&changed.object, changed.coding, &changed.form),
        };
        match form {
            Form::Whole => object.object.representation(coding).status,
            Form::NotModified => Status::NOT_MODIFIED,
            Form::Part { .. } => Status::PARTIAL_CONTENT,
        }
    }

    /// Value of a field; lines of the same name are joined with commas (RFC 9110, section 5.2). Empty if there is none.
    pub fn field(&self, name: &[u8]) -> Cow<'_, [u8]> {
        let (object, coding, form) = match self {
            Self::Built(response) => {
                let lines = response.fields.iter().filter(|(own, _)| own.eq_ignore_ascii_case(name));
                return joined(lines.map(|(_, value)| value));
            }
            Self::Cached { object, coding, form } => (object, *coding, form),
            Self::Changed(changed) => (&changed.object, changed.coding, &changed.form),
        };
        let head = match form {
            Form::Whole => &object.object.representation(coding).head,
            Form::NotModified => &object.object.complete_representation(coding).not_modified_head,
            Form::Part { .. } => &object.object.complete_representation(coding).partial_head,
        };
        joined(head.h1.values(name))
    }

    /// End of the connection in place of this response.
    #[inline]
    pub fn ending(&self) -> ResponseEnding {
        match self {
            Self::Built(response) => response.ending,
            Self::Cached { .. } | Self::Changed(_) => ResponseEnding::Normal,
        }
    }

    /// Takes the tunnel out of a response that switches protocols.
    pub fn take_tunnel(&mut self) -> Option<Tunnel> {
        let Self::Built(response) = self else { return None };
        response.forwarded.as_mut()?.tunnel.take()
    }
}

/// Joins the values of a field's lines.
fn joined<'v>(mut values: impl Iterator<Item = &'v [u8]>) -> Cow<'v, [u8]> {
    let first = values.next().unwrap_or_default();
    match values.next() {
        None => Cow::Borrowed(first),
        Some(second) => Cow::Owned([first, second].into_iter().chain(values).collect::<Vec<_>>().join(&b", "[..])),
    }
}

/// A cached object with changed fields: see [`Response::Cached`].
pub struct ChangedResponse {
    /// Cached object.
    pub object: Rc<CachedObject>,
    /// Representation of the object.
    pub coding: ContentCoding,
    /// Form of the representation to send.
    pub form: Form,
    /// Changes, in order.
    pub changes: Vec<FieldChange>,
}

/// A change of a message's fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldChange {
    /// Kind of change.
    pub action: FieldAction,
    /// Name of the field.
    pub name: String,
    /// Value without CR, LF and NUL. If it is empty, no line is written.
    pub value: Vec<u8>,
}

/// Form in which a representation is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// 200 with the whole content: `head`.
    Whole,
    /// 304: `not_modified_head`.
    NotModified,
    /// 206 with one range of the content, never empty: `partial_head`. The connection adds Content-Range (see
    /// [`wire::http::range::write_content_range`]) and Content-Length.
    Part {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
}

/// A response built for one request.
#[derive(Debug)]
pub struct BuiltResponse {
    /// Status code.
    pub status: Status,
    /// Fields without Connection, Content-Length and Transfer-Encoding, which the connection adds. The connection
    /// also adds Date and Server, unless an upstream has sent them.
    pub fields: Fields,
    /// Content. An error without content gets the site's error page, unless an upstream has sent it.
    pub body: Body,
    /// Further parts of an upstream's response; `None` for one of our own.
    pub forwarded: Option<Box<Forwarded>>,
    /// Reason for a rejection, for the server log only; empty if the status explains itself.
    pub reason: &'static str,
    /// Compression of the content, if the client accepts it; `None` if it is sent as it is.
    pub compression: Option<ResponseCompression>,
    /// End of the connection in place of this response.
    pub ending: ResponseEnding,
}

/// End of a connection in place of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseEnding {
    /// The response is sent.
    #[default]
    Normal,
    /// The connection is closed without a response.
    Close,
    /// The connection is kept without a response.
    Tarpit,
}

/// Parts of an upstream's response in addition to status, fields and content.
#[derive(Debug, Default)]
pub struct Forwarded {
    /// Reason phrase, for HTTP versions that have one.
    pub reason: Cow<'static, [u8]>,
    /// Content-Length of a response without content, which declares another one's length (HEAD, 304; RFC 9110,
    /// section 8.6).
    pub content_length: Option<u64>,
    /// Local redirect of a script: a path of the site, perhaps with a query (RFC 3875, section 6.2.2).
    pub local_redirect: Option<Vec<u8>>,
    /// Most local redirects for one request.
    pub local_redirects_max: u32,
    /// Header field of this server for the client alone, which no cache may store.
    pub own_field: Option<StickyField>,
    /// Internal redirect of an upstream.
    pub internal_redirect: Option<Box<InternalRedirect>>,
    /// Stream to the upstream after 101 (Switching Protocols): the connection becomes a tunnel.
    pub tunnel: Option<Tunnel>,
}

/// Redirect to a path of the site that the client does not see: `X-Accel-Redirect` or `X-Sendfile`.
#[derive(Debug)]
pub struct InternalRedirect {
    /// Path, percent-encoded, perhaps with a query.
    pub target: Vec<u8>,
    /// Fields of the upstream's response that the client's response gets.
    pub fields: Vec<FieldChange>,
}

/// Most internal redirects of upstreams for one request.
const INTERNAL_REDIRECTS_MAX: u32 = 10;

impl Response {
    /// Word of the access log for an upstream response from the cache, by its tier; empty for others.
    pub fn hit(&self) -> &'static str {
        let object = match self {
            Self::Cached { object, .. } => &object.object,
            Self::Changed(changed) => &changed.object.object,
            Self::Built(_) => return "",
        };
        match (object.response(), &object.identity().content) {
            (None, _) => "",
            (Some(_), ObjectContent::Memory(_)) => "hit",
            (Some(_), ObjectContent::File(_)) => "disk-hit",
        }
    }

    /// Target of a script's local redirect or an upstream's internal redirect, and the most such redirects for one
    /// request.
    pub fn local_redirect(&self) -> Option<(&[u8], u32)> {
        let Self::Built(response) = self else { return None };
        let forwarded = response.forwarded.as_ref()?;
        match &forwarded.internal_redirect {
            Some(redirect) => Some((&redirect.target, INTERNAL_REDIRECTS_MAX)),
            None => Some((forwarded.local_redirect.as_deref()?, forwarded.local_redirects_max)),
        }
    }

    /// True if an upstream redirects internally, as opposed to a script's local redirect.
    pub fn is_internal_redirect(&self) -> bool {
        let Self::Built(response) = self else { return false };
        response.forwarded.as_ref().is_some_and(|forwarded| forwarded.internal_redirect.is_some())
    }

    /// Fields that an internal redirect adds to the response of its target.
    pub fn redirected_fields(self) -> Vec<FieldChange> {
        let Self::Built(response) = self else { return Vec::new() };
        let redirect = response.forwarded.and_then(|forwarded| forwarded.internal_redirect);
        redirect.map_or_else(Vec::new, |redirect| redirect.fields)
    }

    /// Applies changes of its fields.
    pub fn with_changes(self, changes: Vec<FieldChange>) -> Self {
        match self {
            Self::Built(mut response) => {
                change_fields(&mut response.fields, &changes);
                Self::Built(response)
            }
            Self::Cached { object, coding, form } => {
                Self::Changed(Box::new(ChangedResponse { object, coding, form, changes }))
            }
            Self::Changed(mut changed) => {
                changed.changes.extend(changes);
                Self::Changed(changed)
            }
        }
    }
}

/// Applies changes to fields that are not encoded yet.
pub fn change_fields(fields: &mut Fields, changes: &[FieldChange]) {
    for FieldChange { action, name, value } in changes {
        match action {
            FieldAction::Set => {
                fields.set(name, value);
            }
            FieldAction::Default if fields.has(name) => {}
            FieldAction::Add | FieldAction::Default => {
                if !value.is_empty() {
                    fields.push(name, value);
                }
            }
        }
    }
}

impl BuiltResponse {
    /// Builds a response with this status and nothing else.
    pub fn new(status: Status) -> Box<Self> {
        Self::with_fields(status, Fields::new(), Body::default())
    }

    /// Builds a rejection with this status and a reason for the log.
    pub fn rejection(status: Status, reason: &'static str) -> Box<Self> {
        // Room for the fields of an error page.
        let mut response = Self::with_fields(status, Fields::with_capacity(64, 2), Body::default());
        response.reason = reason;
        response
    }

    /// Adds the field that is for the client alone. A cache calls it after it has taken what it stores.
    pub fn add_own_field(&mut self) {
        if let Some(field) = self.forwarded.as_mut().and_then(|forwarded| forwarded.own_field.take()) {
            self.fields.push(field.name, field.value);
        }
    }

    /// Builds a response of our own.
    pub fn with_fields(status: Status, fields: Fields, body: Body) -> Box<Self> {
        Box::new(Self {
            status,
            fields,
            body,
            forwarded: None,
            reason: "",
            compression: None,
            ending: ResponseEnding::Normal,
        })
    }
}

/// Content: pieces that are sent in order. The connection knows how to send each kind best.
#[derive(Debug, Default)]
pub struct Body {
    /// Available pieces, in order.
    pub segments: Vec<Segment>,
    /// Stream that follows the pieces.
    pub stream: Option<ContentStream>,
}

impl Body {
    /// Builds content from memory.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Self {
        Self::from_segments(vec![Segment::Bytes(bytes.into())])
    }

    /// Builds content from these pieces.
    pub fn from_segments(segments: Vec<Segment>) -> Self {
        Self { segments, stream: None }
    }

    /// True if there is no content.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.stream.is_none()
    }

    /// Length in bytes; `None` if it is unknown until the end.
    pub fn length(&self) -> Option<u64> {
        let streamed = self.stream.as_ref().map_or(Some(0), |stream| stream.length)?;
        Some(streamed + self.segments.iter().map(Segment::length).sum::<u64>())
    }
}

/// Content that is produced while it is sent.
pub struct ContentStream {
    /// Source of the content.
    pub source: Box<dyn ContentSource>,
    /// Length in bytes, if it is known. The source never gives more; if it gives less, the connection is closed.
    pub length: Option<u64>,
}

impl ContentStream {
    /// Appends content to `input`, at most this many bytes, or reports the end.
    ///
    /// # Errors
    /// The content can't be completed, or is not as long as declared.
    pub(crate) fn poll_append(
        &mut self,
        task: &mut Task<'_>,
        input: &mut Vec<u8>,
        bytes_max: usize,
    ) -> Poll<io::Result<Filled>> {
        let start = input.len();
        input.resize(start + bytes_max, 0);
        let polled = self.source.poll_fill(task, &mut input[start..]);
        let count = match &polled {
            Poll::Ready(Ok(Filled::Content(count))) => *count,
            _ => 0,
        };
        input.truncate(start + count);
        let filled = ready!(polled)?;
        match &filled {
            Filled::Content(count) => {
                if let Some(remaining) = &mut self.length {
                    *remaining = remaining.checked_sub(*count as u64).ok_or(io::ErrorKind::InvalidData)?;
                }
            }
            Filled::End(_) if matches!(self.length, Some(1..)) => {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            Filled::End(_) => {}
        }
        Poll::Ready(Ok(filled))
    }
}

impl fmt::Debug for ContentStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContentStream").field("length", &self.length).finish_non_exhaustive()
    }
}

/// Content that a source has made and the client has not received yet.
#[derive(Default)]
pub(crate) struct ProducedContent {
    /// Content; empty if the client has received all.
    pub(crate) bytes: Vec<u8>,
    sent: usize,
}

impl ProducedContent {
    /// Moves content to the beginning of `buffer`; returns its length, 0 if there is none.
    pub(crate) fn take(&mut self, buffer: &mut [u8]) -> usize {
        let count = (self.bytes.len() - self.sent).min(buffer.len());
        buffer[..count].copy_from_slice(&self.bytes[self.sent..self.sent + count]);
        self.sent += count;
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        }
        count
    }
}

/// A source of content, polled when the client has taken what it had.
pub trait ContentSource {
    /// Writes content to the beginning of `buffer` (never empty), or reports the end.
    ///
    /// # Errors
    /// The content can't be completed: the connection is closed, so that it does not look complete.
    fn poll_fill(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<Filled>>;

    /// Reports that the client reads nothing now, so that the source may read ahead. The source wakes the task when
    /// it should be called again.
    fn poll_ahead(&mut self, _task: &mut Task<'_>) {}
}

/// Result of [`ContentSource::poll_fill`].
#[derive(Debug)]
pub enum Filled {
    /// This many bytes, at least one.
    Content(usize),
    /// The end, with trailer fields if there are any.
    End(Option<Box<Fields>>),
}

/// Connection to an upstream that now speaks another protocol (RFC 9110, section 7.8).
pub struct Tunnel {
    /// Stream to the upstream.
    pub stream: Box<dyn TunnelStream>,
    /// Bytes that the server has already sent.
    pub early: Vec<u8>,
    /// Time without bytes in either direction after which the tunnel closes, in milliseconds.
    pub idle_timeout_ms: u64,
}

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel").field("early", &self.early.len()).finish_non_exhaustive()
    }
}

/// A byte stream in both directions.
pub trait TunnelStream {
    /// Reads received bytes into `buffer`; 0 is the end.
    fn poll_read(&mut self, task: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Writes as much of `bytes` as the stream accepts.
    fn poll_write(&mut self, task: &mut Task<'_>, bytes: &[u8]) -> Poll<io::Result<usize>>;

    /// Ends the sending side.
    fn poll_shutdown(&mut self, task: &mut Task<'_>) -> Poll<io::Result<()>>;
}

/// A piece of content.
#[derive(Clone, Debug)]
pub enum Segment {
    /// Bytes in memory.
    Bytes(Bytes),
    /// A part of an open file. If the file is shorter or has changed since it was opened, the connection is closed
    /// before the response is complete.
    File {
        /// File as it was when it was opened.
        file: Arc<OpenFile>,
        /// Offset of the first byte.
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

    /// Bytes of memory that only this piece keeps, such as a module's content. Cached content has its own limit.
    pub fn own_bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) if bytes.is_unique() => bytes.len(),
            Self::Bytes(_) | Self::File { .. } => 0,
        }
    }
}
