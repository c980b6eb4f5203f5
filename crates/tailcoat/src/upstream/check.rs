//! One health check: a GET request, and whether the answer is good.

use tokio::time::timeout;
use wire::h1::{HeadLimits, ResponseHead, parse_response_head, write_request_head};
use wire::http::{Fields, Version};

use super::connect::{connect, proxy_preamble};
use super::shared::Server;
use crate::config::{HealthCheck, ProxyProtocol};

/// Limits of the head of an answer; a server that sends more is not well.
const HEAD_LIMITS: HeadLimits = HeadLimits { head_bytes_max: 16 << 10, fields_max: 100, target_bytes_max: 0 };

/// Checks a server; `false` if its answer is not good, or does not come in time.
pub(super) async fn check(server: &Server, check: &HealthCheck, proxy_protocol: Option<ProxyProtocol>) -> bool {
    let status = timeout(check.timeout, ask(server, check, proxy_protocol)).await;
    status.ok().flatten().is_some_and(|status| (check.status_min..=check.status_max).contains(&status))
}

/// The status of the answer.
async fn ask(server: &Server, check: &HealthCheck, proxy_protocol: Option<ProxyProtocol>) -> Option<u16> {
    let mut out = proxy_preamble(proxy_protocol, None);
    let mut fields = Fields::new();
    fields.push("Host", check.host.clone().unwrap_or_else(|| server.location.authority()));
    fields.push("User-Agent", "tailcoat (health check)").push("Connection", "close");
    write_request_head(&mut out, b"GET", check.path.as_bytes(), Version::Http11, &fields);
    let mut stream = connect(server, check.timeout, &out).await.ok()?;
    let (mut input, mut head) = (Vec::new(), ResponseHead::default());
    loop {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).await.ok().filter(|count| *count > 0)?;
        input.extend_from_slice(&piece[..count]);
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
