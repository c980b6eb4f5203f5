//! The dynamic GET of the web99 workload (`tailor web99`) as an http-wasm filter. It forwards the request as one for the
//! file itself, which the server has in memory. Then it wraps the content into the reply, with the user's advertisement if
//! there is a cookie. The upstream module (`web99`) appends the tables for that to one of its replies; the filter keeps them
//! and requests them again after a second. It also leaves requests that need a form or the log to that module.

#[path = "../../web99/src/ads.rs"]
mod ads;
// Of forms nothing is wanted here.
#[allow(dead_code)]
#[path = "../../web99/src/form.rs"]
mod form;
mod tables;

use std::cell::Cell;

use ads::Choice;
use http_wasm_guest::host::{Request, Response, admin, feature};
use http_wasm_guest::{Guest, register};
use tables::Tables;

struct Filter;

/// Contexts of `handle_response`: a foreign response, a requested file, or a reply with appended tables.
const LEFT: i32 = 0;
const FILE: i32 = 1;
const TABLES: i32 = 2;

/// Fields of a request by which something else than the whole file would come, or nothing.
const CONDITIONS: [&[u8]; 7] = [
    b"accept-encoding",
    b"if-match",
    b"if-modified-since",
    b"if-none-match",
    b"if-range",
    b"if-unmodified-since",
    b"range",
];

/// Fields of a response that are about the file.
const FIELDS_OF_FILE: [&[u8]; 5] = [b"accept-ranges", b"cache-control", b"etag", b"last-modified", b"vary"];

thread_local! {
    /// Choice for the current request, if it has a cookie.
    static CHOICE: Cell<Option<Choice>> = const { Cell::new(None) };
}

fn main() {
    register(Filter);
}

impl Guest for Filter {
    fn handle_request(&self, request: &Request, _: &Response) -> (bool, i32) {
        let uri = request.uri();
        let Some((_, query)) = parts(&uri) else { return (true, LEFT) };
        if *request.method() != *b"GET" || !query.starts_with(b"/file_set/") {
            // New tables must count at once.
            Tables::forget();
            return (true, LEFT);
        }
        let cookies = request.header.get(b"cookie");
        let cookies = cookies.as_ref().and_then(|cookies| str::from_utf8(cookies).ok()).unwrap_or_default();
        let choice = match form::my_cookie(cookies).map(form::rotation_cookie) {
            None => None,
            Some(None) => Some(Choice::none()),
            Some(Some((user, last_ad))) => match Tables::choose(user, last_ad) {
                Some(choice) => Some(choice),
                None => {
                    request.header.set(form::TABLES_FIELD.as_bytes(), b"1");
                    admin::enable(feature::BufferResponse);
                    return (true, TABLES);
                }
            },
        };
        CHOICE.set(choice);
        for name in request.header.names_iter() {
            if CONDITIONS.contains(&&*name) {
                request.header.remove(&name);
            }
        }
        request.set_uri(query);
        admin::enable(feature::BufferResponse);
        (true, FILE)
    }

    fn handle_response(&self, context: i32, request: &Request, response: &Response, _: bool) {
        match context {
            FILE if response.status() == 200 => wrap(request, response),
            TABLES if response.status() == 200 => response.body.write(Tables::take(&response.body.read())),
            _ => {}
        }
    }
}

/// Makes the reply around a file.
fn wrap(request: &Request, response: &Response) {
    let uri = request.uri();
    let (script, query) = parts(&uri).unwrap_or_default();
    let source = request.source_addr();
    // The port follows the last colon.
    let address = source.rsplitn(2, |byte| *byte == b':').last().unwrap_or_default();
    let mut reply = Vec::with_capacity(16 << 10);
    reply.extend_from_slice(b"<html>\n<head><title>web99 dynamic reply</title></head>\n<body>\n");
    for (name, value) in [
        (&b"SERVER_SOFTWARE"[..], &b"tailcoat"[..]),
        (b"REMOTE_ADDR", address),
        (b"SCRIPT_NAME", script),
        (b"QUERY_STRING", query),
    ] {
        for part in [b"<p>", name, b" = ", value, b"\n"] {
            reply.extend_from_slice(part);
        }
    }
    reply.extend_from_slice(b"<pre>\n");
    let start = reply.len();
    response.body.read_iter().for_each(|piece| reply.extend_from_slice(&piece));
    FIELDS_OF_FILE.iter().for_each(|name| response.header.remove(name));
    if let Some(choice) = CHOICE.take() {
        put_ad(&mut reply[start..], query, choice);
        response.header.set(b"set-cookie", choice.cookie().as_bytes());
    }
    reply.extend_from_slice(b"\n</pre>\n</body></html>\n");
    response.header.set(b"content-type", b"text/html");
    response.body.write(&reply);
}

fn put_ad(content: &mut [u8], path: &[u8], choice: Choice) {
    let file = str::from_utf8(path).ok().and_then(form::FileId::parse);
    if let (Some(ad), Some(file)) = (choice.ad, file)
        && matches!(file.class, 1 | 2)
    {
        form::put_ad(content, &form::FileId::of_ad(ad).path());
    }
}

/// Path and query.
fn parts(uri: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = uri.iter().position(|byte| *byte == b'?')?;
    Some((&uri[..at], &uri[at + 1..]))
}
