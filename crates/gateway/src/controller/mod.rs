//! The controller: watches resources, translates them, sends routes to servers and writes statuses.
//!
//! All replicas watch, translate and serve the channel. One of them, the holder of a Lease, writes to the API server.

mod channel;
mod leader;
mod pending;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use routes::{Change, Snapshot};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep_until};

use self::channel::Hub;
use self::leader::Leadership;
use self::pending::PendingChanges;
use self::writer::Writes;
use crate::client::{Access, Client, Event, watch};
pub use crate::objects::Key;
use crate::objects::{Kind, Objects};
use crate::translate::{
    Addresses, ChangedObjects, Frame, ResourceTranslator, Translation, TranslationChange, service_endpoints,
};

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

/// A translator, and what it changes.
type Translated = (Box<ResourceTranslator>, TranslationChange);

/// State of a replica.
struct State {
    settings: Arc<Settings>,
    /// Shared with the translation that runs.
    objects: Arc<Objects>,
    /// Kinds that were not listed yet.
    missing: BTreeSet<Kind>,
    /// Kinds whose watches fail, with the reason that was logged.
    failing: BTreeMap<Kind, String>,
    translation: Translation,
    /// `None` while a translation runs.
    translator: Option<Box<ResourceTranslator>>,
    revision: u64,
    hub: Arc<Hub>,
    /// Errors of servers that the last translation has regarded.
    errors: BTreeMap<String, String>,
    writes: Writes,
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
        settings: Arc::new(settings),
        objects: Arc::default(),
        missing: Kind::all().collect(),
        failing: BTreeMap::new(),
        translation: Translation::default(),
        translator: Some(Box::default()),
        revision: 0,
        hub,
        errors: BTreeMap::new(),
    };
    state.run(events, leadership).await;
    Ok(())
}

impl State {
    async fn run(mut self, mut events: mpsc::Receiver<Event>, mut leadership: watch::Receiver<bool>) {
        let mut pending = PendingChanges::default();
        let mut errors = self.hub.errors();
        let mut running: Option<JoinHandle<Translated>> = None;
        loop {
            // Routes of half a cluster would take away those of the other half.
            let due = pending.due().filter(|_| self.missing.is_empty());
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.on_event(event, &mut pending),
                    None => return,
                },
                _ = leadership.changed() => {
                    let leads = *leadership.borrow_and_update();
                    log(if leads { "this replica leads: it writes statuses" } else { "this replica no longer leads" });
                    self.writes.set_leading(leads, &self.objects, &self.translation);
                }
                _ = errors.changed() => {
                    let changed = errors.borrow_and_update().clone();
                    if changed != self.errors {
                        self.errors = changed;
                        pending.note_errors(Instant::now());
                    }
                }
                result = finished(&mut running) => {
                    running = None;
                    self.on_translated(result, &mut pending);
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    let now = Instant::now();
                    if let Some(services) = pending.take_services(now) {
                        let change = self.change_endpoints(&services);
                        if !change.is_empty() {
                            self.send(change);
                        }
                    }
                    if let Some(changed) = pending.start(now) {
                        running = Some(self.start_translation(changed));
                    }
                }
            }
        }
    }

    fn on_event(&mut self, event: Event, pending: &mut PendingChanges) {
        match event {
            Event::Listed(kind, items) => {
                self.failing.remove(&kind);
                let mut gone: BTreeSet<Key> = self.objects.keys(kind).into_iter().collect();
                for item in items {
                    if let Some(key) = self.on_applied(kind, item, pending) {
                        gone.remove(&key);
                    }
                }
                gone.iter().for_each(|key| self.on_deleted(kind, key, pending));
                if self.missing.remove(&kind) && self.missing.is_empty() {
                    pending.note_listed(Instant::now());
                }
            }
            Event::Applied(kind, value) => _ = self.on_applied(kind, value, pending),
            Event::Deleted(kind, value) => self.on_deleted(kind, &key_of(&value), pending),
            Event::Failed(kind, reason) => {
                if self.failing.get(&kind) != Some(&reason) {
                    log(format_args!("cannot watch {}: {reason}; trying again", kind.name()));
                    self.failing.insert(kind, reason);
                }
            }
        }
    }

    /// Takes a new or changed resource. Returns its name, unless it cannot be read.
    fn on_applied(&mut self, kind: Kind, value: serde_json::Value, pending: &mut PendingChanges) -> Option<Key> {
        let before = self.objects.service_of_slice(&key_of(&value)).cloned();
        let (key, is_changed) = match Arc::make_mut(&mut self.objects).insert(kind, value) {
            Ok(inserted) => inserted,
            Err(error) => {
                log(format_args!("a resource of kind {} is ignored: {error}", kind.name()));
                return None;
            }
        };
        if kind == Kind::EndpointSlice {
            // A slice may move from one service to another.
            let service = self.objects.service_of_slice(&key);
            let now = service.filter(|now| is_changed || Some(*now) != before.as_ref());
            let left = before.as_ref().filter(|before| service != Some(*before));
            now.into_iter().chain(left).for_each(|service| self.note_service(service, pending));
            return Some(key);
        }
        // Statuses that this controller writes come back as changes.
        let is_right = self.writes.on_resource(&self.objects, &self.translation, kind, &key);
        // Entries of other controllers in a new status stay.
        if is_changed || !is_right {
            pending.note_object(kind, key.clone(), Instant::now());
        }
        Some(key)
    }

    fn on_deleted(&mut self, kind: Kind, key: &Key, pending: &mut PendingChanges) {
        if kind == Kind::EndpointSlice {
            if let Some(service) = self.objects.service_of_slice(key) {
                self.note_service(service, pending);
            }
            Arc::make_mut(&mut self.objects).remove(kind, key);
            return;
        }
        Arc::make_mut(&mut self.objects).remove(kind, key);
        self.writes.on_resource(&self.objects, &self.translation, kind, key);
        pending.note_object(kind, key.clone(), Instant::now());
    }

    /// Notes a change of endpoints, which changes neither routes nor statuses.
    fn note_service(&self, service: &Key, pending: &mut PendingChanges) {
        // A translation that runs may lead routes to any service.
        if pending.is_translating() || self.translation.by_service.contains_key(service) {
            pending.note_service(service.clone(), Instant::now());
        }
    }

    /// Starts a translation of what has changed, on a thread of its own: the first is one of all resources, and takes so
    /// long in a large cluster that Leases and endpoints cannot wait for it.
    fn start_translation(&mut self, changed: ChangedObjects) -> JoinHandle<Translated> {
        // A translation that has failed took the translator with it: the next is one of all resources.
        let mut translator = self.translator.take().unwrap_or_default();
        let (objects, settings, errors) = (Arc::clone(&self.objects), Arc::clone(&self.settings), self.errors.clone());
        let assigned = Arc::clone(&self.translation.assigned);
        spawn_blocking(move || {
            let now = now();
            let frame = Frame {
                controller: &settings.controller,
                addresses: &settings.addresses,
                assigned: &assigned,
                ingress_gateway: settings.ingress_gateway.as_ref(),
                now: &now,
                errors: &errors,
            };
            let change = translator.translate(&objects, &frame, &changed);
            (translator, change)
        })
    }

    fn on_translated(&mut self, result: Result<Translated, JoinError>, pending: &mut PendingChanges) {
        let changed_meanwhile = pending.end(Instant::now());
        let (translator, change) = match result {
            Ok(translated) => translated,
            Err(error) => {
                log(format_args!("a translation failed, and its changes have no effect: {error}"));
                return;
            }
        };
        self.translator = Some(translator);
        let (change, touched) = self.translation.apply(change, &self.objects, &changed_meanwhile);
        self.writes.update(&self.objects, &self.translation, &touched);
        // The first snapshot is sent even if it is empty.
        if self.revision == 0 || !change.is_empty() {
            self.send(change);
        }
    }

    fn send(&mut self, change: Change) {
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

/// Waits for a translation, or for ever if none runs.
async fn finished(running: &mut Option<JoinHandle<Translated>>) -> Result<Translated, JoinError> {
    match running {
        Some(running) => running.await,
        None => std::future::pending().await,
    }
}

/// Name of a resource.
fn key_of(value: &serde_json::Value) -> Key {
    let text = |name: &str| value["metadata"][name].as_str().unwrap_or_default();
    Key::new(text("namespace"), text("name"))
}
