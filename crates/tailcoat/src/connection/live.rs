//! The requests that are open, for operators.

use super::Context;
use crate::handler::OwnedRequest;
use crate::log::LogClient;
use crate::metrics::LiveRequest;

/// Bytes of a target or host that are told.
const TOLD_BYTES_MAX: usize = 200;

/// An open request.
pub(super) struct Live<'a> {
    pub(super) client: LogClient,
    pub(super) request: &'a OwnedRequest,
    /// What is done, in a word.
    pub(super) stage: &'static str,
    /// Bytes of its answer that were sent.
    pub(super) sent_bytes: u64,
}

/// Tells of the requests that have been open longest, at most so many, from `each`, which gives all that are open, and
/// the same twice. Returns how many are open.
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
    let mut told = Vec::new();
    each(&mut |live| {
        if told.len() < requests_max && live.request.received().monotonic_ms <= newest_ms {
            told.push(tell(live, now_ms));
        }
    });
    told.sort_by_key(|request| std::cmp::Reverse(request.age_ms));
    (open, told)
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

/// What a client has sent, so that it can be shown to an operator: without control characters, which could do something to
/// a terminal, and cut.
fn text(bytes: &[u8]) -> String {
    let cut = &bytes[..bytes.len().min(TOLD_BYTES_MAX)];
    let mut text: String =
        String::from_utf8_lossy(cut).chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect();
    if cut.len() < bytes.len() {
        text.push('…');
    }
    text
}
