//! Bans of clients whose requests are rejected too often.

use std::sync::Arc;

use wire::http::Status;

use super::rate_table::RateTable;
use super::{KeyHasher, RoutedFacts, TrustedProxies, Visit};
use crate::config::{AutoBan, Network, PathPattern, ServerSettings, format_duration, unmapped};
use crate::handler::{Response, Routed};
use crate::known_clients::{Bans, TooManyBans};
use crate::log::{LogClient, ServerLog, event};
use crate::metrics::Limit;

/// Rules of a site by which clients are banned, with the counts of their rejections.
pub(super) struct AutoBans {
    rules: Vec<(AutoBan, Arc<RateTable>)>,
    /// Proxies that are never banned; `None` if there are none.
    trusted: Option<TrustedProxies>,
    hasher: KeyHasher,
    server_log: ServerLog,
}

impl AutoBans {
    /// Makes the bans of a site from its rules, each with its table.
    pub(crate) fn new(
        rules: Vec<(AutoBan, Arc<RateTable>)>,
        server: &ServerSettings,
        (hasher, server_log): (&KeyHasher, &ServerLog),
    ) -> Self {
        let trusted = TrustedProxies::new(&server.trusted_proxies, server.forwarded_field);
        Self { rules, trusted, hasher: hasher.clone(), server_log: server_log.clone() }
    }

    /// Makes the table of a rule. It rejects a client first at the rejection that reaches the number of the rate.
    pub(crate) fn table(rule: &AutoBan) -> Arc<RateTable> {
        Arc::new(RateTable::counting(rule.rate, rule.rate.count.saturating_sub(1), rule.keys_max))
    }

    /// Returns true if responses with this status count.
    #[inline]
    pub(crate) fn is_rejection(&self, status: Status) -> bool {
        self.rules.iter().any(|(rule, _)| rule.statuses.contains(&status))
    }

    /// Counts a rejection, and bans its client if that is one too many. `paths` are those that the request was asked for
    /// and rewritten to.
    #[cold]
    pub(crate) fn count(&self, response: &Response, paths: &[&[u8]], routed: &Routed<'_>, visit: &Visit, bans: &Bans) {
        let status = response.status();
        let client = visit.client();
        let Some(network) = self.network_of(client) else { return };
        let facts = RoutedFacts::new(routed).with_visit(visit).with_response(response);
        for (rule, table) in &self.rules {
            if !rule.statuses.contains(&status)
                || !paths.iter().any(|path| rule.path.matches(path))
                || !rule.when.as_ref().is_none_or(|when| when.evaluate(&facts).is_true())
                || table.take(self.hasher.of_client(client), routed.now.monotonic_ms).is_ok()
            {
                continue;
            }
            self.ban(rule, status, network, Some(visit), bans);
        }
    }

    /// Counts a message that cannot be parsed as a request. Rules for some paths, or with a condition, do not apply to it.
    #[cold]
    pub(super) fn count_malformed(&self, status: Status, client: LogClient, now_ms: u64, bans: &Bans) {
        let Some(network) = self.network_of(client) else { return };
        for (rule, table) in &self.rules {
            let is_for = rule.path == PathPattern::Any && rule.when.is_none() && rule.statuses.contains(&status);
            if is_for && table.take(self.hasher.of_client(client), now_ms).is_err() {
                self.ban(rule, status, network, None, bans);
            }
        }
    }

    fn ban(&self, rule: &AutoBan, status: Status, network: Network, visit: Option<&Visit>, bans: &Bans) {
        let (time, code) = (format_duration(rule.time), status.code());
        let facts: &[(_, &dyn std::fmt::Display)] =
            &[("network", &network), ("time", &time), ("status", &code), ("rejections", &rule.rate.count)];
        if rule.is_dry_run {
            return self
                .server_log
                .warn(event("client would be banned", facts), "remove `dry-run` to ban such clients");
        }
        match bans.ban_automatically(network, rule.time, rule.action) {
            Ok(true) => {
                if let Some(visit) = visit {
                    visit.note_limit(Limit::AutoBan);
                }
                self.server_log.info(event("client banned by `auto-ban`", facts));
            }
            // A concurrent request was first.
            Ok(false) => {}
            Err(TooManyBans) => self.server_log.warn(
                event("a client could not be banned, because too many are", facts),
                "use `rate-limit`, or `tailcoat ban` for the networks that most are from",
            ),
        }
    }

    /// Network that is banned for a client; `None` for proxies and this machine.
    fn network_of(&self, client: LogClient) -> Option<Network> {
        let LogClient::Ip(address) = client else { return None };
        if client.is_local_proxy() || self.trusted.as_ref().is_some_and(|trusted| trusted.has(client)) {
            return None;
        }
        let address = unmapped(address.ip());
        Network::new(address, if address.is_ipv4() { 32 } else { 64 })
    }
}
