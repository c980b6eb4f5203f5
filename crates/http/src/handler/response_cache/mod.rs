//! Response cache: a shared cache (RFC 9111) in front of an upstream.
//!
//! [`wire::http::caching`] decides what may be stored and served; responses are kept in wire form in the object
//! cache, beside files. [`ResponseCache::handle`] serves fresh responses at once. For the rest it calls a [`Fetch`],
//! once for all requests of a key.

mod flights;
mod key;
mod lookup;
mod obtain;
mod persistence;
mod purge;
mod recording;
mod respond;
mod shared;
mod store;
#[cfg(test)]
mod tests;
mod uncacheable;
mod update;

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use self::lookup::{Keys, Look};
use self::obtain::LOADS_MAX;
use self::persistence::forget_first_use;
pub use self::persistence::{CacheOwner, CachePlace};
pub use self::purge::Purge;
pub use self::shared::SharedResponseCache;
use super::{BuiltResult, HandlerOutcome, OwnedRequest, Routed};
use crate::object_cache::{ObjectContent, WorkerCache};
use wire::http::Fields;

/// Future of a response from an upstream, or of an error in its place.
pub type FetchFuture = Pin<Box<dyn Future<Output = BuiltResult>>>;

/// Source of responses: forwards requests to an upstream.
pub trait Fetch {
    /// Fetches a response to this request. Fields in `changes` replace the request's of the same names; an empty
    /// value removes them.
    fn fetch(self: Rc<Self>, request: Rc<OwnedRequest>, changes: Fields) -> FetchFuture;
}

/// A worker's view of a response cache.
#[derive(Clone)]
pub struct ResponseCache {
    inner: Rc<ResponseCacheInner>,
}

struct ResponseCacheInner {
    shared: Arc<SharedResponseCache>,
    cache: Rc<WorkerCache>,
    /// Scratch space for keys.
    keys: RefCell<Keys>,
}

impl ResponseCache {
    /// Creates a view for the worker with this object cache.
    pub fn new(shared: Arc<SharedResponseCache>, cache: Rc<WorkerCache>) -> Self {
        Self { inner: Rc::new(ResponseCacheInner { shared, cache, keys: RefCell::default() }) }
    }

    /// Handles a request: with a stored response if possible, otherwise with a fetched one.
    pub fn handle(&self, routed: &Routed<'_>, fetch: &Rc<impl Fetch + 'static>) -> HandlerOutcome {
        let inner = &self.inner;
        let mut look = inner.look_up(routed);
        let (mut loads, mut disk_key) = (0, None);
        while look.is_miss() && loads < LOADS_MAX {
            disk_key = inner.shared.disk_key(inner.keys.borrow().narrowest());
            if !disk_key.as_ref().is_some_and(|key| inner.load_now(routed, key)) {
                break;
            }
            loads += 1;
            look = inner.look_up(routed);
        }
        if let Look::Serve(object) = look {
            if loads > 0 {
                forget_first_use(&object);
                if matches!(object.object.identity().content, ObjectContent::Memory(_)) {
                    routed.link.link().forwarding().borrow_mut().set_cache_status("disk-hit");
                }
            }
            return HandlerOutcome::Ready(inner.respond(routed, object));
        }
        // Created now, so that the connection shares it with the fetch.
        routed.link.link();
        let request = Rc::new(OwnedRequest::new(routed));
        let fetch: Rc<dyn Fetch> = Rc::clone(fetch) as _;
        if let Look::ServeAndRevalidate(object) = look {
            let response = inner.respond(routed, Rc::clone(&object));
            routed.link.link().forwarding().borrow_mut().set_cache_status("stale");
            inner.revalidate(request, object, fetch);
            return HandlerOutcome::Ready(response);
        }
        let inner = Rc::clone(inner);
        HandlerOutcome::Wait(Box::pin(async move {
            HandlerOutcome::of_response(inner.obtain(request, fetch, disk_key).await)
        }))
    }
}
