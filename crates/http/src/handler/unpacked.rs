//! Cached objects as responses that are not encoded yet, for code that must change their content or its pace.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use wire::http::forwarding::is_hop_by_hop;
use wire::http::{ContentCoding, Fields, Status, date, range};

use super::{Body, BuiltResponse, Form, Now, Response, change_fields, content_slice};
use crate::object_cache::{Blocking, CachedObject, OpenFile};

/// Most bytes of a file that a worker reads itself if they are in memory: a thread would cost more.
const READ_AT_ONCE_BYTES_MAX: u64 = 256 << 10;

/// True if a field describes the message, and not the connection or the framing of content.
fn is_kept(name: &[u8]) -> bool {
    !is_hop_by_hop(name) && !name.eq_ignore_ascii_case(b"content-length")
}

/// The response in a form that is not encoded yet.
pub(super) fn unpacked(response: Response) -> Box<BuiltResponse> {
    let (object, coding, form, changes) = match response {
        Response::Built(built) => return built,
        Response::Cached { object, coding, form } => (object, coding, form, Vec::new()),
        Response::Changed(changed) => (changed.object, changed.coding, changed.form, changed.changes),
    };
    let (status, mut fields) = head_of(&object, coding, form);
    change_fields(&mut fields, &changes);
    let mut built = BuiltResponse::with_fields(status, fields, body_of(&object, coding, form));
    // A stored response of an upstream has its own Date and Server.
    built.forwarded = object.object.response().is_some().then(Box::default);
    built
}

/// Status and fields of a cached object, without those that the connection adds.
pub(super) fn head_of(object: &CachedObject, coding: ContentCoding, form: Form) -> (Status, Fields) {
    let representation = object.object.complete_representation(coding);
    let (status, head) = match form {
        Form::Whole => (representation.status, &representation.head),
        Form::NotModified => (Status::NOT_MODIFIED, &representation.not_modified_head),
        Form::Part { .. } => (Status::PARTIAL_CONTENT, &representation.partial_head),
    };
    let mut encoded = Vec::new();
    head.h1.write(&[b' '; date::DATE_BYTES], &mut encoded);
    let stored = object.object.response();
    let mut fields = Fields::with_capacity(encoded.len(), 12);
    for line in encoded.split(|&byte| byte == b'\n').skip(1) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { continue };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        // A stored response of an upstream has its own Date and Server.
        let is_added = stored.is_none() && [&b"date"[..], b"server"].iter().any(|own| name.eq_ignore_ascii_case(own));
        if !is_added && is_kept(name) {
            fields.push(name, value);
        }
    }
    if let Form::Part { offset, length } = form {
        let mut content_range = Vec::new();
        range::write_content_range(&(offset..offset + length), representation.content.length(), &mut content_range);
        fields.push("Content-Range", content_range);
    }
    if let Some(stored) = stored {
        fields.push("Age", stored.stored.age_seconds(Now::read().monotonic_ms).to_string());
    }
    (status, fields)
}

/// Content of a cached object.
pub(super) fn body_of(object: &CachedObject, coding: ContentCoding, form: Form) -> Body {
    let content = &object.object.representation(coding).content;
    let range: Range<u64> = match form {
        Form::Whole => 0..content.length(),
        Form::NotModified => return Body::default(),
        Form::Part { offset, length } => offset..offset + length,
    };
    Body::from_segments(vec![content_slice(content, &range)])
}

/// Reads a part of a file: directly if it is short and in memory, else on the blocking pool.
///
/// # Errors
/// The file cannot be read, or has changed.
pub(super) async fn read_part(file: Arc<OpenFile>, offset: u64, length: u64) -> io::Result<Vec<u8>> {
    let read = move |file: &OpenFile| {
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, offset)?;
        // Bytes of a file that changed meanwhile belong to no version.
        if file.is_unchanged() { Ok(bytes) } else { Err(io::ErrorKind::InvalidData.into()) }
    };
    if length <= READ_AT_ONCE_BYTES_MAX && file.is_resident(offset, length) {
        return read(&file);
    }
    Blocking::spawn(move || read(&file)).await.map_err(io::Error::other)?
}
