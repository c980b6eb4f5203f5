//! Queries to a name server, which resolves recursively: a datagram, and TCP if the response does not fit into one.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, ResourceRecord, TYPE};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{sleep, timeout};

/// Time for each try, and number of tries.
const TRY_TIME: Duration = Duration::from_millis(800);
const TRIES: usize = 3;

/// Longest datagram that is read.
const DATAGRAM_BYTES_MAX: usize = 4096;

/// Most records of a section that are used.
pub const RECORDS_MAX: usize = 1_000;

/// Kind of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Addresses of IPv4.
    A,
    /// Addresses of IPv6.
    Aaaa,
    /// Names of an address.
    Ptr,
    /// Servers of a service (RFC 2782).
    Srv,
}

/// DnsRecords of a response; empty if the name does not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsRecords {
    /// Names of PTR records.
    pub names: Vec<String>,
    /// Addresses of A and AAAA records.
    pub addresses: Vec<IpAddr>,
    /// Servers of SRV records.
    pub services: Vec<ServiceRecord>,
    /// Addresses that the server added for names of other records, without a query for them.
    pub added: Vec<(String, IpAddr)>,
    /// Time for which all records are valid.
    pub valid_for: Duration,
}

/// SRV record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRecord {
    /// Servers with the lowest number come first.
    pub priority: u16,
    /// Share of requests among servers of one priority.
    pub weight: u16,
    /// Port.
    pub port: u16,
    /// Host, without a dot at the end; empty if the service is not available.
    pub target: String,
}

/// Reason why a query failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DnsError {
    /// No response came.
    NoResponse,
    /// The server reports this failure.
    Failed(&'static str),
    /// The name cannot be asked for.
    InvalidName,
}

impl fmt::Display for DnsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoResponse => f.write_str("the name server does not respond"),
            Self::Failed(reason) => write!(f, "the name server {reason}"),
            Self::InvalidName => f.write_str("not a name of DNS"),
        }
    }
}

impl std::error::Error for DnsError {}

/// First name server of resolv.conf(5).
pub fn system_resolver() -> Option<SocketAddr> {
    let text = std::fs::read_to_string("/etc/resolv.conf").ok()?;
    let mut servers = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    servers.find_map(|rest| Some((rest.trim().parse::<IpAddr>().ok()?, 53).into()))
}

/// Asks a name server for the records of a name.
///
/// # Errors
/// The server does not respond, or reports a failure other than that the name does not exist.
pub async fn ask(resolver: SocketAddr, name: &str, kind: RecordKind) -> Result<DnsRecords, DnsError> {
    for _ in 0..TRIES {
        // Each try has a port and a number of its own, so that responses cannot be forged blindly.
        let id = fastrand::u16(..);
        let query = query(id, name, kind).ok_or(DnsError::InvalidName)?;
        let parse = |answer: &[u8]| parse(answer, id, name, kind);
        match timeout(TRY_TIME, exchange(resolver, &query, parse)).await {
            Ok(Ok(Some(result))) => return result,
            Ok(Ok(None)) => {
                if let Ok(Ok(answer)) = timeout(TRY_TIME, exchange_tcp(resolver, &query)).await {
                    return match parse(&answer) {
                        Some(DnsAnswer::Complete(result)) => result,
                        _ => Err(DnsError::Failed("sent a wrong response over TCP")),
                    };
                }
            }
            Ok(Err(_)) => sleep(TRY_TIME / 4).await,
            Err(_) => {}
        }
    }
    Err(DnsError::NoResponse)
}

/// Response to the query that was sent.
#[derive(Debug, PartialEq, Eq)]
enum DnsAnswer {
    Complete(Result<DnsRecords, DnsError>),
    /// Too long for a datagram.
    Truncated,
}

/// Sends a query, and waits for the first response that fits. `None` if it is too long for a datagram.
async fn exchange(
    resolver: SocketAddr,
    query: &[u8],
    parse: impl Fn(&[u8]) -> Option<DnsAnswer>,
) -> io::Result<Option<Result<DnsRecords, DnsError>>> {
    let local: IpAddr = if resolver.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((local, 0)).await?;
    socket.connect(resolver).await?;
    socket.send(query).await?;
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let length = socket.recv(&mut buffer).await?;
        match parse(&buffer[..length]) {
            Some(DnsAnswer::Complete(result)) => return Ok(Some(result)),
            Some(DnsAnswer::Truncated) => return Ok(None),
            None => {}
        }
    }
}

/// Sends a query over TCP; returns the response (RFC 1035, section 4.2.2).
async fn exchange_tcp(resolver: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(resolver).await?;
    let length = u16::try_from(query.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), query].concat()).await?;
    let mut answer = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

fn query(id: u16, name: &str, kind: RecordKind) -> Option<Vec<u8>> {
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let question = Question::new(Name::new(name).ok()?, QTYPE::TYPE(kind.number()), QCLASS::CLASS(CLASS::IN), false);
    packet.questions.push(question);
    packet.build_bytes_vec().ok()
}

/// Response in a message; `None` if it is for another query.
fn parse(message: &[u8], id: u16, name: &str, kind: RecordKind) -> Option<DnsAnswer> {
    let packet = Packet::parse(message).ok()?;
    let question = packet.questions.first()?;
    let is_answer = packet.id() == id
        && packet.has_flags(PacketFlag::RESPONSE)
        && question.qtype == QTYPE::TYPE(kind.number())
        && question.qname.to_string().eq_ignore_ascii_case(name);
    if !is_answer {
        return None;
    }
    let failed = |reason| Some(DnsAnswer::Complete(Err(DnsError::Failed(reason))));
    match packet.rcode() {
        RCODE::NoError if packet.has_flags(PacketFlag::TRUNCATION) => return Some(DnsAnswer::Truncated),
        RCODE::NoError => {}
        // The name does not exist.
        RCODE::NameError => return Some(DnsAnswer::Complete(Ok(DnsRecords::default()))),
        RCODE::ServerFailure => return failed("failed (SERVFAIL)"),
        RCODE::Refused => return failed("rejects the query (status 5)"),
        _ => return failed("responds with an error"),
    }
    let mut records = DnsRecords { valid_for: Duration::MAX, ..DnsRecords::default() };
    for record in packet.answers.iter().take(RECORDS_MAX) {
        records.add(record);
        records.valid_for = records.valid_for.min(Duration::from_secs(record.ttl.into()));
    }
    for record in packet.additional_records.iter().take(RECORDS_MAX) {
        if let Some(address) = address_of(record) {
            records.added.push((record.name.to_string(), address));
        }
    }
    Some(DnsAnswer::Complete(Ok(records)))
}

fn address_of(record: &ResourceRecord<'_>) -> Option<IpAddr> {
    match &record.rdata {
        RData::A(a) => Some(Ipv4Addr::from(a.address).into()),
        RData::AAAA(aaaa) => Some(Ipv6Addr::from(aaaa.address).into()),
        _ => None,
    }
}

impl DnsRecords {
    fn add(&mut self, record: &ResourceRecord<'_>) {
        self.addresses.extend(address_of(record));
        match &record.rdata {
            RData::PTR(name) => self.names.push(name.0.to_string()),
            RData::SRV(srv) => self.services.push(ServiceRecord {
                priority: srv.priority,
                weight: srv.weight,
                port: srv.port,
                target: srv.target.to_string(),
            }),
            _ => {}
        }
    }
}

impl RecordKind {
    const fn number(self) -> TYPE {
        match self {
            Self::A => TYPE::A,
            Self::Aaaa => TYPE::AAAA,
            Self::Ptr => TYPE::PTR,
            Self::Srv => TYPE::SRV,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Result of a complete answer.
    fn complete(answer: Option<DnsAnswer>) -> Result<DnsRecords, DnsError> {
        match answer {
            Some(DnsAnswer::Complete(result)) => result,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn answers_to_other_queries_do_not_count() {
        let bytes = query(7, "a.example", RecordKind::A).unwrap();
        let parse = |message: &[u8], id, name, kind| super::parse(message, id, name, kind);
        assert_eq!(parse(&bytes, 7, "a.example", RecordKind::A), None, "a query is no response");
        let mut answer = bytes.clone();
        answer[2] |= 0x80;
        assert_eq!(parse(&answer, 8, "a.example", RecordKind::A), None);
        assert_eq!(parse(&answer, 7, "b.example", RecordKind::A), None);
        assert_eq!(parse(&answer, 7, "a.example", RecordKind::Aaaa), None);
        assert!(complete(parse(&answer, 7, "A.example", RecordKind::A)).unwrap().addresses.is_empty());
        answer[2] |= 2;
        assert_eq!(parse(&answer, 7, "a.example", RecordKind::A), Some(DnsAnswer::Truncated));
        answer[2] &= !2;
        answer[3] |= 2;
        assert!(complete(parse(&answer, 7, "a.example", RecordKind::A)).is_err(), "the server has failed");
        answer[3] |= 3;
        assert_eq!(complete(parse(&answer, 7, "a.example", RecordKind::A)), Ok(DnsRecords::default()), "no such name");
    }

    /// Response to a query for SRV records of `_h._tcp.a`, with these records.
    fn response(answers: &[(u32, [u16; 3], &str)], added: &[(&str, [u8; 4])]) -> Vec<u8> {
        let mut bytes = query(7, "_h._tcp.a", RecordKind::Srv).unwrap();
        bytes[2] |= 0x80;
        bytes[7] = answers.len() as u8;
        bytes[11] = added.len() as u8;
        let name = |name: &str| {
            let labels = name.split('.').filter(|label| !label.is_empty());
            let labels = labels.flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat());
            labels.chain([0]).collect::<Vec<u8>>()
        };
        for (ttl, numbers, target) in answers {
            let data = [numbers.iter().flat_map(|number| number.to_be_bytes()).collect(), name(target)].concat();
            bytes.extend([0xc0, 12, 0, 33, 0, 1]);
            bytes.extend(ttl.to_be_bytes());
            bytes.extend((data.len() as u16).to_be_bytes());
            bytes.extend(data);
        }
        for (of, address) in added {
            bytes.extend(name(of));
            bytes.extend([0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
            bytes.extend(address);
        }
        bytes
    }

    #[test]
    fn services() {
        let bytes = response(&[(30, [1, 2, 80], "b.a"), (20, [3, 0, 81], "")], &[("b.a", [10, 0, 0, 1])]);
        let found = complete(parse(&bytes, 7, "_h._tcp.a", RecordKind::Srv)).unwrap();
        let service =
            |priority, weight, port, target: &str| ServiceRecord { priority, weight, port, target: target.to_owned() };
        assert_eq!(found.services, [service(1, 2, 80, "b.a"), service(3, 0, 81, "")]);
        assert_eq!(found.added, [("b.a".to_owned(), [10, 0, 0, 1].into())]);
        assert_eq!(found.valid_for, Duration::from_secs(20));
    }

    /// Messages that end early or have wrong bytes are errors or other answers, never a panic.
    #[test]
    fn hostile_messages() {
        let bytes = response(&[(30, [1, 2, 80], "b.a"); 3], &[("b.a", [10, 0, 0, 1])]);
        for length in 0..bytes.len() {
            let _ = parse(&bytes[..length], 7, "_h._tcp.a", RecordKind::Srv);
        }
        for index in 0..bytes.len() {
            for value in [0, 0x3f, 0xc0, 0xff] {
                let mut changed = bytes.clone();
                changed[index] = value;
                let _ = parse(&changed, 7, "_h._tcp.a", RecordKind::Srv);
            }
        }
    }
}
