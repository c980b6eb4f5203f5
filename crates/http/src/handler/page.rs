//! Common parts of the pages that Tailcoat generates.

use std::fmt::{self, Write};

use bytes::Bytes;
use wire::http::{Request, escape_html, negotiation};

/// A generated page. A sender that let the client choose the format adds `Vary: Accept`.
#[derive(Clone, Debug)]
pub struct Page {
    /// Value of Content-Type.
    pub content_type: &'static str,
    /// Content of the page.
    pub body: Bytes,
}

/// Format of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageFormat {
    /// HTML, for people.
    Html,
    /// JSON, for programs.
    Json,
}

impl PageFormat {
    /// Format that the request's Accept prefers.
    pub fn wanted_by(request: &Request<'_>) -> Self {
        if negotiation::prefers_json(request) { Self::Json } else { Self::Html }
    }
}

/// Begins a page, up to `<body>`. `title` is escaped; `style` follows the common rules. The page loads no external
/// files, and the empty icon keeps browsers from requesting one.
pub(super) fn begin_html(title: &str, style: &str, out: &mut String) {
    out.push_str("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>");
    escape_html(title, out);
    out.push_str("</title>\n<link rel=\"icon\" href=\"data:,\">\n<style>\n");
    out.push_str(include_str!("page.css"));
    out.push_str(style);
    out.push_str("</style>\n</head>\n<body>\n");
}

/// Ends a page.
pub(super) fn end_html(out: &mut String) {
    out.push_str("</body>\n</html>\n");
}

/// Appends formatted text.
pub(super) fn write_text(out: &mut String, text: fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a String takes all that is written");
}
