use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use kdl::KdlValue;
use wire::http::Status;

use super::{Kind, LOG_FORMATS, SYSLOG_FACILITIES, Value, format_duration, format_size, one_of};
use crate::config::model::*;
use crate::config::suggest::{did_you_mean, nearest};

/// Units of sizes, in bytes.
pub(super) const SIZE_UNITS: &[(&str, u64)] =
    &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// Units of durations, in milliseconds.
pub(super) const DURATION_UNITS: &[(&str, u64)] =
    &[("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Longest path of a unix socket, in bytes (unix(7): `sun_path` has 108 with the final NUL).
const UNIX_PATH_BYTES_MAX: usize = 107;

/// Fields of a response that only the server itself may set.
const OWN_FIELDS: &[&str] = &[
    "connection",
    "content-length",
    "content-range",
    "date",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct Wrong {
    pub(in crate::config) message: String,
    pub(in crate::config) help: Option<String>,
}

impl Wrong {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), help: None }
    }

    fn help(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { message: message.into(), help: Some(help.into()) }
    }
}

/// Reads a value of this kind. Relative paths start from `directory`.
pub(in crate::config) fn parse(kind: Kind, value: &KdlValue, directory: &Path) -> Result<Value, Wrong> {
    match kind {
        Kind::Flag => parse_flag(value),
        Kind::Count { min, max } => parse_number(kind, value, min, max),
        Kind::CountOrAuto { .. } if value.as_string() == Some("auto") => Ok(Value::Auto),
        Kind::CountOrAuto { min, max } => parse_number(kind, value, min, max),
        Kind::Size { min, max } => parse_size(kind, value, min, max),
        Kind::Duration { min, max } => parse_duration(kind, value, min, max),
        Kind::Listen => parse_listen(value, directory).map(Value::Listen),
        Kind::Status { min, max } => parse_status(kind, value, |code| (min..=max).contains(&code)),
        Kind::RedirectStatus => parse_status(kind, value, |code| matches!(code, 301 | 302 | 303 | 307 | 308)),
        Kind::StatusRange => parse_status_range(kind, value),
        _ => {
            let text = value.as_string().ok_or_else(|| wrong_type(kind, value))?;
            parse_text(kind, text, directory)
        }
    }
}

fn parse_text(kind: Kind, text: &str, directory: &Path) -> Result<Value, Wrong> {
    Ok(match kind {
        Kind::Choice(words) => Value::Text(parse_choice(text, words)?),
        Kind::Text => Value::Text(text.to_owned()),
        Kind::Host => Value::Host(parse_host(text)?),
        Kind::HostSuffix => Value::Text(parse_host_suffix(text)?),
        Kind::Mode => Value::Number(parse_mode(text)?),
        Kind::PathPattern => Value::PathPattern(parse_path_pattern(text)?),
        Kind::FieldMatch => Value::FieldMatch(parse_field_match(text)?),
        Kind::FieldName => Value::Text(parse_field_name(text)?),
        Kind::FieldValue => Value::Text(parse_field_value(text)?),
        Kind::Root => Value::Root(parse_root(text, directory)?),
        Kind::SitePath => Value::Text(parse_site_path(text)?),
        Kind::PathPrefix => Value::Text(parse_site_path(text)?.trim_end_matches('/').to_owned()),
        Kind::ErrorPageFile => Value::ErrorPageFile(parse_error_page_file(text, directory)?),
        Kind::FileName => Value::Text(parse_file_name(text)?),
        Kind::FileGlob => Value::File(directory.join(not_empty(text)?)),
        Kind::Extension => Value::Text(parse_extension(text)?),
        Kind::MediaType => Value::Text(parse_media_type(text)?),
        Kind::RedirectTarget => Value::Text(parse_redirect_target(text)?),
        Kind::LogTarget => Value::LogTarget(parse_log_target(text, directory)?),
        Kind::LogFormat => Value::LogFormat(parse_log_format(text)?),
        Kind::Flag
        | Kind::Count { .. }
        | Kind::CountOrAuto { .. }
        | Kind::Size { .. }
        | Kind::Duration { .. }
        | Kind::Listen
        | Kind::Status { .. }
        | Kind::RedirectStatus
        | Kind::StatusRange => unreachable!("read by `parse`"),
    })
}

fn wrong_type(kind: Kind, value: &KdlValue) -> Wrong {
    let found = match value {
        KdlValue::String(_) => "a text",
        KdlValue::Integer(_) => "a number",
        KdlValue::Float(_) => "a number with a fraction",
        KdlValue::Bool(_) => "`on` or `off`",
        KdlValue::Null => "nothing (`#null`)",
    };
    Wrong::new(format!("expected {}, found {found}", kind.describe()))
}

fn parse_flag(value: &KdlValue) -> Result<Value, Wrong> {
    match value {
        KdlValue::Bool(flag) => Ok(Value::Flag(*flag)),
        KdlValue::String(text) if text == "on" => Ok(Value::Flag(true)),
        KdlValue::String(text) if text == "off" => Ok(Value::Flag(false)),
        KdlValue::String(text) => {
            Err(Wrong::help(format!("`{text}` is neither `on` nor `off`"), "write `on` or `off`"))
        }
        _ => Err(wrong_type(Kind::Flag, value)),
    }
}

fn parse_number(kind: Kind, value: &KdlValue, min: u64, max: u64) -> Result<Value, Wrong> {
    match value {
        KdlValue::Integer(number) => match u64::try_from(*number) {
            Ok(number) if (min..=max).contains(&number) => Ok(Value::Number(number)),
            _ => Err(Wrong::help(format!("{number} is out of range"), format!("expected {}", kind.describe()))),
        },
        KdlValue::String(text) if text.parse::<u64>().is_ok() => {
            Err(Wrong::help(format!("expected {}, found a text", kind.describe()), "leave the quotes out"))
        }
        _ => Err(wrong_type(kind, value)),
    }
}

fn parse_size(kind: Kind, value: &KdlValue, min: u64, max: u64) -> Result<Value, Wrong> {
    let bytes = match value {
        KdlValue::Integer(bytes) => u64::try_from(*bytes).ok(),
        KdlValue::String(text) => with_unit(text, SIZE_UNITS).ok_or_else(|| {
            Wrong::help(
                format!("`{text}` is not a size"),
                "write a whole number of B, KiB, MiB, GiB or TiB: `\"16KiB\"`",
            )
        })?,
        _ => return Err(wrong_type(kind, value)),
    };
    match bytes {
        Some(bytes) if (min..=max).contains(&bytes) => Ok(Value::Number(bytes)),
        _ => Err(Wrong::help("the size is out of range", format!("from {} to {}", format_size(min), format_size(max)))),
    }
}

fn parse_duration(kind: Kind, value: &KdlValue, min: Duration, max: Duration) -> Result<Value, Wrong> {
    let text = match value {
        KdlValue::String(text) => text,
        KdlValue::Integer(number) => {
            return Err(Wrong::help("a time needs a unit", format!("for seconds, write `\"{number}s\"`")));
        }
        _ => return Err(wrong_type(kind, value)),
    };
    let milliseconds = with_unit(text, DURATION_UNITS).ok_or_else(|| {
        Wrong::help(format!("`{text}` is not a time"), "write a whole number of ms, s, m, h or d: `\"30s\"`")
    })?;
    match milliseconds.map(Duration::from_millis) {
        Some(duration) if (min..=max).contains(&duration) => Ok(Value::Duration(duration)),
        _ => Err(Wrong::help(
            "the time is out of range",
            format!("from {} to {}", format_duration(min), format_duration(max)),
        )),
    }
}

/// A whole number and one of these units. `Some(None)` is one that is too large to count.
fn with_unit(text: &str, units: &[(&str, u64)]) -> Option<Option<u64>> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let size = units.iter().find(|(name, _)| *name == unit.trim_start())?.1;
    if number.is_empty() {
        return None;
    }
    Some(number.parse::<u64>().ok().and_then(|number| number.checked_mul(size)))
}

fn parse_choice(text: &str, words: &[&str]) -> Result<String, Wrong> {
    if words.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(Wrong::help(format!("`{text}` is not known here"), did_you_mean(text, words)))
}

/// Checks a host name or address, and writes it as requests are compared: in lower case, without a trailing dot.
fn parse_host(text: &str) -> Result<HostPattern, Wrong> {
    let host = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    if host == "*" {
        return Err(Wrong::help("`*` alone is not a host name", "a site without names takes any host"));
    }
    if let Some(address) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return match address.parse::<Ipv6Addr>() {
            Ok(address) => Ok(HostPattern::Exact(format!("[{address}]"))),
            Err(_) => Err(Wrong::new(format!("`{text}` is not an IPv6 address"))),
        };
    }
    if host.parse::<Ipv6Addr>().is_ok() {
        return Err(Wrong::help(format!("`{text}` lacks brackets"), format!("write `\"[{host}]\"`")));
    }
    if host.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit())) {
        return Err(Wrong::help("a site's name has no port", "ports belong in `listen`"));
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
            format!("`{text}` has letters beyond ASCII"),
            "write the name as browsers send it, with `xn--` (`idn NAME` shows it)",
        ));
    }
    if host.contains('*') {
        return Err(Wrong::help(format!("`{text}` has a `*` in the wrong place"), "write `\"*.example.com\"`"));
    }
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
    };
    if host.len() > 253 || !host.split('.').all(is_label) {
        return Err(Wrong::help(
            format!("`{text}` is not a host name"),
            "a name has letters, digits and `-`, in parts of at most 63 joined by dots",
        ));
    }
    Ok(())
}

fn parse_host_suffix(text: &str) -> Result<String, Wrong> {
    match text.strip_prefix('.') {
        Some(rest) => {
            let rest = rest.to_ascii_lowercase();
            check_host_name(text, &rest).map(|()| format!(".{rest}"))
        }
        None => Err(Wrong::help("the end of a host name begins with a dot", format!("write `\".{text}\"`"))),
    }
}

fn parse_listen(value: &KdlValue, directory: &Path) -> Result<Vec<Listen>, Wrong> {
    match value {
        KdlValue::Integer(port) => match u16::try_from(*port) {
            Ok(port) => Ok(all_addresses(port)),
            Err(_) => Err(Wrong::new(format!("{port} is not a port, which is from 0 to 65535"))),
        },
        KdlValue::String(text) => parse_listen_text(text, directory),
        _ => Err(wrong_type(Kind::Listen, value)),
    }
}

/// Reads an address to listen on. One without an IP address means all of IPv4 and of IPv6.
pub(in crate::config) fn parse_listen_text(text: &str, directory: &Path) -> Result<Vec<Listen>, Wrong> {
    if let Some(path) = text.strip_prefix("unix:") {
        let path = directory.join(not_empty(path)?);
        if path.as_os_str().len() > UNIX_PATH_BYTES_MAX {
            return Err(Wrong::new(format!("the path of a unix socket has at most {UNIX_PATH_BYTES_MAX} bytes")));
        }
        return Ok(vec![Listen::Unix(path, DEFAULT_UNIX_MODE)]);
    }
    if let Some(name) = text.strip_prefix("systemd:") {
        return Ok(vec![Listen::Inherited(not_empty(name)?.to_owned())]);
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(vec![Listen::Tcp(address)]);
    }
    if let Ok(address) = text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        let example = SocketAddr::new(address, 80);
        return Err(Wrong::help(format!("`{text}` lacks a port"), format!("write `\"{example}\"`")));
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
            "names belong in `site`; listen on an address such as `\"0.0.0.0:80\"` or `\"[::]:80\"`",
        )),
    }
}

/// All addresses of IPv4 and of IPv6.
pub(in crate::config) fn all_addresses(port: u16) -> Vec<Listen> {
    vec![Listen::Tcp((Ipv4Addr::UNSPECIFIED, port).into()), Listen::Tcp((Ipv6Addr::UNSPECIFIED, port).into())]
}

/// Permissions of a unix socket whose option gives none.
const DEFAULT_UNIX_MODE: u32 = 0o660;

fn parse_mode(text: &str) -> Result<u64, Wrong> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 && !text.starts_with('+') => Ok(mode.into()),
        _ => Err(Wrong::help(format!("`{text}` are not permissions"), "write three octal digits: `\"660\"`")),
    }
}

fn parse_path_pattern(text: &str) -> Result<PathPattern, Wrong> {
    if matches!(text, "*" | "/*") {
        return Ok(PathPattern::Any);
    }
    let (stars, fixed) = (text.matches('*').count(), text.trim_matches('*'));
    if stars > 1 || fixed.contains('*') {
        return Err(Wrong::help(
            format!("`{text}` has a `*` where none can be"),
            "write one `*`, at the end (`\"/a/*\"`) or at the start (`\"*.css\"`)",
        ));
    }
    if text.starts_with('*') {
        return Ok(PathPattern::Suffix(fixed.to_owned()));
    }
    check_request_path(fixed)?;
    Ok(if stars == 1 { PathPattern::Prefix(fixed.to_owned()) } else { PathPattern::Exact(fixed.to_owned()) })
}

/// Paths are compared after percent-decoding and without dot segments and empty segments: others would never match.
fn check_request_path(path: &str) -> Result<(), Wrong> {
    if !path.starts_with('/') {
        return Err(Wrong::help(format!("`{path}` is not a path"), "a path begins with a slash"));
    }
    if path.contains("//") || path.split('/').any(|segment| segment == "." || segment == "..") {
        return Err(Wrong::new(format!("`{path}` matches no request: paths are compared without `//`, `.` and `..`")));
    }
    let is_hex = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    let bytes = path.as_bytes();
    if (0..bytes.len()).any(|at| bytes[at] == b'%' && is_hex(bytes.get(at + 1)) && is_hex(bytes.get(at + 2))) {
        return Err(Wrong::help(
            format!("`{path}` matches no request: paths are compared decoded"),
            "write the character itself instead of `%` and its code",
        ));
    }
    if path.contains('?') || path.contains('#') {
        return Err(Wrong::new(format!("`{path}` matches no request: a path has no query and no fragment")));
    }
    Ok(())
}

fn parse_field_match(text: &str) -> Result<FieldMatch, Wrong> {
    if text.starts_with('/') || text.starts_with('*') && text != "*/*" {
        return parse_path_pattern(text).map(FieldMatch::Path);
    }
    if let Some(prefix) = text.strip_suffix("/*")
        && is_token(prefix)
    {
        return Ok(FieldMatch::Type(format!("{}/", prefix.to_ascii_lowercase())));
    }
    match text.split_once('/') {
        Some((main, sub)) if is_token(main) && is_token(sub) => Ok(FieldMatch::Type(text.to_ascii_lowercase())),
        _ => Err(Wrong::help(
            format!("`{text}` is neither a path nor a content type"),
            "write `\"/a/*\"`, `\"*.css\"`, `\"text/css\"` or `\"image/*\"`",
        )),
    }
}

fn parse_field_name(text: &str) -> Result<String, Wrong> {
    if !is_token(text) {
        return Err(Wrong::new(format!("`{text}` is not the name of a field (RFC 9110, section 5.1)")));
    }
    if OWN_FIELDS.contains(&text.to_ascii_lowercase().as_str()) {
        return Err(Wrong::new(format!("`{text}` is set by the server itself")));
    }
    Ok(text.to_owned())
}

/// RFC 9110, section 5.5: visible characters, and spaces between them.
fn parse_field_value(text: &str) -> Result<String, Wrong> {
    if text.bytes().any(|byte| byte == 0x7f || byte < b' ' && byte != b'\t') {
        return Err(Wrong::new("the value of a field has no control characters"));
    }
    Ok(text.trim_matches([' ', '\t']).to_owned())
}

/// RFC 9110, section 5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

fn parse_status(kind: Kind, value: &KdlValue, is_fit: impl Fn(u16) -> bool) -> Result<Value, Wrong> {
    let KdlValue::Integer(code) = value else { return Err(wrong_type(kind, value)) };
    u16::try_from(*code)
        .ok()
        .filter(|code| is_fit(*code))
        .and_then(Status::new)
        .map(Value::Status)
        .ok_or_else(|| Wrong::help(format!("{code} can't be used here"), format!("expected {}", kind.describe())))
}

fn parse_status_range(kind: Kind, value: &KdlValue) -> Result<Value, Wrong> {
    let (from, to) = match value {
        KdlValue::Integer(code) => {
            let code = u16::try_from(*code).unwrap_or(0);
            (code, code)
        }
        KdlValue::String(text) => match text.as_str() {
            "4xx" => (400, 499),
            "5xx" => (500, 599),
            text => {
                let (from, to) = text.split_once('-').unwrap_or((text, text));
                (from.parse().unwrap_or(0), to.parse().unwrap_or(0))
            }
        },
        _ => return Err(wrong_type(kind, value)),
    };
    if (400..=599).contains(&from) && (from..=599).contains(&to) {
        return Ok(Value::StatusRange(from, to));
    }
    Err(Wrong::help("this is no error status", format!("expected {}", kind.describe())))
}

/// Reads a directory with placeholders.
fn parse_root(text: &str, directory: &Path) -> Result<Vec<RootPiece>, Wrong> {
    let full = directory.join(not_empty(text)?);
    // The directory of the configuration is no pattern: braces in its name are its own.
    let (own, pattern) = if full == Path::new(text) {
        (String::new(), text)
    } else {
        let own = directory
            .to_str()
            .ok_or_else(|| Wrong::help("the directory of this file is not UTF-8", "write an absolute path"))?;
        (format!("{}/", own.trim_end_matches('/')), text)
    };
    let mut pieces = vec![RootPiece::Literal(own)];
    pieces.extend(
        split_placeholders(pattern)?
            .into_iter()
            .map(
                |(is_placeholder, piece)| {
                    if is_placeholder {
                        parse_root_placeholder(piece)
                    } else {
                        Ok(RootPiece::Literal(piece.to_owned()))
                    }
                },
            )
            .collect::<Result<Vec<_>, _>>()?,
    );
    Ok(join_literals(pieces))
}

fn parse_root_placeholder(name: &str) -> Result<RootPiece, Wrong> {
    let length = name.strip_prefix("host:").map(str::parse::<usize>);
    match (name, length) {
        ("host", _) => Ok(RootPiece::Host),
        (_, Some(Ok(length))) if (1..=253).contains(&length) => Ok(RootPiece::HostPrefix(length)),
        _ => Err(Wrong::help(
            format!("`{{{name}}}` is not known here"),
            "`{host}` stands for the host, `{host:1}` for its first letter, up to `{host:253}`",
        )),
    }
}

/// Neighbouring literals in one, empty ones left out.
fn join_literals(pieces: Vec<RootPiece>) -> Vec<RootPiece> {
    let mut joined: Vec<RootPiece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match (joined.last_mut(), piece) {
            (Some(RootPiece::Literal(before)), RootPiece::Literal(text)) => before.push_str(&text),
            (_, RootPiece::Literal(text)) if text.is_empty() => {}
            (_, piece) => joined.push(piece),
        }
    }
    joined
}

/// Splits `a{b}c` into its pieces, each with whether it stood in braces.
fn split_placeholders(text: &str) -> Result<Vec<(bool, &str)>, Wrong> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(open) = rest.find(['{', '}']) {
        let close = rest[open..].find('}').map(|close| open + close);
        match close {
            Some(close) if close > open && !rest[open + 1..close].contains('{') => {
                pieces.push((false, &rest[..open]));
                pieces.push((true, &rest[open + 1..close]));
                rest = &rest[close + 1..];
            }
            _ => return Err(Wrong::help(format!("`{text}` has a brace without its partner"), "write `{name}`")),
        }
    }
    pieces.push((false, rest));
    Ok(pieces)
}

fn parse_site_path(text: &str) -> Result<String, Wrong> {
    check_request_path(text)?;
    Ok(text.to_owned())
}

fn parse_error_page_file(text: &str, directory: &Path) -> Result<ErrorPageFile, Wrong> {
    match text.strip_prefix("file:") {
        Some(file) => Ok(ErrorPageFile::File(directory.join(not_empty(file)?))),
        None if text.starts_with('/') => parse_site_path(text).map(ErrorPageFile::BelowRoot),
        None => Err(Wrong::help(
            format!("`{text}` is neither below the root nor a file elsewhere"),
            format!("write `\"/{text}\"` or `\"file:{text}\"`"),
        )),
    }
}

fn parse_file_name(text: &str) -> Result<String, Wrong> {
    if text.contains('/') || matches!(text, "" | "." | "..") {
        return Err(Wrong::help(format!("`{text}` is not the name of a file"), "leave the directory out"));
    }
    Ok(text.to_owned())
}

fn parse_extension(text: &str) -> Result<String, Wrong> {
    let extension = text.strip_prefix("*.").or(text.strip_prefix('.')).unwrap_or(text);
    if extension != text || extension.is_empty() || extension.contains(['/', '.']) {
        return Err(Wrong::help(
            format!("`{text}` is not an extension"),
            "write what follows the last dot of the names: `\"md\"`",
        ));
    }
    Ok(extension.to_ascii_lowercase())
}

fn parse_media_type(text: &str) -> Result<String, Wrong> {
    let value = parse_field_value(text)?;
    let essence = value.split(';').next().unwrap_or_default().trim_end();
    match essence.split_once('/') {
        Some((main, sub)) if is_token(main) && is_token(sub) && value.is_ascii() => Ok(value),
        _ => Err(Wrong::help(format!("`{text}` is not a content type"), "write such as `\"text/markdown\"`")),
    }
}

/// Placeholders of a redirect's target.
const REDIRECT_PLACEHOLDERS: &[&str] = &["host", "path", "rest", "query"];

fn parse_redirect_target(text: &str) -> Result<String, Wrong> {
    let target = parse_field_value(text)?;
    for (is_placeholder, piece) in split_placeholders(&target)? {
        if is_placeholder && !REDIRECT_PLACEHOLDERS.contains(&piece) {
            return Err(Wrong::help(
                format!("`{{{piece}}}` is not known here"),
                did_you_mean(piece, REDIRECT_PLACEHOLDERS),
            ));
        }
    }
    let starts = ["/", "http://", "https://", "{path}"];
    if !starts.iter().any(|start| target.starts_with(start)) || target.contains(' ') || !target.is_ascii() {
        return Err(Wrong::help(
            format!("`{text}` is not a path or URL"),
            "write `\"/new/{rest}\"` or `\"https://{host}{path}\"`, with percent-encoding where it is needed",
        ));
    }
    Ok(target)
}

fn parse_log_target(text: &str, directory: &Path) -> Result<Option<AccessLogTarget>, Wrong> {
    Ok(Some(match text {
        "off" => return Ok(None),
        "stdout" => AccessLogTarget::Stdout,
        "syslog" => AccessLogTarget::Syslog("daemon".into()),
        _ => match text.strip_prefix("syslog:") {
            Some(facility) => AccessLogTarget::Syslog(parse_choice(facility, SYSLOG_FACILITIES)?),
            None => AccessLogTarget::File(directory.join(not_empty(text)?)),
        },
    }))
}

fn parse_log_format(text: &str) -> Result<AccessLogFormat, Wrong> {
    Ok(match text {
        "combined" => AccessLogFormat::Combined,
        "common" => AccessLogFormat::Common,
        "json" => AccessLogFormat::Json,
        "w3c" => AccessLogFormat::W3c,
        "binary" => AccessLogFormat::Binary,
        template if template.contains('{') => {
            split_placeholders(template)?;
            AccessLogFormat::Template(template.to_owned())
        }
        _ => {
            let help = match nearest(text, LOG_FORMATS) {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!("write {}, or a template such as `\"{{host}} {{status}}\"`", one_of(LOG_FORMATS)),
            };
            return Err(Wrong::help(format!("`{text}` is not a format"), help));
        }
    })
}

fn not_empty(text: &str) -> Result<&str, Wrong> {
    if text.is_empty() { Err(Wrong::new("a path or name is missing")) } else { Ok(text) }
}
