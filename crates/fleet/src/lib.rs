//! Decisions of instances that act as one: leases, ordered events, keys of session tickets, shared rate limits, rollouts.
//!
//! Nothing here does input or output. A [`Member`] takes the time and replies of a store, and returns actions. The server
//! carries them out (`crates/tailcoat/src/server/fleet`), and so does a simulation ([`simulation`]) with any number of
//! members, slow and lossy stores, wrong clocks, and crashes.
//!
//! Times are [`InstanceTime`]: the monotonic clock of one instance, from any beginning. No decision about exclusion depends on clocks of
//! several instances.

mod beats;
mod board;
mod events;
mod lease;
mod limiter;
mod member;
mod rollout;
mod rollout_keeper;
pub mod simulation;
mod store;
mod tickets;

use std::time::Duration;

pub use beats::{BeatReport, MemberRecord};
pub use board::{BOARD_ENTRIES_MAX, BOARD_ENTRY_BYTES_MAX, Board, BoardChange, BoardEntry};
pub use events::{EVENTS_KEPT, EventCursor, FleetEvent, OUTBOX_MAX, OutboxFull, TOPIC_BYTES_MAX};
pub use lease::{FleetLease, LeaseRecord, LeaseRequest};
pub use limiter::SharedBucket;
pub use member::{Action, Entropy, Member, MemberPart, MemberSettings};
pub use rollout::{
    Rollout, RolloutHealth, RolloutMember, RolloutReport, RolloutSettings, RolloutStage, Step, plan_step,
};
pub use rollout_keeper::{ConfigChange, ROLLOUT_KEY};
pub use store::{Expected, StoreReply, StoreRequest, StoreResult, UnknownOutcome};
pub use tickets::{SessionKey, TICKET_KEY_SECONDS, TicketRing};

/// Time by the monotonic clock of one instance.
pub type InstanceTime = Duration;
