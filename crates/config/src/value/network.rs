//! Values about hosts and addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use super::ValueKind;
use super::parse::{Wrong, not_empty, wrong_type};
use crate::model::*;
use crate::text::kdl::KdlValue;

pub(super) fn parse_listen(value: &KdlValue, directory: &Path) -> Result<Vec<Listen>, Wrong> {
    match value {
        KdlValue::Integer(port) => match u16::try_from(*port) {
            Ok(port) => Ok(all_addresses(port)),
            Err(_) => Err(Wrong::new(format!("{port} is not a port, which is from 0 to 65535"))),
        },
        KdlValue::String(text) => parse_listen_text(text, directory),
        _ => Err(wrong_type(ValueKind::Listen, value)),
    }
}

/// Reads an address to listen on. One without an IP address means all of IPv4 and of IPv6.
pub(crate) fn parse_listen_text(text: &str, directory: &Path) -> Result<Vec<Listen>, Wrong> {
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(vec![Listen::Unix(parse_unix_path(path, directory)?, DEFAULT_UNIX_MODE)]);
    }
    if let Some(name) = text.strip_prefix("systemd:") {
        return Ok(vec![Listen::Inherited(not_empty(name)?.to_owned())]);
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(vec![Listen::Tcp(address)]);
    }
    if let Ok(address) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        let example = SocketAddr::new(address, 80);
        return Err(Wrong::help(format!("`{text}` has no port"), format!("write `\"{example}\"`")));
    }
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let port = port.parse::<u16>().map_err(|_| {
        Wrong::help(
            format!("`{text}` is not an address to listen on"),
            "write a port, `\"ADDRESS:PORT\"`, `\"[ADDRESS]:PORT\"`, `\"unix:PATH\"` or `\"systemd:NAME\"`",
        )
    })?;
    match host {
        "" | "*" => Ok(all_addresses(port)),
        "localhost" => Ok(vec![Listen::Tcp((Ipv4Addr::LOCALHOST, port).into())]),
        _ => Err(Wrong::help(
            format!("`{host}` is not an IP address"),
            "write names in `site`; listen on an address such as `\"0.0.0.0:80\"` or `\"[::]:80\"`",
        )),
    }
}

/// An IPv4 address, as text.
pub(super) fn parse_ipv4_address(text: &str) -> Result<String, Wrong> {
    match text.parse::<Ipv4Addr>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(Wrong::new(format!("`{text}` is not an IPv4 address"))),
    }
}

/// The path of a unix socket.
pub(super) fn parse_unix_path(path: &str, directory: &Path) -> Result<PathBuf, Wrong> {
    let path = directory.join(not_empty(path)?);
    if path.as_os_str().len() > UNIX_PATH_BYTES_MAX {
        return Err(Wrong::new(format!("the path of a unix socket has at most {UNIX_PATH_BYTES_MAX} bytes")));
    }
    Ok(path)
}

/// All addresses of IPv4 and of IPv6.
pub(crate) fn all_addresses(port: u16) -> Vec<Listen> {
    vec![Listen::Tcp((Ipv4Addr::UNSPECIFIED, port).into()), Listen::Tcp((Ipv6Addr::UNSPECIFIED, port).into())]
}

/// Permissions of a unix socket whose option gives none.
const DEFAULT_UNIX_MODE: u32 = 0o660;

/// Longest path of a unix socket, in bytes (unix(7): `sun_path` has 108 with the final NUL).
const UNIX_PATH_BYTES_MAX: usize = 107;

pub(super) fn parse_mode(text: &str) -> Result<u64, Wrong> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 && !text.starts_with('+') => Ok(mode.into()),
        _ => Err(Wrong::help(format!("`{text}` is not a file mode"), "write three octal digits: `\"660\"`")),
    }
}

/// Checks a host name or address, and writes it as requests are compared: in lower case, without a trailing dot.
pub(super) fn parse_host(text: &str) -> Result<HostPattern, Wrong> {
    let host = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    if host == "*" {
        return Err(Wrong::help("`*` alone is not a host name", "a site without names answers all hosts"));
    }
    if let Some(address) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return match address.parse::<Ipv6Addr>() {
            Ok(address) => Ok(HostPattern::Exact(format!("[{address}]"))),
            Err(_) => Err(Wrong::new(format!("`{text}` is not an IPv6 address"))),
        };
    }
    if host.parse::<Ipv6Addr>().is_ok() {
        return Err(Wrong::help(format!("`{text}` needs brackets"), format!("write `\"[{host}]\"`")));
    }
    if host.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit())) {
        return Err(Wrong::help("a site's name cannot contain a port", "write the port in `listen`"));
    }
    if let Some(start) = host.strip_suffix(".*") {
        return check_host_name(text, start).map(|()| HostPattern::Prefix(format!("{start}.")));
    }
    match host.strip_prefix("*.") {
        Some(rest) => check_host_name(text, rest).map(|()| HostPattern::Suffix(format!(".{rest}"))),
        None => check_host_name(text, &host).map(|()| HostPattern::Exact(host)),
    }
}

/// RFC 1123, section 2.1, and the underscore that names in use have.
fn check_host_name(text: &str, host: &str) -> Result<(), Wrong> {
    if !host.is_ascii() {
        return Err(Wrong::help(
            format!("`{text}` has non-ASCII letters"),
            "write the name as browsers send it, with `xn--` (`idn NAME` shows it)",
        ));
    }
    if host.contains('*') {
        return Err(Wrong::help(
            format!("`{text}` has a `*` in the wrong place"),
            "write `\"*.example.com\"` or `\"www.*\"`",
        ));
    }
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    if host.len() > 253 || !host.split('.').all(is_label) {
        return Err(Wrong::help(
            format!("`{text}` is not a host name"),
            "use letters, digits and `-`, in parts of at most 63 characters separated by dots",
        ));
    }
    Ok(())
}

pub(super) fn parse_host_suffix(text: &str) -> Result<String, Wrong> {
    match text.strip_prefix('.') {
        Some(rest) => {
            let rest = rest.to_ascii_lowercase();
            check_host_name(text, &rest).map(|()| format!(".{rest}"))
        }
        None => Err(Wrong::help("the end of a host name must begin with a dot", format!("write `\".{text}\"`"))),
    }
}
