//! One health check: a GET request whose response must have a status in the configured range.

use std::time::Duration;

use tokio::time::timeout;
use wire::h1::{HeadLimits, ResponseHead, parse_response_head, write_request_head};
use wire::h2::{ClientEvent, EngineTurn, H2ClientConnection, H2Limits, H2Output, OutgoingRequest};
use wire::http::{Fields, Version};

use super::connect::{ConnectRequest, connect, proxy_preamble};
use super::server::{SharedServer, UpstreamProtocol};
use super::shared::SharedUpstream;
use super::stream::UpstreamStream;
use super::{http2, monotonic_ms};
use crate::config::{HealthCheck, format_duration};

/// Limits of the head of a check's response; a server that sends more fails the check.
const HEAD_LIMITS: HeadLimits = HeadLimits { head_bytes_max: 16 << 10, fields_max: 100, target_bytes_max: 0 };

/// Checks a server.
///
/// # Errors
/// The reason that the check failed, as text for the log: a wrong status, a failed connection or a timeout.
pub(super) async fn check(upstream: &SharedUpstream, server: &SharedServer, check: &HealthCheck) -> Result<(), String> {
    match timeout(check.timeout, ask(upstream, server, check)).await {
        Ok(Ok(status)) if (check.status_min..=check.status_max).contains(&status) => Ok(()),
        Ok(Ok(status)) => Err(format!("GET {} returned status {status}", check.path)),
        Ok(Err(reason)) => Err(reason),
        Err(_) => Err(format!("no response within {}", format_duration(check.timeout))),
    }
}

async fn ask(upstream: &SharedUpstream, server: &SharedServer, check: &HealthCheck) -> Result<u16, String> {
    let preamble = proxy_preamble(upstream.config.proxy_protocol, None);
    let opened =
        ConnectRequest { limit: check.timeout, preamble: &preamble, tls: upstream.tls.as_ref(), wants_http1: false };
    let (stream, is_http2) = connect(server, opened).await.map_err(|error| error.to_string())?;
    let host = check.host.clone().unwrap_or_else(|| server.authority());
    let status = match is_http2 {
        true => {
            let scheme = if server.protocol == UpstreamProtocol::Negotiated { "https" } else { "http" };
            ask_http2(stream, check, &host, scheme, &http2::limits(&upstream.config)).await
        }
        false => ask_http1(stream, check, &host).await,
    };
    status.ok_or_else(|| "the connection closed without a valid response".to_owned())
}

async fn ask_http1(mut stream: UpstreamStream, check: &HealthCheck, host: &str) -> Option<u16> {
    let mut out = Vec::new();
    let mut fields = Fields::new();
    fields.push("Host", host).push("User-Agent", USER_AGENT).push("Connection", "close");
    write_request_head(&mut out, b"GET", check.path.as_bytes(), Version::Http11, &fields);
    stream.write_all(&out).await.ok()?;
    let (mut input, mut head) = (Vec::new(), ResponseHead::default());
    loop {
        read(&mut stream, &mut input).await?;
        let mut rest = input.as_slice();
        // RFC 9110, section 15.2: informational responses come before the final one.
        while let Some(length) = parse_response_head(rest, &mut head, &HEAD_LIMITS).ok()? {
            if head.status.code() >= 200 {
                return Some(head.status.code());
            }
            rest = &rest[length..];
        }
        if input.len() > HEAD_LIMITS.head_bytes_max {
            return None;
        }
    }
}

async fn ask_http2(
    mut stream: UpstreamStream,
    check: &HealthCheck,
    host: &str,
    scheme: &str,
    limits: &H2Limits,
) -> Option<u16> {
    let (mut output, mut input, mut fields) = (H2Output::default(), Vec::new(), Fields::new());
    let now = || Duration::from_millis(monotonic_ms());
    let mut engine = H2ClientConnection::new(now(), limits);
    let mut turn = EngineTurn { now: now(), limits, output: &mut output };
    engine.start(&mut turn);
    let request = OutgoingRequest {
        method: b"GET",
        scheme: Some(scheme.as_bytes()),
        authority: Some(host.as_bytes()),
        path: Some(check.path.as_bytes()),
        protocol: None,
    };
    fields.push("User-Agent", USER_AGENT);
    engine.send_request(&request, &fields, true, &mut turn)?;
    loop {
        if !output.is_empty() {
            stream.write_all(output.bytes()).await.ok()?;
            output.clear();
        }
        read(&mut stream, &mut input).await?;
        let mut at = 0;
        loop {
            let mut turn = EngineTurn { now: now(), limits, output: &mut output };
            let handled = engine.handle_input(&input[at..], &mut fields, &mut turn);
            at += handled.consumed_bytes;
            match handled.event {
                ClientEvent::NeedInput | ClientEvent::AwaitOutput => break,
                ClientEvent::Response { status, .. } if status.code() >= 200 => return Some(status.code()),
                ClientEvent::Response { .. } => {}
                // The head comes before any content.
                _ => return None,
            }
        }
        input.drain(..at);
    }
}

const USER_AGENT: &str = "tailcoat (health check)";

/// Reads at least one byte and appends it to `input`; `None` at the end or on an error.
async fn read(stream: &mut UpstreamStream, input: &mut Vec<u8>) -> Option<()> {
    let mut piece = [0; 4096];
    let count = stream.read(&mut piece).await.ok().filter(|count| *count > 0)?;
    input.extend_from_slice(&piece[..count]);
    Some(())
}
