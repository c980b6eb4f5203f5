//! Routes of a controller on one listener.

use std::rc::Rc;
use std::sync::Arc;

use routes::RequestView;

use super::site::{self, Site};
use crate::config::{ListenerRules, SiteConfig};
use crate::handler::{Response, Routed};

/// Routes of a listener, with the worker's sites.
#[derive(Clone)]
pub(super) struct ListenerRoutes {
    rules: Arc<ListenerRules>,
    /// Sites in the order of [`ListenerRules::sites`].
    sites: Rc<[Rc<Site>]>,
}

impl ListenerRoutes {
    /// Creates the routes; `site` finds the worker's site of a configuration.
    pub(super) fn new<'s>(rules: &Arc<ListenerRules>, site: impl Fn(&Arc<SiteConfig>) -> Option<&'s Rc<Site>>) -> Self {
        // Local invariant: the sites of rules are sites of their configuration.
        let sites = rules.sites.iter().filter_map(|config| site(config).cloned()).collect();
        Self { rules: Arc::clone(rules), sites }
    }

    /// True for these rules with the sites that `site` finds.
    pub(super) fn is_of<'s>(
        &self,
        rules: &Arc<ListenerRules>,
        site: impl Fn(&Arc<SiteConfig>) -> Option<&'s Rc<Site>>,
    ) -> bool {
        let is_same =
            |(config, own): (&Arc<SiteConfig>, &Rc<Site>)| site(config).is_some_and(|now| Rc::ptr_eq(now, own));
        Arc::ptr_eq(&self.rules, rules) && rules.sites.iter().zip(&*self.sites).all(is_same)
    }

    /// True if connections for this server name are not for HTTP.
    pub(super) fn is_stream(&self, server_name: &[u8]) -> bool {
        self.rules.table.is_stream(server_name)
    }

    /// Site that serves a request.
    ///
    /// # Errors
    /// The response if no route has the request, or its connection is for another host.
    pub(super) fn find(&self, routed: &Routed<'_>) -> Result<&Rc<Site>, Response> {
        let of = &*self.rules;
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
