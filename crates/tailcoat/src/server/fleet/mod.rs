//! Instances that act as one: a thread joins the decisions of `crates/fleet` to the store of the configuration.
//!
//! No worker waits for the thread. It gives changes of other instances to the main thread, as orders, and keys of session
//! tickets to the handshakes.

mod bans;
mod changes;
mod kept_config;
mod limits;
mod lists;
mod responses;
mod rollouts;
mod thread;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use tailcoat_fleet::ConfigChange;
use tailcoat_store::StoreCounts;
use tokio::sync::mpsc::{UnboundedSender, WeakUnboundedSender, unbounded_channel};
use tokio::sync::oneshot;

pub(super) use self::changes::purges_of;
use self::responses::SharedResponses;
pub(super) use self::rollouts::RolloutOrder;
use self::thread::{LEAVE_LIMIT, StoreThread};
use crate::config::{SharedState, StoreConfig};
use crate::control::{ControlOrder, ControlReply};
use crate::known_clients::{Bans, SiteLists};
use crate::log::ServerLog;
use crate::observer::Observer;
use crate::routing::rules::SharedTables;
use crate::shared_cache::SharedCache;
use crate::status::StoreStatus;
use crate::tls::Tickets;

/// Change that the instance applies for the sake of others.
#[derive(Debug)]
pub(super) enum SharedChange {
    /// Order that an operator has given to another instance.
    Order(ControlOrder),
    /// Orders may have been missed: no cached response may stay.
    Resync,
    /// Apply the configuration of a rollout.
    Configure(ConfigChange),
}

/// Parts of the server that the thread uses.
pub(super) struct FleetParts {
    pub(super) tickets: Arc<Tickets>,
    pub(super) shared_cache: Arc<SharedCache>,
    /// Receiver of changes of other instances.
    pub(super) changes: UnboundedSender<SharedChange>,
    pub(super) observer: Arc<Observer>,
    pub(super) log: ServerLog,
}

/// Channel for results of rollouts' configurations. It does not keep the thread.
#[derive(Debug)]
pub(super) struct RolloutResults(WeakUnboundedSender<Command>);

/// Handle of the thread of a store. Dropping it ends the thread, which first gives its leases back.
#[derive(Debug)]
pub(super) struct FleetHandle {
    config: StoreConfig,
    /// Sender of commands, until the handle is dropped.
    commands: Option<UnboundedSender<Command>>,
    /// Disconnected when the thread ends.
    ended: Receiver<()>,
    /// Use of the store for cached responses.
    _responses: Option<SharedResponses>,
}

/// Command to the thread.
#[derive(Debug)]
enum Command {
    /// Give an order to all instances.
    Publish(ControlOrder),
    /// Share these limits, and no others.
    ShareLimits(SharedTables),
    /// Share bans by rules.
    ShareBans(Arc<Bans>),
    /// Share these lists of sites, and no others.
    ShareLists(Vec<Arc<SiteLists>>),
    /// Report the instances.
    Status(oneshot::Sender<StoreStatus>),
    /// Carry out an order about rollouts.
    Rollout(RolloutOrder, ControlReply),
    /// The configuration of a rollout was applied, or rejected.
    Applied(ConfigChange, Result<(), String>),
}

impl FleetHandle {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be created, or a file of the configuration cannot be read.
    pub(super) fn start(config: &StoreConfig, keeps_cursor: bool, parts: FleetParts) -> io::Result<Self> {
        let (commands, receiver) = unbounded_channel();
        let has_responses = config.has(SharedState::Responses);
        let responses = has_responses.then(|| SharedResponses::start(config, &parts.shared_cache)).transpose()?;
        let thread = StoreThread::new(config, keeps_cursor, parts)?;
        let (alive, ended) = channel();
        thread.spawn(receiver, alive)?;
        Ok(Self { config: config.clone(), commands: Some(commands), ended, _responses: responses })
    }

    /// True if the thread serves this configuration.
    pub(super) fn is_of(&self, config: &StoreConfig) -> bool {
        self.config == *config
    }

    /// Gives an order to all instances that this one has carried out, if such orders are shared.
    pub(super) fn publish(&self, order: &ControlOrder) {
        if self.config.has(SharedState::Orders) && changes::is_shared(order) {
            self.command(Command::Publish(order.clone()));
        }
    }

    /// Shares these limits, and no others.
    pub(super) fn share_limits(&self, tables: SharedTables) {
        self.command(Command::ShareLimits(tables));
    }

    /// Shares bans by rules, if orders of operators are shared.
    pub(super) fn share_bans(&self, bans: &Arc<Bans>) {
        if self.config.has(SharedState::Orders) {
            self.command(Command::ShareBans(Arc::clone(bans)));
        }
    }

    /// Shares lists of crawlers and agents, and no others. They decide who passes, so instances need the same `key-file`.
    pub(super) fn share_lists(&self, lists: Vec<Arc<SiteLists>>) {
        if self.config.has(SharedState::Orders) && self.config.key_file.is_some() {
            self.command(Command::ShareLists(lists));
        }
    }

    /// Asks for the state of the store and the instances.
    pub(super) fn ask_status(&self) -> oneshot::Receiver<StoreStatus> {
        let (sender, receiver) = oneshot::channel();
        self.command(Command::Status(sender));
        receiver
    }

    /// True if the instance takes part in rollouts.
    pub(super) fn has_rollouts(&self) -> bool {
        self.config.has(SharedState::Rollouts)
    }

    /// Carries out an order about rollouts.
    pub(super) fn order_rollout(&self, order: RolloutOrder, reply: ControlReply) {
        self.command(Command::Rollout(order, reply));
    }

    /// Channel for results of rollouts' configurations.
    pub(super) fn rollout_results(&self) -> Option<RolloutResults> {
        self.commands.as_ref().map(|commands| RolloutResults(commands.downgrade()))
    }

    fn command(&self, command: Command) {
        if let Some(commands) = &self.commands {
            // Fails only if the thread ended by a panic, which was logged.
            let _ = commands.send(command);
        }
    }
}

impl RolloutResults {
    /// Tells the other instances.
    pub(super) fn send(&self, change: ConfigChange, result: Result<(), String>) {
        if let Some(commands) = self.0.upgrade() {
            // Fails only if the thread has ended meanwhile.
            let _ = commands.send(Command::Applied(change, result));
        }
    }
}

impl Drop for FleetHandle {
    fn drop(&mut self) {
        self.commands = None;
        // A store that hangs delays no shutdown: others take the leases when their time is over.
        let _ = self.ended.recv_timeout(LEAVE_LIMIT * 2);
    }
}

/// Part of a status that counts operations.
fn status_of(counts: StoreCounts) -> StoreStatus {
    StoreStatus {
        is_away: counts.is_away,
        operations: counts.operations,
        errors: counts.errors,
        timeouts: counts.timeouts,
        sum_us: counts.time.as_micros().try_into().unwrap_or(u64::MAX),
        age_ms: counts.age.map(|age| age.as_millis().try_into().unwrap_or(u64::MAX)),
        mean_us: (counts.time.as_micros() / u128::from(counts.operations.max(1))).try_into().unwrap_or(u64::MAX),
        ..StoreStatus::default()
    }
}
