//! Module that follows the request's path: normal work of handlers and filters, and actions that the host must prevent.

use std::sync::atomic::{AtomicU64, Ordering};

use http_wasm_guest::host::{Request, Response, admin, feature, log};
use http_wasm_guest::{Guest, register};

struct Filter;

/// Number of requests that this instance has handled.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// Contexts that `handle_request` passes to `handle_response`, by the path.
const PASS: i32 = 1;
const CHANGE: i32 = 2;
const STATUS: i32 = 3;
const REPLACE: i32 = 4;
const TRAP: i32 = 5;
const LOOP: i32 = 6;
const UPPER_CASE: i32 = 7;

fn main() {
    if admin::config().as_ref() == b"trap" {
        core::arch::wasm32::unreachable();
    }
    println!("started");
    register(Filter);
}

impl Guest for Filter {
    fn handle_request(&self, request: &Request, response: &Response) -> (bool, i32) {
        let uri = request.uri();
        let uri = String::from_utf8_lossy(&uri).into_owned();
        let (path, query) = uri.split_once('?').unwrap_or((&uri, ""));
        match path.strip_prefix("/guest").unwrap_or_default() {
            "/hello" => answer(response, b"hello\n"),
            "/request" => answer(response, describe(request).as_bytes()),
            "/count" => answer(response, (COUNT.fetch_add(1, Ordering::Relaxed) + 1).to_string().as_bytes()),
            "/config" => answer(response, &admin::config()),
            "/status" => {
                response.set_status(query.parse().unwrap_or(500));
                (false, 0)
            }
            "/fields" => {
                response.header.set(b"x-a", b"1");
                response.header.add(b"x-a", b"2");
                response.header.set(b"x-b", b"3");
                response.header.remove(b"X-B");
                response.header.set(b"content-length", b"999");
                answer(response, b"fields")
            }
            "/large" => answer(response, &vec![b'x'; query.parse().unwrap_or(0)]),
            "/echo" => {
                for piece in request.body.read_iter() {
                    response.body.write(&piece);
                }
                (false, 0)
            }
            "/log" => {
                log::write(-1, b"unwanted");
                log::write(0, b"a line");
                log::write(2, b"an error");
                answer(response, b"logged")
            }
            "/environment" => {
                let variables = std::env::vars().map(|(name, value)| format!("{name}={value}\n"));
                answer(response, variables.collect::<String>().as_bytes())
            }
            "/read" => answer(response, reported(std::fs::read_to_string(query)).as_bytes()),
            "/write" => answer(response, reported(std::fs::write(query, "written").map(|()| "done".into())).as_bytes()),
            "/trap" => core::arch::wasm32::unreachable(),
            "/loop" => forever(),
            "/memory" => eat_memory(),
            "/recursion" => answer(response, deep(u64::MAX).to_string().as_bytes()),
            "/flood" => loop {
                response.body.write(&[b'x'; 4096]);
            },
            "/flood-log" => loop {
                log::write(0, &[b'x'; 1000]);
            },
            "/flood-fields" => loop {
                response.header.add(b"x-a", &[b'x'; 1000]);
            },
            "/bad-field" => {
                response.header.set(b"x-a", b"1\r\nx-b: 2");
                answer(response, b"smuggled")
            }
            "/grow" => {
                let held = std::hint::black_box(vec![1u8; 3 << 20]);
                answer(response, held.len().to_string().as_bytes())
            }
            "/exit" => std::process::exit(3),
            "/hang" => {
                std::thread::sleep(std::time::Duration::from_secs(1000));
                (false, 0)
            }
            passed => pass_on(passed, query, request),
        }
    }

    fn handle_response(&self, context: i32, request: &Request, response: &Response, is_error: bool) {
        match context {
            CHANGE => {
                let known = response.header.get(b"content-type").unwrap_or_default();
                response.header.set(b"x-was", &known);
                response.header.set(b"x-method", &request.method());
                response.header.set(b"x-error", if is_error { b"yes" } else { b"no" });
                response.header.remove(b"etag");
                response.header.add(b"x-seen", response.status().to_string().as_bytes());
            }
            STATUS => response.set_status(418),
            REPLACE => {
                response.set_status(200);
                response.body.write(b"instead");
            }
            UPPER_CASE => {
                let content = response.body.read().to_ascii_uppercase();
                response.body.write(&content);
            }
            TRAP => core::arch::wasm32::unreachable(),
            LOOP => forever(),
            _ => {}
        }
    }
}

fn pass_on(path: &str, query: &str, request: &Request) -> (bool, i32) {
    match path {
        "/change" => {
            request.set_uri(b"/file");
            (true, CHANGE)
        }
        "/uri" => {
            request.set_uri(query.as_bytes());
            (true, PASS)
        }
        "/method" => {
            request.set_method(query.as_bytes());
            (true, PASS)
        }
        "/field" => {
            request.header.set(b"x-added", b"by the guest");
            request.header.remove(b"x-secret");
            (true, PASS)
        }
        "/body" => {
            request.body.write(b"the guest's content");
            (true, PASS)
        }
        "/peek" => {
            admin::enable(feature::BufferRequest);
            let length = request.body.read_iter().next().map_or(0, |piece| piece.len());
            request.header.set(b"x-peeked", if length > 0 { b"yes" } else { b"no" });
            (true, PASS)
        }
        "/consume" => {
            request.body.read();
            (true, PASS)
        }
        "/status-of-next" => {
            request.set_uri(b"/file");
            (true, STATUS)
        }
        "/replace" => (true, REPLACE),
        "/upper-case" => {
            admin::enable(feature::BufferResponse);
            request.set_uri(query.as_bytes());
            (true, UPPER_CASE)
        }
        "/trap-in-response" => (true, TRAP),
        "/loop-in-response" => (true, LOOP),
        _ => (true, PASS),
    }
}

fn answer(response: &Response, content: &[u8]) -> (bool, i32) {
    response.header.set(b"content-type", b"text/plain");
    response.body.write(content);
    (false, 0)
}

fn describe(request: &Request) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut described = format!("{} {} {}\n", text(&request.method()), text(&request.uri()), text(&request.version()));
    described.push_str(&format!("from {}\n", text(&request.source_addr())));
    for name in request.header.names() {
        for value in request.header.values(&name) {
            described.push_str(&format!("{}: {}\n", text(&name), text(&value)));
        }
    }
    described
}

fn reported(result: std::io::Result<String>) -> String {
    result.unwrap_or_else(|error| format!("error: {:?}", error.kind()))
}

fn forever() -> ! {
    let mut number = 0u64;
    loop {
        number = std::hint::black_box(number.wrapping_add(1));
    }
}

fn eat_memory() -> ! {
    let mut held = Vec::new();
    loop {
        held.push(std::hint::black_box(vec![1u8; 1 << 20]));
    }
}

#[expect(unconditional_recursion, reason = "that is what it is for")]
fn deep(number: u64) -> u64 {
    std::hint::black_box(deep(number.wrapping_mul(3)) + number)
}
