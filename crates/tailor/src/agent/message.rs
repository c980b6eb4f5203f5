//! Messages between controller and agent.

use serde::{Deserialize, Serialize};

use super::record::{SentOutcome, SentRecord};
use crate::report::Limit;

/// Version of the messages; both sides must have the same.
pub(super) const PROTOCOL_VERSION: u32 = 1;

/// Message to an agent.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum ToAgent {
    /// Asks for a response, to measure how long a message takes.
    Echo,
    /// Prepares a run.
    Prepare(Box<SentRun>),
    /// Starts the prepared run after a time in nanoseconds.
    Start { delay: u64 },
    /// Shows that the controller is there.
    Alive,
    /// Ends the run early.
    Stop,
}

/// Part of a run.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct SentRun {
    /// Arguments of `tailor bench`.
    pub(super) arguments: Vec<String>,
    /// Files that the arguments name: path and content in Base64.
    pub(super) files: Vec<(String, String)>,
    /// Number of this part, and of all parts.
    pub(super) part: u64,
    pub(super) parts: u64,
    pub(super) seed: u32,
}

/// Message from an agent.
#[derive(Debug, Deserialize, Serialize)]
pub(super) enum FromAgent {
    /// First message.
    Hello {
        protocol_version: u32,
        tailor_version: String,
    },
    Echo,
    /// The run is prepared.
    Ready,
    /// An interval ended.
    Interval {
        end_seconds: f64,
        record: Box<SentRecord>,
    },
    /// The run ended.
    Done {
        outcome: Box<SentOutcome>,
        limits: Vec<Limit>,
        interrupted: bool,
    },
    /// The run is impossible, for this reason.
    Failed(String),
}
