//! Responding: from a stored response to one for the client.

use std::rc::Rc;

use wire::http::conditional::{self, Precondition, Validators};
use wire::http::{ContentCoding, Fields, KnownField, Status, date};

use super::ResponseCacheInner;
use crate::handler::compression::{add_vary, is_compressed};
use crate::handler::part::{Part, content_slice, multipart, select_part, without_content_fields};
use crate::handler::{Body, BuiltResponse, Form, Forwarded, Response, ResponseEnding, Routed};
use crate::object_cache::{CachedObject, Object, ObjectContent, StoredResponse};

/// Parameters of Cache-Status for steps other than the lookup (RFC 9211, section 2).
pub(super) type Handling<'a> = Option<&'a str>;

impl ResponseCacheInner {
    /// Responds with a stored response alone.
    #[inline]
    pub(super) fn respond(&self, routed: &Routed<'_>, object: Rc<CachedObject>) -> Response {
        const CONDITIONS: [KnownField; 3] = [KnownField::IfNoneMatch, KnownField::IfModifiedSince, KnownField::Range];
        if !CONDITIONS.iter().any(|field| routed.request.head.has(*field)) {
            return Response::Cached { object, coding: ContentCoding::Identity, form: Form::Whole };
        }
        match self.select(routed, &object.object) {
            Part::Form(form) => Response::Cached { object, coding: ContentCoding::Identity, form },
            part => self.build(routed, &object.object, part),
        }
    }

    /// Responds with a stored response after the steps in `handling`.
    pub(super) fn respond_after(
        &self,
        routed: &Routed<'_>,
        object: Rc<CachedObject>,
        handling: Handling<'_>,
    ) -> Response {
        let (true, Some(handling)) = (self.shared.config.cache_status, handling) else {
            return self.respond(routed, object);
        };
        let part = self.select(routed, &object.object);
        let mut response = self.build(routed, &object.object, part);
        if let Response::Built(response) = &mut response {
            self.add_cache_status(&mut response.fields, handling);
        }
        response
    }

    /// Adds this cache's entry to Cache-Status.
    pub(super) fn add_cache_status(&self, fields: &mut Fields, handling: &str) {
        if self.shared.config.cache_status {
            fields.push("Cache-Status", format!("tailcoat; {handling}"));
        }
    }

    /// Selects by conditions and ranges, which apply only to a 200 (RFC 9110, sections 13.2.1 and 14.2).
    fn select(&self, routed: &Routed<'_>, object: &Object) -> Part {
        match object.identity().status {
            Status::OK => select_part(&routed.request, object, ContentCoding::Identity, self.shared.ranges_max),
            _ => Part::Form(Form::Whole),
        }
    }

    fn build(&self, routed: &Routed<'_>, object: &Object, part: Part) -> Response {
        let (Some(stored), representation) = (object.response(), object.identity()) else {
            return Response::Built(BuiltResponse::new(Status::INTERNAL_SERVER_ERROR));
        };
        let mut fields = fields_with_age(stored, routed.now.monotonic_ms);
        if object.codings().is_some() {
            add_vary(&mut fields);
        }
        let content = &representation.content;
        let (status, fields, body) = match part {
            Part::Form(Form::Whole) => (representation.status, fields, body_of(content)),
            Part::Form(Form::NotModified) => (Status::NOT_MODIFIED, without_content_fields(&fields), Body::default()),
            Part::Form(Form::Part { offset, length }) => {
                let (range, mut fields) = (offset..offset + length, fields);
                let mut content_range = Vec::new();
                wire::http::range::write_content_range(&range, content.length(), &mut content_range);
                fields.push("Content-Range", content_range);
                (Status::PARTIAL_CONTENT, fields, Body::from_segments(vec![content_slice(content, &range)]))
            }
            Part::Several(ranges) => {
                let response = multipart(fields, content, &ranges);
                (response.status, response.fields, response.body)
            }
            Part::Rejected(response) => return Response::Built(response),
        };
        Response::Built(Box::new(BuiltResponse {
            status,
            fields,
            body,
            forwarded: Some(forwarded(status)),
            reason: "",
            compression: self.shared.compression(),
            ending: ResponseEnding::Normal,
        }))
    }
}

/// Evaluates the client's conditions, which the fetch left out, on a fresh response (RFC 9110, section 13.2). After a
/// 304, the content is recorded but not sent. A 304 has the Vary of the 200 (section 15.4.5).
pub(super) fn apply_conditions(routed: &Routed<'_>, response: &mut BuiltResponse) {
    if response.status != Status::OK {
        return;
    }
    let validators = Validators {
        etag: response.fields.get("ETag"),
        last_modified: response.fields.get("Last-Modified").and_then(date::parse),
    };
    if conditional::evaluate(&routed.request, &validators) == Precondition::NotModified {
        if let Some(settings) = &response.compression
            && is_compressed(response.status, &response.fields, response.body.length(), settings)
        {
            add_vary(&mut response.fields);
        }
        response.status = Status::NOT_MODIFIED;
        response.fields = without_content_fields(&response.fields);
        response.body = Body::default();
        response.forwarded = Some(forwarded(Status::NOT_MODIFIED));
    }
}

/// Fields of a stored response as they are sent now, with Age (RFC 9111, section 4).
pub(super) fn fields_with_age(stored: &StoredResponse, now_ms: u64) -> Fields {
    let mut fields = stored.fields.clone();
    fields.push("Age", stored.stored.age_seconds(now_ms).to_string());
    fields
}

fn body_of(content: &ObjectContent) -> Body {
    match content.length() {
        0 => Body::default(),
        length => Body::from_segments(vec![content_slice(content, &(0..length))]),
    }
}

/// Marks a response as an upstream's, although it is sent from here.
fn forwarded(status: Status) -> Box<Forwarded> {
    Box::new(Forwarded { reason: status.reason().as_bytes().into(), ..Forwarded::default() })
}
