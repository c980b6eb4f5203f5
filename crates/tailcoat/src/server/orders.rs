//! Operators' orders from the control socket: carries each one out and reports the result.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tailcoat_fleet::{ConfigChange, RolloutSettings};
use tokio::sync::watch;
use tokio::time::timeout;

use super::Server;
use super::explain::{self, ExplainedConfig};
use super::fleet::{RolloutOrder, SharedChange, purges_of};
use super::reload::{ReloadRequester, ReloadSource};
use super::upgrade::ANOTHER_SERVES;
use crate::config::{self, AccessLogFormat, ConfigOrigin, LogLevel, log_format_from_text};
use crate::control::{ControlOrder, ControlReply, ControlReport, ControlRequest, ExplainQuestion};
use crate::log::{LogTail, Tailed, event};
use crate::shared_cache::CachePurge;

/// Sends log records until the operator stops reading. Tells the operator when the log continues at a new process.
async fn pass_on(mut tail: LogTail, reply: ControlReply, mut has_successor: watch::Receiver<bool>) {
    loop {
        let report = tokio::select! {
            // Checked first, because the log may have ended by then.
            biased;
            Ok(()) = has_successor.changed() => ControlReport::Succeeded,
            tailed = tail.next() => match tailed {
                Some(Tailed::Line(line)) => ControlReport::Logged(line),
                Some(Tailed::Missed(count)) => ControlReport::Missed(count),
                None => return,
            },
            () = reply.closed() => return,
        };
        if !reply.report_in_turn(report).await {
            return;
        }
    }
}

/// Certificates in one report, which has a limit of bytes.
const CERTIFICATES_A_REPORT: usize = 100;
/// Time that a status waits for the store.
const STORE_PATIENCE: Duration = Duration::from_secs(3);

/// Letters of a reason that other instances show.
const REASON_LETTERS_MAX: usize = 500;

/// Limit of workers; equals that of the option.
const WORKERS_MAX: usize = 1_024;

/// Report that an operator has set an option.
pub(super) fn change_summary(option: &str) -> String {
    format!("{option}: set by an operator until the next reload")
}

/// Beginning of a reason, in one line.
fn excerpt(reason: &str) -> String {
    let words = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().take(REASON_LETTERS_MAX).collect()
}

/// Report of an order that succeeded with a text for the operator, or was rejected for a reason.
fn report_of(result: Result<String, String>) -> ControlReport {
    result.map_or_else(ControlReport::Rejected, ControlReport::Done)
}

impl Server {
    /// Carries an order out and reports its result.
    pub(super) fn carry_out(&mut self, ControlRequest { order, reply }: ControlRequest) {
        if self.successor.is_some() && order.is_for_successor() {
            reply.report(ControlReport::Rejected(ANOTHER_SERVES.to_owned()));
            return;
        }
        // Before the caches in memory, which may read the store at the same time.
        purges_of(&order).into_iter().for_each(|purge| self.lasting.shared_cache.on_given(purge));
        if let Some(report) = self.change(&order) {
            if !matches!(report, ControlReport::Rejected(_)) {
                self.keepers.publish(&order);
            }
            reply.report(report);
            return;
        }
        match order {
            ControlOrder::TailLog { filter, format } => {
                let tail = log_format_from_text(&format).and_then(|format| match format {
                    AccessLogFormat::Binary => Err("the binary format cannot be shown on a terminal".to_owned()),
                    format => self.lasting.access_log.tail(filter, &format).map_err(|error| error.to_string()),
                });
                match tail {
                    Ok(tail) => drop(self.runtime.spawn(pass_on(tail, reply, self.has_successor.subscribe()))),
                    Err(reason) => drop(reply.report(ControlReport::Rejected(reason))),
                }
            }
            ControlOrder::TraceQuic { client } => match self.trace_quic(&client) {
                Ok(tail) => drop(self.runtime.spawn(pass_on(tail, reply, self.has_successor.subscribe()))),
                Err(reason) => drop(reply.report(ControlReport::Rejected(reason))),
            },
            ControlOrder::Status { requests_max } => {
                let observer = Arc::clone(&self.lasting.observer);
                let store = self.keepers.ask_store_status();
                // Slow workers must not delay other orders.
                self.runtime.spawn(async move {
                    let mut status = observer.status(requests_max).await;
                    // If the store is slow, the status of metrics stays, which names no other instances.
                    if let Some(store) = store
                        && let Ok(Ok(found)) = timeout(STORE_PATIENCE, store).await
                    {
                        status.store = Some(found);
                    }
                    reply.report(ControlReport::Status(Box::new(status)));
                });
            }
            ControlOrder::ListCertificates => {
                let observer = Arc::clone(&self.lasting.observer);
                self.runtime.spawn(async move {
                    let certificates = observer.certificates();
                    for some in certificates.chunks(CERTIFICATES_A_REPORT) {
                        if !reply.report_in_turn(ControlReport::Certificates(some.to_vec())).await {
                            return;
                        }
                    }
                    if certificates.is_empty() {
                        reply.report(ControlReport::Certificates(Vec::new()));
                    }
                });
            }
            ControlOrder::Explain { question } => self.explain(question, reply),
            ControlOrder::Reload { is_fancy } => {
                self.reload(ReloadSource::File, Some(ReloadRequester { reply, is_fancy }))
            }
            ControlOrder::Upgrade => {
                self.reload(ReloadSource::Upgrade, Some(ReloadRequester { reply, is_fancy: false }))
            }
            ControlOrder::SetWorkers { count } => self.set_workers(count, reply),
            ControlOrder::SetLogLevel { level } => _ = reply.report(self.set_log_level(&level)),
            ControlOrder::SetLimit { option } => self.set_limit(&option, reply),
            ControlOrder::StartRollout { text, first_per_mille, errors_per_mille_max, watch_seconds } => {
                let settings = RolloutSettings { first_per_mille, errors_per_mille_max, watch_seconds };
                self.keepers.order_rollout(RolloutOrder::Start(text, settings), reply);
            }
            ControlOrder::StopRollout => self.keepers.order_rollout(RolloutOrder::Stop, reply),
            ControlOrder::RolloutStatus => self.keepers.order_rollout(RolloutOrder::Status, reply),
            ControlOrder::ListBans => _ = reply.report(self.list_bans()),
            ControlOrder::SetCertificate { site, certificate, key } => {
                reply.report(report_of(self.set_certificate(&site, &certificate, &key)));
            }
            // `change` has carried them out.
            ControlOrder::PurgeCache { .. }
            | ControlOrder::Ban { .. }
            | ControlOrder::Unban { .. }
            | ControlOrder::SetServers { .. }
            | ControlOrder::SetSplit { .. }
            | ControlOrder::SetRateLimit { .. }
            | ControlOrder::DrainServer { .. } => {}
        }
    }

    /// Carries out an order that other instances may share; `None` for other orders.
    fn change(&self, order: &ControlOrder) -> Option<ControlReport> {
        Some(match order {
            ControlOrder::PurgeCache { .. } => ControlReport::Purged(self.purge(&purges_of(order))),
            ControlOrder::Ban { client, seconds } => self.ban(client, Duration::from_secs(*seconds)),
            ControlOrder::Unban { client } => self.unban(client),
            ControlOrder::SetServers { upstream, servers } => report_of(self.set_servers(upstream, servers)),
            ControlOrder::SetSplit { upstream, share, site } => {
                report_of(self.set_split(upstream, share, site.as_deref()))
            }
            ControlOrder::SetRateLimit { site, limit } => report_of(self.set_rate_limit(site.as_deref(), limit)),
            ControlOrder::DrainServer { upstream, server, is_drained } => {
                self.drain_server(upstream, server, *is_drained)
            }
            _ => return None,
        })
    }

    /// Applies a change of another instance.
    pub(super) fn apply_shared(&mut self, change: SharedChange) {
        if self.successor.is_some() {
            return;
        }
        match change {
            SharedChange::Order(order) => {
                if let Some(ControlReport::Rejected(reason)) = self.change(&order) {
                    // Instances may have different configurations, and a ban may be over.
                    self.lasting
                        .server_log
                        .debug(event("order of another instance has no effect", &[("reason", &reason)]));
                }
            }
            SharedChange::Configure(change) => self.roll_out(change),
            SharedChange::Resync => {
                let count = self.purge(&[CachePurge::All]);
                if count == 0 {
                    return;
                }
                self.lasting
                    .server_log
                    .info(event("cache emptied: orders may have been missed", &[("responses", &count)]));
            }
        }
    }

    /// Applies the configuration of a rollout, and reports the result to the other instances.
    fn roll_out(&mut self, change: ConfigChange) {
        let Some(report) = self.keepers.rollout_report() else { return };
        let (reply, mut reports) = ControlReply::channel();
        self.reload(ReloadSource::RolledOut(change.clone()), Some(ReloadRequester { reply, is_fancy: false }));
        let log = self.lasting.server_log.clone();
        self.runtime.spawn(async move {
            let result = match reports.recv().await {
                Some(ControlReport::Done(_)) => Ok(()),
                Some(ControlReport::Rejected(reason) | ControlReport::Invalid(reason)) => Err(excerpt(&reason)),
                _ => Err("the server did not apply it".to_owned()),
            };
            let number = change.number;
            match &result {
                Ok(()) => log.info(event("configuration of a rollout applied", &[("rollout", &number)])),
                Err(reason) => log.warn(
                    event("configuration of a rollout rejected", &[("rollout", &number), ("reason", reason)]),
                    "all instances return to the configuration before; see `tailcoat rollout status`",
                ),
            }
            report.send(change, result);
        });
    }

    /// Explains a request by the configuration in use, on a thread of its own.
    fn explain(&self, question: ExplainQuestion, reply: ControlReply) {
        let (config, bans) = (Arc::clone(&self.assembly.parts.config), Arc::clone(&self.lasting.bans));
        let file = match &self.origin {
            ConfigOrigin::File(file, _) if file != Path::new("-") => Some(file.clone()),
            _ => None,
        };
        let observer = Arc::clone(&self.lasting.observer);
        self.runtime.spawn(async move {
            let explained = tokio::task::spawn_blocking(move || {
                let mut note = None;
                let places = file.map(|file| explain::places_of_running(&file, &config)).transpose();
                let places = places.unwrap_or_else(|reason| {
                    note = Some(reason.to_owned());
                    None
                });
                let places = places.unwrap_or_default();
                let explained = ExplainedConfig { config: &config, places: &places, bans };
                explain::explain(&explained, &question).map(|mut explanation| {
                    explanation.notes.extend(note);
                    explanation
                })
            });
            let report = match explained.await {
                Ok(Ok(mut explanation)) => {
                    let status = observer.status(0).await;
                    let servers = status.upstreams.iter().flat_map(|upstream| &upstream.servers);
                    for server in servers {
                        for known in explanation.servers.iter_mut().filter(|known| known.server == server.name) {
                            known.health = Some(server.health.clone());
                        }
                    }
                    ControlReport::Explained(Box::new(explanation))
                }
                Ok(Err(reason)) => ControlReport::Rejected(reason),
                Err(_) => ControlReport::Rejected("the explanation failed".to_owned()),
            };
            reply.report(report);
        });
    }

    /// Removes responses from all caches; returns their number.
    fn purge(&self, purges: &[CachePurge]) -> usize {
        let caches = || self.assembly.parts.sites.iter().flat_map(|site| site.response_caches());
        purges.iter().map(|purge| caches().map(|cache| cache.purge(purge.into())).sum::<usize>()).sum()
    }

    fn trace_quic(&self, client: &str) -> Result<LogTail, String> {
        let network = config::network_from_text(client)?;
        let tail = self.lasting.qlog.watch(network);
        tail.ok_or_else(|| "too many commands trace connections; end one first".to_owned())
    }

    fn set_workers(&mut self, count: usize, reply: ControlReply) {
        if !(1..=WORKERS_MAX).contains(&count) {
            reply.report(ControlReport::Rejected(format!("the number of workers must be 1 to {WORKERS_MAX}")));
            return;
        }
        let change = Box::new(move |config: &mut config::Config| config.server.workers = Some(count));
        let source = ReloadSource::Change { summary: change_summary(&format!("workers {count}")), change };
        self.reload(source, Some(ReloadRequester { reply, is_fancy: false }));
    }

    fn set_log_level(&mut self, name: &str) -> ControlReport {
        let Some(level) = LogLevel::of_name(name) else {
            return ControlReport::Rejected(format!("unknown log level {name}; use error, warn, info or debug"));
        };
        let (log, summary) = (&self.lasting.server_log, change_summary(&format!("log-level {name}")));
        // Logs the change at any level, old or new.
        log.set_level(level.max(LogLevel::Info));
        log.info(&summary);
        log.set_level(level);
        self.log_level = Some(level);
        ControlReport::Done(summary + "\n")
    }

    fn set_limit(&mut self, option: &str, reply: ControlReply) {
        if let Err(reason) = config::limits_from_text(&self.assembly.parts.config.limits, option) {
            reply.report(ControlReport::Rejected(reason));
            return;
        }
        let summary = change_summary(option);
        let option = option.to_owned();
        // Applied in turn, because earlier orders may change other limits.
        let change = Box::new(move |config: &mut config::Config| {
            if let Ok(limits) = config::limits_from_text(&config.limits, &option) {
                config.limits = limits;
            }
        });
        self.reload(ReloadSource::Change { summary, change }, Some(ReloadRequester { reply, is_fancy: false }));
    }

    fn ban(&self, client: &str, time: Duration) -> ControlReport {
        let network = match config::network_from_text(client) {
            Ok(network) => network,
            Err(reason) => return ControlReport::Rejected(reason),
        };
        if self.lasting.bans.ban(network, time).is_err() {
            return ControlReport::Rejected("the ban list is full; use `deny` for long lists".to_owned());
        }
        let time = config::format_duration(time);
        self.lasting.server_log.info(event("client banned", &[("network", &network), ("time", &time)]));
        ControlReport::Done(format!("{network} is banned for {time}\n"))
    }

    fn unban(&self, client: &str) -> ControlReport {
        match config::network_from_text(client) {
            Ok(network) if self.lasting.bans.unban(network) => {
                self.lasting.server_log.info(event("client unbanned", &[("network", &network)]));
                ControlReport::Done(format!("{network} is no longer banned\n"))
            }
            Ok(network) => ControlReport::Rejected(format!("{network} is not banned")),
            Err(reason) => ControlReport::Rejected(reason),
        }
    }

    fn list_bans(&self) -> ControlReport {
        let line = |network: config::Network, left: Duration, note: &str| {
            let left = Duration::from_secs(left.as_secs().max(1));
            format!("{network}  {}{note}\n", config::format_duration(left))
        };
        let own = self.lasting.bans.list().into_iter().map(|(network, left, action)| match action {
            config::BanAction::Reject => line(network, left, ""),
            action => line(network, left, &format!("  {action}")),
        });
        let decided = self.lasting.bans.list_decisions().into_iter();
        let decided = decided.map(|(network, left)| line(network, left, "  crowdsec"));
        ControlReport::Done(own.chain(decided).collect())
    }
}
