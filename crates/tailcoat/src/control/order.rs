//! Orders of operators to the running server and their reports: lines of JSON on the control socket.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::{ExplainQuestion, Explanation};
use crate::log::RecordFilter;
use crate::status::{CertificateStatus, StatusReport};

/// Time that a command waits for a report.
const PATIENCE: Duration = Duration::from_secs(10);

/// Order of an operator. A new one needs a variant here, an arm in `server/orders.rs`, and a command in `cli/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub enum ControlOrder {
    /// Remove responses from the response caches.
    PurgeCache {
        /// URLs of the responses.
        urls: Vec<String>,
        /// Prefixes of URLs.
        prefixes: Vec<String>,
        /// Tags of responses.
        #[serde(default)]
        tags: Vec<String>,
        /// All responses.
        #[serde(default)]
        all: bool,
    },
    /// Stream log records until the connection ends.
    TailLog {
        /// Filter of the records.
        filter: RecordFilter,
        /// Format, as in the configuration.
        format: String,
    },
    /// Stream qlog records of new QUIC connections from a client until the connection ends.
    TraceQuic {
        /// Address or network.
        client: String,
    },
    /// Report the status.
    Status {
        /// Open requests wanted per worker.
        #[serde(default)]
        requests_max: usize,
    },
    /// List the certificates.
    ListCertificates,
    /// Explain what happens to a request.
    Explain {
        /// The request.
        question: ExplainQuestion,
    },
    /// Reload the configuration, and apply it if it has no error.
    Reload {
        /// True to report diagnostics with boxes and colours.
        #[serde(default)]
        is_fancy: bool,
    },
    /// Start the binary that is now at this program's path, and let it take over.
    Upgrade,
    /// Change the number of workers.
    SetWorkers {
        /// Number of workers.
        count: usize,
    },
    /// Change the log level: `error`, `warn`, `info` or `debug`.
    SetLogLevel {
        /// Lowest severity that is shown.
        level: String,
    },
    /// Change a limit: an option of `limits`, with its value.
    SetLimit {
        /// Option, as in the block `limits`.
        option: String,
    },
    /// Ban a client.
    Ban {
        /// Address or network.
        client: String,
        /// Duration.
        seconds: u64,
    },
    /// End a ban.
    Unban {
        /// Address or network, as banned.
        client: String,
    },
    /// List the bans.
    ListBans,
    /// Replace the servers of an upstream.
    SetServers {
        /// Name of the upstream.
        upstream: String,
        /// Servers, each as in the option `server`.
        servers: Vec<String>,
    },
    /// Replace the certificates of a site.
    SetCertificate {
        /// Name of the site; `_` for a site without names.
        site: String,
        /// Certificate chain, as PEM.
        certificate: String,
        /// Private key, as PEM.
        key: String,
    },
    /// Change the rate of a rate limit.
    SetRateLimit {
        /// Name of the site whose limit it is; `None` for a limit for all sites.
        #[serde(default)]
        site: Option<String>,
        /// Values as in the option `rate-limit`. Path and key find the limit; rate and burst replace its own.
        limit: String,
    },
    /// Change the share of requests that an upstream gets by `split`.
    SetSplit {
        /// Name of the upstream of the share, as in the option `split`.
        upstream: String,
        /// Share from 0 to 1.
        share: String,
        /// Name of the site; `None` for all sites.
        #[serde(default)]
        site: Option<String>,
    },
    /// Apply a configuration at all instances of the store, at some first.
    StartRollout {
        /// Configuration; `None` is that of each instance's file.
        text: Option<String>,
        /// Share of instances that get it first.
        first_per_mille: u64,
        /// Share of errors above the usual one at which all instances return.
        errors_per_mille_max: u64,
        /// Time for which instances must stay healthy.
        watch_seconds: u64,
    },
    /// End the rollout in progress.
    StopRollout,
    /// Report the latest rollout.
    RolloutStatus,
    /// Drain a server of an upstream, or end that.
    DrainServer {
        /// Name of the upstream.
        upstream: String,
        /// Server as configured.
        server: String,
        /// True to drain it.
        is_drained: bool,
    },
}

/// Report on an [`ControlOrder`]. Most orders have one; orders that follow something have any number, until the connection
/// ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlReport {
    /// Success, with text for the operator.
    Done(String),
    /// Number of responses removed.
    Purged(usize),
    /// Status of the server.
    Status(Box<StatusReport>),
    /// Certificates; further ones follow in more reports.
    Certificates(Vec<CertificateStatus>),
    /// Explanation of a request.
    Explained(Box<Explanation>),
    /// Log record of a request.
    Logged(String),
    /// Number of records skipped because the reader was too slow.
    Missed(u64),
    /// A new process serves on the same socket. This process still reports its open requests.
    Succeeded,
    /// Nothing changed, for this reason.
    #[serde(rename = "refused")]
    Rejected(String),
    /// Nothing changed because the configuration has errors; the diagnostics, as `check` prints them.
    Invalid(String),
}

/// Order with the channel for its reports.
#[derive(Debug)]
pub struct ControlRequest {
    /// Order.
    pub order: ControlOrder,
    /// Channel for reports.
    pub reply: ControlReply,
}

/// Reports that may wait for the command.
pub(super) const REPORTS_MAX: usize = 16;

/// Channel for the reports on an order. Dropping it ends the connection.
#[derive(Clone, Debug)]
pub struct ControlReply(Sender<ControlReport>);

impl ControlOrder {
    /// Time limit for a report; `None` for orders without one.
    pub(super) fn time_limit(&self) -> Option<Duration> {
        match self {
            // Checking a configuration and opening its files may take any time.
            Self::Reload { .. } | Self::Upgrade | Self::SetWorkers { .. } | Self::SetLimit { .. } => None,
            Self::TailLog { .. } | Self::TraceQuic { .. } | Self::ListCertificates => None,
            Self::PurgeCache { .. } | Self::Status { .. } | Self::Explain { .. } => Some(PATIENCE),
            Self::SetLogLevel { .. }
            | Self::SetServers { .. }
            | Self::SetCertificate { .. }
            | Self::SetRateLimit { .. }
            | Self::SetSplit { .. }
            | Self::DrainServer { .. } => Some(PATIENCE),
            Self::StartRollout { .. } | Self::StopRollout | Self::RolloutStatus => Some(PATIENCE),
            Self::Ban { .. } | Self::Unban { .. } | Self::ListBans => Some(PATIENCE),
        }
    }

    /// True for orders to the serving process, not to one that only completes its open requests.
    pub fn is_for_successor(&self) -> bool {
        !matches!(self, Self::Status { .. })
    }

    /// True for orders that watch the server without a time limit.
    pub(super) fn looks_on(&self) -> bool {
        matches!(self, Self::TailLog { .. } | Self::TraceQuic { .. })
    }
}

impl ControlReply {
    pub(super) fn new(reports: Sender<ControlReport>) -> Self {
        Self(reports)
    }

    /// Channel for an order of the server's own parts, and the end that gets the reports.
    pub fn channel() -> (Self, Receiver<ControlReport>) {
        let (sender, receiver) = channel(REPORTS_MAX);
        (Self(sender), receiver)
    }

    /// Waits until the command has gone.
    pub async fn closed(&self) {
        self.0.closed().await;
    }

    /// Channel without a receiver, for orders of the server itself.
    pub fn without_receiver() -> Self {
        Self(channel(1).0)
    }

    /// Reports without waiting, for orders with few reports; false if the command has gone.
    pub fn report(&self, report: ControlReport) -> bool {
        self.0.try_send(report).is_ok()
    }

    /// Reports when there is room, for orders with many reports; false if the command has gone.
    pub async fn report_in_turn(&self, report: ControlReport) -> bool {
        self.0.send(report).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_and_reports_come_back_as_they_were() {
        let orders = [
            ControlOrder::PurgeCache {
                urls: vec!["http://a/".into()],
                prefixes: Vec::new(),
                tags: vec!["news".into()],
                all: false,
            },
            ControlOrder::Reload { is_fancy: true },
            ControlOrder::Upgrade,
            ControlOrder::SetWorkers { count: 2 },
            ControlOrder::SetLogLevel { level: "warn".into() },
            ControlOrder::Ban { client: "192.0.2.1".into(), seconds: 60 },
            ControlOrder::ListBans,
            ControlOrder::ListCertificates,
            ControlOrder::SetLimit { option: "header-fields-max 5".into() },
            ControlOrder::SetServers { upstream: "app".into(), servers: vec!["http://a:1 weight=2".into()] },
            ControlOrder::SetCertificate { site: "a".into(), certificate: "C".into(), key: "K".into() },
            ControlOrder::SetSplit { upstream: "canary".into(), share: "0.05".into(), site: None },
            ControlOrder::SetRateLimit { site: None, limit: r#""/login" "5/m""#.into() },
            ControlOrder::DrainServer { upstream: "app".into(), server: "http://a:1".into(), is_drained: true },
            ControlOrder::StartRollout {
                text: Some("site {}".into()),
                first_per_mille: 100,
                errors_per_mille_max: 20,
                watch_seconds: 60,
            },
            ControlOrder::StopRollout,
            ControlOrder::RolloutStatus,
        ];
        for order in orders {
            let line = serde_json::to_string(&order).unwrap();
            assert_eq!(serde_json::from_str::<ControlOrder>(&line).unwrap(), order, "{line}");
        }
        for report in [
            ControlReport::Done("done".into()),
            ControlReport::Purged(3),
            ControlReport::Rejected("no".into()),
            ControlReport::Invalid("errors".into()),
        ] {
            let line = serde_json::to_string(&report).unwrap();
            assert_eq!(serde_json::from_str::<ControlReport>(&line).unwrap(), report, "{line}");
        }
    }
}
