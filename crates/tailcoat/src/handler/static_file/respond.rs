//! From an object to a response: codings, conditions and ranges.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use wire::http::conditional::{self, Precondition};
use wire::http::negotiation::CodingWeights;
use wire::http::range::{self, Selection};
use wire::http::{Coding, KnownField, Request, Status};

use super::FileTree;
use super::content_type::content_type;
use super::heads::Description;
use super::load::CODINGS;
use crate::handler::{Body, BuiltResponse, Form, Response, Routed, Segment};
use crate::object_cache::{CachedObject, Content, Object, Representation};

/// What a request gets of an object.
pub(super) enum Choice {
    /// This.
    Ready(Response),
    /// The representation with this coding, once it is made.
    ToBeMade(Rc<CachedObject>, Coding),
}

impl FileTree {
    /// Chooses a coding, and what of it.
    #[inline]
    pub(super) fn choose(&self, routed: &Routed<'_>, cached: Rc<CachedObject>) -> Choice {
        let request = &routed.request;
        if cached.object.codings().is_none() || !request.head.has(KnownField::AcceptEncoding) {
            return Choice::Ready(self.respond(routed, cached, Coding::Identity));
        }
        let coding = choose_coding(request, &cached.object);
        let cell = cached.object.codings().and_then(|codings| codings.cell(coding));
        if cell.is_some_and(|cell| !cell.initialized()) {
            return Choice::ToBeMade(cached, coding);
        }
        Choice::Ready(self.respond(routed, cached, coding))
    }

    /// The response with this coding, if there is one, else without.
    #[inline]
    pub(super) fn respond(&self, routed: &Routed<'_>, cached: Rc<CachedObject>, coding: Coding) -> Response {
        const CONDITIONS: [KnownField; 5] = [
            KnownField::IfNoneMatch,
            KnownField::IfModifiedSince,
            KnownField::Range,
            KnownField::IfMatch,
            KnownField::IfUnmodifiedSince,
        ];
        if CONDITIONS.iter().any(|field| routed.request.head.has(*field)) {
            return self.respond_in_part(routed, cached, coding);
        }
        Response::Cached { object: cached, coding, form: Form::Whole }
    }

    fn respond_in_part(&self, routed: &Routed<'_>, cached: Rc<CachedObject>, coding: Coding) -> Response {
        let request = &routed.request;
        let representation = cached.object.representation(coding);
        let validators = cached.object.validators(coding);
        match conditional::evaluate(request, &validators) {
            Precondition::Passed => {}
            Precondition::NotModified => return Response::Cached { object: cached, coding, form: Form::NotModified },
            Precondition::Failed => return Response::Built(BuiltResponse::new(Status::PRECONDITION_FAILED)),
        }
        let selection = conditional::range_value(request, &validators)
            .map_or(Selection::Whole, |value| range::select(value, representation.content.length(), self.ranges_max));
        let form = match selection {
            Selection::Whole => Form::Whole,
            Selection::Single(range) => Form::Part { offset: range.start, length: range.end - range.start },
            Selection::Several(ranges) => {
                return self.respond_multipart(routed, &cached.object, representation, &ranges);
            }
            Selection::Unsatisfiable => return unsatisfiable(representation),
        };
        Response::Cached { object: cached, coding, form }
    }

    /// Several ranges as `multipart/byteranges` (RFC 9110, section 14.6).
    fn respond_multipart(
        &self,
        routed: &Routed<'_>,
        object: &Object,
        representation: &Representation,
        ranges: &[Range<u64>],
    ) -> Response {
        let description = Description {
            tree: self,
            path: routed.path,
            content_type: &content_type(&self.files, object.file_name()),
            varies: object.codings().is_some(),
            last_modified_unix_seconds: object.last_modified_unix_seconds,
        };
        let mut response = BuiltResponse::new(Status::PARTIAL_CONTENT);
        response.fields = description.fields(representation.coding, &representation.etag);
        let content_type = response.fields.get("Content-Type").unwrap_or_default().to_vec();
        let boundary = boundary();
        response.fields.set("Content-Type", format!("multipart/byteranges; boundary={boundary}"));
        let complete_length = representation.content.length();
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
            segments.push(slice(&representation.content, range));
        }
        segments.push(Segment::Bytes(format!("\r\n--{boundary}--\r\n").into()));
        response.body = Body::from_segments(segments);
        Response::Built(response)
    }
}

/// The coding that the client would have, of those that there are or that can be made.
fn choose_coding(request: &Request<'_>, object: &Object) -> Coding {
    let weights = CodingWeights::of(request);
    let is_there = |coding: Coding| {
        let cell = object.codings().and_then(|codings| codings.cell(coding));
        cell.is_some_and(|cell| cell.get().is_none_or(Option::is_some))
    };
    let mut available = [Coding::Identity; CODINGS.len() + 1];
    let mut count = 0;
    for (coding, _) in CODINGS {
        if is_there(coding) {
            available[count] = coding;
            count += 1;
        }
    }
    // The last of those that are there is identity. If not even that is acceptable, it is sent all the same: whoever
    // forbids it can do more with it than with an error (RFC 9110, section 12.5.3).
    let place = weights.choose(available[..=count].iter().copied());
    place.map_or(Coding::Identity, |place| available[place])
}

fn unsatisfiable(representation: &Representation) -> Response {
    let mut response = BuiltResponse::new(Status::RANGE_NOT_SATISFIABLE);
    let mut content_range = Vec::new();
    range::write_content_range_unsatisfied(representation.content.length(), &mut content_range);
    response.fields.push("Content-Range", content_range);
    response.fields.push("Accept-Ranges", "bytes");
    Response::Built(response)
}

/// The bytes of a range that is within the content.
fn slice(content: &Content, range: &Range<u64>) -> Segment {
    match content {
        Content::Memory(bytes) => Segment::Bytes(slice_bytes(bytes, range)),
        Content::File(file) => {
            Segment::File { file: file.clone(), offset: range.start, length: range.end - range.start }
        }
    }
}

fn slice_bytes(bytes: &Bytes, range: &Range<u64>) -> Bytes {
    bytes.slice(range.start as usize..range.end as usize)
}

/// A boundary that nobody can foresee, so that no content has it (RFC 2046, section 5.1.1).
fn boundary() -> String {
    // Each state of the standard library has keys of its own.
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}
