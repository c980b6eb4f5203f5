//! SRV records (RFC 2782).

use std::net::SocketAddr;
use std::time::Duration;

use tailcoat_config::{DiscoveredProtocol, Discovery, UpstreamServer};
use tailcoat_dns::{DnsRecords, RecordKind, ServiceRecord, ask, system_resolver};

use super::host::{host_of, host_of_address};
use super::{Answer, PAUSE_MIN, WEIGHT_MAX};

/// SRV records of a name.
pub(super) struct SrvSource {
    name: String,
    resolver: Option<SocketAddr>,
    protocol: DiscoveredProtocol,
    /// Longest time between two questions.
    interval: Duration,
}

impl SrvSource {
    pub(super) fn new(name: &str, discovery: &Discovery, interval: Duration) -> Self {
        Self { name: name.to_owned(), resolver: discovery.resolver, protocol: discovery.protocol, interval }
    }

    pub(super) async fn ask(&self) -> Result<Answer, String> {
        let resolver = self.resolver.or_else(system_resolver);
        let resolver = resolver.ok_or("/etc/resolv.conf names no name server; set `resolver`")?;
        let records = ask(resolver, &self.name, RecordKind::Srv).await;
        let records = records.map_err(|error| format!("{resolver}: {error}"))?;
        Ok(answer(&records, self.protocol, self.interval))
    }
}

/// Servers of a response.
fn answer(records: &DnsRecords, protocol: DiscoveredProtocol, interval: Duration) -> Answer {
    let pause = records.valid_for.min(interval).max(PAUSE_MIN);
    if records.services.is_empty() {
        // A name that is gone for a while, as during a change of its zone, does not stop the service.
        return Answer { servers: None, invalid: 0, pause: interval.min(Duration::from_secs(5)).max(PAUSE_MIN) };
    }
    let services = || records.services.iter().filter(|service| !service.target.is_empty());
    let first = services().map(|service| service.priority).min();
    let heaviest = services().map(|service| service.weight).max().unwrap_or(0);
    let (mut servers, mut invalid) = (Vec::new(), 0);
    for service in services() {
        let hosts = hosts(service, records, protocol);
        if hosts.is_empty() || service.port == 0 {
            invalid += 1;
            continue;
        }
        let is_backup = Some(service.priority) != first;
        for host in hosts {
            let weight = weight(service.weight, heaviest);
            servers.push(UpstreamServer { address: protocol.address(host, service.port), weight, backup: is_backup });
        }
    }
    Answer { servers: Some(servers), invalid, pause }
}

/// Hosts of a record: the addresses that came with the response, which spare another question, or its name. TLS checks the
/// name.
fn hosts(service: &ServiceRecord, records: &DnsRecords, protocol: DiscoveredProtocol) -> Vec<String> {
    let is_target = |name: &str| name.eq_ignore_ascii_case(&service.target);
    let added = records.added.iter().filter(|(name, _)| is_target(name) && protocol != DiscoveredProtocol::Tls);
    let addresses: Vec<String> = added.filter_map(|(_, address)| host_of_address(*address)).collect();
    if addresses.is_empty() { host_of(&service.target).into_iter().collect() } else { addresses }
}

/// Weight of a server. DnsRecords with the weight 0 get few requests (RFC 2782), and the heaviest has at most the largest weight
/// of an upstream.
fn weight(weight: u16, heaviest: u16) -> u32 {
    let (weight, heaviest) = (u32::from(weight), u32::from(heaviest));
    let scaled = if heaviest > WEIGHT_MAX { weight * WEIGHT_MAX / heaviest } else { weight };
    scaled.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(services: &[(u16, u16, u16, &str)], added: &[(&str, &str)]) -> DnsRecords {
        let service = |&(priority, weight, port, target): &(u16, u16, u16, &str)| ServiceRecord {
            priority,
            weight,
            port,
            target: target.to_owned(),
        };
        DnsRecords {
            services: services.iter().map(service).collect(),
            added: added.iter().map(|(name, address)| ((*name).to_owned(), address.parse().unwrap())).collect(),
            valid_for: Duration::from_secs(20),
            ..DnsRecords::default()
        }
    }

    /// DnsRecords, addresses that came along, expected servers as `ADDRESS WEIGHT` or `ADDRESS WEIGHT backup`, invalid ones.
    type Row<'a> = (&'a [(u16, u16, u16, &'a str)], &'a [(&'a str, &'a str)], &'a [&'a str], usize);

    #[test]
    fn servers() {
        let rows: &[Row<'_>] = &[
            (&[(0, 0, 80, "a.b")], &[], &["http://a.b:80 1"], 0),
            (
                &[(1, 10, 80, "a"), (1, 30, 81, "b"), (2, 5, 82, "c"), (7, 0, 83, "d")],
                &[],
                &["http://a:80 10", "http://b:81 30", "http://c:82 5 backup", "http://d:83 1 backup"],
                0,
            ),
            (&[(0, 65535, 80, "a"), (0, 655, 80, "b")], &[], &["http://a:80 1000", "http://b:80 9"], 0),
            (
                &[(0, 1, 80, "A.b")],
                &[("a.B", "10.0.0.1"), ("a.b", "2001:db8::1"), ("c", "10.0.0.9")],
                &["http://10.0.0.1:80 1", "http://[2001:db8::1]:80 1"],
                0,
            ),
            (&[(0, 1, 80, "a")], &[("a", "0.0.0.0")], &["http://a:80 1"], 0),
            // Hostile ones, and a service that is not available.
            (&[(0, 1, 0, "a"), (0, 1, 80, "a b"), (0, 1, 80, "b")], &[], &["http://b:80 1"], 2),
            (&[(0, 0, 0, "")], &[], &[], 0),
        ];
        for (services, added, expect, invalid) in rows {
            let found = answer(&records(services, added), DiscoveredProtocol::Http, Duration::from_secs(30));
            let text = |server: &UpstreamServer| {
                format!("{} {}{}", server.address, server.weight, if server.backup { " backup" } else { "" })
            };
            let texts: Vec<String> = found.servers.unwrap().iter().map(text).collect();
            assert_eq!(texts, *expect, "{services:?}");
            assert_eq!(found.invalid, *invalid, "{services:?}");
        }
    }

    #[test]
    fn tls_keeps_names() {
        let records = records(&[(0, 1, 443, "a.b")], &[("a.b", "10.0.0.1")]);
        let found = answer(&records, DiscoveredProtocol::Tls, Duration::from_secs(30)).servers.unwrap();
        assert_eq!(found[0].address.to_string(), "https://a.b:443");
    }

    #[test]
    fn pauses() {
        let pause = |seconds, interval| {
            let records = DnsRecords { valid_for: Duration::from_secs(seconds), ..records(&[(0, 1, 80, "a")], &[]) };
            answer(&records, DiscoveredProtocol::Http, Duration::from_secs(interval)).pause.as_secs()
        };
        assert_eq!((pause(20, 30), pause(600, 30), pause(0, 30)), (20, 30, 1));
        let nothing = answer(&DnsRecords::default(), DiscoveredProtocol::Http, Duration::from_secs(30));
        assert_eq!((nothing.servers, nothing.pause.as_secs()), (None, 5));
    }
}
