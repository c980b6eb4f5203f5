//! The dynamic operations of the web99 workload (`tailor web99`), as a WebAssembly module.
//!
//! It needs the site at `/site` (with `file_set` below it), and a directory at `/data` that it may write to. Reset and
//! Fetch are open to whoever reaches this module: it is for a laboratory, not for the Internet.

mod data;
mod form;

use std::time::{SystemTime, UNIX_EPOCH};

use data::{Choice, Tables};
use wasip2::exports::http::incoming_handler::Guest;
use wasip2::http::types::{Fields, IncomingRequest, Method, OutgoingBody, OutgoingResponse, ResponseOutparam};
use wasip2::io::streams::{OutputStream, StreamError};

struct Web99;

wasip2::http::proxy::export!(Web99);

/// An answer: content for the reply, and a cookie; or an error status.
type Answer = Result<(Vec<u8>, Option<String>), u16>;

impl Guest for Web99 {
    fn handle(request: IncomingRequest, out: ResponseOutparam) {
        let target = request.path_with_query().unwrap_or_default();
        let (script, query) = target.split_once('?').unwrap_or((&target, ""));
        let answer = match query.strip_prefix("command/") {
            Some(command) => answer_command(command),
            None if matches!(request.method(), Method::Post) => answer_post(&request),
            None => answer_get(query, form::my_cookie(&request).as_deref()),
        };
        match answer {
            Ok((content, cookie)) => {
                let body = reply(&request, script, query, &content);
                send(out, 200, cookie.as_deref(), &body);
            }
            Err(status) => send(out, status, None, b""),
        }
    }
}

fn answer_get(path: &str, cookie: Option<&str>) -> Answer {
    let file = form::FileId::parse(path).ok_or(404u16)?;
    let mut content = file_content(path)?;
    let Some(cookie) = cookie else { return Ok((content, None)) };
    let choice = form::rotation_cookie(cookie).map_or_else(Choice::none, |(user, last_ad)| {
        Tables::choose(user, last_ad, unix_seconds())
    });
    if let Some(ad) = choice.ad
        && matches!(file.class, 1 | 2)
    {
        form::put_ad(&mut content, &form::FileId::of_ad(ad).path());
    }
    Ok((content, Some(choice.cookie())))
}

fn answer_post(request: &IncomingRequest) -> Answer {
    let post = form::Post::parse(&form::content(request)).ok_or(400u16)?;
    let user = form::my_cookie(request).as_deref().and_then(form::user_of).ok_or(400u16)?;
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
    let address = form::field(request, "x-forwarded-for").unwrap_or_default();
    let head = format!(
        "<html>\n<head><title>web99 dynamic reply</title></head>\n<body>\n<p>SERVER_SOFTWARE = tailcoat\n\
         <p>REMOTE_ADDR = {address}\n<p>SCRIPT_NAME = {script}\n<p>QUERY_STRING = {query}\n<pre>\n"
    );
    [head.as_bytes(), content, b"\n</pre>\n</body></html>\n"].concat()
}

fn send(out: ResponseOutparam, status: u16, cookie: Option<&str>, body: &[u8]) {
    let fields = Fields::new();
    // These names and values are good.
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

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
