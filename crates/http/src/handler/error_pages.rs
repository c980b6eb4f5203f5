//! A site's own error pages.

use std::ops::RangeInclusive;

use wire::http::{Method, Request, RequestHead, Status};

use super::static_file::StaticFile;
use super::{Body, BuiltResponse, ClientLinkCell, Form, HandlerOutcome, Now, Response, Routed, Segment};
use crate::log::LogClient;
use crate::object_cache::ObjectContent;

/// Error pages of a site.
#[derive(Debug, Default)]
pub struct ErrorPages {
    pages: Vec<ErrorPage>,
    /// Head of the internal request for a page.
    head: RequestHead,
}

/// A page for a range of statuses.
#[derive(Debug)]
pub(crate) struct ErrorPage {
    pub(super) statuses: RangeInclusive<u16>,
    pub(super) files: StaticFile,
    pub(super) path: Vec<u8>,
    pub(super) content_type: String,
}

impl ErrorPages {
    pub(super) fn new(pages: Vec<ErrorPage>) -> Self {
        let mut head = RequestHead::default();
        head.method = Method::Get;
        Self { pages, head }
    }

    /// Finds the first page for a status.
    pub fn find(&self, status: Status) -> Option<usize> {
        self.pages.iter().position(|page| page.statuses.contains(&status.code()))
    }

    /// Requests a page as a client would, so that it is cached and checked for changes like any other file.
    pub fn get(&self, page: usize, host: &[u8], now: Now) -> HandlerOutcome {
        let page = &self.pages[page];
        let request = Request { head: &self.head, bytes: b"" };
        let (client, link) = (LogClient::Unix, &ClientLinkCell::default());
        page.files.handle(&Routed {
            request,
            path: &page.path,
            query: None,
            host,
            client,
            tls: None,
            proxied: None,
            trace: None,
            locations: None,
            link,
            has_next: false,
            now,
        })
    }

    /// Makes the page the content of the error; returns false if the page is not available.
    pub fn fill<W>(&self, page: usize, outcome: HandlerOutcome<W>, error: &mut BuiltResponse) -> bool {
        let HandlerOutcome::Ready(Response::Cached { object, coding, form: Form::Whole }) = outcome else {
            return false;
        };
        let segment = match &object.object.representation(coding).content {
            ObjectContent::Memory(bytes) => Segment::Bytes(bytes.clone()),
            ObjectContent::File(file) => Segment::File { file: file.clone(), offset: 0, length: file.content_bytes },
        };
        error.fields.set("Content-Type", self.pages[page].content_type.as_str());
        error.body = Body::from_segments(vec![segment]);
        true
    }
}
