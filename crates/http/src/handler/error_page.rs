//! Default error pages, for sites without their own.

use std::cell::OnceCell;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use serde::Serialize;
use wire::http::{ContentCoding, Fields, Status};

use super::compression::representation;
use super::page::{Page, PageFormat, begin_html, end_html, write_text};
use super::{Form, Response, SERVER};
use crate::object_cache::{CachedObject, Object};

/// Responses with default error pages and no fields of their own, in the form in which they are sent. Each worker has
/// its own, and makes each at its first use.
pub struct DefaultPages {
    pages: Box<[[OnceCell<Rc<CachedObject>>; FORMATS]; STATUSES]>,
    /// Responses to requests that are rejected as a bot's.
    rejections: [OnceCell<Rc<CachedObject>>; FORMATS],
    /// True if they have a `Server` field.
    pub has_server_field: bool,
}

/// Page for requests that are rejected as a bot's. It is short, because scrapers send many of them.
const REJECTION: &str = "<!doctype html>\n<html lang=\"en\">\n<title>403 Forbidden</title>\n<h1>403 Forbidden</h1>\n\
                         <p>This site rejects requests that look automated.</p>\n";

const FORMATS: usize = 2;

const HTML_TYPE: &str = "text/html; charset=utf-8";

impl Default for DefaultPages {
    fn default() -> Self {
        Self::new(true)
    }
}

impl DefaultPages {
    /// Makes an empty set.
    pub fn new(has_server_field: bool) -> Self {
        let pages = Box::new([const { [const { OnceCell::new() }; FORMATS] }; STATUSES]);
        Self { pages, rejections: Default::default(), has_server_field }
    }

    /// Response with the page for an error; `None` if the status is none of an error.
    pub(crate) fn get(&self, status: Status, format: PageFormat) -> Option<Response> {
        let index = usize::from(status.code()).checked_sub(FIRST_STATUS)?;
        let page = &self.pages.get(index)?[format as usize];
        Some(whole(page.get_or_init(|| self.store(status, render(status, format)))))
    }

    /// Response to a request that is rejected as a bot's.
    pub(crate) fn rejection(&self, format: PageFormat) -> Response {
        let rejection = || {
            let page = match format {
                PageFormat::Html => Page { content_type: HTML_TYPE, body: Bytes::from_static(REJECTION.as_bytes()) },
                PageFormat::Json => render(Status::FORBIDDEN, format),
            };
            self.store(Status::FORBIDDEN, page)
        };
        whole(self.rejections[format as usize].get_or_init(rejection))
    }

    fn store(&self, status: Status, page: Page) -> Rc<CachedObject> {
        let mut fields = Fields::new();
        if self.has_server_field {
            fields.push("Server", SERVER);
        }
        fields.push("Content-Type", page.content_type).push("Vary", "Accept");
        let page = representation(status, ContentCoding::Identity, &fields, page.body);
        Rc::new(CachedObject { object: Arc::new(Object::of_server(page)) })
    }
}

fn whole(object: &Rc<CachedObject>) -> Response {
    Response::Cached { object: Rc::clone(object), coding: ContentCoding::Identity, form: Form::Whole }
}

impl fmt::Debug for DefaultPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let made = self.pages.iter().flatten().filter(|page| page.get().is_some()).count();
        f.debug_struct("DefaultPages").field("made", &made).finish_non_exhaustive()
    }
}

/// Renders the page for an error. It contains nothing but the status: no part of the request, nothing about the
/// server.
///
/// Clients decide how many errors there are, so each page is made once and kept as long as the process.
pub(crate) fn render(status: Status, format: PageFormat) -> Page {
    static HTML: [OnceLock<&[u8]>; STATUSES] = [const { OnceLock::new() }; STATUSES];
    static JSON: [OnceLock<&[u8]>; STATUSES] = [const { OnceLock::new() }; STATUSES];
    let (content_type, pages, make): (_, _, fn(Status) -> Vec<u8>) = match format {
        PageFormat::Html => (HTML_TYPE, &HTML, |status| render_html(status).into_bytes()),
        PageFormat::Json => ("application/problem+json", &JSON, render_json),
    };
    let kept = usize::from(status.code()).checked_sub(FIRST_STATUS).and_then(|index| pages.get(index));
    let body = match kept {
        Some(page) => Bytes::from_static(page.get_or_init(|| make(status).leak())),
        None => make(status).into(),
    };
    Page { content_type, body }
}

/// Statuses of errors, whose pages are kept: 400 to 599.
const FIRST_STATUS: usize = 400;
const STATUSES: usize = 200;

fn render_html(status: Status) -> String {
    let (code, title) = (status.code(), title(status));
    let mut out = String::with_capacity(2048);
    begin_html(&format!("{code} {title}"), include_str!("error_page.css"), &mut out);
    write_text(&mut out, format_args!("<main>\n<h1><span>{code}</span> {title}</h1>\n"));
    if let Some(advice) = advice(status) {
        write_text(&mut out, format_args!("<p>{advice}</p>\n"));
    }
    out.push_str("</main>\n");
    end_html(&mut out);
    out
}

/// Problem details (RFC 9457); with type `about:blank`, the status explains itself.
fn render_json(status: Status) -> Vec<u8> {
    #[derive(Serialize)]
    struct Problem {
        r#type: &'static str,
        title: &'static str,
        status: u16,
    }
    let problem = Problem { r#type: "about:blank", title: title(status), status: status.code() };
    let mut out = serde_json::to_vec(&problem).expect("numbers and strings can be written as JSON");
    out.push(b'\n');
    out
}

fn title(status: Status) -> &'static str {
    match (status.reason(), status.code()) {
        ("", ..500) => "Error",
        ("", 500..) => "Server Error",
        (reason, _) => reason,
    }
}

/// Advice for the person who sees the page.
fn advice(status: Status) -> Option<&'static str> {
    Some(match status {
        Status::BAD_REQUEST => "The server did not understand the request.",
        Status::UNAUTHORIZED => "You need to sign in to see this page.",
        Status::FORBIDDEN => "You are not allowed to see this page.",
        Status::NOT_FOUND => "There is nothing at this address. Check it for a typing error.",
        Status::METHOD_NOT_ALLOWED => "This page does not support this kind of request.",
        Status::REQUEST_TIMEOUT => "The request took too long to arrive. Please try again.",
        Status::GONE => "The page at this address was removed permanently.",
        Status::CONTENT_TOO_LARGE => "The request is larger than the server accepts.",
        Status::URI_TOO_LONG => "The address is longer than the server accepts.",
        Status::RANGE_NOT_SATISFIABLE => "The requested part does not exist. The file may have changed.",
        Status::TOO_MANY_REQUESTS => "Too many requests. Please wait a moment and try again.",
        Status::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            "The browser sent larger headers than the server accepts. Deleting this site’s cookies may help."
        }
        Status::INTERNAL_SERVER_ERROR => "Something went wrong on the server. Please try again later.",
        Status::BAD_GATEWAY | Status::GATEWAY_TIMEOUT => {
            "The upstream server did not respond correctly. Please try again later."
        }
        Status::SERVICE_UNAVAILABLE => "The server is busy or down for maintenance. Please try again later.",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use wire::http::Status;

    use super::{DefaultPages, PageFormat, REJECTION, Response, render};

    #[test]
    fn pages() {
        let check = |status: Status, expect: &str| {
            let page = render(status, PageFormat::Html);
            assert_eq!(page.content_type, "text/html; charset=utf-8");
            let html = str::from_utf8(&page.body).unwrap();
            assert!(html.starts_with("<!doctype html>\n") && html.ends_with("</html>\n"), "{html}");
            assert!(html.contains(expect), "{expect:?} isn't in {html}");
            assert!(!html.contains("http:") && !html.contains("https:") && !html.contains("<script"), "{html}");
        };
        check(Status::NOT_FOUND, "<title>404 Not Found</title>");
        check(Status::NOT_FOUND, "<h1><span>404</span> Not Found</h1>\n<p>There is nothing at this address.");
        check(Status::CONFLICT, "<h1><span>409</span> Conflict</h1>\n</main>");
        check(Status::new(498).unwrap(), "<h1><span>498</span> Error</h1>");
        check(Status::new(599).unwrap(), "<h1><span>599</span> Server Error</h1>");
    }

    #[test]
    fn stored_pages() {
        for (has_server_field, server) in [(true, &b"tailcoat"[..]), (false, b"")] {
            let pages = DefaultPages::new(has_server_field);
            let field = |response: &Response, name: &str| response.field(name.as_bytes()).into_owned();
            let page = pages.get(Status::NOT_FOUND, PageFormat::Json).unwrap();
            assert_eq!((page.status(), field(&page, "Server")), (Status::NOT_FOUND, server.to_vec()));
            assert_eq!(field(&page, "Content-Type"), b"application/problem+json");
            let length = field(&page, "Content-Length");
            assert_eq!(length, render(Status::NOT_FOUND, PageFormat::Json).body.len().to_string().as_bytes());
            let rejection = pages.rejection(PageFormat::Html);
            assert_eq!((rejection.status(), field(&rejection, "Vary")), (Status::FORBIDDEN, b"Accept".to_vec()));
            assert_eq!(field(&rejection, "Content-Length"), REJECTION.len().to_string().as_bytes());
            assert!(pages.get(Status::OK, PageFormat::Html).is_none());
        }
    }

    #[test]
    fn problem_details() {
        let page = render(Status::NOT_FOUND, PageFormat::Json);
        assert_eq!(page.content_type, "application/problem+json");
        assert_eq!(page.body, "{\"type\":\"about:blank\",\"title\":\"Not Found\",\"status\":404}\n");
    }
}
