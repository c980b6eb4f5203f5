//! Response of the next handler, as a module sees and changes it. Unchanged parts are sent in their original form.

use std::borrow::Cow;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context as Task, Poll};

use bytes::Bytes;
use wire::http::{Fields, Status};

use super::http_wasm::{is_passed_on, may_have_content};
use crate::config::FieldAction;
use crate::handler::{
    Body, BuiltResponse, ChangedResponse, ContentSource, ContentStream, FieldChange, Filled, Forwarded, Response,
    Segment, body_of, head_of, read_part,
};
use crate::modules::http_wasm::{GuestResponse, ResponseFieldEdit};

/// Size of one read from a stream.
const PIECE_BYTES: usize = 16 << 10;

/// A response, with its status and fields as the module sees them.
pub(super) struct NextResponse {
    response: Response,
    status: Status,
    fields: Fields,
    trailers: Fields,
    /// Content, once it was taken.
    content: Option<Bytes>,
    /// Bytes of memory for the content, unless a cache has it.
    held_bytes: usize,
}

impl NextResponse {
    pub(super) fn new(response: Response) -> Self {
        let (status, fields) = match &response {
            Response::Built(built) => (built.status, built.fields.clone()),
            Response::Cached { object, coding, form } => head_of(object, *coding, *form),
            Response::Changed(changed) => {
                let (status, mut fields) = head_of(&changed.object, changed.coding, changed.form);
                for FieldChange { action, name, value } in &changed.changes {
                    match action {
                        FieldAction::Set => drop(fields.set(name, value)),
                        FieldAction::Default if fields.has(name) => {}
                        FieldAction::Add | FieldAction::Default => drop(fields.push(name, value)),
                    }
                }
                (status, fields)
            }
        };
        Self { response, status, fields, trailers: Fields::new(), content: None, held_bytes: 0 }
    }

    pub(super) fn status(&self) -> Status {
        self.status
    }

    pub(super) fn fields(&self) -> &Fields {
        &self.fields
    }

    /// Trailer fields, if the content was taken.
    pub(super) fn take_trailers(&mut self) -> Fields {
        std::mem::take(&mut self.trailers)
    }

    /// True if the response is a cached one of an upstream.
    fn is_of_another_server(&self) -> bool {
        match &self.response {
            Response::Cached { object, .. } => object.object.response().is_some(),
            Response::Changed(changed) => changed.object.object.response().is_some(),
            Response::Built(_) => false,
        }
    }

    /// Bytes of memory that the taken content needs.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// True if the next handler has failed and the response is an error of our own.
    pub(super) fn is_failure(&self) -> bool {
        matches!(&self.response, Response::Built(built) if built.forwarded.is_none()) && self.status.code() >= 500
    }

    /// Reads all of its content into memory; empty for HEAD. Calls `on_held` with the bytes of memory that it needs so
    /// far.
    ///
    /// # Errors
    /// The content is larger than `bytes_max`, or can't be read.
    pub(super) async fn take_content(
        &mut self,
        bytes_max: usize,
        is_head: bool,
        mut on_held: impl FnMut(usize),
    ) -> io::Result<Bytes> {
        let body = match &mut self.response {
            Response::Built(built) => std::mem::take(&mut built.body),
            Response::Cached { object, coding, form } => body_of(object, *coding, *form),
            Response::Changed(changed) => body_of(&changed.object, changed.coding, changed.form),
        };
        let body = if is_head { Body::default() } else { body };
        // Content that is in memory as a whole is not copied.
        if let (None, [Segment::Bytes(bytes)]) = (&body.stream, &*body.segments)
            && bytes.len() <= bytes_max
        {
            self.content = Some(bytes.clone());
            return Ok(bytes.clone());
        }
        let mut content = Vec::new();
        for segment in body.segments {
            let length = segment.length();
            if length > (bytes_max - content.len()) as u64 {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            match segment {
                Segment::Bytes(bytes) => content.extend_from_slice(&bytes),
                Segment::File { file, offset, length } => content.extend(read_part(file, offset, length).await?),
            }
            on_held(content.capacity());
        }
        if let Some(mut stream) = body.stream {
            let mut buffer = vec![0; PIECE_BYTES];
            loop {
                match poll_fn(|task| stream.source.poll_fill(task, &mut buffer)).await? {
                    Filled::Content(count) if content.len() + count > bytes_max => {
                        return Err(io::ErrorKind::FileTooLarge.into());
                    }
                    Filled::Content(count) => {
                        content.extend_from_slice(&buffer[..count]);
                        on_held(content.capacity());
                    }
                    Filled::End(trailers) => {
                        self.trailers = trailers.map(|trailers| *trailers).unwrap_or_default();
                        break;
                    }
                }
            }
        }
        self.held_bytes = content.capacity();
        let content = Bytes::from(content);
        self.content = Some(content.clone());
        Ok(content)
    }

    /// Applies a module's changes to the response.
    pub(super) fn change(self, changed: &mut GuestResponse) -> Response {
        let written = changed.content.take_written().map(Bytes::from);
        if changed.status == self.status && written.is_none() && self.content.is_none() {
            return edit(self.response, &changed.edits);
        }
        let is_replaced = written.is_some();
        let mut forwarded = self.is_of_another_server().then(Box::<Forwarded>::default);
        let mut compression = None;
        let body = match (self.response, written.or(self.content)) {
            (Response::Built(built), content) => {
                (forwarded, compression) = (built.forwarded, built.compression);
                content.map_or(built.body, |content| of_bytes(content, &changed.trailers))
            }
            (_, Some(content)) => of_bytes(content, &changed.trailers),
            (Response::Cached { object, coding, form }, None) => body_of(&object, coding, form),
            (Response::Changed(changed), None) => body_of(&changed.object, changed.coding, changed.form),
        };
        if let Some(forwarded) = &mut forwarded {
            if changed.status != self.status {
                forwarded.reason = Cow::default();
            }
            if is_replaced {
                forwarded.content_length = None;
            }
        }
        let mut fields = std::mem::take(&mut changed.fields);
        fields.retain(is_passed_on);
        let body = if may_have_content(changed.status) { body } else { Body::default() };
        let mut built = BuiltResponse::with_fields(changed.status, fields, body);
        (built.forwarded, built.compression) = (forwarded, compression);
        Response::Built(built)
    }
}

/// Builds a body from bytes in memory, with trailer fields if there are any.
pub(super) fn of_bytes(content: Bytes, trailers: &Fields) -> Body {
    if trailers.is_empty() {
        return if content.is_empty() { Body::default() } else { Body::from_bytes(content) };
    }
    let source = Box::new(Trailed { content, trailers: Some(Box::new(trailers.clone())) });
    Body { segments: Vec::new(), stream: Some(ContentStream { source, length: None }) }
}

/// Content in memory, followed by trailer fields.
struct Trailed {
    content: Bytes,
    trailers: Option<Box<Fields>>,
}

impl ContentSource for Trailed {
    fn poll_fill(&mut self, _: &mut Task<'_>, buffer: &mut [u8]) -> Poll<io::Result<Filled>> {
        if self.content.is_empty() {
            return Poll::Ready(Ok(Filled::End(self.trailers.take())));
        }
        let piece = self.content.split_to(self.content.len().min(buffer.len()));
        buffer[..piece.len()].copy_from_slice(&piece);
        Poll::Ready(Ok(Filled::Content(piece.len())))
    }
}

/// Changes only the fields of a response: cached content is still sent in its encoded form.
fn edit(mut response: Response, edits: &[ResponseFieldEdit]) -> Response {
    let edits = edits.iter().filter(|edit| is_passed_on(edit.name.as_bytes()));
    let changes = edits.map(|edit| FieldChange {
        action: if edit.replaces { FieldAction::Set } else { FieldAction::Add },
        name: edit.name.clone(),
        value: edit.value.clone(),
    });
    let changes: Vec<_> = changes.collect();
    if changes.is_empty() {
        return response;
    }
    match &mut response {
        Response::Cached { object, coding, form } => {
            let changed = ChangedResponse { object: Rc::clone(object), coding: *coding, form: *form, changes };
            return Response::Changed(Box::new(changed));
        }
        Response::Changed(changed) => changed.changes.extend(changes),
        Response::Built(built) => {
            for FieldChange { action, name, value } in &changes {
                if *action == FieldAction::Set {
                    built.fields.set(name, value);
                } else {
                    built.fields.push(name, value);
                }
            }
        }
    }
    response
}
