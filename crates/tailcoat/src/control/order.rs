//! What operators may order of the running server, and what they are told: lines of JSON on the control socket.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{Sender, channel};

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
    /// Read the configuration again, and take it up if it has no error.
    Reload {
        /// Whether what is found is told with boxes and colours.
        #[serde(default)]
        is_fancy: bool,
    },
    /// Start the binary that is at this one's place by now, and let it take over.
    Upgrade,
    /// Have so many workers.
    SetWorkers {
        /// How many.
        count: usize,
    },
    /// Show what is at least as severe in the server's own log: `error`, `warn`, `info` or `debug`.
    SetLogLevel {
        /// The least severity.
        level: String,
    },
    /// Keep another limit: an option of `limits`, with its value.
    SetLimit {
        /// The option, as the block `limits` has it.
        option: String,
    },
    /// Keep a client out.
    Ban {
        /// An address or a network.
        client: String,
        /// For so long.
        seconds: u64,
    },
    /// Keep it out no more.
    Unban {
        /// As it was banned.
        client: String,
    },
    /// Tell who is kept out.
    ListBans,
    /// Send a server no more requests, or again.
    DrainServer {
        /// The upstream.
        upstream: String,
        /// The server, as it is configured.
        server: String,
        /// Whether it gets no more.
        is_drained: bool,
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
    /// Another process serves by now, on the same socket. This one goes on to tell of what it has under way.
    Succeeded,
    /// Nothing was changed, for this reason.
    Refused(String),
    /// Nothing was changed, for the configuration has errors: what was found, as `check` prints it.
    Invalid(String),
}

/// An order, and whom to tell.
#[derive(Debug)]
pub struct Request {
    /// What is wanted.
    pub order: Order,
    /// Where reports go.
    pub reply: Reply,
}

/// Reports that may wait for whoever gave the order.
pub(super) const REPORTS_MAX: usize = 16;

/// Where reports on an order go. Dropped, it ends the connection.
#[derive(Clone, Debug)]
pub struct Reply(Sender<Report>);

impl Order {
    /// How long is waited for a report; `None` for those that take as long as it takes.
    pub(super) fn time_limit(&self) -> Option<Duration> {
        match self {
            // What it takes to check a configuration and to open all that it names is the configuration's business.
            Self::Reload { .. } | Self::Upgrade | Self::SetWorkers { .. } | Self::SetLimit { .. } => None,
            Self::TailLog { .. } => None,
            Self::PurgeCache { .. } | Self::Status { .. } => Some(PATIENCE),
            Self::SetLogLevel { .. } | Self::DrainServer { .. } => Some(PATIENCE),
            Self::Ban { .. } | Self::Unban { .. } | Self::ListBans => Some(PATIENCE),
        }
    }

    /// Whether it is for the process that serves, not for one that only answers what it has under way.
    pub fn is_for_successor(&self) -> bool {
        !matches!(self, Self::Status { .. })
    }

    /// Whether whoever gives it looks on as long as they like.
    pub(super) fn looks_on(&self) -> bool {
        matches!(self, Self::TailLog { .. })
    }
}

impl Reply {
    pub(super) fn new(reports: Sender<Report>) -> Self {
        Self(reports)
    }

    /// Waits until nobody wants to know any more.
    pub async fn closed(&self) {
        self.0.closed().await;
    }

    /// To nobody, for what the server orders itself.
    pub fn to_nobody() -> Self {
        Self(channel(1).0)
    }

    /// Reports, of which an order has few; `false` if nobody wants to know any more.
    pub fn report(&self, report: Report) -> bool {
        self.0.try_send(report).is_ok()
    }

    /// Reports one of many, when there is room for it; `false` if nobody wants to know any more.
    pub async fn report_in_turn(&self, report: Report) -> bool {
        self.0.send(report).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_reports_come_back_as_they_were() {
        let orders = [
            Order::PurgeCache { urls: vec!["http://a/".into()], prefixes: Vec::new(), all: false },
            Order::Reload { is_fancy: true },
            Order::Upgrade,
            Order::SetWorkers { count: 2 },
            Order::SetLogLevel { level: "warn".into() },
            Order::Ban { client: "192.0.2.1".into(), seconds: 60 },
            Order::ListBans,
            Order::SetLimit { option: "fields-max 5".into() },
            Order::DrainServer { upstream: "app".into(), server: "http://a:1".into(), is_drained: true },
        ];
        for order in orders {
            let line = serde_json::to_string(&order).unwrap();
            assert_eq!(serde_json::from_str::<Order>(&line).unwrap(), order, "{line}");
        }
        for report in [
            Report::Done("done".into()),
            Report::Purged(3),
            Report::Refused("no".into()),
            Report::Invalid("errors".into()),
        ] {
            let line = serde_json::to_string(&report).unwrap();
            assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report, "{line}");
        }
    }
}
