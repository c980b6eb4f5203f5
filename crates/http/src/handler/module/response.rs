//! Response of a module, as it is passed on.

use std::io;
use std::task::{Context as Task, Poll};

use http::HeaderMap;
use http::response::Parts;
use wire::h1::parse_content_length;
use wire::http::forwarding::is_hop_by_hop;
use wire::http::{Fields, Method, Status};

use super::content::{Beginning, ModuleContent};
use crate::handler::{Body, BuiltResponse, ContentStream, Forwarded, Segment};
use crate::metrics::ModuleFailure;

/// Content up to this size is sent whole, with its length, if the module has written it by then.
const WHOLE_BYTES_MAX: usize = 64 << 10;

/// Response fields that are passed on, without connection fields and Content-Length, which are Tailcoat's.
pub(super) fn passed_on_fields(headers: &HeaderMap) -> Fields {
    let bytes = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    let mut fields = Fields::with_capacity(bytes, headers.len());
    for (name, value) in headers {
        if !is_hop_by_hop(name.as_str().as_bytes()) && name != http::header::CONTENT_LENGTH {
            fields.push(name.as_str(), value);
        }
    }
    fields
}

/// A module's response whose head was received.
pub(super) struct ModuleResponse {
    head: Parts,
    /// `None` after it was passed on.
    content: Option<ModuleContent>,
}

impl ModuleResponse {
    pub(super) fn new(head: Parts, content: ModuleContent) -> Self {
        Self { head, content: Some(content) }
    }

    /// Polls for the response for the client. An error status waits for the first content, because an error without
    /// content gets the site's error page.
    ///
    /// # Errors
    /// The module's response is invalid, or its content failed before any of it was sent.
    pub(super) fn poll(&mut self, method: Method, task: &mut Task<'_>) -> Poll<io::Result<Box<BuiltResponse>>> {
        // Local invariant: the caller stops polling after the response.
        let Some(mut content) = self.content.take() else { return Poll::Pending };
        // A module can't send interim responses.
        let status = Status::new(self.head.status.as_u16()).filter(|status| status.code() >= 200);
        let Some(status) = status else {
            content.fail(ModuleFailure::Failed, "sent an interim response as its final response");
            return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
        };
        let declared = self.head.headers.get(http::header::CONTENT_LENGTH);
        let declared = declared.and_then(|value| parse_content_length(value.as_bytes()));
        let mut built = BuiltResponse::with_fields(status, passed_on_fields(&self.head.headers), Body::default());
        if method == Method::Head || [Status::NOT_MODIFIED, Status::NO_CONTENT].contains(&status) {
            content.finish();
            // A response without content may declare the length of another one's (RFC 9110, section 8.6).
            if let Some(length) = declared.filter(|_| status != Status::NO_CONTENT) {
                built.forwarded = Some(Box::new(Forwarded { content_length: Some(length), ..Forwarded::default() }));
            }
            return Poll::Ready(Ok(built));
        }
        match content.poll_begin(WHOLE_BYTES_MAX, status.code() >= 400, task) {
            Poll::Pending => {
                self.content = Some(content);
                return Poll::Pending;
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Ready(Ok(Beginning::Whole(_))) if declared.is_some_and(|declared| declared != content.bytes()) => {
                content.fail(ModuleFailure::Failed, "wrote less content than its Content-Length");
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
            Poll::Ready(Ok(Beginning::Whole(pieces))) => {
                built.body = Body::from_segments(pieces.into_iter().map(Segment::Bytes).collect());
            }
            Poll::Ready(Ok(Beginning::Part)) => {
                content.read_while_answering();
                built.body.stream = Some(ContentStream { source: Box::new(content), length: declared });
            }
        }
        Poll::Ready(Ok(built))
    }
}
