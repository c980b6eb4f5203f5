//! Runs the cases of `conformance/http1` against the server's side of a connection, without a socket. The input comes
//! as a whole, byte by byte and in longer pieces.
//!
//! The test compares the events of the connection. For well-formed requests it imitates a static file server only as
//! far as the cases need one.

use std::path::Path;

use conformance::{Case, CaseOutcome, ConnectionEnd, ParsedResponse};
use wire::h1::{H1Event, H1ServerConnection, InputLimits};
use wire::http::{Method, Request, RequestHead, path};

#[test]
fn cases_in_pieces_of_any_size() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/http1");
    let cases = conformance::load(&folder).expect("the cases are well-formed");
    let failures: Vec<String> = cases.iter().filter_map(|case| check(case).err()).collect();
    assert!(failures.is_empty(), "{} of {} cases failed:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

fn check(case: &Case) -> Result<(), String> {
    let whole = run(&case.input, case.input.len().max(1));
    let expect = case.tailcoat.as_ref().unwrap_or(&case.expect);
    expect.check(&whole, false).map_err(|message| format!("{}: {message}", case.name))?;
    // Each piece makes the connection parse an incomplete head again, so long input comes in longer pieces.
    let steps = if case.input.len() < 4096 { [1, 7] } else { [700, 4001] };
    for step in steps {
        let pieces = run(&case.input, step);
        if !pieces.is_same_as(&whole) {
            return Err(format!("{}: {whole}, in pieces of {step}: {pieces}", case.name));
        }
    }
    Ok(())
}

/// Runs a connection on `input`, in pieces of `step` bytes, and returns its responses and its end.
fn run(input: &[u8], step: usize) -> CaseOutcome {
    let limits = InputLimits::default();
    let (mut connection, mut head) = (H1ServerConnection::default(), RequestHead::default());
    let mut responses = Vec::new();
    let mut awaited: Option<(u16, bool)> = None;
    let (mut start, mut end) = (0, 0);
    loop {
        match connection.handle_input(&input[start..end], &mut head, &limits) {
            Ok(H1Event::Request(incoming)) => {
                let request = Request { head: &head, bytes: &input[start..end] };
                let mut buffer = Vec::new();
                let status = status(request.method(), incoming.target.path, &mut buffer);
                let closes = !incoming.framing.is_persistent || request.method() == Method::Connect;
                // Like the server, do not send 100 (Continue) for content that no handler reads; send the final
                // response and close.
                let is_answered_early = incoming.framing.expects_continue && start + incoming.head_bytes == input.len();
                start += incoming.head_bytes;
                awaited = Some((status, closes || is_answered_early));
                if is_answered_early {
                    return outcome(vec![response(status)], ConnectionEnd::Closed);
                }
            }
            Ok(H1Event::Content(decoded)) => start += decoded.consumed_bytes,
            Ok(H1Event::NeedInput) if end == input.len() => {
                let is_over = !responses.is_empty() && start == end && awaited.is_none();
                return outcome(
                    responses,
                    if is_over { ConnectionEnd::InSync } else { ConnectionEnd::Waiting(Vec::new()) },
                );
            }
            Ok(H1Event::NeedInput) => end = (end + step).min(input.len()),
            Err(rejection) => {
                responses.push(response(rejection.status.code()));
                return outcome(responses, ConnectionEnd::Closed);
            }
        }
        // The response follows the content, which must be valid.
        if !connection.awaits_content()
            && let Some((status, closes)) = awaited.take()
        {
            responses.push(response(status));
            if closes {
                return outcome(responses, ConnectionEnd::Closed);
            }
        }
    }
}

fn status(method: Method, target_path: &[u8], buffer: &mut Vec<u8>) -> u16 {
    let files: [&[u8]; 3] = [b"/", b"/index.html", b"/probe.txt"];
    match method {
        Method::Other => 501,
        Method::Options => 204,
        Method::Get | Method::Head => match path::normalise(target_path, buffer) {
            Err(_) => 400,
            Ok(path) if files.contains(&path) => 200,
            Ok(_) => 404,
        },
        _ => 405,
    }
}

/// Builds a response with all fields that the cases check.
fn response(status: u16) -> ParsedResponse {
    let fields = ["Allow", "Connection", "Content-Length", "Date"].map(|name| (name.to_owned(), String::new()));
    ParsedResponse { status, fields: fields.into(), body: Vec::new() }
}

fn outcome(responses: Vec<ParsedResponse>, end: ConnectionEnd) -> CaseOutcome {
    CaseOutcome { responses, garbage: Vec::new(), end }
}
