//! The thread of a store.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};
use tailcoat_fleet::{
    Action, BeatReport, EventCursor, Expected, Member, MemberPart, MemberRecord, MemberSettings, OUTBOX_MAX,
    RolloutHealth, StoreReply, StoreRequest, StoreResult, TicketRing, UnknownOutcome,
};
use tailcoat_store::{Expectation, Measured, Put, SharedStore, StoreError, StoreKey, StoredVersion};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::bans::SharedBans;
use super::changes::{Publication, order_of, publications, purges_of};
use super::kept_config::KeptConfig;
use super::limits::{Charged, SharedLimits, charge};
use super::lists::SharedLists;
use super::rollouts::{health_of, obey};
use super::{Command, FleetParts, SharedChange, status_of};
use crate::config::{SharedState, StoreConfig, read_regular, state_directory};
use crate::control::ControlReport;
use crate::log::{ServerLog, event};
use crate::observer::Observer;
use crate::shared_cache::SharedCache;
use crate::status::{InstanceStatus, StoreStatus};
use crate::tls::{TicketKey, Tickets, write_private};

/// Time that the end of the thread waits for the store, to give leases back.
pub(super) const LEAVE_LIMIT: Duration = Duration::from_millis(500);

/// Interval between two saves of the position in the events.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between two updates of the status that metrics show.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between two looks at the health of this instance, for rollouts.
const HEALTH_INTERVAL: Duration = Duration::from_secs(2);

/// Time without a failure after which the log says that the store is back.
const RECOVERY: Duration = Duration::from_secs(1);

/// Interval between two log lines about values of the store that cannot be used.
const NOTE_INTERVAL: Duration = Duration::from_secs(3_600);

/// Knowledge about clients that a request to the store is for.
#[derive(Clone, Copy)]
enum KnownClients {
    Bans,
    Lists,
}

/// Thread of a store.
pub(super) struct StoreThread {
    member: Member,
    store: Arc<Measured>,
    config: StoreConfig,
    /// File of the position in the events, if a cache on disk continues after a restart.
    cursor_file: Option<PathBuf>,
    /// Configuration of a rollout that the next process begins with, if the instance takes part in rollouts.
    kept_config: Option<KeptConfig>,
    tickets: Arc<Tickets>,
    /// Cache that instances share, which must know all purges.
    shared_cache: Arc<SharedCache>,
    changes: UnboundedSender<SharedChange>,
    observer: Arc<Observer>,
    log: ServerLog,
    start: Instant,
    started_unix_seconds: u64,
    saved: Option<EventCursor>,
    saved_at: Option<Instant>,
    shown_at: Option<Instant>,
    noted_at: Option<Instant>,
    failed_at: Option<Instant>,
    /// Events that were skipped, at the latest look.
    skipped_events: u64,
    /// True if the latest operation failed and the log says so.
    is_away: bool,
    /// True if the latest reply says that the store has no further event.
    is_at_end: bool,
    /// Times that orders may have been missed.
    resyncs: u64,
}

impl StoreThread {
    pub(super) fn new(config: &StoreConfig, keeps_cursor: bool, parts: FleetParts) -> io::Result<Self> {
        let FleetParts { tickets, shared_cache, changes, observer, log } = parts;
        let store = tailcoat_store::open(config).map_err(io::Error::other)?;
        let place = config.place.as_ref().map(ToString::to_string).unwrap_or_default();
        let cursor_file = state_directory().filter(|_| keeps_cursor).map(|directory| {
            let digest: String = Sha256::digest(&place)[..6].iter().map(|byte| format!("{byte:02x}")).collect();
            directory.join(format!("store-{digest}.json"))
        });
        let saved = cursor_file.as_ref().and_then(|path| serde_json::from_slice(&read_regular(path).ok()?).ok());
        let name = config.instance.clone().unwrap_or_else(machine_name);
        let mut random = [0; 6];
        aws_lc_rs::rand::fill(&mut random).map_err(|_| io::Error::other("no random numbers"))?;
        let tail: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let is_plain = |letter: &char| letter.is_ascii_alphanumeric() || "-_".contains(*letter);
        let plain: String = name.chars().filter(is_plain).take(60).collect();
        let has_rollouts = config.has(SharedState::Rollouts);
        let kept_config = if has_rollouts { KeptConfig::open(config, &place, &name, log.clone()) } else { None };
        let settings = MemberSettings {
            id: format!("{plain}-{tail}"),
            name,
            poll_interval: config.poll_interval(),
            lease_time: config.lease_time,
            has_tickets: config.has(SharedState::Tickets),
            has_events: config.has(SharedState::Orders),
            has_rollouts,
        };
        let entropy = Box::new(|| {
            let mut bytes = [0; 48];
            // The library aborts the process rather than return no random numbers after it has begun.
            let _ = aws_lc_rs::rand::fill(&mut bytes);
            bytes
        });
        Ok(Self {
            member: Member::new(settings, saved.clone(), entropy),
            store,
            config: config.clone(),
            cursor_file,
            kept_config,
            tickets,
            shared_cache,
            changes,
            observer,
            log,
            start: Instant::now(),
            started_unix_seconds: unix_ms() / 1_000,
            saved,
            saved_at: None,
            shown_at: None,
            noted_at: None,
            failed_at: None,
            skipped_events: 0,
            is_away: false,
            is_at_end: false,
            resyncs: 0,
        })
    }

    /// Starts the thread, which drops `alive` when it ends.
    pub(super) fn spawn(mut self, commands: UnboundedReceiver<Command>, alive: Sender<()>) -> io::Result<()> {
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(16).build()?;
        std::thread::Builder::new().name("store".into()).spawn(move || {
            runtime.block_on(self.run(commands));
            // A hung file system must not keep the thread.
            runtime.shutdown_background();
            drop(alive);
        })?;
        Ok(())
    }

    async fn run(&mut self, mut commands: UnboundedReceiver<Command>) {
        let report = BeatReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_unix_seconds: self.started_unix_seconds,
            ..BeatReport::default()
        };
        self.member.set_report(report);
        if let Some(kept) = &self.kept_config
            && let Some(change) = kept.read().await
        {
            self.member.restore_config(change);
        }
        let mut operations: JoinSet<(MemberPart, Result<StoreReply, StoreError>)> = JoinSet::new();
        let mut charges: JoinSet<Charged> = JoinSet::new();
        let mut looks: JoinSet<RolloutHealth> = JoinSet::new();
        let mut look_at = Instant::now();
        let mut limits = SharedLimits::new(self.config.limits_without_store);
        let mut bans = SharedBans::new(self.config.poll_interval(), self.log.clone());
        let mut lists = SharedLists::new(self.log.clone());
        let mut known_clients: JoinSet<(KnownClients, Result<StoreReply, StoreError>)> = JoinSet::new();
        loop {
            let now = self.start.elapsed();
            loop {
                let actions = self.member.poll(now, unix_ms());
                if actions.is_empty() {
                    break;
                }
                for action in actions {
                    if let Some((part, request)) = self.act(action) {
                        let store = Arc::clone(&self.store);
                        operations.spawn(async move { (part, carry_out(&store, request).await) });
                    }
                }
            }
            self.inform_cache();
            self.save_cursor();
            self.show();
            if let Some(batch) = limits.collect() {
                let store = Arc::clone(&self.store);
                let instance = self.member.settings().id.clone();
                charges.spawn(async move { charge(&store, &instance, batch).await });
            }
            let of_bans = bans.poll(now, unix_ms()).map(|request| (KnownClients::Bans, request));
            let of_lists = lists.poll(now).map(|request| (KnownClients::Lists, request));
            for (part, request) in of_bans.into_iter().chain(of_lists) {
                let store = Arc::clone(&self.store);
                known_clients.spawn(async move { (part, carry_out(&store, request).await) });
            }
            let wait =
                self.member.next_wake().map_or(STATUS_INTERVAL, |wake| wake.saturating_sub(now).min(STATUS_INTERVAL));
            if self.member.settings().has_rollouts && looks.is_empty() && look_at <= Instant::now() {
                look_at = Instant::now() + HEALTH_INTERVAL;
                let observer = Arc::clone(&self.observer);
                looks.spawn(async move { health_of(&observer.status(0).await) });
            }
            let wait = limits.wait().map_or(wait, |other| wait.min(other));
            let wakes = [bans.next_wake(), lists.next_wake()].into_iter().flatten();
            let wait = wakes.map(|wake| wake.saturating_sub(now)).fold(wait, Duration::min);
            tokio::select! {
                command = commands.recv() => match command {
                    Some(Command::Publish(order)) => self.publish(&order),
                    Some(Command::ShareLimits(tables)) => limits.set_tables(tables),
                    Some(Command::ShareBans(shared)) => bans.set_bans(shared),
                    Some(Command::ShareLists(shared)) => lists.set_lists(shared),
                    Some(Command::Status(reply)) => {
                        let (store, status) = (Arc::clone(&self.store), self.status());
                        let (id, next) = (self.member.settings().id.clone(), self.member.cursor().map(|cursor| cursor.next));
                        // A slow store must not delay the events.
                        tokio::spawn(async move {
                            let _ = reply.send(with_instances(status, &store, &id, next).await);
                        });
                    }
                    Some(Command::Rollout(order, reply)) => {
                        let (store, skew_ms) = (Arc::clone(&self.store), self.member.skew_ms());
                        let latest = self.member.known_rollout().cloned();
                        tokio::spawn(async move {
                            let result = obey(&store, order, skew_ms, latest).await;
                            reply.report(result.map_or_else(ControlReport::Rejected, ControlReport::Done));
                        });
                    }
                    Some(Command::Applied(change, result)) => self.member.on_applied(change, result),
                    None => break,
                },
                Some(Ok(health)) = looks.join_next(), if !looks.is_empty() => self.member.set_health(health),
                Some(done) = operations.join_next(), if !operations.is_empty() => {
                    if let Ok((part, result)) = done {
                        self.report(&result);
                        self.is_at_end |= part == MemberPart::Events && matches!(result, Ok(StoreReply::Entry(None)));
                        let result: StoreResult = result.map_err(|_| UnknownOutcome);
                        self.member.handle_reply(self.start.elapsed(), unix_ms(), part, result);
                    }
                }
                Some(Ok((part, result))) = known_clients.join_next(), if !known_clients.is_empty() => {
                    self.report(&result);
                    let (now, result) = (self.start.elapsed(), result.map_err(|_| UnknownOutcome));
                    let next = match part {
                        KnownClients::Bans => bans.handle_reply(now, unix_ms(), result),
                        KnownClients::Lists => lists.handle_reply(now, result),
                    };
                    if let Some(request) = next {
                        let store = Arc::clone(&self.store);
                        known_clients.spawn(async move { (part, carry_out(&store, request).await) });
                    }
                }
                Some(done) = charges.join_next(), if !charges.is_empty() => {
                    if let Ok(charged) = done {
                        limits.on_charged(charged);
                    }
                }
                () = sleep(wait.max(Duration::from_millis(1))) => {}
            }
        }
        self.observer.set_shared_store(None);
        let _ = timeout(LEAVE_LIMIT, self.leave()).await;
    }

    /// Carries an action out, unless it is a request to the store.
    fn act(&mut self, action: Action) -> Option<(MemberPart, StoreRequest)> {
        match action {
            Action::Request(part, request) => return Some((part, request)),
            Action::Apply(event) => {
                if let Some(order) = order_of(&event, unix_ms()) {
                    // Before the caches in memory, which may read the store at the same time.
                    for purge in purges_of(&order) {
                        let next = self.member.cursor().map_or(u64::MAX, |cursor| cursor.next);
                        self.shared_cache.on_heard(next, purge);
                    }
                    // The main thread has ended, if nothing receives it.
                    let _ = self.changes.send(SharedChange::Order(order));
                }
            }
            Action::Configure(change) => _ = self.changes.send(SharedChange::Configure(change)),
            Action::Keep(change) => {
                if let Some(kept) = &self.kept_config {
                    kept.write(change);
                }
            }
            Action::Resync => {
                self.resyncs += 1;
                self.shared_cache.on_missed();
                // The main thread has ended, if nothing receives it.
                let _ = self.changes.send(SharedChange::Resync);
            }
            Action::UseTickets(ring) => {
                if self.tickets.share(keys_of(&ring)).is_err() {
                    self.log.warn(
                        event("session ticket keys not shared", &[("reason", &"unusable keys")]),
                        "check the store",
                    );
                }
            }
        }
        None
    }

    fn publish(&mut self, order: &crate::control::ControlOrder) {
        let now = unix_ms();
        let Some(publications) = publications(order, now) else {
            self.shared_cache.on_handed(purges_of(order).len());
            self.log.error(event("order not shared: too large", &[]), "repeat the order at each instance");
            return;
        };
        let mut is_published = true;
        for Publication { topic, until_unix_ms, payload } in publications {
            is_published &= self.member.publish(now, topic, until_unix_ms, payload).is_ok();
        }
        self.shared_cache.on_handed(purges_of(order).len());
        if !is_published {
            let values: [(&str, &dyn std::fmt::Display); 1] = [("waiting", &OUTBOX_MAX)];
            self.log.error(
                event("order not shared: too many wait for the store", &values),
                "repeat the order at each instance, or when the store can be reached",
            );
        }
    }

    /// Logs when the store goes away, and when it is back.
    fn report(&mut self, result: &Result<StoreReply, StoreError>) {
        match result {
            // A store that only sometimes works gets one line.
            Ok(_) if self.is_away && self.failed_at.is_none_or(|at| at.elapsed() >= RECOVERY) => {
                self.is_away = false;
                self.log.info(event("store can be reached again", &[]));
            }
            // The engine works; `note_unusable` tells.
            Err(StoreError::Unusable(_)) => {}
            Err(_) if self.is_away => self.failed_at = Some(Instant::now()),
            Err(error) => {
                (self.is_away, self.failed_at) = (true, Some(Instant::now()));
                let place = self.config.place.as_ref().map(ToString::to_string).unwrap_or_default();
                self.log.warn(event("store failed", &[("store", &place), ("error", error)]), error.advice());
            }
            Ok(_) => {}
        }
    }

    /// Logs the first value that cannot be used, and one each hour. Metrics count all.
    fn note_unusable(&mut self) {
        let skipped = self.member.skipped_events();
        let has_skipped = std::mem::replace(&mut self.skipped_events, skipped) != skipped;
        let reason = self.store.take_unusable();
        let reason =
            reason.or_else(|| has_skipped.then(|| "no instance has written an order that was skipped".to_owned()));
        let Some(reason) = reason else { return };
        if self.noted_at.is_some_and(|at| at.elapsed() < NOTE_INTERVAL) {
            return;
        }
        self.noted_at = Some(Instant::now());
        let place = self.config.place.as_ref().map(ToString::to_string).unwrap_or_default();
        let error = StoreError::Unusable(reason);
        self.log.warn(event("value of the store not used", &[("store", &place), ("reason", &error)]), error.advice());
    }

    /// Tells the cache that instances share how far this instance has read the events.
    fn inform_cache(&mut self) {
        let is_at_end = std::mem::take(&mut self.is_at_end);
        if self.shared_cache.is_on() {
            let position = self.member.cursor().map(|cursor| (cursor.epoch.as_str(), cursor.next));
            let is_published = self.member.waiting_events() == 0;
            self.shared_cache.set_position(position, self.member.skew_ms(), is_published, is_at_end);
        }
    }

    fn save_cursor(&mut self) {
        let (Some(path), Some(cursor)) = (&self.cursor_file, self.member.cursor()) else { return };
        if self.saved.as_ref() == Some(cursor) || self.saved_at.is_some_and(|at| at.elapsed() < SAVE_INTERVAL) {
            return;
        }
        self.saved_at = Some(Instant::now());
        self.saved = Some(cursor.clone());
        // Without the file, the next process empties its cache.
        let _ = serde_json::to_string(cursor).map(|text| write_private(path, &text));
    }

    /// Gives the status to the metrics.
    fn show(&mut self) {
        if self.shown_at.is_none_or(|at| at.elapsed() >= STATUS_INTERVAL) {
            self.shown_at = Some(Instant::now());
            self.note_unusable();
            self.observer.set_shared_store(Some(self.status()));
        }
    }

    fn status(&self) -> StoreStatus {
        let counts = self.store.counts();
        StoreStatus {
            place: self.config.place.as_ref().map(ToString::to_string).unwrap_or_default(),
            instance: self.member.settings().name.clone(),
            next_event: self.member.cursor().map(|cursor| cursor.next),
            waiting_events: self.member.waiting_events() as u64,
            is_housekeeper: self.member.is_housekeeper(self.start.elapsed()),
            skew_ms: self.member.skew_ms(),
            resyncs: self.resyncs,
            unusable_values: counts.unusable + self.member.skipped_events(),
            ..status_of(counts)
        }
    }

    /// Gives back what other instances may take at once.
    async fn leave(&mut self) {
        let mut requests = self.member.leave();
        requests.extend(self.member.release(self.start.elapsed()));
        for request in requests {
            let _ = carry_out(&self.store, request).await;
        }
    }
}

/// Keys of a ring: first the one that encrypts.
fn keys_of(ring: &TicketRing) -> Vec<TicketKey> {
    let made = ring.rotated_unix_seconds;
    let keys = [&ring.current, &ring.next, &ring.previous].into_iter();
    keys.map(|key| TicketKey::from_parts(key.name, key.secret, made)).collect()
}

/// Text from the store without control characters, which a terminal would obey.
fn shown(text: &str) -> String {
    text.chars().map(|it| if it.is_control() { char::REPLACEMENT_CHARACTER } else { it }).collect()
}

/// Adds the records of all instances to a status.
async fn with_instances(status: StoreStatus, store: &Measured, id: &str, next: Option<u64>) -> StoreStatus {
    let Ok(StoreReply::Entries(entries)) = carry_out(store, StoreRequest::List("members".to_owned())).await else {
        return StoreStatus { is_away: true, ..status };
    };
    let now = unix_ms();
    // Another program may have written any of them.
    let records = entries.iter().filter_map(|(_, value)| serde_json::from_slice::<MemberRecord>(value).ok());
    let records: Vec<MemberRecord> = records.collect();
    let newest = records.iter().filter_map(|record| record.next_event).chain(next).max();
    let own_skew_ms = status.skew_ms.unwrap_or(0);
    let instances = records.into_iter().map(|record| InstanceStatus {
        is_this: record.id == id,
        lag_events: newest.zip(record.next_event).map(|(newest, next)| newest - next),
        // Both clocks as seen by the engine's.
        age_ms: (now as i64)
            .saturating_sub(own_skew_ms)
            .saturating_sub((record.unix_ms as i64).saturating_sub(record.skew_ms.unwrap_or(0)))
            .max(0)
            .unsigned_abs(),
        name: shown(&record.name),
        id: shown(&record.id),
        version: shown(&record.report.version),
        started_unix_s: record.report.started_unix_seconds,
        skew_ms: record.skew_ms,
        waiting_events: record.waiting_events,
    });
    let mut instances: Vec<InstanceStatus> = instances.collect();
    instances.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
    StoreStatus { instances, ..status }
}

/// Carries a request out.
pub(super) async fn carry_out(store: &Measured, request: StoreRequest) -> Result<StoreReply, StoreError> {
    let key = |text: &str| StoreKey::new(text).map_err(|error| StoreError::Wrong(format!("{text}: {error}")));
    match request {
        StoreRequest::Get(name) => {
            let entry = store.get(&key(&name)?).await?;
            Ok(StoreReply::Entry(entry.map(|entry| (entry.value, entry.version.0))))
        }
        StoreRequest::Put { key: name, value, expect } => {
            let version;
            let expect = match expect {
                Expected::Any => Expectation::Any,
                Expected::Absent => Expectation::Absent,
                Expected::Version(text) => {
                    version = StoredVersion(text);
                    Expectation::Version(&version)
                }
            };
            match store.put(&key(&name)?, &value, expect).await? {
                Put::Done(version) => Ok(StoreReply::Done(version.0)),
                Put::Conflict => Ok(StoreReply::Conflict),
            }
        }
        StoreRequest::Delete(name) => store.delete(&key(&name)?).await.map(|()| StoreReply::Deleted),
        StoreRequest::List(name) => {
            let entries = store.list(&key(&name)?).await?.into_iter();
            Ok(StoreReply::Entries(entries.map(|(key, entry)| (key.as_str().to_owned(), entry.value)).collect()))
        }
        StoreRequest::Time => Ok(StoreReply::Time(store.time().await?.map(|time| time.unix_ms))),
    }
}

fn machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis().try_into().unwrap_or(u64::MAX))
}
