//! What operators may order of the running server, and what they are told: lines of JSON on the control socket.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedSender;

use crate::log::RecordFilter;
use crate::status::Status;

/// How long whoever gives an order waits for a report on it.
const PATIENCE: Duration = Duration::from_secs(10);

/// An order. A new one is a variant here, an arm in `server/orders.rs`, and a command in `cli/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub enum Order {
    /// Take responses out of the caches for upstreams' responses.
    PurgeCache {
        /// For these URLs.
        urls: Vec<String>,
        /// For all URLs that begin so.
        prefixes: Vec<String>,
        /// For all URLs.
        #[serde(default)]
        all: bool,
    },
    /// Tell of requests as they are logged, until the connection ends.
    TailLog {
        /// Which requests.
        filter: RecordFilter,
        /// In which format: as in the configuration.
        format: String,
    },
    /// Tell all that there is to see.
    Status {
        /// Open requests of each worker that are wanted.
        #[serde(default)]
        requests_max: usize,
    },
}

/// What became of an [`Order`]. Most have one; others, such as one to follow something, have any number, until the
/// connection ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Report {
    /// It was carried out; this is for people to read.
    Done(String),
    /// So many responses were taken out.
    Purged(usize),
    /// All that there is to see.
    Status(Box<Status>),
    /// A request that was logged.
    Logged(String),
    /// So many were left out, for they were not taken soon enough.
    Missed(u64),
    /// Nothing was changed, for this reason.
    Refused(String),
}

/// An order, and whom to tell.
#[derive(Debug)]
pub struct Request {
    /// What is wanted.
    pub order: Order,
    /// Where reports go.
    pub reply: Reply,
}

/// Where reports on an order go. Dropped, it ends the connection.
#[derive(Clone, Debug)]
pub struct Reply(UnboundedSender<Report>);

impl Order {
    /// How long is waited for a report; `None` for those that take as long as it takes.
    pub(super) fn time_limit(&self) -> Option<Duration> {
        match self {
            Self::PurgeCache { .. } | Self::Status { .. } => Some(PATIENCE),
            Self::TailLog { .. } => None,
        }
    }
}

impl Reply {
    pub(super) fn new(reports: UnboundedSender<Report>) -> Self {
        Self(reports)
    }

    /// Waits until nobody wants to know any more.
    pub async fn closed(&self) {
        self.0.closed().await;
    }

    /// Reports; `false` if nobody wants to know any more.
    pub fn report(&self, report: Report) -> bool {
        self.0.send(report).is_ok()
    }
}
