//! Updates of stored responses by a validation: a 304, or a response to HEAD (RFC 9111, sections 4.3.4 and 4.3.5).
//!
//! The fields of a stored response and the requests that it satisfies change together. A 304 that names more fields
//! in Vary, or makes the response private, says that the stored content is for fewer clients than it seemed. Then
//! only a strong entity tag proves that it is also for the client whose request validated it.

use wire::http::caching::{
    HeadUpdate, Reception, ResponseDirectives, StoredResponseMeta, UncacheableReason, Vary, head_update,
    is_same_representation, is_update_of, storage, updated_fields,
};
use wire::http::{Fields, Method, Request};

use super::ResponseCacheInner;
use super::flights::{FetchEnd, Ticket};
use super::obtain::{Fetched, end};
use super::store::{CacheEntry, content_of};
use crate::config::SetCookie;
use crate::handler::{BuiltResponse, Response, Routed};
use crate::object_cache::{CacheLookup, CachedObject, Object, ObjectContent};
use crate::shared_cache::FetchStamp;

/// Result of a validation.
pub(super) struct Update {
    effect: Effect,
    /// Response as it is stored from now on, if at all.
    entry: CacheEntry,
    /// Cookies for the client whose request validated.
    cookies: Vec<Vec<u8>>,
}

/// Effect of a validation on the stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// The response satisfies the same requests, with updated fields.
    Freshen,
    /// The response satisfies only those that match this request in more fields.
    Narrow,
    /// The response is no longer for others.
    Remove,
    /// No effect: because of this request, or because a cookie is for its client.
    Leave,
}

impl ResponseCacheInner {
    /// Interprets a 304 for the validated response. `None` if it does not prove that the content belongs to this
    /// request: it names another version, or narrows the response without a strong entity tag.
    pub(super) fn validated(&self, routed: &Routed<'_>, stale: &CachedObject, fetched: &Fetched) -> Option<Update> {
        let (stored, fields) = (&stale.object.response()?.fields, &fetched.response.fields);
        if !is_update_of(stored, fields) {
            return None;
        }
        let when = (fetched.reception, fetched.now.monotonic_ms, fetched.stamp.clone());
        let update = self.update(&routed.request, &stale.object, fields, when)?;
        let is_named = is_same_representation(stored, fields);
        let is_proved = match update.effect {
            Effect::Freshen | Effect::Leave => is_named || self.still_answers(routed, &stale.object),
            Effect::Narrow | Effect::Remove => is_named,
        };
        if !is_proved {
            self.remove_for(routed, &stale.object);
        }
        is_proved.then_some(update)
    }

    /// True if the stored response for a request still has this content. Another validation may have removed it
    /// meanwhile, because it is for fewer clients.
    fn still_answers(&self, routed: &Routed<'_>, stale: &Object) -> bool {
        if !stale.is_dead() {
            return true;
        }
        let (content, found) = (content_of(stale), self.find(routed, routed.now.monotonic_ms));
        let (CacheLookup::Fresh(current) | CacheLookup::Due(current)) = found else { return false };
        let current = content_of(&current.object);
        (current.as_ptr(), current.len()) == (content.as_ptr(), content.len())
    }

    /// Updates a stored response by a 304, and serves it.
    pub(super) fn freshen(
        &self,
        routed: &Routed<'_>,
        stale: &CachedObject,
        update: Update,
        ticket: Option<Ticket>,
        reason: &str,
    ) -> Response {
        let handling = format!("fwd={reason}; fwd-status=304");
        let Update { effect, entry, cookies } = update;
        // The client whose request validated gets its cookies, which are not stored.
        let own = (!cookies.is_empty()).then(|| {
            let mut own = entry.clone();
            own.fields.remove("Set-Cookie");
            for cookie in &cookies {
                own.fields.push("Set-Cookie", cookie);
            }
            self.unstored(&stale.object, own)
        });
        let (object, ended) = match effect {
            Effect::Freshen => (self.store_again(&stale.object, entry), FetchEnd::Stored),
            Effect::Narrow => self.store_elsewhere(routed, &stale.object, entry, ticket.as_ref()),
            Effect::Remove => {
                self.remove_for(routed, &stale.object);
                (self.unstored(&stale.object, entry), FetchEnd::NotStored)
            }
            Effect::Leave => (self.unstored(&stale.object, entry), FetchEnd::NotStored),
        };
        end(ticket, ended);
        self.respond_after(routed, own.unwrap_or(object), Some(&handling))
    }

    /// Removes a stored response, or the one that another fetch has replaced it with.
    pub(super) fn remove_for(&self, routed: &Routed<'_>, stale: &Object) {
        if stale.is_dead()
            && let CacheLookup::Fresh(current) | CacheLookup::Due(current) = self.find(routed, routed.now.monotonic_ms)
        {
            self.shared.remove(&current.object);
        }
        self.shared.remove(stale);
    }

    /// Updates or removes the stored response by an upstream's response to HEAD.
    pub(super) fn learn_from_head(&self, routed: &Routed<'_>, response: &BuiltResponse, reception: Reception) {
        let (request, now_ms) = (&routed.request, routed.now.monotonic_ms);
        let (CacheLookup::Fresh(cached) | CacheLookup::Due(cached)) = self.find(routed, now_ms) else { return };
        let object = &cached.object;
        let Some(stored) = object.response() else { return };
        let mut fields = response.fields.clone();
        if let Some(length) = response.forwarded.as_ref().and_then(|forwarded| forwarded.content_length) {
            fields.set("Content-Length", length.to_string());
        }
        let known = (object.identity().status, &stored.fields, object.identity().content.length());
        match head_update(known, (response.status, &fields)) {
            HeadUpdate::Unrelated => {}
            HeadUpdate::Invalid => self.shared.remove(object),
            // Only a response in memory is stored again.
            HeadUpdate::Same if matches!(object.identity().content, ObjectContent::File(_)) => {
                self.shared.remove(object);
            }
            HeadUpdate::Same => {
                let mut head = request.head.clone();
                head.method = Method::Get;
                let get = Request { head: &head, bytes: request.bytes };
                match self.update(&get, object, &fields, (reception, now_ms, None)) {
                    Some(Update { effect: Effect::Freshen, entry, .. }) => drop(self.store_again(object, entry)),
                    Some(Update { effect: Effect::Leave, .. }) | None => {}
                    // No ticket was held: the URL may have been invalidated meanwhile, so a new place is not safe.
                    Some(Update { effect: Effect::Narrow | Effect::Remove, .. }) => self.shared.remove(object),
                }
            }
        }
    }

    /// Stored response with the fields of a 304, or of a 200 to HEAD.
    fn update(
        &self,
        request: &Request<'_>,
        stale: &Object,
        fields: &Fields,
        (reception, now_ms, stamp): (Reception, u64, Option<FetchStamp>),
    ) -> Option<Update> {
        let (stored, status) = (stale.response()?, stale.identity().status);
        let own = self.shared.directives(fields);
        let updated = updated_fields(&stored.fields, fields, &own);
        let directives = self.shared.directives(&updated);
        // The age is that of the new response.
        let mut all = updated.clone();
        all.set("Age", fields.get("Age").unwrap_or_default());
        let (asked, known) = (self.asked(request), (status, &all, &directives));
        let found = storage(request, &asked, known, &self.defaults(request, status), reception, now_ms);
        let is_for_others = !is_for_one(&own) && !is_for_one(&directives) && !self.depends_on_what_we_write(&updated);
        let cookies: Vec<Vec<u8>> = fields.values(b"Set-Cookie").map(<[u8]>::to_vec).collect();
        let is_narrower = depends_on_more(stale, &updated);
        let effect = match &found {
            _ if !is_for_others => Effect::Remove,
            // A restriction by the request, not by the response.
            Err(UncacheableReason::NoStore | UncacheableReason::Authorization) if !is_narrower => Effect::Leave,
            Err(_) => Effect::Remove,
            Ok(_) if !cookies.is_empty() && self.shared.config.set_cookie == SetCookie::Reject => match is_narrower {
                true => Effect::Remove,
                false => Effect::Leave,
            },
            Ok(_) if is_narrower => Effect::Narrow,
            Ok(_) => Effect::Freshen,
        };
        let entry = match (effect, found, self.fields_to_store(&updated, &directives, reception.unix_seconds)) {
            (Effect::Freshen | Effect::Narrow, Ok(stored), Some(fields)) => {
                CacheEntry { status, fields, stored, stamp }
            }
            (_, _, fields) => {
                let stored = StoredResponseMeta {
                    born_ms: now_ms as i64,
                    lifetime_seconds: 0,
                    is_no_cache: true,
                    ..stored.stored
                };
                CacheEntry { status, fields: fields.unwrap_or(updated), stored, stamp: None }
            }
        };
        Some(Update { effect, entry, cookies })
    }
}

/// True if a response forbids shared caches to store it.
fn is_for_one(directives: &ResponseDirectives) -> bool {
    directives.private || (directives.no_store && !directives.must_understand)
}

/// True if a response names request fields in Vary that did not select the stored one.
fn depends_on_more(stored: &Object, updated: &Fields) -> bool {
    let known =
        stored.response().and_then(|response| response.variant.as_ref()).map_or(&[][..], |variant| &variant.names);
    match Vary::of(updated) {
        Vary::Nothing => false,
        Vary::Fields(names) => !names.iter().all(|name| known.contains(name)),
        Vary::Everything => true,
    }
}
