//! The controller: watches resources, translates them, sends routes to servers and writes statuses.
//!
//! All replicas watch, translate and serve the channel. One of them, the holder of a Lease, writes to the API server.

mod channel;
mod leader;
mod writer;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use routes::{Change, Snapshot};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use self::channel::Hub;
use self::leader::Leadership;
use self::writer::Writes;
use crate::client::{Access, Client, Event, watch};
pub use crate::objects::Key;
use crate::objects::{Kind, Objects};
use crate::translate::{Addresses, Frame, Translation, service_endpoints, translate};

/// Quiet time after a change before it is translated, so that a burst is one translation.
const SETTLE: Duration = Duration::from_millis(20);

/// Longest time that a burst delays a translation.
const SETTLE_MAX: Duration = Duration::from_millis(200);

/// Events that wait to be read, at most; watches wait for room.
const EVENTS_MAX: usize = 1_024;

/// Settings of the controller.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Access to the API server.
    pub access: Access,
    /// Name in classes whose Gateways belong to this controller.
    pub controller: String,
    /// Origin of the addresses of Gateways.
    pub addresses: Addresses,
    /// Gateway that serves Ingresses; `None` serves none.
    pub ingress_gateway: Option<Key>,
    /// Name of this replica.
    pub replica: String,
    /// Namespace and name of the Lease.
    pub lease: (String, String),
    /// The channel to servers.
    pub channel: ChannelSettings,
}

/// Settings of the channel to servers.
#[derive(Clone, Debug)]
pub struct ChannelSettings {
    /// `ADDRESS:PORT`, or `unix:PATH`.
    pub listen: String,
    /// File of the token that servers must send.
    pub token_file: Option<PathBuf>,
    /// Files of the certificate chain and its key; needed unless the channel is a Unix socket.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// Reason why the controller cannot run.
#[derive(Debug)]
pub struct ControllerError(pub String);

impl fmt::Display for ControllerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ControllerError {}

/// A line of the controller's log.
pub(crate) fn log(event: impl fmt::Display) {
    let now = now();
    eprintln!("{now} {event}");
}

/// Time in the form of RFC 3339, to the second, as the API server has it.
pub(crate) fn now() -> String {
    let now = OffsetDateTime::now_utc();
    now.replace_nanosecond(0).unwrap_or(now).format(&Rfc3339).unwrap_or_default()
}

/// State of a replica.
struct State {
    settings: Settings,
    objects: Objects,
    /// Kinds that were not listed yet.
    missing: BTreeSet<Kind>,
    /// Generations of resources: a change that leaves it is one of the status or of metadata.
    generations: HashMap<(Kind, Key), i64>,
    /// Kinds whose watches fail, with the reason that was logged.
    failing: BTreeMap<Kind, String>,
    translation: Translation,
    revision: u64,
    hub: Arc<Hub>,
    /// Errors of servers that the last translation has regarded.
    errors: BTreeMap<String, String>,
    writes: Writes,
}

/// Changes since the last translation.
#[derive(Debug, Default)]
struct Pending {
    is_all: bool,
    services: BTreeSet<Key>,
    /// Time of the first change.
    since: Option<Instant>,
    /// Time of the last change.
    last: Option<Instant>,
}

/// Runs the controller until the process ends.
///
/// # Errors
/// Settings cannot be used. Errors of the API server are logged, and requests are tried again.
pub async fn run(settings: Settings) -> Result<(), ControllerError> {
    let client = Client::new(settings.access.clone()).map_err(ControllerError)?;
    let hub = Hub::start(&settings.channel).await.map_err(ControllerError)?;
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    for kind in Kind::all() {
        tokio::spawn(watch(Arc::clone(&client), kind, sender.clone()));
    }
    let leadership = Leadership::start(&client, &settings);
    let state = State {
        writes: Writes::new(client),
        settings,
        objects: Objects::default(),
        missing: Kind::all().collect(),
        generations: HashMap::new(),
        failing: BTreeMap::new(),
        translation: Translation::default(),
        revision: 0,
        hub,
        errors: BTreeMap::new(),
    };
    state.run(events, leadership).await;
    Ok(())
}

impl State {
    async fn run(mut self, mut events: mpsc::Receiver<Event>, mut leadership: watch::Receiver<bool>) {
        let mut pending = Pending::default();
        let mut errors = self.hub.errors();
        loop {
            let due = pending.due().unwrap_or_else(|| Instant::now() + Duration::from_secs(3_600));
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.on_event(event, &mut pending),
                    None => return,
                },
                _ = leadership.changed() => {
                    let leads = *leadership.borrow_and_update();
                    log(if leads { "this replica leads: it writes statuses" } else { "this replica no longer leads" });
                    self.writes.set_leading(leads);
                    self.writes.set(&self.objects, &self.translation);
                }
                _ = errors.changed() => {
                    let changed = errors.borrow_and_update().clone();
                    if changed != self.errors {
                        self.errors = changed;
                        pending.note_all();
                    }
                }
                () = sleep_until(due), if pending.since.is_some() => {
                    let pending = std::mem::take(&mut pending);
                    // Routes of half a cluster would take away those of the other half.
                    if self.missing.is_empty() {
                        self.update(&pending);
                    }
                }
            }
        }
    }

    fn on_event(&mut self, event: Event, pending: &mut Pending) {
        match event {
            Event::Listed(kind, items) => {
                self.failing.remove(&kind);
                let mut gone: BTreeSet<Key> = self.objects.keys(kind).into_iter().collect();
                for item in items {
                    if let Some(key) = self.insert(kind, item) {
                        gone.remove(&key);
                    }
                }
                for key in gone {
                    self.objects.remove(kind, &key);
                }
                self.missing.remove(&kind);
                if self.missing.is_empty() {
                    pending.note_all();
                }
            }
            Event::Applied(kind, value) => {
                let generation = value["metadata"]["generation"].as_i64().unwrap_or_default();
                let Some(key) = self.insert(kind, value) else { return };
                let before = self.generations.insert((kind, key.clone()), generation);
                // Statuses that this controller writes come back as changes.
                let is_status_alone = before == Some(generation) && generation > 0 && kind.has_status_of_ours();
                if !is_status_alone {
                    self.note(kind, &key, pending);
                }
            }
            Event::Deleted(kind, value) => {
                let metadata = &value["metadata"];
                let text = |name: &str| metadata[name].as_str().unwrap_or_default();
                let key = Key::new(text("namespace"), text("name"));
                self.note(kind, &key, pending);
                self.objects.remove(kind, &key);
                self.generations.remove(&(kind, key));
            }
            Event::Failed(kind, reason) => {
                if self.failing.get(&kind) != Some(&reason) {
                    log(format_args!("cannot watch {}: {reason}; trying again", kind.name()));
                    self.failing.insert(kind, reason);
                }
            }
        }
    }

    fn insert(&mut self, kind: Kind, value: serde_json::Value) -> Option<Key> {
        match self.objects.insert(kind, value) {
            Ok(key) => Some(key),
            Err(error) => {
                log(format_args!("a resource of kind {} is ignored: {error}", kind.name()));
                None
            }
        }
    }

    fn note(&self, kind: Kind, key: &Key, pending: &mut Pending) {
        if kind == Kind::EndpointSlice {
            // Endpoints change neither routes nor statuses.
            if let Some(service) = self.objects.service_of_slice(key)
                && self.translation.by_service.contains_key(service)
            {
                pending.note_service(service.clone());
            }
            return;
        }
        // Most secrets and ConfigMaps of a cluster have nothing to do with Gateways.
        pending.note_all();
    }

    fn update(&mut self, pending: &Pending) {
        let before_revision = self.revision;
        let change = if pending.is_all {
            let now = now();
            let frame = Frame {
                controller: &self.settings.controller,
                addresses: &self.settings.addresses,
                ingress_gateway: self.settings.ingress_gateway.as_ref(),
                now: &now,
                errors: &self.errors,
            };
            let translation = translate(&self.objects, &frame);
            let change = translation.snapshot.change_from(&self.translation.snapshot);
            self.translation = translation;
            self.writes.set(&self.objects, &self.translation);
            change
        } else {
            self.change_endpoints(&pending.services)
        };
        if change.is_empty() && before_revision > 0 {
            return;
        }
        self.revision += 1;
        self.hub.send(&self.translation.snapshot, self.revision, change);
    }

    /// Changes the endpoints of services, and nothing else.
    fn change_endpoints(&mut self, services: &BTreeSet<Key>) -> Change {
        let mut change = Change::default();
        let snapshot: &mut Snapshot = &mut self.translation.snapshot;
        for service in services {
            let Some(backends) = self.translation.by_service.get(service) else { continue };
            for (name, endpoints) in service_endpoints(&self.objects, service, backends) {
                if snapshot.endpoints.get(&name) != Some(&endpoints) {
                    snapshot.endpoints.insert(name.clone(), endpoints.clone());
                    change.endpoints.insert(name, Some(endpoints));
                }
            }
        }
        change
    }
}

impl Pending {
    fn note(&mut self) {
        let now = Instant::now();
        self.since.get_or_insert(now);
        self.last = Some(now);
    }

    fn note_all(&mut self) {
        self.is_all = true;
        self.note();
    }

    fn note_service(&mut self, service: Key) {
        self.services.insert(service);
        self.note();
    }

    /// Time of the translation.
    fn due(&self) -> Option<Instant> {
        Some((self.last? + SETTLE).min(self.since? + SETTLE_MAX))
    }
}
