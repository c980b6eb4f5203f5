//! Background tasks that keep certificates, modules and upstreams in line with their sources.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, spawn};

use super::assembly::{Assembly, Lasting};
use super::fleet::{FleetHandle, FleetParts, RolloutOrder, RolloutResults, SharedChange};
use crate::acme;
use crate::config::StorePlace;
use crate::control::{ControlOrder, ControlReply, ControlReport};
use crate::known_clients::{self, Kept};
use crate::log::event;
use crate::modules::{self, Modules};
use crate::status::StoreStatus;
use crate::tls::{self, KeptSites};
use crate::upstream::{self, SharedUpstream};

/// Handles of the background tasks, on the main thread's runtime and on threads.
pub(super) struct Keepers {
    sites: watch::Sender<KeptSites>,
    upstreams: Vec<(Arc<SharedUpstream>, AbortHandle)>,
    /// Interval of checks for changed certificate files.
    certificate_check_interval: Duration,
    modules: Option<(Arc<Modules>, AbortHandle)>,
    /// Task that keeps knowledge about clients up to date.
    known_clients: Option<AbortHandle>,
    /// Set when the configuration has automatic certificates.
    certificates: Option<acme::Keeper>,
    /// Set when the configuration has a store.
    fleet: Option<FleetHandle>,
    shared_changes: UnboundedSender<SharedChange>,
}

impl Keepers {
    /// Starts the tasks. Must be called within the runtime of the main thread.
    pub(super) fn new(
        assembly: &Assembly,
        certificates: acme::AcmePlan,
        lasting: &Lasting,
        shared_changes: UnboundedSender<SharedChange>,
    ) -> Self {
        let (sites, receiver) = watch::channel(kept_sites(assembly));
        spawn(tls::keep(receiver, lasting.server_log.clone()));
        let mut keepers = Self {
            sites,
            upstreams: Vec::new(),
            certificate_check_interval: Duration::ZERO,
            modules: None,
            known_clients: None,
            certificates: None,
            fleet: None,
            shared_changes,
        };
        keepers.apply(assembly, certificates, lasting);
        keepers
    }

    /// Applies a new configuration. Tasks of unchanged parts keep running.
    pub(super) fn apply(&mut self, assembly: &Assembly, certificates: acme::AcmePlan, lasting: &Lasting) {
        self.sites.send_replace(kept_sites(assembly));
        self.keep_upstreams(assembly);
        self.keep_modules(assembly);
        self.keep_known_clients(assembly, lasting);
        self.keep_store(assembly, lasting);
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

    /// Stops renewing certificates and leaves the other instances; the new process does it from now on.
    pub(super) fn end_certificates(&mut self) {
        self.certificates = None;
        self.fleet = None;
    }

    /// Gives an order that was carried out to all instances.
    pub(super) fn publish(&self, order: &ControlOrder) {
        if let Some(fleet) = &self.fleet {
            fleet.publish(order);
        }
    }

    /// Asks for the state of the store, if there is one.
    pub(super) fn ask_store_status(&self) -> Option<oneshot::Receiver<StoreStatus>> {
        self.fleet.as_ref().map(FleetHandle::ask_status)
    }

    /// Gives an order about rollouts to the store, which replies.
    pub(super) fn order_rollout(&self, order: RolloutOrder, reply: ControlReply) {
        match &self.fleet {
            Some(fleet) if fleet.has_rollouts() => fleet.order_rollout(order, reply),
            _ => {
                let reason = "this instance takes no part in rollouts; add `rollouts` to `share` in the block `store`";
                reply.report(ControlReport::Rejected(reason.to_owned()));
            }
        }
    }

    /// Channel for the result of a rollout's configuration.
    pub(super) fn rollout_report(&self) -> Option<RolloutResults> {
        self.fleet.as_ref().and_then(FleetHandle::rollout_results)
    }

    fn keep_store(&mut self, assembly: &Assembly, lasting: &Lasting) {
        let config = &assembly.parts.config;
        let Some(store) = &config.store else {
            self.fleet = None;
            return;
        };
        if let Some(fleet) = self.fleet.as_ref().filter(|fleet| fleet.is_of(store)) {
            return share(fleet, assembly, lasting);
        }
        // Ends before the next begins.
        self.fleet = None;
        let keeps_cursor = config.cache.disk.is_some();
        let parts = FleetParts {
            tickets: Arc::clone(&lasting.tickets),
            shared_cache: Arc::clone(&lasting.shared_cache),
            changes: self.shared_changes.clone(),
            observer: Arc::clone(&lasting.observer),
            log: lasting.server_log.clone(),
        };
        if let Some(StorePlace::Directory(directory)) = &store.place
            && std::fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none())
        {
            let directory = directory.display();
            lasting.server_log.warn(
                event("directory of the store was missing or empty", &[("directory", &directory)]),
                "if other instances use it, check that it is mounted here",
            );
        }
        match FleetHandle::start(store, keeps_cursor, parts) {
            Ok(fleet) => {
                share(&fleet, assembly, lasting);
                self.fleet = Some(fleet);
            }
            Err(error) => lasting.server_log.error(
                event("store not opened", &[("error", &error)]),
                "nothing is shared with other instances; check the block `store`, then reload",
            ),
        }
    }

    fn keep_upstreams(&mut self, assembly: &Assembly) {
        let mut before: HashMap<_, _> =
            self.upstreams.drain(..).map(|(shared, task)| (Arc::as_ptr(&shared), (shared, task))).collect();
        let interval = assembly.parts.config.server.certificate_check_interval;
        let is_same_interval = std::mem::replace(&mut self.certificate_check_interval, interval) == interval;
        for shared in &assembly.parts.upstreams {
            let known = if is_same_interval { before.remove(&Arc::as_ptr(shared)) } else { None };
            self.upstreams.push(match known {
                Some(kept) => kept,
                None => {
                    let kept = upstream::keep(vec![Arc::clone(shared)], upstream::system_lookup, interval);
                    let discovered = tailcoat_discovery::keep(Arc::clone(shared));
                    let task = spawn(async { tokio::join!(kept, discovered) });
                    (Arc::clone(shared), task.abort_handle())
                }
            });
        }
        before.values().for_each(|(_, task)| task.abort());
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

/// Shares what this configuration has with other instances.
fn share(fleet: &FleetHandle, assembly: &Assembly, lasting: &Lasting) {
    let rules = &assembly.parts.rules;
    fleet.share_limits(rules.shared_tables());
    fleet.share_bans(&lasting.bans);
    fleet.share_lists(rules.known_clients().0);
}

impl Keepers {
    fn keep_known_clients(&mut self, assembly: &Assembly, lasting: &Lasting) {
        if let Some(task) = self.known_clients.take() {
            task.abort();
        }
        let rules = &assembly.parts.rules;
        let (lists, claims) = rules.known_clients();
        let crowdsec = assembly.parts.config.server.client_knowledge.crowdsec.clone();
        if crowdsec.is_none() {
            lasting.bans.end_decisions();
        }
        if lists.is_empty() && rules.locations.is_empty() && crowdsec.is_none() {
            return;
        }
        let (locations, bans) = (Arc::clone(&rules.locations), Arc::clone(&lasting.bans));
        let kept = Kept { lists, claims, locations, crowdsec, bans };
        self.known_clients = Some(spawn(known_clients::keep(kept, lasting.server_log.clone())).abort_handle());
    }
}

fn kept_sites(assembly: &Assembly) -> KeptSites {
    let sites = assembly.tls.sites().iter().map(|(_, site)| Arc::clone(site)).collect();
    KeptSites { sites, interval: assembly.parts.config.server.certificate_check_interval }
}
