//! Lookups of names and addresses: a datagram to a name server, which resolves recursively.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use bots::fcrdns::{ClaimVerdict, Confirmation, Confirming, DnsFailure, DnsQuery};
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::claims::Claim;

/// Time for each try, and number of tries.
const TRY_TIME: Duration = Duration::from_millis(800);
const TRIES: usize = 3;

/// Longest response that is read. Servers cut longer ones, and then they count as a failure.
const ANSWER_BYTES_MAX: usize = 4096;

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
                let records = ask(resolver, &reverse_name(address), TYPE::PTR).await;
                confirmation.handle_names(records.map(|records| records.names))
            }
            Confirming::Query(DnsQuery::Addresses(name)) => {
                let kind = if claim.address.to_canonical().is_ipv4() { TYPE::A } else { TYPE::AAAA };
                let records = ask(resolver, &name, kind).await;
                confirmation.handle_addresses(records.map(|records| records.addresses))
            }
        };
    }
}

/// First name server of resolv.conf(5).
pub(super) fn system_resolver() -> Option<SocketAddr> {
    let text = std::fs::read_to_string("/etc/resolv.conf").ok()?;
    let mut servers = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    servers.find_map(|rest| Some((rest.trim().parse::<IpAddr>().ok()?, 53).into()))
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

/// Records of a response.
#[derive(Debug, Default)]
struct Records {
    names: Vec<String>,
    addresses: Vec<IpAddr>,
}

async fn ask(resolver: SocketAddr, name: &str, kind: TYPE) -> Result<Records, DnsFailure> {
    for _ in 0..TRIES {
        // Each try has a port and a number of its own, so that answers cannot be forged blindly.
        let id = fastrand::u16(..);
        let query = query(id, name, kind).ok_or(DnsFailure)?;
        match timeout(TRY_TIME, exchange(resolver, &query, |answer| parse(answer, id, name, kind))).await {
            Ok(Ok(records)) => return records,
            Ok(Err(_)) => tokio::time::sleep(TRY_TIME / 4).await,
            Err(_) => {}
        }
    }
    Err(DnsFailure)
}

/// Sends a query, and waits for the first answer that fits.
async fn exchange<T>(resolver: SocketAddr, query: &[u8], mut parse: impl FnMut(&[u8]) -> Option<T>) -> io::Result<T> {
    let local: IpAddr = if resolver.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((local, 0)).await?;
    socket.connect(resolver).await?;
    socket.send(query).await?;
    let mut buffer = vec![0; ANSWER_BYTES_MAX];
    loop {
        let length = socket.recv(&mut buffer).await?;
        if let Some(answer) = parse(&buffer[..length]) {
            return Ok(answer);
        }
    }
}

fn query(id: u16, name: &str, kind: TYPE) -> Option<Vec<u8>> {
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let question = Question::new(Name::new(name).ok()?, QTYPE::TYPE(kind), QCLASS::CLASS(CLASS::IN), false);
    packet.questions.push(question);
    packet.build_bytes_vec().ok()
}

/// Records of a response; `None` if it is for another query.
fn parse(answer: &[u8], id: u16, name: &str, kind: TYPE) -> Option<Result<Records, DnsFailure>> {
    let packet = Packet::parse(answer).ok()?;
    let question = packet.questions.first()?;
    let is_answer = packet.id() == id
        && packet.has_flags(PacketFlag::RESPONSE)
        && question.qtype == QTYPE::TYPE(kind)
        && question.qname.to_string().eq_ignore_ascii_case(name);
    if !is_answer {
        return None;
    }
    match packet.rcode() {
        RCODE::NoError if !packet.has_flags(PacketFlag::TRUNCATION) => {}
        // The name does not exist.
        RCODE::NameError => return Some(Ok(Records::default())),
        _ => return Some(Err(DnsFailure)),
    }
    let mut records = Records::default();
    for record in packet.answers.iter().take(RECORDS_MAX) {
        match &record.rdata {
            RData::PTR(name) => records.names.push(name.0.to_string()),
            RData::A(a) => records.addresses.push(Ipv4Addr::from(a.address).into()),
            RData::AAAA(aaaa) => records.addresses.push(Ipv6Addr::from(aaaa.address).into()),
            _ => {}
        }
    }
    Some(Ok(records))
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

    #[test]
    fn answers_to_other_queries_do_not_count() {
        let bytes = query(7, "a.example", TYPE::A).unwrap();
        assert!(parse(&bytes, 7, "a.example", TYPE::A).is_none(), "a query is no answer");
        let mut answer = bytes.clone();
        answer[2] |= 0x80;
        assert!(parse(&answer, 8, "a.example", TYPE::A).is_none());
        assert!(parse(&answer, 7, "b.example", TYPE::A).is_none());
        assert!(parse(&answer, 7, "a.example", TYPE::AAAA).is_none());
        assert!(parse(&answer, 7, "A.example", TYPE::A).unwrap().unwrap().addresses.is_empty());
        answer[3] |= 2;
        assert!(parse(&answer, 7, "a.example", TYPE::A).unwrap().is_err(), "the server has failed");
    }
}
