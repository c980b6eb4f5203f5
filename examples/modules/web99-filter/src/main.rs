//! The dynamic GET of the web99 workload (`tailor web99`) as a filter of http-wasm: the request goes on as one for the file
//! itself, which the server has in memory, and what comes back is wrapped into the reply. What needs a cookie, a form or a
//! log is left to the module behind (`web99`).

use http_wasm_guest::host::{Request, Response, admin, feature};
use http_wasm_guest::{Guest, register};

struct Filter;

/// What `handle_response` is told: the response is not for it, or a file that it has asked for.
const LEFT: i32 = 0;
const FILE: i32 = 1;

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

fn main() {
    register(Filter);
}

impl Guest for Filter {
    fn handle_request(&self, request: &Request, _: &Response) -> (bool, i32) {
        let uri = request.uri();
        let Some((_, query)) = parts(&uri) else { return (true, LEFT) };
        if *request.method() != *b"GET" || !query.starts_with(b"/file_set/") || request.header.get(b"cookie").is_some() {
            return (true, LEFT);
        }
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
        if context != FILE || response.status() != 200 {
            return;
        }
        let uri = request.uri();
        let (script, query) = parts(&uri).unwrap_or_default();
        let source = request.source_addr();
        // Behind the last colon is the port.
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
        response.body.read_iter().for_each(|piece| reply.extend_from_slice(&piece));
        reply.extend_from_slice(b"\n</pre>\n</body></html>\n");
        FIELDS_OF_FILE.iter().for_each(|name| response.header.remove(name));
        response.header.set(b"content-type", b"text/html");
        response.body.write(&reply);
    }
}

/// Path and query.
fn parts(uri: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = uri.iter().position(|byte| *byte == b'?')?;
    Some((&uri[..at], &uri[at + 1..]))
}
