//! Routes of a controller on one listener.

use std::rc::Rc;
use std::sync::Arc;

use routes::RequestView;

use super::site::{self, Site};
use crate::config::RouteParts;
use crate::handler::{Response, Routed};

/// Routes of a listener, with the worker's sites.
pub(super) struct ListenerRoutes {
    parts: Arc<RouteParts>,
    /// Index in [`RouteParts::listeners`].
    index: usize,
    /// Sites in the order of [`RouteParts::sites`].
    sites: Rc<[Rc<Site>]>,
}

impl ListenerRoutes {
    pub(super) fn new(parts: &Arc<RouteParts>, index: usize, sites: &Rc<[Rc<Site>]>) -> Self {
        Self { parts: Arc::clone(parts), index, sites: Rc::clone(sites) }
    }

    /// Site that serves a request.
    ///
    /// # Errors
    /// The response if no route has the request, or its connection is for another host.
    pub(super) fn find(&self, routed: &Routed<'_>) -> Result<&Rc<Site>, Response> {
        let of = &self.parts.listeners[self.index];
        if let Some(tls) = routed.tls
            && !of.table.is_same_listener(tls.server_name.as_deref().unwrap_or_default().as_bytes(), routed.host)
        {
            return Err(site::misdirected(routed));
        }
        let target = of.table.find(&RoutedView(routed)).and_then(|target| of.targets.get(target as usize));
        let site = target.and_then(|target| target.choose(|total| fastrand::u64(0..total)));
        site.and_then(|site| self.sites.get(site)).ok_or_else(|| site::no_site(routed))
    }
}

/// Request as the index of routes sees it.
struct RoutedView<'a>(&'a Routed<'a>);

impl RequestView for RoutedView<'_> {
    fn host(&self) -> &[u8] {
        self.0.host
    }

    fn path(&self) -> &[u8] {
        self.0.path
    }

    fn method(&self) -> &[u8] {
        self.0.request.method_name()
    }

    fn query(&self) -> &[u8] {
        self.0.query.unwrap_or_default()
    }

    fn has_header(&self, name: &str, test: &mut dyn FnMut(&[u8]) -> bool) -> bool {
        let request = &self.0.request;
        let mut fields = request.head.fields.iter();
        fields.any(|field| {
            field.name.of(request.bytes).eq_ignore_ascii_case(name.as_bytes()) && test(field.value.of(request.bytes))
        })
    }
}
