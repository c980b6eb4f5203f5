//! Lookups of names and addresses of crawlers.

use std::net::{IpAddr, SocketAddr};

use bots::fcrdns::{ClaimVerdict, Confirmation, Confirming, DnsFailure, DnsQuery};
use tailcoat_dns::{DnsRecords, RecordKind};

use super::claims::Claim;

/// Most records of a response that are used.
const RECORDS_MAX: usize = 64;

/// Confirms a claim. `resolver` is the name server of the system.
pub(super) async fn confirm(claim: &Claim, resolver: Option<SocketAddr>) -> ClaimVerdict {
    let Some(resolver) = claim.resolver.or(resolver) else { return ClaimVerdict::Unknown };
    let (mut confirmation, mut step) = Confirmation::begin(claim.address, &claim.domains);
    loop {
        step = match step {
            Confirming::Done(verdict) => return verdict,
            Confirming::Query(DnsQuery::Names(address)) => {
                let records = ask(resolver, &reverse_name(address), RecordKind::Ptr).await;
                confirmation.handle_names(records.map(|records| records.names))
            }
            Confirming::Query(DnsQuery::Addresses(name)) => {
                let kind = if claim.address.to_canonical().is_ipv4() { RecordKind::A } else { RecordKind::Aaaa };
                let records = ask(resolver, &name, kind).await;
                confirmation.handle_addresses(records.map(|records| records.addresses))
            }
        };
    }
}

/// Name of an address in the reverse zones (RFC 1035, section 3.5; RFC 3596, section 2.5).
fn reverse_name(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        IpAddr::V6(v6) => {
            let nibbles = v6.octets().into_iter().rev().map(|byte| format!("{:x}.{:x}.", byte & 15, byte >> 4));
            nibbles.collect::<String>() + "ip6.arpa"
        }
    }
}

async fn ask(resolver: SocketAddr, name: &str, kind: RecordKind) -> Result<DnsRecords, DnsFailure> {
    let mut records = tailcoat_dns::ask(resolver, name, kind).await.map_err(|_| DnsFailure)?;
    records.names.truncate(RECORDS_MAX);
    records.addresses.truncate(RECORDS_MAX);
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_addresses() {
        for (address, expect) in [
            ("66.249.66.1", "1.66.249.66.in-addr.arpa"),
            ("2001:db8::567:89ab", "b.a.9.8.7.6.5.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa"),
        ] {
            assert_eq!(reverse_name(address.parse().unwrap()), expect);
        }
    }
}
