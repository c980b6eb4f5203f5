//! The PROXY protocol, versions 1 and 2 (HAProxy's `proxy-protocol.txt`): a proxy sends the addresses of the client's
//! connection to the upstream before any other data.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Both ends of the connection that the proxy has accepted. The parser converts IPv4-mapped IPv6 addresses to IPv4 (RFC
/// 4291, section 2.5.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// Address of the client.
    pub source: SocketAddr,
    /// Address that the client connected to.
    pub destination: SocketAddr,
}

/// Content of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyHeader {
    /// The connection belongs to a client, with these addresses.
    Proxied(Endpoints),
    /// The connection belongs to the proxy itself (a health check) or has no IP addresses. Use the addresses of the
    /// connection.
    Unknown,
}

/// Error of a malformed header. The text is fixed and contains no input of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedProxyHeader(pub &'static str);

/// Maximum length of a version 1 header in bytes (section 2.1).
pub const V1_BYTES_MAX: usize = 107;

/// Maximum length of a version 2 header in bytes. It has room for the addresses of unix sockets and for far more TLVs
/// than proxies send; the format allows 64 KiB.
pub const V2_BYTES_MAX: usize = V2_FIXED_BYTES + 4096;

/// Start of a version 2 header (section 2.2). No text protocol begins like this.
const V2_SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// Length of signature, version and command, family, and length.
const V2_FIXED_BYTES: usize = 16;

const V1_BEGINNING: &[u8] = b"PROXY ";

/// Appends a version 1 header to `out`. Without endpoints it says `UNKNOWN`.
pub fn write_v1(out: &mut Vec<u8>, endpoints: Option<Endpoints>) {
    let line = match endpoints.map(same_family) {
        None => "PROXY UNKNOWN\r\n".to_owned(),
        Some((source, destination)) => {
            let family = if source.is_ipv4() { "TCP4" } else { "TCP6" };
            let (from, to) = (source.ip(), destination.ip());
            format!("PROXY {family} {from} {to} {} {}\r\n", source.port(), destination.port())
        }
    };
    out.extend_from_slice(line.as_bytes());
}

/// Appends a version 2 header to `out`. Without endpoints it has the command LOCAL.
pub fn write_v2(out: &mut Vec<u8>, endpoints: Option<Endpoints>) {
    out.extend_from_slice(V2_SIGNATURE);
    let Some((source, destination)) = endpoints.map(same_family) else {
        return out.extend_from_slice(&[0x20, 0x00, 0, 0]);
    };
    let (family, length) = if source.is_ipv4() { (0x11, 12) } else { (0x21, 36) };
    out.extend_from_slice(&[0x21, family, 0, length]);
    for address in [source, destination] {
        match address.ip() {
            IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
            IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
        }
    }
    out.extend_from_slice(&source.port().to_be_bytes());
    out.extend_from_slice(&destination.port().to_be_bytes());
}

/// Converts both ends to one family: IPv4 if both are IPv4 or IPv4-mapped, otherwise IPv6 (RFC 4291, section 2.5.5.2).
fn same_family(endpoints: Endpoints) -> (SocketAddr, SocketAddr) {
    let Endpoints { source, destination } = canonical(endpoints);
    if source.is_ipv4() == destination.is_ipv4() {
        return (source, destination);
    }
    let mapped = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    };
    (mapped(source), mapped(destination))
}

fn canonical(endpoints: Endpoints) -> Endpoints {
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    Endpoints { source: canonical(endpoints.source), destination: canonical(endpoints.destination) }
}

/// Parses a header of either version from the beginning of `bytes`. Returns it with its length; `None` if it is
/// incomplete. Rejects bytes that cannot begin a header as early as possible.
pub fn parse_proxy_header(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, MalformedProxyHeader> {
    let could_begin = |beginning: &[u8]| bytes.iter().zip(beginning).all(|(one, other)| one == other);
    match bytes.first() {
        None => Ok(None),
        Some(_) if could_begin(V2_SIGNATURE) => parse_v2(bytes),
        Some(_) if could_begin(V1_BEGINNING) => parse_v1(bytes),
        Some(_) => Err(MalformedProxyHeader("no PROXY header")),
    }
}

fn parse_v1(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, MalformedProxyHeader> {
    let start = &bytes[..bytes.len().min(V1_BYTES_MAX)];
    let Some(end) = start.windows(2).position(|two| two == b"\r\n") else {
        return if bytes.len() < V1_BYTES_MAX { Ok(None) } else { Err(MalformedProxyHeader("PROXY header too long")) };
    };
    let malformed = MalformedProxyHeader("malformed PROXY header");
    let line = core::str::from_utf8(&start[..end]).map_err(|_| malformed)?;
    let words: Vec<&str> = line.split(' ').collect();
    let header = match words.as_slice() {
        // Section 2.1: ignore what follows UNKNOWN.
        ["PROXY", "UNKNOWN", ..] => ProxyHeader::Unknown,
        ["PROXY", family @ ("TCP4" | "TCP6"), source, destination, source_port, destination_port] => {
            let address = |ip: &str, port: &str| {
                let ip = match *family {
                    "TCP4" => ip.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
                    _ => ip.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
                };
                Some(SocketAddr::new(ip?, parse_port(port)?))
            };
            let source = address(source, source_port).ok_or(malformed)?;
            let destination = address(destination, destination_port).ok_or(malformed)?;
            ProxyHeader::Proxied(canonical(Endpoints { source, destination }))
        }
        _ => return Err(malformed),
    };
    Ok(Some((header, end + 2)))
}

/// Section 2.1: decimal without leading zeros.
fn parse_port(text: &str) -> Option<u16> {
    let is_canonical = text == "0" || !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    is_canonical.then(|| text.parse().ok()).flatten()
}

fn parse_v2(bytes: &[u8]) -> Result<Option<(ProxyHeader, usize)>, MalformedProxyHeader> {
    let Some((fixed, rest)) = bytes.split_at_checked(V2_FIXED_BYTES) else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if V2_FIXED_BYTES + length > V2_BYTES_MAX {
        return Err(MalformedProxyHeader("PROXY header too long"));
    }
    let is_local = match fixed[12] {
        0x20 => true,
        0x21 => false,
        _ => return Err(MalformedProxyHeader("unknown version or command of the PROXY protocol")),
    };
    let Some(content) = rest.get(..length) else { return Ok(None) };
    let too_short = MalformedProxyHeader("addresses missing in PROXY header");
    let header = match fixed[13] {
        // Section 2.2: ignore the family of a LOCAL connection.
        _ if is_local => ProxyHeader::Unknown,
        0x00 => ProxyHeader::Unknown,
        0x11 => proxied::<4>(content).ok_or(too_short)?,
        0x21 => proxied::<16>(content).ok_or(too_short)?,
        // Two paths of 108 bytes each.
        0x31 if content.len() >= 216 => ProxyHeader::Unknown,
        0x31 => return Err(too_short),
        _ => return Err(MalformedProxyHeader("a PROXY header of no stream")),
    };
    // TLVs follow the addresses. Section 2.2: skip them.
    Ok(Some((header, V2_FIXED_BYTES + length)))
}

/// Parses two IP addresses of `BYTES` bytes and two ports.
fn proxied<const BYTES: usize>(content: &[u8]) -> Option<ProxyHeader>
where
    IpAddr: From<[u8; BYTES]>,
{
    let (source, rest) = content.split_first_chunk::<BYTES>()?;
    let (destination, rest) = rest.split_first_chunk::<BYTES>()?;
    let (source_port, rest) = rest.split_first_chunk::<2>()?;
    let (destination_port, _) = rest.split_first_chunk::<2>()?;
    let address = |ip: &[u8; BYTES], port: &[u8; 2]| SocketAddr::new(IpAddr::from(*ip), u16::from_be_bytes(*port));
    Some(ProxyHeader::Proxied(canonical(Endpoints {
        source: address(source, source_port),
        destination: address(destination, destination_port),
    })))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn endpoints(source: &str, destination: &str) -> Endpoints {
        Endpoints { source: source.parse().unwrap(), destination: destination.parse().unwrap() }
    }

    fn v2(start: &[u8], content: &[u8]) -> Vec<u8> {
        let length = (content.len() as u16).to_be_bytes();
        [V2_SIGNATURE.as_slice(), start, &length, content].concat()
    }

    #[test]
    fn version_1_is_a_line() {
        let check = |endpoints, expect: &str| {
            let mut out = Vec::new();
            write_v1(&mut out, endpoints);
            assert_eq!(String::from_utf8(out).unwrap(), expect);
        };
        check(None, "PROXY UNKNOWN\r\n");
        check(Some(endpoints("192.0.2.1:56324", "192.0.2.2:443")), "PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n");
        check(Some(endpoints("[2001:db8::1]:1", "[::1]:2")), "PROXY TCP6 2001:db8::1 ::1 1 2\r\n");
        check(
            Some(endpoints("[::ffff:192.0.2.1]:1", "[::ffff:192.0.2.2]:2")),
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        );
        check(Some(endpoints("192.0.2.1:1", "[::1]:2")), "PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n");
    }

    #[test]
    fn version_2_is_binary() {
        let check = |endpoints, expect: &[u8]| {
            let mut out = Vec::new();
            write_v2(&mut out, endpoints);
            assert_eq!(out, expect);
        };
        check(None, b"\r\n\r\n\0\r\nQUIT\n\x20\x00\0\0");
        check(
            Some(endpoints("192.0.2.1:258", "192.0.2.2:443")),
            b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc0\0\x02\x02\x01\x02\x01\xbb",
        );
    }

    #[test]
    fn headers_are_read_strictly() {
        let check = |bytes: &[u8], expect: Result<Option<(ProxyHeader, usize)>, &'static str>| {
            assert_eq!(parse_proxy_header(bytes).map_err(|error| error.0), expect, "{}", bytes.escape_ascii());
        };
        let proxied =
            |source, destination, length| Ok(Some((ProxyHeader::Proxied(endpoints(source, destination)), length)));
        let malformed = Err("malformed PROXY header");
        check(b"", Ok(None));
        check(b"PRO", Ok(None));
        check(b"PROXY TCP4 192.0.2.1", Ok(None));
        check(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 65535\r", Ok(None));
        check(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 65535\r\nGET", proxied("192.0.2.1:1", "192.0.2.2:65535", 40));
        check(b"PROXY TCP6 ::1 2001:db8::2 1 2\r\n", proxied("[::1]:1", "[2001:db8::2]:2", 32));
        check(b"PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n", proxied("192.0.2.1:1", "[::1]:2", 37));
        check(b"PROXY UNKNOWN\r\n", Ok(Some((ProxyHeader::Unknown, 15))));
        check(b"PROXY UNKNOWN ffff ::1 9 x\r\n", Ok(Some((ProxyHeader::Unknown, 28))));
        check(b"GET / HTTP/1.1\r\n", Err("no PROXY header"));
        check(b"PROXIED", Err("no PROXY header"));
        check(b"proxy TCP4 ", Err("no PROXY header"));
        check(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n", malformed);
        check(b"PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n", malformed);
        check(b"PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n", malformed);
        check(b"PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n", malformed);
        check(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2 \r\n", malformed);
        check(b"PROXY TCP4  192.0.2.1 192.0.2.2 1 2\r\n", malformed);
        check(b"PROXY TCP4 192.0.2.01 192.0.2.2 1 2\r\n", malformed);
        check(b"PROXY TCP4 ::1 ::1 1 2\r\n", malformed);
        check(b"PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n", malformed);
        check(b"PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n", malformed);
        check(b"PROXY UNKNOWN\xff\r\n", malformed);
        check(b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n\r\n", malformed);
        check(&[b"PROXY UNKNOWN ".as_slice(), &[b'x'; 91], b"\r\n"].concat(), Ok(Some((ProxyHeader::Unknown, 107))));
        check(&[b"PROXY UNKNOWN ".as_slice(), &[b'x'; 92], b"\r\n"].concat(), Err("PROXY header too long"));
        let addresses = b"\xc0\0\x02\x01\xc0\0\x02\x02\x01\x02\x01\xbb";
        check(&v2(b"\x21\x11", addresses), proxied("192.0.2.1:258", "192.0.2.2:443", 28));
        // TLVs are skipped.
        check(&v2(b"\x21\x11", &[addresses.as_slice(), b"\x04\0\x01x"].concat()), {
            proxied("192.0.2.1:258", "192.0.2.2:443", 32)
        });
        check(&v2(b"\x21\x11", addresses)[..27], Ok(None));
        check(&v2(b"\x21\x11", &addresses[..11]), Err("addresses missing in PROXY header"));
        check(&v2(b"\x21\x21", &[0; 35]), Err("addresses missing in PROXY header"));
        check(&v2(b"\x21\x21", &[0; 36]), proxied("[::]:0", "[::]:0", 52));
        check(&v2(b"\x20\x11", b""), Ok(Some((ProxyHeader::Unknown, 16))));
        check(&v2(b"\x21\x00", b"abc"), Ok(Some((ProxyHeader::Unknown, 19))));
        check(&v2(b"\x21\x31", &[0; 216]), Ok(Some((ProxyHeader::Unknown, 232))));
        check(&v2(b"\x21\x31", &[0; 215]), Err("addresses missing in PROXY header"));
        check(&v2(b"\x21\x12", addresses), Err("a PROXY header of no stream"));
        check(&v2(b"\x31\x11", addresses), Err("unknown version or command of the PROXY protocol"));
        check(&v2(b"\x22\x11", addresses), Err("unknown version or command of the PROXY protocol"));
        check(&v2(b"\x20\x00", &[0; 4097]), Err("PROXY header too long"));
        check(b"\r\n\r\n\0\r\nQUIt", Err("no PROXY header"));
    }

    fn any_address() -> impl Strategy<Value = SocketAddr> {
        let v4 = any::<([u8; 4], u16)>().prop_map(|(ip, port)| SocketAddr::new(ip.into(), port));
        let v6 = any::<([u8; 16], u16)>().prop_map(|(ip, port)| SocketAddr::new(ip.into(), port));
        prop_oneof![v4, v6]
    }

    proptest! {
        /// The parser returns what was written, and rejects or waits for a truncated header.
        #[test]
        fn headers_return(source in any_address(), destination in any_address(), after in any::<[u8; 3]>()) {
            let ends = Endpoints { source, destination };
            let expect = ProxyHeader::Proxied(canonical(ends));
            for write in [write_v1, write_v2] {
                let mut bytes = Vec::new();
                write(&mut bytes, Some(ends));
                let length = bytes.len();
                for part in 0..length {
                    prop_assert_eq!(parse_proxy_header(&bytes[..part]), Ok(None));
                }
                bytes.extend_from_slice(&after);
                prop_assert_eq!(parse_proxy_header(&bytes), Ok(Some((expect, length))));
            }
        }

        /// For any input the parser does not panic, wait beyond its limits, or read past the end.
        #[test]
        fn any_bytes_are_borne(start in 0_usize..3, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let starts: [&[u8]; 3] = [b"", b"PROXY TCP4 ", b"\r\n\r\n\0\r\nQUIT\n\x21"];
            let bytes = [starts[start], &bytes].concat();
            match parse_proxy_header(&bytes) {
                Ok(Some((_, length))) => prop_assert!(length <= bytes.len()),
                Ok(None) => prop_assert!(bytes.len() < V2_BYTES_MAX),
                Err(_) => {}
            }
        }
    }
}
