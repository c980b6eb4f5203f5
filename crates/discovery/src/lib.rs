//! Sources of upstreams' servers: SRV records, the catalog of Consul, containers of Docker, EndpointSlices of Kubernetes.
//!
//! [`keep`] asks a source again and again, and gives the servers to the upstream, which uses them at once. A source is
//! trusted with where requests go, and with nothing else: each response has a limit of size and time, and entries that are no
//! hosts and ports are dropped.

mod consul;
mod docker;
mod host;
mod kept;
mod kubernetes;
mod srv;

use std::sync::Arc;
use std::time::Duration;

use tailcoat_config::{Discovery, DiscoverySource, UpstreamServer};
use tailcoat_observe::log::event;
use tailcoat_rest::{RestError, RestLines};
use tailcoat_upstream::SharedUpstream;
use tokio::time::sleep;

use self::consul::ConsulSource;
use self::docker::DockerSource;
use self::kept::KeptServers;
use self::kubernetes::KubernetesSource;
use self::srv::SrvSource;

/// Shortest time between two questions. A source whose responses change all the time is not asked more often.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Longest time between two questions to a source that fails.
const RETRY_MAX: Duration = Duration::from_secs(30);

/// Largest weight of a server.
const WEIGHT_MAX: u32 = 1_000;

/// Most events of a stream that count as one change. A stream that never pauses delays a response no further.
const DRAIN_MAX: usize = 1_000;

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
    Docker(Box<DockerSource>),
    Kubernetes(Box<KubernetesSource>),
}

impl Source {
    fn open(discovery: &Discovery, interval: Duration) -> Result<Self, String> {
        match &discovery.source {
            DiscoverySource::Srv(name) => Ok(Self::Srv(SrvSource::new(name, discovery, interval))),
            DiscoverySource::Consul { endpoint, service } => {
                Ok(Self::Consul(Box::new(ConsulSource::new(endpoint, service, discovery)?)))
            }
            DiscoverySource::Docker(socket) => Ok(Self::Docker(Box::new(DockerSource::new(socket, discovery)))),
            DiscoverySource::Kubernetes { namespace, service } => {
                Ok(Self::Kubernetes(Box::new(KubernetesSource::new(namespace, service, discovery)?)))
            }
        }
    }

    /// Asks the source. All but SRV records respond when something has changed, or after a while.
    async fn ask(&mut self) -> Result<Answer, String> {
        match self {
            Self::Srv(source) => source.ask().await,
            Self::Consul(source) => source.ask().await,
            Self::Docker(source) => source.ask().await,
            Self::Kubernetes(source) => source.ask().await,
        }
    }
}

/// Keeps the servers of an upstream in line with its source, forever. Ends when it is dropped, or if there is no source.
pub async fn keep(upstream: Arc<SharedUpstream>) {
    let Some(discovery) = upstream.config().discovery.clone() else { return };
    let mut kept = KeptServers::new(upstream.name(), &discovery);
    restore(&upstream, &discovery.source, kept.as_ref());
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
                apply(&upstream, &discovery.source, answer, kept.as_mut()).await;
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

/// Uses the servers on disk until the source responds.
fn restore(upstream: &SharedUpstream, source: &DiscoverySource, kept: Option<&KeptServers>) {
    if upstream.discovery_state().is_some_and(|state| state.age.is_some()) {
        return;
    }
    let Some(servers) = kept.and_then(KeptServers::read) else { return };
    let (name, count) = (upstream.name(), servers.len());
    if upstream.restore_discovered(servers) {
        let values: [(&str, &dyn std::fmt::Display); 3] =
            [("upstream", &name), ("source", source), ("servers", &count)];
        upstream.log().info(event("last servers of a source restored", &values));
    }
}

/// Skips the lines that have arrived.
async fn drain(lines: &mut RestLines) -> Result<(), RestError> {
    for _ in 0..DRAIN_MAX {
        if lines.next_arrived().await?.is_none() {
            break;
        }
    }
    Ok(())
}

async fn apply(upstream: &SharedUpstream, source: &DiscoverySource, answer: Answer, kept: Option<&mut KeptServers>) {
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
    let is_change = upstream.set_discovered(servers);
    if let Some(kept) = kept
        && let Err(error) = kept.write(&upstream.discovered_servers(), is_change).await
    {
        let values: [(&str, &dyn std::fmt::Display); 2] = [("upstream", &name), ("error", &error)];
        log.warn(
            event("servers of a source not kept", &values),
            "a restart while the source is away does not know them",
        );
    }
    if !is_change {
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

    /// Checks the servers that a source has named, each with its weight, and the number of entries that are no servers.
    pub(super) fn check(found: Option<Answer>, expect: Option<(&[&str], usize)>, content: &str) {
        let text = |server: &UpstreamServer| format!("{} {}", server.address, server.weight);
        let found = found.map(|found| {
            let texts: Vec<String> = found.servers.unwrap().iter().map(text).collect();
            (texts, found.invalid)
        });
        let expect = expect.map(|(texts, invalid)| (texts.iter().map(ToString::to_string).collect(), invalid));
        assert_eq!(found, expect, "{content}");
    }

    #[test]
    fn pauses_grow_up_to_a_limit() {
        for (failures, expect) in [(1, 1), (2, 2), (3, 4), (5, 16), (6, 30), (1_000_000, 30)] {
            let pause = retry_pause(failures);
            let expect = Duration::from_secs(expect);
            assert!(pause >= expect.mul_f64(0.75) && pause <= expect, "{failures}: {pause:?}");
        }
    }
}
