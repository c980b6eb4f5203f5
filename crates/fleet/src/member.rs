//! One instance among several: joins the parts, each with one request to the store at a time.

use std::fmt;
use std::time::Duration;

use super::beats::{BeatReport, Beats};
use super::events::{EventCursor, EventLog, FleetEvent, Heard, OutboxFull};
use super::lease::{FleetLease, LeaseRequest};
use super::rollout::{Rollout, RolloutHealth};
use super::rollout_keeper::{ConfigChange, RolloutKeeper};
use super::tickets::{SessionKey, TicketKeeper, TicketRing};
use super::{Expected, InstanceTime, StoreReply, StoreRequest, StoreResult};

/// Key of the lease of the housekeeper, who removes old events and records.
const HOUSEKEEPER: &str = "leases/housekeeper";

/// Settings of an instance.
#[derive(Clone, Debug)]
pub struct MemberSettings {
    /// Name in the configuration.
    pub name: String,
    /// Name that no other process has or had.
    pub id: String,
    /// Interval between two reads of events.
    pub poll_interval: Duration,
    /// Time of leases.
    pub lease_time: Duration,
    /// True if keys of session tickets are shared.
    pub has_tickets: bool,
    /// True if events are shared.
    pub has_events: bool,
    /// True if the instance takes part in rollouts.
    pub has_rollouts: bool,
}

/// Random bytes.
pub type Entropy = Box<dyn FnMut() -> [u8; 48] + Send>;

/// Part of a member that a request is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MemberPart {
    /// Events.
    Events,
    /// Lease of the housekeeper.
    Housekeeper,
    /// Keys of session tickets.
    Tickets,
    /// Signs of life.
    Beats,
    /// Rollouts.
    Rollouts,
}

/// Action for the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a request to the store, and give its reply to [`Member::handle_reply`].
    Request(MemberPart, StoreRequest),
    /// Apply an event of another instance, or an own one again.
    Apply(FleetEvent),
    /// Events were missed: drop all that they could have removed.
    Resync,
    /// Use these keys of session tickets.
    UseTickets(TicketRing),
    /// Apply this configuration, and give the result to [`Member::on_applied`].
    Configure(ConfigChange),
    /// Keep this configuration for the next process; without a text, keep none.
    Keep(ConfigChange),
}

/// One instance among several.
pub struct Member {
    settings: MemberSettings,
    events: EventLog,
    housekeeper: FleetLease,
    tickets: TicketKeeper,
    beats: Beats,
    rollouts: RolloutKeeper,
    report: BeatReport,
    entropy: Entropy,
    /// Actions that wait to be taken.
    actions: Vec<Action>,
}

impl Member {
    /// Instance that continues at `cursor`, if an earlier process has saved one.
    pub fn new(settings: MemberSettings, cursor: Option<EventCursor>, entropy: Entropy) -> Self {
        Self {
            events: EventLog::new(&settings.id, settings.poll_interval, cursor),
            housekeeper: FleetLease::new(&settings.id, settings.lease_time),
            tickets: TicketKeeper::default(),
            beats: Beats::new(&settings.name, &settings.id),
            rollouts: RolloutKeeper::new(&settings.id),
            report: BeatReport::default(),
            entropy,
            actions: Vec::new(),
            settings,
        }
    }

    /// Settings.
    pub fn settings(&self) -> &MemberSettings {
        &self.settings
    }

    /// Facts for the next record.
    pub fn set_report(&mut self, report: BeatReport) {
        self.report = report;
    }

    /// Responses and errors since the start, and servers of upstreams. They are part of the next record.
    pub fn set_health(&mut self, health: RolloutHealth) {
        self.rollouts.set_health(health);
    }

    /// Begins with the configuration that an earlier process has kept by [`Action::Keep`].
    pub fn restore_config(&mut self, change: ConfigChange) {
        let change = self.rollouts.restore(change);
        self.actions.push(Action::Configure(change));
    }

    /// Takes the result of [`Action::Configure`].
    pub fn on_applied(&mut self, change: ConfigChange, result: Result<(), String>) {
        self.rollouts.on_applied(change, result);
        self.beats.hasten();
    }

    /// Latest rollout that this instance knows. The store may have lost it.
    pub fn known_rollout(&self) -> Option<&Rollout> {
        self.rollouts.known()
    }

    /// Configuration of a rollout that is in use; `None` is that of the file.
    pub fn applied_config(&self) -> Option<&str> {
        self.rollouts.applied().map(String::as_str)
    }

    /// Publishes an event that this instance has applied. Events of a topic are ordered; others may be applied in any order.
    ///
    /// # Errors
    /// Too many events wait.
    pub fn publish(
        &mut self,
        unix_ms: u64,
        topic: Option<String>,
        until_unix_ms: Option<u64>,
        payload: String,
    ) -> Result<u64, OutboxFull> {
        self.events.publish(unix_ms, topic, until_unix_ms, payload)
    }

    /// Position in the events.
    pub fn cursor(&self) -> Option<&EventCursor> {
        self.events.cursor()
    }

    /// Own events that wait to be published.
    pub fn waiting_events(&self) -> usize {
        self.events.waiting()
    }

    /// Events that were skipped because no instance can read them.
    pub fn skipped_events(&self) -> u64 {
        self.events.skipped()
    }

    /// True if this instance keeps house now.
    pub fn is_housekeeper(&self, now: InstanceTime) -> bool {
        self.housekeeper.is_held(now)
    }

    /// Own clock less the engine's, in milliseconds.
    pub fn skew_ms(&self) -> Option<i64> {
        self.beats.skew_ms()
    }

    /// Time of the next request; earlier if an event is published.
    pub fn next_wake(&self) -> Option<InstanceTime> {
        let events = self.events.next_wake().filter(|_| self.settings.has_events);
        let tickets = self.tickets.next_wake().filter(|_| self.settings.has_tickets);
        let rollouts = self.rollouts.next_wake().filter(|_| self.settings.has_rollouts);
        [events, tickets, rollouts, self.housekeeper.next_wake(), self.beats.next_wake()].into_iter().flatten().min()
    }

    /// Actions that are due.
    pub fn poll(&mut self, now: InstanceTime, unix_ms: u64) -> Vec<Action> {
        let mut actions = std::mem::take(&mut self.actions);
        let is_housekeeper = self.housekeeper.is_held(now);
        if self.settings.has_events {
            let request = self.events.poll(now, unix_ms, is_housekeeper);
            actions.extend(request.map(|request| Action::Request(MemberPart::Events, request)));
        }
        if self.settings.has_tickets {
            let request = self.tickets.poll(now);
            actions.extend(request.map(|request| Action::Request(MemberPart::Tickets, request)));
        }
        let request = self.housekeeper.poll(now).map(|request| match request {
            LeaseRequest::Read => StoreRequest::Get(HOUSEKEEPER.to_owned()),
            LeaseRequest::Write(value, expect) => StoreRequest::Put { key: HOUSEKEEPER.to_owned(), value, expect },
        });
        actions.extend(request.map(|request| Action::Request(MemberPart::Housekeeper, request)));
        if self.settings.has_rollouts {
            let request = self.rollouts.poll(now);
            actions.extend(request.map(|request| Action::Request(MemberPart::Rollouts, request)));
            self.report.rollout = self.rollouts.report();
            actions.extend(self.rollouts.next_to_keep().map(Action::Keep));
        }
        let progress = (self.events.cursor().map(|cursor| cursor.next), self.events.waiting() as u64);
        let request = self.beats.poll(now, unix_ms, is_housekeeper, progress, &self.report);
        actions.extend(request.map(|request| Action::Request(MemberPart::Beats, request)));
        actions
    }

    /// Takes the reply to a request.
    pub fn handle_reply(&mut self, now: InstanceTime, unix_ms: u64, part: MemberPart, result: StoreResult) {
        let is_housekeeper = self.housekeeper.is_held(now);
        match part {
            MemberPart::Events => {
                let entropy = &mut self.entropy;
                let mut new_epoch = || {
                    let bytes = entropy();
                    bytes[..8].iter().map(|byte| format!("{byte:02x}")).collect()
                };
                let heard = self.events.handle_reply(now, is_housekeeper, &mut new_epoch, result);
                self.actions.extend(heard.into_iter().map(|heard| match heard {
                    Heard::Event(event) => Action::Apply(event),
                    Heard::Resync => Action::Resync,
                }));
                let creation = self.events.creation();
                self.actions.extend(creation.map(|request| Action::Request(MemberPart::Events, request)));
            }
            MemberPart::Housekeeper => match result {
                Ok(StoreReply::Entry(entry)) => self.housekeeper.on_entry(now, entry),
                Ok(StoreReply::Done(version)) => self.housekeeper.on_written(now, Some(version)),
                Ok(StoreReply::Conflict) => self.housekeeper.on_written(now, None),
                _ => self.housekeeper.on_unknown(now),
            },
            MemberPart::Tickets => {
                let entropy = &mut self.entropy;
                let mut new_key = || {
                    let bytes = entropy();
                    let (mut name, mut secret) = ([0; 16], [0; 32]);
                    name.copy_from_slice(&bytes[..16]);
                    secret.copy_from_slice(&bytes[16..]);
                    SessionKey { name, secret }
                };
                let (changed, request) =
                    self.tickets.handle_reply(now, unix_ms / 1_000, is_housekeeper, &mut new_key, result);
                self.actions.extend(changed.map(Action::UseTickets));
                self.actions.extend(request.map(|request| Action::Request(MemberPart::Tickets, request)));
            }
            MemberPart::Beats => self.beats.handle_reply(now, unix_ms, result),
            MemberPart::Rollouts => {
                let stage = self.rollouts.stage();
                let (change, request) = self.rollouts.handle_reply(now, is_housekeeper, result);
                self.actions.extend(change.map(Action::Configure));
                self.actions.extend(request.map(|request| Action::Request(MemberPart::Rollouts, request)));
                if self.rollouts.stage() != stage {
                    // The housekeeper waits for the report.
                    self.beats.hasten();
                }
            }
        }
    }

    /// Requests that release what others may take at once: the lease of the housekeeper, and the own record.
    pub fn leave(&mut self) -> Vec<StoreRequest> {
        self.housekeeper.release();
        vec![StoreRequest::Delete(format!("members/{}", self.settings.id))]
    }

    /// Request that releases the lease of the housekeeper, if it is held.
    pub fn release(&mut self, now: InstanceTime) -> Option<StoreRequest> {
        if !self.housekeeper.is_held(now) {
            return None;
        }
        match self.housekeeper.poll(now)? {
            LeaseRequest::Read => None,
            LeaseRequest::Write(value, expect @ Expected::Version(_)) => {
                Some(StoreRequest::Put { key: HOUSEKEEPER.to_owned(), value, expect })
            }
            LeaseRequest::Write(..) => None,
        }
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("id", &self.settings.id).field("events", &self.events).finish_non_exhaustive()
    }
}
