//! Page with a challenge. It loads nothing, and works with and without JavaScript.

use std::fmt::Write;
use std::sync::LazyLock;

use base64ct::{Base64, Encoding};
use bytes::Bytes;
use wire::http::{Status, escape_html};

use super::CHALLENGE_PATH;
use crate::handler::{Body, BuiltResponse, PageFormat};

const SCRIPT: &str = include_str!("challenge.js");
const STYLE: &str = concat!(include_str!("../../../handler/page.css"), include_str!("challenge.css"));

/// Content-Security-Policy of the page: only its own script and style, which no other text can replace.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let [script, style] = [SCRIPT, STYLE].map(|text| {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
        Base64::encode_string(digest.as_ref())
    });
    format!(
        "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data:; form-action \
         'self'; base-uri 'none'; frame-ancestors 'self'"
    )
});

/// Content of a challenge.
pub(super) struct ChallengePage<'a> {
    pub(super) token: &'a str,
    pub(super) work_bits: u8,
    /// Seconds that clients without JavaScript wait.
    pub(super) wait_s: u16,
    /// Path and query that the client has asked for.
    pub(super) target: &'a [u8],
    /// Note about an attempt that has failed.
    pub(super) note: &'a str,
}

impl ChallengePage<'_> {
    /// Makes the response.
    pub(super) fn respond(&self, format: PageFormat) -> Box<BuiltResponse> {
        let mut response = BuiltResponse::new(Status::FORBIDDEN);
        let fields = &mut response.fields;
        fields.push("Cache-Control", "no-store");
        fields.push("Vary", "Accept");
        match format {
            PageFormat::Json => {
                fields.push("Content-Type", "application/json");
                let body = &br#"{"status":403,"title":"Forbidden","detail":"This address needs a browser."}"#[..];
                response.body = Body::from_bytes(Bytes::from_static(body));
            }
            PageFormat::Html => {
                fields.push("Content-Type", "text/html; charset=utf-8");
                fields.push("Content-Security-Policy", POLICY.as_str());
                fields.push("X-Robots-Tag", "noindex");
                response.body = Body::from_bytes(Bytes::from(self.html()));
            }
        }
        response
    }

    fn html(&self) -> String {
        let &Self { token, work_bits, wait_s, .. } = self;
        let mut target = String::new();
        escape_html(&String::from_utf8_lossy(self.target), &mut target);
        let mut encoded = String::new();
        percent_encode(self.target, &mut encoded);
        let mut out = String::with_capacity(STYLE.len() + SCRIPT.len() + 2_048);
        // Writing to a string does not fail.
        let mut line = |text: std::fmt::Arguments<'_>| {
            let _ = writeln!(out, "{text}");
        };
        line(format_args!("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">"));
        line(format_args!("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"));
        line(format_args!("<meta name=\"robots\" content=\"noindex\">\n<title>Checking your browser</title>"));
        line(format_args!("<link rel=\"icon\" href=\"data:,\">\n<style>{STYLE}</style>"));
        let refresh_s = u32::from(wait_s) + 1;
        let link = format_args!("{CHALLENGE_PATH}?t={token}&amp;to={encoded}");
        line(format_args!("<noscript><meta http-equiv=\"refresh\" content=\"{refresh_s}; url={link}\"></noscript>"));
        line(format_args!("</head>\n<body>\n<main>\n<h1>Checking your browser</h1>\n{}", self.note));
        line(format_args!("<p id=\"say\" role=\"status\">This site is protected from automated requests."));
        line(format_args!("Your browser solves a small task, then the page loads. You need not do anything.</p>"));
        line(format_args!("<progress id=\"work\" max=\"1\" value=\"0\" aria-label=\"Progress\" hidden></progress>"));
        line(format_args!("<form id=\"challenge\" action=\"{CHALLENGE_PATH}\" data-bits=\"{work_bits}\">"));
        line(format_args!("<input type=\"hidden\" name=\"t\" value=\"{token}\">"));
        line(format_args!("<input type=\"hidden\" name=\"to\" value=\"{target}\">\n<noscript>"));
        line(format_args!(
            "<p>Without JavaScript, please wait {wait_s} seconds, then continue. There is no hurry.</p>"
        ));
        line(format_args!("<button>Continue</button>\n</noscript>\n</form>\n</main>"));
        line(format_args!("<script>{SCRIPT}</script>\n</body>\n</html>"));
        out
    }
}

/// Appends a text as the value of an argument.
fn percent_encode(text: &[u8], out: &mut String) {
    for byte in text {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => out.push(char::from(*byte)),
            byte => drop(write!(out, "%{byte:02X}")),
        }
    }
}
