//! Addresses of data connections (RFC 959, section 4.1.2; RFC 2428).

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::io::Write;

use super::command::number;

/// Address family by its number in EPSV and EPRT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FtpFamily {
    /// 1: IPv4.
    V4,
    /// 2: IPv6.
    V6,
}

impl FtpFamily {
    /// Family of an address. An IPv4-mapped address is IPv4 (RFC 4291, section 2.5.5.2).
    pub fn of(address: IpAddr) -> Self {
        if address.to_canonical().is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// Error of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FtpAddressError {
    /// The text is no address.
    Malformed,
    /// The family is unknown.
    Family,
}

/// Parses the argument of PORT: four bytes of the address and two of the port, in decimal.
pub fn parse_port(argument: &[u8]) -> Result<SocketAddr, FtpAddressError> {
    let mut bytes = [0u8; 6];
    let mut parts = argument.split(|byte| *byte == b',');
    for byte in &mut bytes {
        let part = parts.next().filter(|part| part.len() <= 3).and_then(number);
        *byte = part.and_then(|part| u8::try_from(part).ok()).ok_or(FtpAddressError::Malformed)?;
    }
    let [a, b, c, d, high, low] = bytes;
    let port = u16::from_be_bytes([high, low]);
    if parts.next().is_some() || port == 0 {
        return Err(FtpAddressError::Malformed);
    }
    Ok(SocketAddr::new(Ipv4Addr::new(a, b, c, d).into(), port))
}

/// Parses the argument of EPRT: family, address and port, each between two delimiters (RFC 2428, section 2).
pub fn parse_eprt(argument: &[u8]) -> Result<SocketAddr, FtpAddressError> {
    let malformed = FtpAddressError::Malformed;
    let (&delimiter, _) = argument.split_first().ok_or(malformed)?;
    let mut parts = argument.split(|byte| *byte == delimiter);
    let mut part = || parts.next().ok_or(malformed);
    let (before, family, address, port, after) = (part()?, part()?, part()?, part()?, part()?);
    if !delimiter.is_ascii_graphic() || !before.is_empty() || !after.is_empty() || parts.next().is_some() {
        return Err(malformed);
    }
    let address = str::from_utf8(address).map_err(|_| malformed)?;
    let address: IpAddr = match family {
        b"1" => address.parse::<Ipv4Addr>().map_err(|_| malformed)?.into(),
        b"2" => address.parse::<Ipv6Addr>().map_err(|_| malformed)?.into(),
        other if number(other).is_some() => return Err(FtpAddressError::Family),
        _ => return Err(malformed),
    };
    let port = number(port).and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
    Ok(SocketAddr::new(address, port.ok_or(malformed)?))
}

/// Appends the reply to PASV. Clients look for the numbers in parentheses (RFC 1123, section 4.1.2.6).
pub fn push_pasv_reply(out: &mut Vec<u8>, address: Ipv4Addr, port: u16) {
    let ([a, b, c, d], [high, low]) = (address.octets(), port.to_be_bytes());
    // Writing to memory cannot fail.
    let _ = write!(out, "227 Entering Passive Mode ({a},{b},{c},{d},{high},{low}).\r\n");
}

/// Appends the reply to EPSV.
pub fn push_epsv_reply(out: &mut Vec<u8>, port: u16) {
    // Writing to memory cannot fail.
    let _ = write!(out, "229 Entering Extended Passive Mode (|||{port}|)\r\n");
}
