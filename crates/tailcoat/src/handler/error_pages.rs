//! The operator's own pages for errors.

use std::ops::RangeInclusive;

use wire::http::{Method, Request, RequestHead, Status};

use super::static_file::StaticFile;
use super::{Body, BuiltResponse, ClientLinkCell, Form, HandlerOutcome, Now, Response, Routed, Segment};
use crate::log::LogClient;
use crate::object_cache::ObjectContent;

/// A site's pages for errors.
#[derive(Debug, Default)]
pub struct ErrorPages {
    pages: Vec<ErrorPage>,
    /// What the pages are asked for with.
    head: RequestHead,
}

/// A page for some statuses.
#[derive(Debug)]
pub struct ErrorPage {
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

    /// The page for a status: the first whose statuses have it.
    pub fn find(&self, status: Status) -> Option<usize> {
        self.pages.iter().position(|page| page.statuses.contains(&status.code()))
    }

    /// Asks for a page as a client would, so that it is cached and seen to change like any other file.
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
            link,
            has_next: false,
            now,
        })
    }

    /// Makes the page the content of the error; whether it could be had.
    pub fn fill(&self, page: usize, outcome: HandlerOutcome, error: &mut BuiltResponse) -> bool {
        let HandlerOutcome::Ready(Response::Cached { object, coding, form: Form::Whole }) = outcome else {
            return false;
        };
        let segment = match &object.object.representation(coding).content {
            ObjectContent::Memory(bytes) => Segment::Bytes(bytes.clone()),
            ObjectContent::File(file) => Segment::File { file: file.clone(), offset: 0, length: file.identity.size },
        };
        error.fields.set("Content-Type", self.pages[page].content_type.as_str());
        error.body = Body::from_segments(vec![segment]);
        true
    }
}
