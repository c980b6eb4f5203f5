//! Compression of responses that handlers build for one request, or keep in a response cache.
//!
//! A handler marks a response with its settings; [`Encoders::encode`] compresses it after all filters have seen it.
//! Short content, and the beginning of long content, is compressed by the worker, the rest by threads. A stored
//! response is compressed once for each coding.

mod encoder;
mod head;
mod stream;
mod thread;

use std::borrow::Cow;
use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Semaphore;
use wire::http::negotiation::CodingWeights;
use wire::http::{ContentCoding, Fields, KnownField, Method, Request, Status, Version};

use self::encoder::{ContentEncoder, encode_whole};
pub(super) use self::head::{add_coding, add_vary, is_compressed};
use self::stream::CompressedContent;
pub(super) use self::thread::in_thread;
use super::part::without_content_fields;
use super::{Body, BuiltResponse, ContentStream, Form, Response, Routed, Segment};
use crate::config::{CompressionLevel, ResponseCompression};
use crate::memory_budget::Charge;
use crate::object_cache::{
    CachedObject, EncodedHead, LateHeads, Object, ObjectContent, ObjectStore, OpenFile, Representation,
};

/// Codings in order of preference: for content that is compressed for each client, CPU time counts most.
const CODINGS: [ContentCoding; 4] =
    [ContentCoding::Zstd, ContentCoding::Brotli, ContentCoding::Gzip, ContentCoding::Identity];

/// Bytes of a response that the worker compresses itself: about a millisecond.
const WORKER_BYTES_MAX: usize = 64 << 10;

/// Unused encoders that a worker keeps.
const IDLE_MAX: usize = 2;

/// Encoders of a worker.
pub struct Encoders {
    idle: RefCell<Vec<ContentEncoder>>,
    worker_bytes_max: usize,
    /// Permits of threads that compress.
    permits: Arc<Semaphore>,
    /// Store of the responses that are kept; `None` in tests.
    store: Option<Arc<ObjectStore>>,
}

/// A response that waits for its stored content to be compressed.
pub type EncodingFuture = Pin<Box<dyn Future<Output = Response>>>;

impl Encoders {
    /// Creates the encoders of a worker with this store.
    pub fn new(store: &Arc<ObjectStore>) -> Self {
        Self { permits: Arc::clone(store.compressions()), store: Some(Arc::clone(store)), ..Self::without_store() }
    }

    /// Creates encoders that keep no stored response in another coding.
    pub fn without_store() -> Self {
        Self {
            idle: RefCell::default(),
            worker_bytes_max: WORKER_BYTES_MAX,
            permits: Arc::new(Semaphore::new(1)),
            store: None,
        }
    }

    /// Compresses a response if its handler has marked it, its content is worth it, and the client accepts a coding.
    ///
    /// # Errors
    /// The response is stored, but not in this coding. The future compresses it.
    #[inline]
    pub fn encode(self: &Rc<Self>, mut response: Response, routed: &Routed<'_>) -> Result<Response, EncodingFuture> {
        match &mut response {
            Response::Built(built) => {
                if let Some(settings) = built.compression.take() {
                    self.encode_built(built, settings, routed);
                }
                Ok(response)
            }
            Response::Cached { object, coding: ContentCoding::Identity, form }
                if object.object.response().is_some() =>
            {
                match self.encode_stored(object, *form, &routed.request) {
                    None => Ok(response),
                    Some(encoded) => encoded,
                }
            }
            Response::Cached { .. } | Response::Changed(_) => Ok(response),
        }
    }

    fn encode_built(self: &Rc<Self>, response: &mut BuiltResponse, settings: ResponseCompression, routed: &Routed<'_>) {
        let is_head = routed.request.method() == Method::Head;
        let length = match &response.forwarded {
            Some(forwarded) if is_head => forwarded.content_length,
            _ => response.body.length(),
        };
        let is_in_memory = response.body.segments.iter().all(|segment| matches!(segment, Segment::Bytes(_)));
        if !is_in_memory || !is_compressed(response.status, &response.fields, length, &settings) {
            return;
        }
        add_vary(&mut response.fields);
        let coding = choose(&routed.request);
        // Without chunks, the end of the connection would end the content.
        let is_delimited = routed.request.head.version >= Version::Http11 || response.body.stream.is_none();
        if coding == ContentCoding::Identity || !is_delimited {
            return;
        }
        if is_head {
            // The head is that of GET, whose length is not known before.
            if let Some(forwarded) = &mut response.forwarded {
                forwarded.content_length = None;
                add_coding(&mut response.fields, coding);
            }
            return;
        }
        let Ok(mut encoder) = self.take(coding, settings.level) else { return };
        match length {
            Some(length) if response.body.stream.is_none() && length <= self.worker_bytes_max as u64 => {
                let encoded = encode_segments(&mut encoder, &response.body.segments);
                let Ok(encoded) = encoded else { return };
                self.put(encoder);
                if encoded.len() as u64 >= length {
                    return;
                }
                response.body = Body::from_bytes(encoded);
            }
            _ => {
                let Body { segments, stream } = std::mem::take(&mut response.body);
                let charge = charge(&encoder, routed);
                let content = CompressedContent::new(self, encoder, joined(segments), stream, charge);
                response.body.stream = Some(ContentStream { source: Box::new(content), length: None });
            }
        }
        add_coding(&mut response.fields, coding);
    }

    /// Chooses the coding of a stored response; `None` if it is sent without.
    fn encode_stored(
        self: &Rc<Self>,
        object: &Rc<CachedObject>,
        form: Form,
        request: &Request<'_>,
    ) -> Option<Result<Response, EncodingFuture>> {
        let codings = object.object.codings()?;
        let is_part = matches!(form, Form::Part { .. });
        let coding = if is_part { ContentCoding::Identity } else { choose(request) };
        match codings.cell(coding)?.get() {
            Some(Some(_)) => Some(Ok(Response::Cached { object: Rc::clone(object), coding, form })),
            Some(None) => None,
            None => {
                let (encoders, object) = (Rc::clone(self), Rc::clone(object));
                Some(Err(Box::pin(async move {
                    encoders.make(&object.object, coding).await;
                    let is_made = object.object.representation(coding).coding == coding;
                    let coding = if is_made { coding } else { ContentCoding::Identity };
                    Response::Cached { object, coding, form }
                })))
            }
        }
    }

    /// Compresses a stored response, unless that is not worth it, or all threads that compress are busy.
    async fn make(self: &Rc<Self>, object: &Arc<Object>, coding: ContentCoding) {
        let Some(store) = self.store.clone() else { return };
        let (permits, object) = (Arc::clone(&self.permits), Arc::clone(object));
        let worker_bytes_max = self.worker_bytes_max as u64;
        // A task of its own: if this client leaves, the result is kept for the next one.
        let making = tokio::spawn(async move {
            let Some(cell) = object.codings().and_then(|codings| codings.cell(coding)) else { return };
            let made = cell.get_or_try_init(async || {
                let (source, memory) = (Arc::clone(&object), Arc::clone(&store));
                let work = move || represent(&source, coding, &memory);
                let is_in_memory = matches!(object.identity().content, ObjectContent::Memory(_));
                if is_in_memory && object.identity().content.length() <= worker_bytes_max {
                    return work();
                }
                let Ok(_permit) = permits.try_acquire() else { return Err(NotNow) };
                in_thread(work).await.unwrap_or(Err(NotNow))
            });
            if let Ok(Some(_)) = made.await {
                store.recount(&object);
            }
        });
        // An error is a panic; then there is no coding.
        let _ = making.await;
    }

    /// Runs work that compresses in a thread, as soon as one is free. `None` if that fails.
    fn away<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Option<T>> + 'static {
        let permits = Arc::clone(&self.permits);
        async move {
            let _permit = permits.acquire_owned().await.ok()?;
            in_thread(work).await
        }
    }

    fn take(&self, coding: ContentCoding, level: CompressionLevel) -> io::Result<ContentEncoder> {
        let mut idle = self.idle.borrow_mut();
        match idle.iter().position(|encoder| encoder.is_for(coding, level)) {
            Some(index) => Ok(idle.swap_remove(index)),
            None => ContentEncoder::new(coding, level),
        }
    }

    /// Keeps an encoder for another response.
    fn put(&self, mut encoder: ContentEncoder) {
        if encoder.reset() {
            let mut idle = self.idle.borrow_mut();
            idle.truncate(IDLE_MAX - 1);
            idle.insert(0, encoder);
        }
    }
}

/// Error: the coding can't be made at present.
struct NotNow;

/// Compresses a stored response; `None` if it does not get smaller.
fn represent(
    object: &Object,
    coding: ContentCoding,
    store: &ObjectStore,
) -> Result<Option<Box<Representation>>, NotNow> {
    let (identity, Some(stored)) = (object.identity(), object.response()) else { return Ok(None) };
    let content = match &identity.content {
        ObjectContent::Memory(content) => content,
        ObjectContent::File(file) => {
            let read = file.read_bytes_at(file.content_bytes as usize, 0);
            // Nothing is made of a damaged file.
            &read.ok().filter(|_| file.is_unchanged()).ok_or(NotNow)?
        }
    };
    let encoder = ContentEncoder::new(coding, stored.compression_level);
    let Ok(encoded) = encoder.and_then(|mut encoder| encode_whole(&mut encoder, content)) else { return Ok(None) };
    if encoded.len() >= content.len() {
        return Ok(None);
    }
    let memory_bytes_max = store.limits().memory_bytes_max;
    let Some(encoded) = store.content_memory().hold(encoded.into(), memory_bytes_max) else { return Err(NotNow) };
    let mut fields = stored.fields.clone();
    add_vary(&mut fields);
    add_coding(&mut fields, coding);
    Ok(Some(Box::new(representation(identity.status, coding, &fields, encoded))))
}

/// Builds a representation of a stored response with these fields.
pub(super) fn representation(status: Status, coding: ContentCoding, fields: &Fields, content: Bytes) -> Representation {
    complete_representation(status, coding, fields, ObjectContent::Memory(content))
}

fn complete_representation(
    status: Status,
    coding: ContentCoding,
    fields: &Fields,
    content: ObjectContent,
) -> Representation {
    let whole = whole_fields(status, fields, content.length());
    Representation {
        status,
        coding,
        etag: "".into(),
        head: EncodedHead::new(status, &whole),
        not_modified_head: EncodedHead::new(Status::NOT_MODIFIED, &without_content_fields(fields)),
        partial_head: EncodedHead::new(Status::PARTIAL_CONTENT, fields),
        content,
    }
}

/// Builds the representation of a stored response whose content is in a file. It has the head of a whole response of HTTP/1;
/// [`late_heads`] has the others.
pub(super) fn representation_in_file(status: Status, fields: &Fields, file: Arc<OpenFile>) -> Representation {
    let whole = whole_fields(status, fields, file.content_bytes);
    Representation {
        status,
        coding: ContentCoding::Identity,
        etag: "".into(),
        head: EncodedHead::of_h1(status, &whole),
        not_modified_head: EncodedHead::empty(),
        partial_head: EncodedHead::empty(),
        content: ObjectContent::File(file),
    }
}

/// Heads of a response whose content is in a file.
pub(super) fn late_heads() -> LateHeads {
    LateHeads::new(|object| {
        let (identity, mut fields) = (object.identity(), Cow::Owned(Fields::new()));
        if let Some(response) = object.response() {
            fields = Cow::Borrowed(&response.fields);
        }
        if object.codings().is_some() {
            add_vary(fields.to_mut());
        }
        complete_representation(identity.status, ContentCoding::Identity, &fields, identity.content.clone())
    })
}

/// Fields of a whole response.
fn whole_fields(status: Status, fields: &Fields, length: u64) -> Fields {
    let mut whole = fields.clone();
    if !status.has_no_content() {
        whole.push("Content-Length", length.to_string());
    }
    whole
}

/// Coding for the client's Accept-Encoding.
fn choose(request: &Request<'_>) -> ContentCoding {
    if !request.head.has(KnownField::AcceptEncoding) {
        return ContentCoding::Identity;
    }
    CodingWeights::of(request).choose(CODINGS).map_or(ContentCoding::Identity, |index| CODINGS[index])
}

fn encode_segments(encoder: &mut ContentEncoder, segments: &[Segment]) -> io::Result<Vec<u8>> {
    match segments {
        [Segment::Bytes(bytes)] => encode_whole(encoder, bytes),
        segments => encode_whole(encoder, &joined(segments.to_vec())),
    }
}

/// Segments in memory, in one piece.
fn joined(mut segments: Vec<Segment>) -> Bytes {
    if segments.len() == 1
        && let Some(Segment::Bytes(bytes)) = segments.pop()
    {
        return bytes;
    }
    let mut joined = Vec::new();
    for segment in segments {
        if let Segment::Bytes(bytes) = segment {
            joined.extend_from_slice(&bytes);
        }
    }
    joined.into()
}

/// Charges the memory of an encoder to the client.
fn charge(encoder: &ContentEncoder, routed: &Routed<'_>) -> Option<Charge> {
    Some(routed.link.counted_holder()?.charge(encoder.memory_bytes()))
}
