//! The dynamic operations of the web99 workload (`tailor web99`), as a WebAssembly module.
//!
//! It needs the site at `/site` (with `file_set` below it), and a writable directory at `/data`. All clients that reach this
//! module may use Reset and Fetch: it is for a laboratory, not for the Internet.

mod ads;
mod data;
mod form;

use std::time::{SystemTime, UNIX_EPOCH};

use ads::Choice;
use wasip2::exports::http::incoming_handler::Guest;
use wasip2::http::types::{Fields, IncomingRequest, Method, OutgoingBody, OutgoingResponse, ResponseOutparam};
use wasip2::io::streams::{OutputStream, StreamError};

/// Bytes of a POST that are looked at.
const FORM_BYTES_MAX: u64 = 1024;

struct Web99;

wasip2::http::proxy::export!(Web99);

/// Content for the reply, and a cookie; or an error status.
type Answer = Result<(Vec<u8>, Option<String>), u16>;

impl Guest for Web99 {
    fn handle(request: IncomingRequest, out: ResponseOutparam) {
        let target = request.path_with_query().unwrap_or_default();
        let (script, query) = target.split_once('?').unwrap_or((&target, ""));
        let answer = match query.strip_prefix("command/") {
            Some(command) => answer_command(command),
            None if matches!(request.method(), Method::Post) => answer_post(&request),
            None => answer_get(query, &request),
        };
        match answer {
            Ok((content, cookie)) => {
                let mut body = reply(&request, script, query, &content);
                if field(&request, form::TABLES_FIELD).is_some() {
                    append_tables(&mut body);
                }
                send(out, 200, cookie.as_deref(), &body);
            }
            Err(status) => send(out, status, None, b""),
        }
    }
}

fn answer_get(path: &str, request: &IncomingRequest) -> Answer {
    let file = form::FileId::parse(path).ok_or(404u16)?;
    let mut content = file_content(path)?;
    let cookies = field(request, "cookie");
    let Some(cookie) = cookies.as_deref().and_then(form::my_cookie) else { return Ok((content, None)) };
    let choice = form::rotation_cookie(cookie)
        .map_or_else(Choice::none, |(user, last_ad)| data::choose(user, last_ad, unix_seconds()));
    if let Some(ad) = choice.ad
        && matches!(file.class, 1 | 2)
    {
        form::put_ad(&mut content, &form::FileId::of_ad(ad).path());
    }
    Ok((content, Some(choice.cookie())))
}

fn answer_post(request: &IncomingRequest) -> Answer {
    let post = form::Post::parse(&form_of(request)).ok_or(400u16)?;
    let cookies = field(request, "cookie");
    let user = cookies.as_deref().and_then(form::my_cookie).and_then(form::user_of).ok_or(400u16)?;
    let name = post.file.path();
    let content = file_content(&name)?;
    data::append_record(&post, user, unix_seconds()).map_err(|_| 500u16)?;
    Ok((content, Some(format!("my_cookie={user}"))))
}

fn answer_command(command: &str) -> Answer {
    let content = if command == "Fetch" {
        data::post_log()
    } else {
        let (users, seed, now) = form::reset(command).ok_or(400u16)?;
        data::reset(users, seed, now).map(|()| b"done".to_vec())
    };
    content.map(|content| (content, None)).map_err(|_| 500)
}

fn file_content(path: &str) -> Result<Vec<u8>, u16> {
    std::fs::read(format!("/site{path}")).map_err(|_| 404)
}

/// The reply around a file's content.
fn reply(request: &IncomingRequest, script: &str, query: &str, content: &[u8]) -> Vec<u8> {
    let address = field(request, "x-forwarded-for").unwrap_or_default();
    let head = format!(
        "<html>\n<head><title>web99 dynamic reply</title></head>\n<body>\n<p>SERVER_SOFTWARE = tailcoat\n\
         <p>REMOTE_ADDR = {address}\n<p>SCRIPT_NAME = {script}\n<p>QUERY_STRING = {query}\n<pre>\n"
    );
    [head.as_bytes(), content, b"\n</pre>\n</body></html>\n"].concat()
}

/// Appends the tables to a reply, each before its length in four bytes, for the filter before this module.
fn append_tables(body: &mut Vec<u8>) {
    let (users, ads) = data::tables().unwrap_or_default();
    for table in [users, ads] {
        body.extend_from_slice(&table);
        body.extend_from_slice(&(table.len() as u32).to_le_bytes());
    }
}

fn send(out: ResponseOutparam, status: u16, cookie: Option<&str>, body: &[u8]) {
    let fields = Fields::new();
    // A name and a value that are always valid.
    fields.append("content-type", b"text/html").expect("a field that may be set");
    fields.append("content-length", body.len().to_string().as_bytes()).expect("a field that may be set");
    if let Some(cookie) = cookie {
        fields.append("set-cookie", cookie.as_bytes()).expect("a field that may be set");
    }
    let response = OutgoingResponse::new(fields);
    response.set_status_code(status).expect("a status");
    let outgoing = response.body().expect("taken once");
    ResponseOutparam::set(out, Ok(response));
    let stream = outgoing.write().expect("taken once");
    // The client may have gone.
    if write(&stream, body).is_err() {
        return;
    }
    drop(stream);
    let _ = OutgoingBody::finish(outgoing, None);
}

/// Writes as much at a time as the stream takes.
fn write(stream: &OutputStream, mut content: &[u8]) -> Result<(), StreamError> {
    let pollable = stream.subscribe();
    while !content.is_empty() {
        let room = stream.check_write()?;
        if room == 0 {
            pollable.block();
            continue;
        }
        let (piece, rest) = content.split_at(content.len().min(room as usize));
        stream.write(piece)?;
        content = rest;
    }
    stream.blocking_flush()
}

/// The value of a field.
fn field(request: &IncomingRequest, name: &str) -> Option<String> {
    let value = request.headers().get(name).into_iter().next()?;
    String::from_utf8(value).ok()
}

/// The form: the beginning of the content.
fn form_of(request: &IncomingRequest) -> Vec<u8> {
    let mut bytes = Vec::new();
    let Ok(body) = request.consume() else { return bytes };
    let Ok(stream) = body.stream() else { return bytes };
    while (bytes.len() as u64) < FORM_BYTES_MAX {
        match stream.blocking_read(FORM_BYTES_MAX) {
            Ok(piece) => bytes.extend_from_slice(&piece),
            Err(StreamError::Closed | StreamError::LastOperationFailed(_)) => break,
        }
    }
    bytes
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
