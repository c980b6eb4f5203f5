//! Open requests, for operators.

use super::Context;
use crate::handler::OwnedRequest;
use crate::log::LogClient;
use crate::metrics::LiveRequest;

/// Maximum number of bytes shown of a target or host.
const REPORTED_BYTES_MAX: usize = 200;

pub(super) struct Live<'a> {
    pub(super) client: LogClient,
    pub(super) request: &'a OwnedRequest,
    /// Current stage, in one word.
    pub(super) stage: &'static str,
    /// Bytes of the response that were sent.
    pub(super) sent_bytes: u64,
}

/// Returns the number of open requests, and the ones open longest, at most `requests_max`. `each` must visit all open
/// requests, and the same requests in both calls.
pub(super) fn longest_open(
    requests_max: usize,
    context: &Context,
    each: impl Fn(&mut dyn FnMut(&Live<'_>)),
) -> (usize, Vec<LiveRequest>) {
    let mut received_ms = Vec::new();
    each(&mut |live| received_ms.push(live.request.received().monotonic_ms));
    let open = received_ms.len();
    let newest_ms = match requests_max.min(open).checked_sub(1) {
        None => return (open, Vec::new()),
        Some(last) => *received_ms.select_nth_unstable(last).1,
    };
    let now_ms = context.clock.now().monotonic_ms;
    let mut reported = Vec::new();
    each(&mut |live| {
        if reported.len() < requests_max && live.request.received().monotonic_ms <= newest_ms {
            reported.push(tell(live, now_ms));
        }
    });
    reported.sort_by_key(|request| std::cmp::Reverse(request.age_ms));
    (open, reported)
}

fn tell(live: &Live<'_>, now_ms: u64) -> LiveRequest {
    let request = live.request.request();
    let upstream = live.request.link().and_then(|link| {
        let forwarding = link.forwarding().borrow();
        forwarding.record().map(|record| record.server.to_owned())
    });
    LiveRequest {
        client: match live.client {
            LogClient::Ip(address) => address.ip().to_canonical().to_string(),
            LogClient::Unix => "unix".to_owned(),
        },
        method: text(request.method_name()),
        host: text(live.request.host()),
        target: text(request.target()),
        version: crate::metrics::VersionKind::from(Some(request.head.version)).name().to_owned(),
        handler: live.request.handler().name().to_owned(),
        stage: live.stage.to_owned(),
        age_ms: now_ms.saturating_sub(live.request.received().monotonic_ms),
        sent_bytes: live.sent_bytes,
        upstream: upstream.unwrap_or_default(),
    }
}

/// Converts bytes from a client to text for an operator. Control characters, which could affect a terminal, are
/// replaced, and long text is cut.
pub(super) fn text(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(REPORTED_BYTES_MAX)];
    let mut text: String =
        String::from_utf8_lossy(cut).chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect();
    if cut.len() < bytes.len() {
        text.push('…');
    }
    text
}
