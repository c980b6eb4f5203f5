//! Mirrors: copies of requests for other upstreams, whose responses are dropped.
//!
//! A copy is an exchange of its own, without a client. It begins when the handler has read the content of the request,
//! so the request never waits for it. Copies are bounded in number and in content.

use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use wire::h1::BodyFraming;
use wire::http::{Fields, KnownField, Method};

use super::exchange::ForwardExchange;
use super::{ForwardInner, ForwardPlan, ForwardWorker, client_fields};
use crate::config::{ForwardConfig, Mirror};
use crate::handler::{Body, ClientLinkCell, Filled, OwnedRequest, Routed};
use crate::spool::SpoolStore;
use crate::upstream::{SharedUpstream, Upstream};

/// Content of a response that is read, so that its connection can be used again.
const DROPPED_BYTES_MAX: usize = 1 << 20;

/// Part of a mirror that all workers share.
#[derive(Debug)]
pub struct MirrorPlan {
    config: Mirror,
    plan: Arc<ForwardPlan>,
    in_progress: Arc<AtomicUsize>,
}

/// A worker's mirror.
pub struct RequestMirror {
    shared: Arc<MirrorPlan>,
    inner: Rc<ForwardInner>,
}

/// Place among the copies in progress; released on drop.
struct MirrorPlace(Arc<AtomicUsize>);

impl Drop for MirrorPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl MirrorPlan {
    /// Creates the plan of a mirror of requests with this configuration.
    pub fn new(
        mirror: &Mirror,
        forward: &ForwardConfig,
        upstream: &SharedUpstream,
        spools: &Arc<SpoolStore>,
    ) -> Arc<Self> {
        let mut config = forward.to_other(&mirror.upstream);
        (config.upgrades, config.rewrites, config.cache) = (Vec::new(), None, None);
        config.buffers.requests = crate::config::Buffering::Off;
        config.buffers.responses = crate::config::Buffering::Off;
        let plan = ForwardPlan::new(&config, upstream, spools);
        Arc::new(Self { config: mirror.clone(), plan, in_progress: Arc::default() })
    }

    fn place(&self) -> Option<MirrorPlace> {
        let most = self.config.requests_max;
        let more = |count: usize| (count < most).then_some(count + 1);
        self.in_progress.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(MirrorPlace(Arc::clone(&self.in_progress)))
    }
}

impl RequestMirror {
    /// Creates a worker's part.
    pub fn new(shared: &Arc<MirrorPlan>, upstream: Rc<Upstream>, worker: &ForwardWorker) -> Self {
        let destination = super::Destination::Servers(upstream);
        let inner = ForwardInner::new(Arc::clone(&shared.plan), destination, worker);
        Self { shared: Arc::clone(shared), inner }
    }

    /// Copies a request, if it is in the share.
    pub(super) fn copy(&self, routed: &Routed<'_>) {
        let MirrorPlan { config, plan, .. } = &*self.shared;
        if config.share < 1.0 && fastrand::f64() >= config.share {
            return;
        }
        let framing = routed.link.get().map_or(BodyFraming::None, |link| link.framing());
        let is_too_large = matches!(framing, BodyFraming::Length(length) if length > config.body_bytes_max as u64);
        if is_too_large
            || matches!(routed.request.method(), Method::Connect | Method::Trace)
            || routed.request.head.has(KnownField::Upgrade)
            || client_fields::is_loop(routed, &plan.config.intermediary)
            || self.inner.shed(routed).is_some()
        {
            return;
        }
        let Some(place) = self.shared.place() else { return };
        let cell = ClientLinkCell::default();
        let request = OwnedRequest::new(&Routed { link: &cell, ..*routed });
        let inner = Rc::clone(&self.inner);
        match (framing, routed.link.get()) {
            (BodyFraming::None, _) | (_, None) => spawn(inner, request, Vec::new(), place),
            (_, Some(link)) => {
                let send = move |content| spawn(inner, request, content, place);
                link.copy_content(config.body_bytes_max, Box::new(send));
            }
        }
    }
}

/// Sends a copy in a task of its own.
fn spawn(inner: Rc<ForwardInner>, request: OwnedRequest, content: Vec<u8>, place: MirrorPlace) {
    let config = &inner.plan.config;
    let limit = config.first_byte_timeout.saturating_add(config.between_bytes_timeout);
    tokio::task::spawn_local(async move {
        if !content.is_empty() {
            request.link_made().replace_content(content);
        }
        let routed = Routed { now: crate::handler::Now::read_after(request.received()), ..request.routed(false) };
        let exchange = ForwardExchange::new(inner, &routed, &Fields::new());
        within(limit, async move {
            if let Ok(response) = exchange.await {
                drop_content(response.body).await;
            }
        })
        .await;
        drop(place);
    });
}

async fn within(limit: Duration, work: impl Future<Output = ()>) {
    // A late copy is dropped, and its connection closes.
    let _ = tokio::time::timeout(limit, work).await;
}

/// Reads content and drops it, up to a limit.
async fn drop_content(body: Body) {
    let Some(mut stream) = body.stream else { return };
    let (mut buffer, mut dropped) = (vec![0; 16 << 10], 0);
    while let Ok(Filled::Content(count)) = poll_fn(|task| stream.source.poll_fill(task, &mut buffer)).await {
        dropped += count;
        if dropped > DROPPED_BYTES_MAX {
            return;
        }
    }
}
