//! Selecting a part of an object by conditions and ranges.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;

use wire::http::conditional::{self, Precondition};
use wire::http::range::{self, Selection};
use wire::http::{ContentCoding, Fields, Request, Status};

use super::{Body, BuiltResponse, Form, Segment};
use crate::object_cache::{Object, ObjectContent};

/// Part of an object for one request.
pub(super) enum Part {
    /// A form that is encoded already.
    Form(Form),
    /// At least two ranges: see [`multipart`].
    Several(Vec<Range<u64>>),
    /// An error response: 412 or 416.
    Rejected(Box<BuiltResponse>),
}

/// Evaluates a request's conditions and ranges. Only for requests that get a 200 without them (RFC 9110, section
/// 13.2.1).
pub(super) fn select_part(request: &Request<'_>, object: &Object, coding: ContentCoding, ranges_max: usize) -> Part {
    let validators = object.validators(coding);
    match conditional::evaluate(request, &validators) {
        Precondition::Passed => {}
        Precondition::NotModified => return Part::Form(Form::NotModified),
        Precondition::Failed => return Part::Rejected(BuiltResponse::new(Status::PRECONDITION_FAILED)),
    }
    let length = object.representation(coding).content.length();
    let selection = conditional::range_value(request, &validators)
        .map_or(Selection::Whole, |value| range::select(value, length, ranges_max));
    match selection {
        Selection::Whole => Part::Form(Form::Whole),
        Selection::Single(range) => Part::Form(Form::Part { offset: range.start, length: range.end - range.start }),
        Selection::Several(ranges) => Part::Several(ranges),
        Selection::Unsatisfiable => Part::Rejected(unsatisfiable(length)),
    }
}

/// Builds a `multipart/byteranges` response (RFC 9110, section 14.6), with the fields of the whole.
pub(super) fn multipart(mut fields: Fields, content: &ObjectContent, ranges: &[Range<u64>]) -> Box<BuiltResponse> {
    let content_type = fields.get("Content-Type").unwrap_or_default().to_vec();
    let boundary = boundary();
    fields.set("Content-Type", format!("multipart/byteranges; boundary={boundary}"));
    let complete_length = content.length();
    let mut segments = Vec::with_capacity(2 * ranges.len() + 1);
    for (index, range) in ranges.iter().enumerate() {
        let mut head = if index == 0 { Vec::new() } else { b"\r\n".to_vec() };
        head.extend_from_slice(format!("--{boundary}\r\n").as_bytes());
        if !content_type.is_empty() {
            head.extend_from_slice(b"Content-Type: ");
            head.extend_from_slice(&content_type);
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"Content-Range: ");
        range::write_content_range(range, complete_length, &mut head);
        head.extend_from_slice(b"\r\n\r\n");
        segments.push(Segment::Bytes(head.into()));
        segments.push(content_slice(content, range));
    }
    segments.push(Segment::Bytes(format!("\r\n--{boundary}--\r\n").into()));
    BuiltResponse::with_fields(Status::PARTIAL_CONTENT, fields, Body::from_segments(segments))
}

/// Bytes of a range within the content.
pub fn content_slice(content: &ObjectContent, range: &Range<u64>) -> Segment {
    match content {
        ObjectContent::Memory(bytes) => Segment::Bytes(bytes.slice(range.start as usize..range.end as usize)),
        ObjectContent::File(file) => {
            Segment::File { file: file.clone(), offset: range.start, length: range.end - range.start }
        }
    }
}

/// Fields of a 304: those of the 200 without fields about the content, which is not sent (RFC 9110, section 15.4.5).
pub(super) fn without_content_fields(fields: &Fields) -> Fields {
    let mut without = fields.clone();
    for name in ["Content-Type", "Content-Encoding", "Content-Language", "Content-Range", "Accept-Ranges"] {
        without.remove(name);
    }
    without
}

fn unsatisfiable(complete_length: u64) -> Box<BuiltResponse> {
    let mut response = BuiltResponse::new(Status::RANGE_NOT_SATISFIABLE);
    let mut content_range = Vec::new();
    range::write_content_range_unsatisfied(complete_length, &mut content_range);
    response.fields.push("Content-Range", content_range);
    response.fields.push("Accept-Ranges", "bytes");
    response
}

/// Unpredictable boundary, so that no content contains it (RFC 2046, section 5.1.1).
fn boundary() -> String {
    // Each `RandomState` has keys of its own.
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}
