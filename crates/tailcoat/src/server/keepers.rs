//! Background tasks that keep certificates, modules and upstreams in line with their sources.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{AbortHandle, spawn};

use super::assembly::{Assembly, Lasting};
use crate::acme;
use crate::log::event;
use crate::modules::{self, Modules};
use crate::tls::{self, KeptSites};
use crate::upstream::{self, SharedUpstream};

/// Handles of the background tasks, on the main thread's runtime and on threads.
pub(super) struct Keepers {
    sites: watch::Sender<KeptSites>,
    upstreams: Vec<(Arc<SharedUpstream>, AbortHandle)>,
    /// Interval of checks for changed certificate files.
    certificate_check_interval: Duration,
    modules: Option<(Arc<Modules>, AbortHandle)>,
    /// Set when the configuration has automatic certificates.
    certificates: Option<acme::Keeper>,
}

impl Keepers {
    /// Starts the tasks. Must be called within the runtime of the main thread.
    pub(super) fn new(assembly: &Assembly, certificates: acme::AcmePlan, lasting: &Lasting) -> Self {
        let (sites, receiver) = watch::channel(kept_sites(assembly));
        spawn(tls::keep(receiver, lasting.server_log.clone()));
        let mut keepers = Self {
            sites,
            upstreams: Vec::new(),
            certificate_check_interval: Duration::ZERO,
            modules: None,
            certificates: None,
        };
        keepers.apply(assembly, certificates, lasting);
        keepers
    }

    /// Applies a new configuration. Tasks of unchanged parts keep running.
    pub(super) fn apply(&mut self, assembly: &Assembly, certificates: acme::AcmePlan, lasting: &Lasting) {
        self.sites.send_replace(kept_sites(assembly));
        self.keep_upstreams(assembly);
        self.keep_modules(assembly);
        match &self.certificates {
            Some(keeper) => keeper.apply(certificates),
            None if certificates.is_empty() => {}
            None => match acme::Keeper::start(certificates, lasting.server_log.clone()) {
                Ok(keeper) => self.certificates = Some(keeper),
                Err(error) => lasting.server_log.error(
                    event("starting certificate renewal failed", &[("error", &error)]),
                    "certificates are not renewed; free memory or raise the limit of threads, then reload",
                ),
            },
        }
    }

    /// Stops renewing certificates; the new process does it from now on.
    pub(super) fn end_certificates(&mut self) {
        self.certificates = None;
    }

    fn keep_upstreams(&mut self, assembly: &Assembly) {
        let mut before = std::mem::take(&mut self.upstreams);
        let interval = assembly.parts.config.server.certificate_check_interval;
        let is_same_interval = std::mem::replace(&mut self.certificate_check_interval, interval) == interval;
        for shared in &assembly.parts.upstreams {
            let known = before.iter().position(|(known, _)| is_same_interval && Arc::ptr_eq(known, shared));
            self.upstreams.push(match known {
                Some(index) => before.swap_remove(index),
                None => {
                    let kept = upstream::keep(vec![Arc::clone(shared)], upstream::system_lookup, interval);
                    (Arc::clone(shared), spawn(kept).abort_handle())
                }
            });
        }
        before.iter().for_each(|(_, task)| task.abort());
    }

    fn keep_modules(&mut self, assembly: &Assembly) {
        let modules = &assembly.modules;
        modules.apply();
        if let Some((_, task)) = self.modules.take() {
            task.abort();
        }
        let kept = modules::keep(Arc::clone(modules), assembly.parts.config.modules.check_interval);
        self.modules = Some((Arc::clone(modules), spawn(kept).abort_handle()));
    }
}

fn kept_sites(assembly: &Assembly) -> KeptSites {
    let sites = assembly.tls.sites().iter().map(|(_, site)| Arc::clone(site)).collect();
    KeptSites { sites, interval: assembly.parts.config.server.certificate_check_interval }
}
