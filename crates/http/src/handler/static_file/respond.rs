//! Responding: from an object to a response, with codings, conditions and ranges.

use std::rc::Rc;

use wire::http::negotiation::CodingWeights;
use wire::http::{ContentCoding, KnownField, Request};

use super::FileTree;
use super::content_type::content_type;
use super::heads::Description;
use super::load::CODINGS;
use crate::handler::part::{Part, multipart, select_part};
use crate::handler::{Form, Response, Routed};
use crate::object_cache::{CachedObject, Object};

impl FileTree {
    /// Builds the response with this coding, or with identity if the coding does not exist.
    #[inline]
    pub(super) fn respond(&self, routed: &Routed<'_>, cached: Rc<CachedObject>, coding: ContentCoding) -> Response {
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

    fn respond_in_part(&self, routed: &Routed<'_>, cached: Rc<CachedObject>, coding: ContentCoding) -> Response {
        match select_part(&routed.request, &cached.object, coding, self.ranges_max) {
            Part::Form(form) => Response::Cached { object: cached, coding, form },
            Part::Rejected(response) => Response::Built(response),
            Part::Several(ranges) => {
                let representation = cached.object.representation(coding);
                let description = Description {
                    tree: self,
                    path: routed.path,
                    content_type: &content_type(&self.files, cached.object.file_name()),
                    varies: cached.object.codings().is_some(),
                    last_modified_unix_seconds: cached.object.last_modified_unix_seconds,
                };
                let fields = description.fields(representation.coding, &representation.etag);
                Response::Built(multipart(fields, &representation.content, &ranges))
            }
        }
    }
}

/// Coding that the client prefers, of those that exist or can be made.
#[inline]
pub(super) fn choose_coding(request: &Request<'_>, object: &Object) -> ContentCoding {
    match object.codings().is_none() || !request.head.has(KnownField::AcceptEncoding) {
        true => ContentCoding::Identity,
        false => choose_accepted(request, object),
    }
}

/// True if the representation with this coding was made, or does not exist.
#[inline]
pub(super) fn is_made(object: &Object, coding: ContentCoding) -> bool {
    object.codings().and_then(|codings| codings.cell(coding)).is_none_or(|cell| cell.initialized())
}

fn choose_accepted(request: &Request<'_>, object: &Object) -> ContentCoding {
    let weights = CodingWeights::of(request);
    let is_there = |coding: ContentCoding| {
        let cell = object.codings().and_then(|codings| codings.cell(coding));
        cell.is_some_and(|cell| cell.get().is_none_or(Option::is_some))
    };
    let mut available = [ContentCoding::Identity; CODINGS.len() + 1];
    let mut count = 0;
    for (coding, _) in CODINGS {
        if is_there(coding) {
            available[count] = coding;
            count += 1;
        }
    }
    // The last available one is identity. It is sent even if the client excludes it: that is more useful than an
    // error (RFC 9110, section 12.5.3).
    let place = weights.choose(available[..=count].iter().copied());
    place.map_or(ContentCoding::Identity, |place| available[place])
}
