//! Default error pages, for sites without their own.

use std::sync::OnceLock;

use bytes::Bytes;
use serde::Serialize;
use wire::http::Status;

use super::page::{Page, PageFormat, begin_html, end_html, write_text};

/// Renders the page for an error. It contains nothing but the status: no part of the request, nothing about the
/// server.
///
/// Clients decide how many errors there are, so each page is made once and kept as long as the process.
pub(crate) fn render(status: Status, format: PageFormat) -> Page {
    static HTML: [OnceLock<&[u8]>; STATUSES] = [const { OnceLock::new() }; STATUSES];
    static JSON: [OnceLock<&[u8]>; STATUSES] = [const { OnceLock::new() }; STATUSES];
    let (content_type, pages, make): (_, _, fn(Status) -> Vec<u8>) = match format {
        PageFormat::Html => ("text/html; charset=utf-8", &HTML, |status| render_html(status).into_bytes()),
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

    use super::{PageFormat, render};

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
    fn problem_details() {
        let page = render(Status::NOT_FOUND, PageFormat::Json);
        assert_eq!(page.content_type, "application/problem+json");
        assert_eq!(page.body, "{\"type\":\"about:blank\",\"title\":\"Not Found\",\"status\":404}\n");
    }
}
