//! Upstreams' responses, kept to be served again: a shared cache (RFC 9111) in front of whatever fetches them.
//!
//! What may be stored and served is decided by [`wire::http::caching`]; responses are kept in wire form in the object
//! cache, beside files. [`ResponseCache::handle`] serves at once what is fresh. For the rest it asks a [`Fetch`], once
//! for all that want the same.

mod flights;
mod key;
mod lookup;
mod obtain;
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
pub use self::purge::Purge;
pub use self::shared::SharedResponseCache;
use super::{BuiltResponse, Outcome, OwnedRequest, Routed};
use crate::object_cache::WorkerCache;
use wire::http::Fields;

/// A response that an upstream, or the server in its place, gives.
pub type FetchFuture = Pin<Box<dyn Future<Output = Box<BuiltResponse>>>>;

/// Who asks upstreams.
pub trait Fetch {
    /// Asks for a response to this request. In place of its fields of the same names go those of `changes`, or none if
    /// their value is empty.
    fn fetch(self: Rc<Self>, request: Rc<OwnedRequest>, changes: Fields) -> FetchFuture;
}

/// A worker's view of a cache for upstreams' responses.
#[derive(Clone)]
pub struct ResponseCache {
    inner: Rc<Inner>,
}

struct Inner {
    shared: Arc<SharedResponseCache>,
    cache: Rc<WorkerCache>,
    /// Where keys are put together.
    keys: RefCell<Keys>,
}

impl ResponseCache {
    /// A view for the worker with this cache of objects.
    pub fn new(shared: Arc<SharedResponseCache>, cache: Rc<WorkerCache>) -> Self {
        Self { inner: Rc::new(Inner { shared, cache, keys: RefCell::default() }) }
    }

    /// Answers a request: from what is stored, if that may be, else with what is fetched.
    pub fn handle(&self, routed: &Routed<'_>, fetch: &Rc<impl Fetch + 'static>) -> Outcome {
        let inner = &self.inner;
        let look = inner.look_up(routed);
        if let Look::Serve(object) = look {
            return Outcome::Ready(inner.respond(routed, object));
        }
        // Made now, so that the connection shares it with whoever asks the upstream.
        routed.link.link();
        let request = Rc::new(OwnedRequest::new(routed));
        let fetch: Rc<dyn Fetch> = Rc::clone(fetch) as _;
        if let Look::ServeAndRevalidate(object) = look {
            let response = inner.respond(routed, Rc::clone(&object));
            routed.link.link().forwarding().borrow_mut().set_cache_status("stale");
            inner.revalidate(request, object, fetch);
            return Outcome::Ready(response);
        }
        let inner = Rc::clone(inner);
        Outcome::Wait(Box::pin(async move { Outcome::Ready(inner.obtain(request, fetch).await) }))
    }
}
