//! Module that follows the request's path: normal work of modules, and actions that the host must prevent.

mod key_value;

use std::sync::atomic::{AtomicU64, Ordering};

use wasip2::clocks::monotonic_clock;
use wasip2::exports::http::incoming_handler::Guest;
use wasip2::http::types::{
    Fields, IncomingBody, IncomingRequest, OutgoingBody, OutgoingRequest, OutgoingResponse, ResponseOutparam, Scheme,
};
use wasip2::http::{outgoing_handler, types};
use wasip2::io::streams::StreamError;

struct Component;

wasip2::http::proxy::export!(Component);

impl Guest for Component {
    fn handle(request: IncomingRequest, out: ResponseOutparam) {
        let target = request.path_with_query().unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        match path {
            "/hello" => send(out, 200, &[("content-type", "text/plain")], b"hello\n"),
            "/text" => send(out, 200, &[("content-type", "text/plain")], &b"hello\n".repeat(2_000)),
            "/request" => send(out, 200, &[], describe(&request).as_bytes()),
            "/count" => count(out),
            "/status" => send(out, query.parse().unwrap_or(500), &[], b""),
            "/fields" => send(out, 200, &[("x-a", "1"), ("x-a", "2"), ("cache-control", "no-store")], b"fields"),
            "/large" => large(out, query.parse().unwrap_or(0)),
            "/length" => with_length(out, query),
            "/echo" => echo(&request, out),
            "/keep-pollables" => keep_pollables(&request, out),
            "/trailers" => trailers(out),
            "/pieces" => pieces(out),
            "/after" => after(out),
            "/sleep" => {
                sleep_ms(query.parse().unwrap_or(0));
                send(out, 200, &[], b"slept");
            }
            "/environment" => send(out, 200, &[], environment().as_bytes()),
            "/read" => send(out, 200, &[], reported(std::fs::read_to_string(query)).as_bytes()),
            "/write" => {
                send(out, 200, &[], reported(std::fs::write(query, "written").map(|()| "done".into())).as_bytes())
            }
            "/list" => send(out, 200, &[], reported(list(query)).as_bytes()),
            "/connect" => send(
                out,
                200,
                &[],
                reported(std::net::TcpStream::connect(query).map(|_| "connected".into())).as_bytes(),
            ),
            "/clock" => send(out, 200, &[], clock().as_bytes()),
            "/random" => send(out, 200, &[], format!("{:?}", wasip2::random::random::get_random_u64()).as_bytes()),
            "/key-value" => send(out, 200, &[], key_value::answer(query).as_bytes()),
            "/ask" => send(out, 200, &[], ask(query).as_bytes()),
            "/log" => {
                for number in 0..query.parse::<u32>().unwrap_or(1) {
                    println!("line {number}");
                }
                eprint!("an error");
                send(out, 200, &[], b"logged");
            }
            hostile => misbehave(hostile, &request, out),
        }
    }
}

/// Actions that the host must prevent.
fn misbehave(path: &str, request: &IncomingRequest, out: ResponseOutparam) {
    match path {
        "/loop" => forever(),
        "/loop-in-content" => {
            let (_body, stream) = begin(out, 200, &[]);
            stream.blocking_write_and_flush(b"begun").unwrap();
            forever();
        }
        "/loop-after" => {
            send(out, 200, &[], b"done");
            forever();
        }
        "/trap" => core::arch::wasm32::unreachable(),
        "/trap-in-content" => {
            let (_body, stream) = begin(out, 200, &[]);
            stream.blocking_write_and_flush(b"begun").unwrap();
            core::arch::wasm32::unreachable()
        }
        "/panic" => panic!("at the request"),
        "/exit" => std::process::exit(3),
        "/no-answer" => drop(out),
        "/no-content" => {
            let fields = Fields::new();
            let response = OutgoingResponse::new(fields);
            let _body = response.body().unwrap();
            ResponseOutparam::set(out, Ok(response));
        }
        "/kept-answer" => std::mem::forget(out),
        "/kept-content" => {
            let (body, stream) = begin(out, 200, &[]);
            stream.blocking_write_and_flush(b"begun").unwrap();
            std::mem::forget((body, stream));
        }
        "/kept-handle" => {
            std::mem::forget(Fields::new());
            send(out, 200, &[], b"kept");
        }
        "/error" => ResponseOutparam::set(out, Err(types::ErrorCode::InternalError(None))),
        "/interim" => send(out, 103, &[], b""),
        "/memory" => eat_memory(),
        "/recursion" => send(out, 200, &[], deep(u64::MAX).to_string().as_bytes()),
        "/flood" => {
            let (_body, stream) = begin(out, 200, &[]);
            let piece = vec![b'x'; 4096];
            while stream.blocking_write_and_flush(&piece).is_ok() {}
        }
        "/flood-log" => loop {
            println!("{}", "x".repeat(1000));
        },
        "/hang" => {
            sleep_ms(u64::MAX / 1_000_000);
            drop(out);
        }
        "/hang-in-content" => {
            let (_body, stream) = begin(out, 200, &[]);
            stream.blocking_write_and_flush(b"begun").unwrap();
            sleep_ms(u64::MAX / 1_000_000);
        }
        "/hang-on-content" => {
            // Waits for content that never arrives, without ending.
            let body = request.consume().unwrap();
            let stream = body.stream().unwrap();
            while stream.blocking_read(1 << 20).is_ok() {}
            send(out, 200, &[], b"read");
        }
        "/handles" => {
            let held: Vec<Fields> = (0..1_000_000).map(|_| Fields::new()).collect();
            send(out, 200, &[], held.len().to_string().as_bytes());
        }
        "/pollables-without-end" => {
            let body = request.consume().unwrap();
            let stream = body.stream().unwrap();
            loop {
                std::mem::forget(stream.subscribe());
            }
        }
        "/fields-without-end" => {
            let fields = Fields::new();
            let value = vec![b'x'; 1000];
            let mut count = 0;
            while fields.append("x-a", &value).is_ok() {
                count += 1;
            }
            send(out, 200, &[], count.to_string().as_bytes());
        }
        _ => send(out, 404, &[], b""),
    }
}

static COUNT: AtomicU64 = AtomicU64::new(0);

/// Number of requests of this instance.
fn count(out: ResponseOutparam) {
    let count = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    send(out, 200, &[], count.to_string().as_bytes());
}

fn begin(
    out: ResponseOutparam,
    status: u16,
    fields: &[(&str, &str)],
) -> (OutgoingBody, wasip2::io::streams::OutputStream) {
    let all = Fields::new();
    for (name, value) in fields {
        all.append(name, value.as_bytes()).unwrap();
    }
    let response = OutgoingResponse::new(all);
    response.set_status_code(status).unwrap();
    let body = response.body().unwrap();
    ResponseOutparam::set(out, Ok(response));
    let stream = body.write().unwrap();
    (body, stream)
}

fn send(out: ResponseOutparam, status: u16, fields: &[(&str, &str)], content: &[u8]) {
    let (body, stream) = begin(out, status, fields);
    for piece in content.chunks(4096) {
        stream.blocking_write_and_flush(piece).unwrap();
    }
    drop(stream);
    OutgoingBody::finish(body, None).unwrap();
}

fn describe(request: &IncomingRequest) -> String {
    let mut text = format!(
        "{:?} {:?} {:?} {:?}\n",
        request.method(),
        request.scheme(),
        request.authority(),
        request.path_with_query()
    );
    for (name, value) in request.headers().entries() {
        text.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(&value)));
    }
    text
}

fn large(out: ResponseOutparam, bytes: usize) {
    let (body, stream) = begin(out, 200, &[]);
    let piece = [b'x'; 4096];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(piece.len());
        if stream.blocking_write_and_flush(&piece[..length]).is_err() {
            return;
        }
        left -= length;
    }
    drop(stream);
    OutgoingBody::finish(body, None).unwrap();
}

/// `DECLARED-WRITTEN`: declares one length, and writes another.
fn with_length(out: ResponseOutparam, query: &str) {
    let (declared, written) = query.split_once('-').unwrap();
    let (body, stream) = begin(out, 200, &[("content-length", declared)]);
    let _ = stream.blocking_write_and_flush(&vec![b'x'; written.parse().unwrap()]);
    drop(stream);
    let _ = OutgoingBody::finish(body, None);
}

/// Reads all content as JavaScript's engine does: in small pieces, with a pollable for each that is never dropped.
fn keep_pollables(request: &IncomingRequest, out: ResponseOutparam) {
    let content = request.consume().unwrap();
    let stream = content.stream().unwrap();
    let (mut bytes, mut pollables) = (0, 0);
    loop {
        let pollable = stream.subscribe();
        pollable.block();
        std::mem::forget(pollable);
        pollables += 1;
        match stream.read(8192) {
            Ok(piece) => bytes += piece.len(),
            Err(StreamError::Closed) => break,
            Err(StreamError::LastOperationFailed(error)) => panic!("{}", error.to_debug_string()),
        }
    }
    std::mem::forget((stream, content));
    send(out, 200, &[], format!("{bytes} {pollables}").as_bytes());
}

fn echo(request: &IncomingRequest, out: ResponseOutparam) {
    let content = request.consume().unwrap();
    let input = content.stream().unwrap();
    let (body, output) = begin(out, 200, &[]);
    loop {
        match input.blocking_read(64 << 10) {
            Ok(piece) => piece.chunks(4096).for_each(|piece| output.blocking_write_and_flush(piece).unwrap()),
            Err(StreamError::Closed) => break,
            Err(StreamError::LastOperationFailed(_)) => return,
        }
    }
    drop((input, output));
    let trailers = IncomingBody::finish(content);
    trailers.subscribe().block();
    let trailers = trailers.get().unwrap().unwrap().unwrap();
    let trailers = trailers.map(|trailers| Fields::from_list(&trailers.entries()).unwrap());
    OutgoingBody::finish(body, trailers).unwrap();
}

fn trailers(out: ResponseOutparam) {
    let (body, stream) = begin(out, 200, &[]);
    stream.blocking_write_and_flush(b"content").unwrap();
    drop(stream);
    let fields = Fields::new();
    fields.append("x-checksum", b"42").unwrap();
    OutgoingBody::finish(body, Some(fields)).unwrap();
}

fn pieces(out: ResponseOutparam) {
    let (body, stream) = begin(out, 200, &[]);
    for piece in ["one ", "two ", "three"] {
        stream.blocking_write_and_flush(piece.as_bytes()).unwrap();
        sleep_ms(50);
    }
    drop(stream);
    OutgoingBody::finish(body, None).unwrap();
}

fn after(out: ResponseOutparam) {
    send(out, 200, &[], b"answered");
    sleep_ms(50);
    println!("after the answer");
}

fn environment() -> String {
    let arguments = std::env::args().count();
    let variables = std::env::vars().map(|(name, value)| format!("{name}={value}\n"));
    format!("{}{arguments} arguments\n", variables.collect::<String>())
}

fn list(directory: &str) -> std::io::Result<String> {
    let names = std::fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect::<std::io::Result<Vec<_>>>().map(|names| names.join(" "))
}

fn reported(result: std::io::Result<String>) -> String {
    result.unwrap_or_else(|error| format!("error: {:?}", error.kind()))
}

fn clock() -> String {
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    format!("{} {}", unix.as_secs(), monotonic_clock::resolution())
}

/// Requests `SCHEME://AUTHORITY/PATH`; returns status and content.
fn ask(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let request = OutgoingRequest::new(Fields::new());
    request.set_scheme(Some(&if scheme == "https" { Scheme::Https } else { Scheme::Http })).unwrap();
    request.set_authority(Some(authority)).unwrap();
    request.set_path_with_query(Some(&format!("/{path}"))).unwrap();
    let future = match outgoing_handler::handle(request, None) {
        Ok(future) => future,
        Err(code) => return format!("refused: {code:?}"),
    };
    future.subscribe().block();
    let response = match future.get().unwrap().unwrap() {
        Ok(response) => response,
        Err(code) => return format!("error: {code:?}"),
    };
    let content = response.consume().unwrap();
    let stream = content.stream().unwrap();
    let mut bytes = Vec::new();
    while let Ok(piece) = stream.blocking_read(64 << 10) {
        bytes.extend_from_slice(&piece);
    }
    format!("{}: {}", response.status(), String::from_utf8_lossy(&bytes))
}

fn sleep_ms(time: u64) {
    monotonic_clock::subscribe_duration(time.saturating_mul(1_000_000)).block();
}

fn forever() -> ! {
    let mut number = 0u64;
    loop {
        number = std::hint::black_box(number.wrapping_add(1));
    }
}

fn eat_memory() {
    let mut held = Vec::new();
    loop {
        held.push(std::hint::black_box(vec![1u8; 1 << 20]));
    }
}

#[expect(unconditional_recursion, reason = "that is what it is for")]
fn deep(number: u64) -> u64 {
    std::hint::black_box(deep(number.wrapping_mul(3)) + number)
}
