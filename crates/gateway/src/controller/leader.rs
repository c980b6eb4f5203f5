//! Election of the replica that writes, by a Lease.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::{Settings, log};
use crate::client::{Client, ClientError};

/// Time after which a Lease that is not renewed is free.
const LEASE_DURATION: Duration = Duration::from_secs(15);

/// Time without a renewal after which the holder stops to write. It is shorter, so that two never write at once.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);

/// Time between looks at the Lease.
const RETRY_PERIOD: Duration = Duration::from_secs(2);

/// A Lease as it was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    holder: String,
    renewed: String,
    duration: Duration,
}

/// Step of a replica towards a Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// Renew: this replica holds it.
    Renew,
    /// Take it: it is free.
    Take,
    /// Wait: another replica holds it.
    Wait,
}

/// Decides by how long this replica has seen the Lease unchanged. Clocks of other machines are not read.
pub(super) fn decide(seen: &Seen, replica: &str, unchanged: Duration) -> Move {
    if seen.holder == replica {
        Move::Renew
    } else if seen.holder.is_empty() || unchanged >= seen.duration {
        Move::Take
    } else {
        Move::Wait
    }
}

/// Takes part in the election.
pub(super) struct Leadership {
    client: Arc<Client>,
    replica: String,
    collection: String,
    name: String,
    /// The Lease, and the time since which it is unchanged.
    seen: Option<(Seen, Instant)>,
    renewed: Option<Instant>,
    leads: watch::Sender<bool>,
    error: String,
}

impl Leadership {
    /// Starts a task. The receiver has true while this replica leads.
    pub(super) fn start(client: &Arc<Client>, settings: &Settings) -> watch::Receiver<bool> {
        let (leads, receiver) = watch::channel(false);
        let (namespace, name) = &settings.lease;
        let task = Self {
            client: Arc::clone(client),
            replica: settings.replica.clone(),
            collection: format!("apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"),
            name: name.clone(),
            seen: None,
            renewed: None,
            leads,
            error: String::new(),
        };
        tokio::spawn(task.run());
        receiver
    }

    async fn run(mut self) {
        loop {
            match self.look().await {
                Ok(()) => self.error.clear(),
                Err(error) if error.is_conflict() => {}
                Err(error) => {
                    let error = error.to_string();
                    if error != self.error {
                        log(format_args!("cannot read or write the Lease {}: {error}", self.name));
                        self.error = error;
                    }
                }
            }
            let leads = self.renewed.is_some_and(|at| at.elapsed() < RENEW_DEADLINE);
            self.leads.send_if_modified(|before| std::mem::replace(before, leads) != leads);
            if self.leads.is_closed() {
                return;
            }
            sleep(RETRY_PERIOD.mul_f64(fastrand::f64().mul_add(0.2, 0.9))).await;
        }
    }

    async fn look(&mut self) -> Result<(), ClientError> {
        let path = format!("{}/{}", self.collection, self.name);
        let lease = match self.client.get(&path).await {
            Ok(lease) => lease,
            Err(error) if error.is_not_found() => {
                let lease = self.lease(&Value::Null);
                self.client.create(&self.collection, &lease).await?;
                self.renewed = Some(Instant::now());
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let spec = &lease["spec"];
        let text = |name: &str| spec[name].as_str().unwrap_or_default().to_owned();
        let seconds = spec["leaseDurationSeconds"].as_u64().unwrap_or(LEASE_DURATION.as_secs());
        let seen =
            Seen { holder: text("holderIdentity"), renewed: text("renewTime"), duration: Duration::from_secs(seconds) };
        if self.seen.as_ref().is_none_or(|(before, _)| *before != seen) {
            self.seen = Some((seen.clone(), Instant::now()));
        }
        let unchanged = self.seen.as_ref().map_or(Duration::ZERO, |(_, since)| since.elapsed());
        match decide(&seen, &self.replica, unchanged) {
            Move::Wait => self.renewed = None,
            Move::Renew | Move::Take => {
                let started = Instant::now();
                self.client.replace(&path, &self.lease(&lease)).await?;
                self.renewed = Some(started);
            }
        }
        Ok(())
    }

    /// The Lease with this replica as its holder. The version makes the API server reject it if another was first.
    fn lease(&self, before: &Value) -> Value {
        let now = OffsetDateTime::now_utc();
        let micros = now.replace_nanosecond(now.microsecond() * 1_000).unwrap_or(now).format(&Rfc3339);
        let micros = micro_time(&micros.unwrap_or_default());
        let spec = &before["spec"];
        let is_mine = spec["holderIdentity"] == self.replica.as_str();
        let changes = spec["leaseTransitions"].as_u64().unwrap_or(0) + u64::from(!is_mine && !before.is_null());
        let acquired = spec["acquireTime"].as_str().filter(|_| is_mine).map_or_else(|| micros.clone(), str::to_owned);
        let mut metadata = json!({ "name": self.name });
        if let Some(version) = before["metadata"]["resourceVersion"].as_str() {
            metadata["resourceVersion"] = json!(version);
        }
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self.replica,
                "leaseDurationSeconds": LEASE_DURATION.as_secs(),
                "acquireTime": acquired,
                "renewTime": micros,
                "leaseTransitions": changes,
            },
        })
    }
}

/// Time with exactly six digits of a second, which the API demands.
fn micro_time(text: &str) -> String {
    let (seconds, fraction) = text.trim_end_matches('Z').split_once('.').unwrap_or((text.trim_end_matches('Z'), ""));
    format!("{seconds}.{fraction:0<6.6}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions() {
        let seen =
            |holder: &str| Seen { holder: holder.into(), renewed: "t".into(), duration: Duration::from_secs(15) };
        for (holder, unchanged, expect) in [
            ("me", 0, Move::Renew),
            ("me", 60, Move::Renew),
            ("", 0, Move::Take),
            ("other", 14, Move::Wait),
            ("other", 15, Move::Take),
        ] {
            assert_eq!(decide(&seen(holder), "me", Duration::from_secs(unchanged)), expect, "{holder} {unchanged}");
        }
    }

    #[test]
    fn times() {
        for (text, expect) in [
            ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05.000000Z"),
            ("2026-01-02T03:04:05.12Z", "2026-01-02T03:04:05.120000Z"),
            ("2026-01-02T03:04:05.1234567Z", "2026-01-02T03:04:05.123456Z"),
        ] {
            assert_eq!(micro_time(text), expect);
        }
    }
}
