//! Sources of upstreams' servers: SRV records and the catalog of Consul.
//!
//! [`keep`] asks a source again and again, and gives the servers to the upstream, which uses them at once. A source is
//! trusted with where requests go, and with nothing else: each response has a limit of size and time, and entries that are no
//! hosts and ports are dropped.

mod consul;
mod host;
mod srv;

use std::sync::Arc;
use std::time::Duration;

use tailcoat_config::{Discovery, DiscoverySource, UpstreamServer};
use tailcoat_observe::log::event;
use tailcoat_upstream::SharedUpstream;
use tokio::time::sleep;

use self::consul::ConsulSource;
use self::srv::SrvSource;

/// Shortest time between two questions. A source whose responses change all the time is not asked more often.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Longest time between two questions to a source that fails.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Largest weight of a server.
const WEIGHT_MAX: u32 = 1_000;

/// Answer of a source.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    /// Servers; `None` if the source says nothing about them, and the last ones stay.
    servers: Option<Vec<UpstreamServer>>,
    /// Entries that are no servers.
    invalid: usize,
    /// Time until the next question.
    pause: Duration,
}

/// Source that is asked.
enum Source {
    Srv(SrvSource),
    Consul(Box<ConsulSource>),
}

impl Source {
    fn open(discovery: &Discovery, interval: Duration) -> Result<Self, String> {
        match &discovery.source {
            DiscoverySource::Srv(name) => Ok(Self::Srv(SrvSource::new(name, discovery, interval))),
            DiscoverySource::Consul { endpoint, service } => {
                Ok(Self::Consul(Box::new(ConsulSource::new(endpoint, service, discovery)?)))
            }
        }
    }

    /// Asks the source. Consul responds when something has changed, or after a while.
    async fn ask(&mut self) -> Result<Answer, String> {
        match self {
            Self::Srv(source) => source.ask().await,
            Self::Consul(source) => source.ask().await,
        }
    }
}

/// Keeps the servers of an upstream in line with its source, forever. Ends when it is dropped, or if there is no source.
pub async fn keep(upstream: Arc<SharedUpstream>) {
    let Some(discovery) = upstream.config().discovery.clone() else { return };
    let mut source = None;
    let mut failures = 0;
    loop {
        let asked = match &mut source {
            Some(source) => Source::ask(source).await,
            // A file of a token may be there later.
            None => match Source::open(&discovery, upstream.config().resolve_interval) {
                Ok(opened) => source.insert(opened).ask().await,
                Err(error) => Err(error),
            },
        };
        let pause = match asked {
            Ok(answer) => {
                failures = 0;
                let pause = answer.pause;
                apply(&upstream, &discovery.source, answer);
                pause
            }
            Err(error) => {
                failures += 1;
                fail(&upstream, &discovery.source, &error);
                retry_pause(failures)
            }
        };
        sleep(pause).await;
    }
}

/// Time until a source that has failed this many times in a row is asked again.
fn retry_pause(failures: u32) -> Duration {
    let pause = PAUSE_MIN.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(RETRY_MAX);
    // Instances do not ask a source that is back all at once.
    pause.mul_f64(0.75 + fastrand::f64() / 4.0)
}

fn apply(upstream: &SharedUpstream, source: &DiscoverySource, answer: Answer) {
    let log = upstream.log();
    let name = upstream.name();
    if upstream.discovery_state().is_some_and(|state| state.error.is_some()) {
        log.info(event("source of servers responds again", &[("upstream", &name), ("source", source)]));
    }
    let Some(servers) = answer.servers else {
        if upstream.note_discovery_failure("it names no servers") {
            log.warn(
                event("source names no servers", &[("upstream", &name), ("source", source)]),
                "its last servers stay in use",
            );
        }
        return;
    };
    if !upstream.set_discovered(servers) {
        return;
    }
    let state = upstream.discovery_state().unwrap_or_default();
    let values: [(&str, &dyn std::fmt::Display); 3] =
        [("upstream", &name), ("source", source), ("servers", &state.servers)];
    log.info(event("upstream servers discovered", &values));
    if answer.invalid > 0 || state.ignored > 0 {
        let values: [(&str, &dyn std::fmt::Display); 4] =
            [("upstream", &name), ("source", source), ("invalid", &answer.invalid), ("too_many", &state.ignored)];
        log.warn(
            event("entries of a source ignored", &values),
            "an upstream has at most 1,000 servers, by host and port",
        );
    }
}

fn fail(upstream: &SharedUpstream, source: &DiscoverySource, error: &str) {
    if upstream.note_discovery_failure(error) {
        let name = upstream.name();
        let values: [(&str, &dyn std::fmt::Display); 3] = [("upstream", &name), ("source", source), ("error", &error)];
        upstream.log().warn(event("source of servers failed", &values), "its last servers stay in use");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_limit() {
        for (failures, expect) in [(1, 1), (2, 2), (3, 4), (5, 16), (6, 30), (1_000_000, 30)] {
            let pause = retry_pause(failures);
            let expect = Duration::from_secs(expect);
            assert!(pause >= expect.mul_f64(0.75) && pause <= expect, "{failures}: {pause:?}");
        }
    }
}
