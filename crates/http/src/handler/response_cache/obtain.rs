//! Obtaining responses: fetching, validating, and waiting for other requests that do so.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout_at};
use wire::http::caching::{
    Defaults, Reception, RequestDirectives, ReuseDecision, invalidates, reuse, serves_on_error, storage,
    write_validators,
};
use wire::http::{Fields, Method, Request, Status};

use super::flights::{FetchEnd, FetchWait, Joined, Ticket};
use super::key::is_ambiguous;
use super::lookup::{BYPASS, Look, write_selecting};
use super::persistence::{DiskKey, FurtherTier, TierLoad, forget_first_use};
use super::recording::record;
use super::respond::apply_conditions;
use super::store::CacheEntry;
use super::{Fetch, ResponseCacheInner};
use crate::handler::forward::ACCEL_EXPIRES;
use crate::handler::{Body, BuiltResponse, ClientGone, ClientLinkCell, Now, OwnedRequest, Response, Routed, Segment};
use crate::object_cache::CachedObject;
use crate::shared_cache::FetchStamp;

/// Most responses that a request reads from further tiers: of its URL, of its variant, and again if they changed meanwhile.
pub(super) const LOADS_MAX: u32 = 4;

/// A fetched response, and the time of its reception.
pub(super) struct Fetched {
    pub(super) response: Box<BuiltResponse>,
    pub(super) reception: Reception,
    pub(super) now: Now,
    /// Stamp of the fetch, for the cache that instances share.
    pub(super) stamp: Option<FetchStamp>,
}

/// Purpose of a fetch.
struct Errand {
    /// Stored response to validate.
    stale: Option<Rc<CachedObject>>,
    /// Duty to report to waiting requests, and right to store.
    ticket: Option<Ticket>,
    key: Vec<u8>,
    /// Reason for the fetch (RFC 9211, section 2.2).
    reason: &'static str,
}

impl ResponseCacheInner {
    /// Handles a request that no stored response satisfies at once. `disk_key` is the key of the response on disk, as far as it
    /// is known.
    pub(super) async fn obtain(
        self: Rc<Self>,
        request: Rc<OwnedRequest>,
        fetch: Rc<dyn Fetch>,
        mut disk_key: Option<DiskKey>,
    ) -> Result<Response, ClientGone> {
        let deadline = Instant::now() + self.shared.config.collapse_timeout;
        let mut handling = None;
        let (mut waited_for, mut asked_for, mut loads) = (Vec::new(), Vec::new(), 0);
        loop {
            let routed = Routed { now: Now::read(), ..request.routed(false) };
            let look = self.look_up(&routed);
            let asked = self.asked(&routed.request);
            if look.is_miss() && loads < LOADS_MAX {
                let key = self.keys.borrow().narrowest().to_vec();
                let known = disk_key.take().filter(|known| known.key() == key);
                let known = known.or_else(|| self.shared.disk_key(&key));
                let now_ms = routed.now.monotonic_ms;
                if let Some(tier) = self.shared.further_tier(&key, known, asked_for == key, now_ms) {
                    loads += 1;
                    let word = match tier {
                        FurtherTier::Disk(_) => "disk-hit",
                        FurtherTier::Shared => "shared-hit",
                    };
                    let loaded = self.load_once(&request, &key, &tier, deadline).await?;
                    if matches!(tier, FurtherTier::Shared) {
                        asked_for = key;
                    }
                    match loaded {
                        TierLoad::Stored => note(&request, word),
                        TierLoad::Alone(object) if self.suits(&routed.request, &object) => {
                            note(&request, word);
                            return Ok(self.respond_after(&routed, object, handling));
                        }
                        TierLoad::Alone(_) | TierLoad::Missing => {}
                    }
                    continue;
                }
            }
            let stale = match look {
                Look::Serve(object) | Look::ServeAndRevalidate(object) => {
                    if loads > 0 {
                        forget_first_use(&object);
                    }
                    return Ok(self.respond_after(&routed, object, handling));
                }
                Look::Pass(_) | Look::Miss | Look::Validate(_) if asked.only_if_cached => {
                    // RFC 9111, section 5.2.1.7.
                    return Ok(Response::Built(BuiltResponse::new(Status::GATEWAY_TIMEOUT)));
                }
                Look::Pass(reason) => return self.pass(request, fetch, reason).await,
                Look::Validate(object) => Some(object),
                Look::Miss => None,
            };
            let (key, missed) = {
                let keys = self.keys.borrow();
                (keys.narrowest().to_vec(), keys.missed())
            };
            let reason = stale.as_ref().map_or(missed, |stale| reason_to_validate(stale, routed.now.monotonic_ms));
            // A request waits only once for a key: the second wait would not help either.
            let may_wait = waited_for != key && !self.shared.uncacheable.has(&key, routed.now.monotonic_ms);
            let waiting = match self.shared.flights.join(&key, self.shared.config.collapse_max) {
                Joined::Waiting(waiting) if may_wait => waiting,
                joined => {
                    let errand = Errand { stale, ticket: joined.into_ticket(), key, reason };
                    return self.fetch_and_keep(&request, &fetch, errand).await;
                }
            };
            match self.wait(&request, waiting, deadline).await? {
                Ok(FetchEnd::Stored) => {
                    handling = Some("fwd=miss; collapsed");
                    waited_for = key;
                }
                Ok(FetchEnd::Abandoned) => {}
                Ok(FetchEnd::Failed) if stale.as_ref().is_some_and(|stale| is_spare(stale, &asked)) => {
                    note(&request, "stale");
                    // Local invariant: the guard above has checked it.
                    let Some(stale) = stale else { continue };
                    return Ok(self.respond_after(&routed, stale, Some("fwd=stale; collapsed")));
                }
                Ok(FetchEnd::NotStored | FetchEnd::Failed) | Err(_) => waited_for = key,
            }
        }
    }

    /// Reads a response from a further tier, once for all requests that want it.
    async fn load_once(
        &self,
        request: &OwnedRequest,
        key: &[u8],
        tier: &FurtherTier,
        deadline: Instant,
    ) -> Result<TierLoad, ClientGone> {
        match self.shared.flights.join(key, self.shared.config.collapse_max) {
            Joined::Waiting(waiting) => match self.wait(request, waiting, deadline).await? {
                Ok(FetchEnd::Stored) => Ok(TierLoad::Stored),
                // Does not fit into memory, so that each request reads it.
                Ok(FetchEnd::NotStored) => Ok(self.load(request, key, tier).await),
                Ok(FetchEnd::Failed | FetchEnd::Abandoned) | Err(_) => Ok(TierLoad::Missing),
            },
            Joined::TooMany => Ok(self.load(request, key, tier).await),
            Joined::First(ticket) => {
                let loaded = self.load(request, key, tier).await;
                if ticket.is_invalid() {
                    if let Some(object) = self.shared.store.peek(self.shared.id, key) {
                        self.shared.remove(&object);
                    }
                    return Ok(TierLoad::Missing);
                }
                ticket.end(match &loaded {
                    TierLoad::Stored => FetchEnd::Stored,
                    TierLoad::Alone(_) => FetchEnd::NotStored,
                    TierLoad::Missing => FetchEnd::Abandoned,
                });
                Ok(loaded)
            }
        }
    }

    /// True if a response that was read from disk may be served to a request without validation.
    fn suits(&self, request: &Request<'_>, object: &CachedObject) -> bool {
        let Some(response) = object.object.response() else { return false };
        let is_selected = response.variant.as_ref().is_none_or(|variant| {
            let mut selecting = Vec::new();
            write_selecting(request, &variant.names, &mut selecting);
            *selecting == *variant.selecting
        });
        let now_ms = Now::read().monotonic_ms;
        is_selected && reuse(&response.stored, &self.asked(request), now_ms) == ReuseDecision::Serve
    }

    /// Waits for another request's fetch until this time.
    async fn wait(
        &self,
        request: &OwnedRequest,
        waiting: FetchWait,
        deadline: Instant,
    ) -> Result<Result<FetchEnd, Elapsed>, ClientGone> {
        let mut ended = pin!(timeout_at(deadline, waiting.ended()));
        let is_abandoned =
            || self.shared.aborts_with_client && request.link().is_some_and(|link| link.has_client_ended());
        let wait = poll_fn(|task| match ended.as_mut().poll(task) {
            Poll::Ready(ended) => Poll::Ready(Ok(ended)),
            Poll::Pending if is_abandoned() => Poll::Ready(Err(ClientGone)),
            Poll::Pending => Poll::Pending,
        });
        wait.await
    }

    /// Validates a response that was served already, unless another request is fetching.
    pub(super) fn revalidate(
        self: &Rc<Self>,
        request: Rc<OwnedRequest>,
        stale: Rc<CachedObject>,
        fetch: Rc<dyn Fetch>,
    ) {
        let key = self.keys.borrow().narrowest().to_vec();
        let Joined::First(ticket) = self.shared.flights.join(&key, 0) else { return };
        // The client's connection continues without it.
        let request = Rc::new(OwnedRequest::new(&Routed { link: &ClientLinkCell::default(), ..request.routed(false) }));
        let inner = Rc::clone(self);
        tokio::task::spawn_local(async move {
            let errand = Errand { stale: Some(stale), ticket: Some(ticket), key, reason: "stale" };
            let kept = inner.fetch_and_keep(&request, &fetch, errand);
            // The stored response is what matters; no client waits for this one.
            let _ = tokio::time::timeout(inner.shared.head_timeout, kept).await;
        });
    }

    /// Forwards a request that the cache can't handle, and applies the response to stored ones.
    async fn pass(
        self: Rc<Self>,
        request: Rc<OwnedRequest>,
        fetch: Rc<dyn Fetch>,
        reason: &str,
    ) -> Result<Response, ClientGone> {
        let fetched = self.fetch(&request, &fetch, Fields::new()).await;
        note(&request, "bypass");
        let Fetched { mut response, reception, now, .. } = fetched?;
        let routed = Routed { now, ..request.routed(false) };
        let method = routed.request.method();
        if invalidates(method, response.status) {
            self.invalidate(&routed, &response.fields).await;
        } else if method == Method::Head && reason != BYPASS && response.forwarded.is_some() {
            self.learn_from_head(&routed, &response, reception);
        }
        response.add_own_field();
        response.fields.remove(ACCEL_EXPIRES);
        self.add_cache_status(&mut response.fields, &format!("fwd={reason}"));
        Ok(Response::Built(response))
    }

    async fn fetch(
        &self,
        request: &Rc<OwnedRequest>,
        fetch: &Rc<dyn Fetch>,
        changes: Fields,
    ) -> Result<Fetched, ClientGone> {
        let (sent_ms, stamp) = (Now::read().monotonic_ms, self.shared.stamp());
        let response = Rc::clone(fetch).fetch(Rc::clone(request), changes).await?;
        let now = Now::read();
        let delay_ms = now.monotonic_ms.saturating_sub(sent_ms);
        Ok(Fetched { response, reception: Reception { delay_ms, unix_seconds: now.unix_seconds }, now, stamp })
    }

    /// Fetches a response or validates the stale one, and stores the result if allowed.
    async fn fetch_and_keep(
        self: &Rc<Self>,
        request: &Rc<OwnedRequest>,
        fetch: &Rc<dyn Fetch>,
        errand: Errand,
    ) -> Result<Response, ClientGone> {
        let Errand { stale, ticket, key, mut reason } = errand;
        let is_uncacheable = stale.is_none() && self.shared.uncacheable.has(&key, Now::read().monotonic_ms);
        let changes = if is_uncacheable { Fields::new() } else { changes_for(stale.as_deref()) };
        let fetched = self.fetch(request, fetch, changes).await;
        note(request, if stale.is_some() { "expired" } else { "miss" });
        let mut fetched = fetched?;
        if let Some(stale) = stale {
            let response = &fetched.response;
            let routed = Routed { now: fetched.now, ..request.routed(false) };
            if is_failure(response) && is_spare(&stale, &self.asked(&routed.request)) {
                end(ticket, FetchEnd::Failed);
                note(request, "stale");
                return Ok(self.respond_after(&routed, stale, Some(&format!("fwd={reason}"))));
            }
            if response.status == Status::NOT_MODIFIED {
                if let Some(update) = self.validated(&routed, &stale, &fetched) {
                    note(request, "revalidated");
                    return Ok(self.freshen(&routed, &stale, update, ticket, reason));
                }
                // The 304 does not prove that the stored content belongs to this request.
                fetched = self.fetch(request, fetch, changes_for(None)).await?;
                reason = "miss";
            }
            if !is_failure(&fetched.response) {
                self.shared.remove(&stale.object);
            }
        }
        Ok(self.keep(request, fetched, ticket, &key, reason))
    }

    /// Stores a response, if allowed, and passes it on.
    fn keep(
        self: &Rc<Self>,
        request: &Rc<OwnedRequest>,
        fetched: Fetched,
        ticket: Option<Ticket>,
        key: &[u8],
        reason: &str,
    ) -> Response {
        let Fetched { mut response, reception, now, stamp } = fetched;
        let routed = Routed { now, ..request.routed(false) };
        let mut handling = format!("fwd={reason}; fwd-status={}", response.status);
        let entry = self.entry(&routed, &response, reception, stamp).filter(|_| self.fits(&response.body));
        match (entry, ticket) {
            // A fetch without a ticket stores nothing: it would miss an invalidation in the meantime.
            (Some(_), None) => {}
            (Some(_), Some(ticket)) if ticket.is_invalid() => ticket.end(FetchEnd::NotStored),
            (Some(entry), Some(ticket)) => {
                handling.push_str("; stored");
                // The client that caused the fetch gets the original response, including fields that are not stored.
                if response.body.stream.is_some() {
                    response.body = record(Rc::clone(self), Rc::clone(request), entry, response.body, ticket);
                } else {
                    let ended = match self.shared.hold(joined(&response.body.segments)) {
                        Some(content) => self.store(&routed, entry, content, &ticket),
                        None => FetchEnd::NotStored,
                    };
                    ticket.end(ended);
                }
            }
            (None, ticket) => self.note_not_stored(&response, ticket, key, now.monotonic_ms),
        }
        response.add_own_field();
        response.fields.remove(ACCEL_EXPIRES);
        self.add_cache_status(&mut response.fields, &handling);
        apply_conditions(&routed, &mut response);
        Response::Built(response)
    }

    /// Reports to waiting and later requests that this response can't be shared.
    fn note_not_stored(&self, response: &BuiltResponse, ticket: Option<Ticket>, key: &[u8], now_ms: u64) {
        match (is_failure(response), &response.forwarded) {
            (true, _) => end(ticket, FetchEnd::Failed),
            (false, Some(_)) => {
                self.shared.uncacheable.note(key, now_ms);
                end(ticket, FetchEnd::NotStored);
            }
            // No upstream has responded. That says nothing about the response.
            (false, None) => drop(ticket),
        }
    }

    /// Builds the storable part of a response; `None` if it may not be stored.
    fn entry(
        &self,
        routed: &Routed<'_>,
        response: &BuiltResponse,
        reception: Reception,
        stamp: Option<FetchStamp>,
    ) -> Option<CacheEntry> {
        // A response of our own does not come from the upstream.
        response
            .forwarded
            .as_ref()
            .filter(|forwarded| forwarded.tunnel.is_none() && forwarded.local_redirect.is_none())
            .filter(|forwarded| forwarded.internal_redirect.is_none())?;
        let (status, fields) = (response.status, &response.fields);
        let directives = self.shared.directives(fields);
        let asked = self.asked(&routed.request);
        let defaults = self.defaults(&routed.request, status);
        let known = (status, fields, &directives);
        let stored = storage(&routed.request, &asked, known, &defaults, reception, routed.now.monotonic_ms).ok()?;
        let fields = self.fields_to_store(fields, &directives, reception.unix_seconds)?;
        Some(CacheEntry { status, fields, stored, stamp })
    }

    /// Defaults for a response without caching fields. A default lifetime applies only if the upstream reads the URL
    /// as we do.
    pub(super) fn defaults(&self, request: &Request<'_>, status: Status) -> Defaults {
        let defaults = self.shared.defaults(status);
        match is_ambiguous(request.target()) {
            true => Defaults { lifetime_seconds: None, heuristic: false, ..defaults },
            false => defaults,
        }
    }

    fn fits(&self, body: &Body) -> bool {
        let is_in_memory = body.segments.iter().all(|segment| matches!(segment, Segment::Bytes(_)));
        is_in_memory && body.length().is_none_or(|length| length <= self.shared.config.object_bytes_max)
    }
}

/// Field changes of a fetch: without the client's conditions and ranges, and with validators of the stale response.
/// The client's own conditions are evaluated on the result.
fn changes_for(stale: Option<&CachedObject>) -> Fields {
    let mut changes = Fields::new();
    for name in ["If-None-Match", "If-Modified-Since", "If-Range", "Range"] {
        changes.push(name, "");
    }
    if let Some(response) = stale.and_then(|stale| stale.object.response()) {
        write_validators(&response.fields, &mut changes);
    }
    changes
}

/// Complete content of a response, in one piece.
fn joined(segments: &[Segment]) -> Bytes {
    let mut pieces = segments.iter().filter_map(|segment| match segment {
        Segment::Bytes(bytes) => Some(bytes),
        Segment::File { .. } => None,
    });
    match (pieces.next(), pieces.next()) {
        (None, _) => Bytes::new(),
        (Some(piece), None) => piece.clone(),
        (Some(first), Some(second)) => {
            [first, second].into_iter().chain(pieces).flatten().copied().collect::<Vec<u8>>().into()
        }
    }
}

/// True if an upstream failed to respond (RFC 5861, section 4).
fn is_failure(response: &BuiltResponse) -> bool {
    matches!(response.status.code(), 500 | 502 | 503 | 504)
}

/// True if a stale response may be served because the upstream failed. Not if it was removed meanwhile: it may not be
/// for this client.
fn is_spare(stale: &CachedObject, asked: &RequestDirectives) -> bool {
    let now_ms = Now::read().monotonic_ms;
    !stale.object.is_dead()
        && stale.object.response().is_some_and(|response| serves_on_error(&response.stored, asked, now_ms))
}

/// Reason to validate a stored response: it is stale, or the request demands it (RFC 9211, section 2.2).
fn reason_to_validate(stored: &CachedObject, now_ms: u64) -> &'static str {
    let stored = stored.object.response().map(|response| &response.stored);
    match stored.is_some_and(|stored| !stored.is_no_cache && stored.remaining_ms(now_ms) > 0) {
        true => "request",
        false => "stale",
    }
}

/// Sets the cache's verdict for the access log.
fn note(request: &OwnedRequest, word: &'static str) {
    if let Some(link) = request.link() {
        link.forwarding().borrow_mut().set_cache_status(word);
    }
}

pub(super) fn end(ticket: Option<Ticket>, ended: FetchEnd) {
    if let Some(ticket) = ticket {
        ticket.end(ended);
    }
}
