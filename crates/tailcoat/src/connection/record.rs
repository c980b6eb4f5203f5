//! Access log: what connections of all versions tell of a request.

use std::ops::Range;
use std::rc::Rc;

use wire::http::Status;

use super::Context;
use crate::handler::{ClientLink, Now, Response};
use crate::log::{Client, Record, Subject};
use crate::routing::Account;
use crate::routing::rules::Visit;
use crate::tls::TlsInfo;

/// Logged, as by nginx, when the client broke the connection off before it was answered; never sent.
pub(super) const CLIENT_GONE: u16 = 499;

/// Who sent a request, as far as the connection says, and how it speaks TLS.
#[derive(Clone, Copy)]
pub(super) struct Peer<'a> {
    pub(super) client: Client,
    pub(super) tls: Option<&'a TlsInfo>,
}

/// What is logged of an answer, besides request and time.
pub(super) struct Told<'a> {
    pub(super) link: Option<&'a Rc<ClientLink>>,
    /// A stored response of another server was served.
    pub(super) is_hit: bool,
    /// Its status, and bytes of content.
    pub(super) sent: (Status, u64),
    /// Whether that is all of it.
    pub(super) is_complete: bool,
}

/// Logs a request, from when it came to when it was answered.
pub(super) fn record(
    context: &Context,
    peer: Peer<'_>,
    account: &Account,
    subject: Subject<'_>,
    host: &[u8],
    told: Told<'_>,
    time: Range<Now>,
) {
    let Some(log) = account.log else { return };
    let visit = account.visit.as_deref();
    let forwarding = told.link.map(|link| link.forwarding().borrow());
    let (status, content_bytes) = told.sent;
    context.recorder.borrow_mut().record(&Record {
        log,
        subject,
        client: visit.map_or(peer.client, Visit::client),
        host,
        user: visit.map_or(b"", Visit::user),
        tls: peer.tls.map(TlsInfo::record),
        upstream: forwarding.as_ref().and_then(|forwarding| forwarding.record()),
        cache_status: match forwarding.as_ref().map_or("", |forwarding| forwarding.cache_status()) {
            "" if told.is_hit => "hit",
            word => word,
        },
        request_id: visit.map_or("", Visit::given_request_id),
        is_complete: told.is_complete,
        status,
        content_bytes,
        unix_us: time.start.unix_us,
        duration_us: time.end.unix_us.saturating_sub(time.start.unix_us),
    });
}

/// Whether it is another server's response, from the cache.
pub(super) fn is_hit(response: &Response) -> bool {
    let object = match response {
        Response::Cached { object, .. } => object,
        Response::Changed(changed) => &changed.object,
        Response::Built(_) => return false,
    };
    object.object.response().is_some()
}
