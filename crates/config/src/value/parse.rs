//! Reading a value of each kind.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use super::discovery::{parse_discovered_port, parse_discovery, parse_resolver};
use super::gateway::{parse_program_group, parse_program_user, parse_user, parse_variable_name};
use super::log::{parse_log_format, parse_log_target};
use super::module::{parse_compiled_directory, parse_environment_name, parse_outgoing_host};
use super::network::{parse_host, parse_host_suffix, parse_ipv4_address, parse_listen, parse_mode};
use super::rules::*;
use super::store::{parse_store, parse_store_endpoint};
use super::traces::{parse_collector_url, parse_ratio};
use super::upstream::{
    parse_cookie_name, parse_cookie_test, parse_forward_host, parse_forward_target, parse_gateway_target,
    parse_hash_key, parse_proxy_name, parse_request_target, parse_search_text, parse_server_address,
    parse_upgrade_protocol,
};
use super::web::*;
use super::{OptionValue, ValueKind, format_duration, format_size};
use crate::model::*;
use crate::suggest::did_you_mean;
use crate::text::kdl::KdlValue;

/// Units of sizes, in bytes.
pub(super) const SIZE_UNITS: &[(&str, u64)] =
    &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// Units of sizes in other servers, and the unit here that replaces each. A limit need not be exact to the byte. `m` is
/// missing, because it means minutes.
const OTHER_SIZE_UNITS: &[(&str, &str)] = &[
    ("K", "KiB"),
    ("k", "KiB"),
    ("KB", "KiB"),
    ("kB", "KiB"),
    ("kb", "KiB"),
    ("M", "MiB"),
    ("MB", "MiB"),
    ("mb", "MiB"),
    ("G", "GiB"),
    ("g", "GiB"),
    ("GB", "GiB"),
    ("gb", "GiB"),
    ("T", "TiB"),
    ("TB", "TiB"),
];

/// Units of durations, in milliseconds.
pub(super) const DURATION_UNITS: &[(&str, u64)] =
    &[("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Error in a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) message: String,
    pub(crate) help: Option<String>,
    /// True if the process lacks the permission for a file.
    pub(crate) is_denied: bool,
    /// Bytes of the text that it is about, if that is a part.
    pub(crate) at: Option<Range<usize>>,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.help {
            Some(help) => write!(f, "{}; {help}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

impl Wrong {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), help: None, is_denied: false, at: None }
    }

    pub(crate) fn help(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { message: message.into(), help: Some(help.into()), is_denied: false, at: None }
    }
}

/// Reads a value of this kind. Relative paths start from `directory`.
pub(crate) fn parse(kind: ValueKind, value: &KdlValue, directory: &Path) -> Result<OptionValue, Wrong> {
    let text = || value.as_string().ok_or_else(|| wrong_type(kind, value));
    let is_off = value.as_string() == Some("off");
    match kind {
        ValueKind::Flag => parse_flag(value),
        ValueKind::Count { min, max } => parse_number(kind, value, min, max),
        ValueKind::CountOrAuto { .. } | ValueKind::SizeOrAuto { .. } | ValueKind::DurationOrAuto { .. }
            if value.as_string() == Some("auto") =>
        {
            Ok(OptionValue::Auto)
        }
        ValueKind::CountOrAuto { min, max } => parse_number(kind, value, min, max),
        ValueKind::Size { min, max } | ValueKind::SizeOrAuto { min, max } => parse_size(kind, value, min, max),
        ValueKind::Duration { min, max } | ValueKind::DurationOrAuto { min, max } => {
            parse_duration(kind, value, min, max)
        }
        ValueKind::Ratio => parse_ratio(value),
        ValueKind::Listen => parse_listen(value, directory).map(OptionValue::Listen),
        ValueKind::Status { min, max } => parse_status(kind, value, |code| (min..=max).contains(&code)),
        ValueKind::RedirectStatus => parse_status(kind, value, |code| matches!(code, 301 | 302 | 303 | 307 | 308)),
        ValueKind::StatusRange => parse_status_range(kind, value),
        ValueKind::Choice(words) => parse_choice(text()?, words).map(OptionValue::Text),
        ValueKind::Text => Ok(OptionValue::Text(text()?.to_owned())),
        ValueKind::CollectorUrl => parse_collector_url(text()?).map(OptionValue::CollectorUrl),
        ValueKind::Store => parse_store(text()?, directory).map(OptionValue::Store),
        ValueKind::StoreEndpoint => parse_store_endpoint(text()?).map(OptionValue::StoreEndpoint),
        ValueKind::Host => parse_host(text()?).map(OptionValue::Host),
        ValueKind::HostSuffix => parse_host_suffix(text()?).map(OptionValue::Text),
        ValueKind::Ipv4Address => parse_ipv4_address(text()?).map(OptionValue::Text),
        ValueKind::Mode => parse_mode(text()?).map(OptionValue::Number),
        ValueKind::ServerAddress => parse_server_address(text()?, directory).map(OptionValue::ServerAddress),
        ValueKind::DiscoverySource => parse_discovery(text()?).map(OptionValue::DiscoverySource),
        ValueKind::DiscoveredPort => parse_discovered_port(value).map(OptionValue::DiscoveredPort),
        ValueKind::Resolver => parse_resolver(text()?).map(OptionValue::Resolver),
        ValueKind::ForwardTarget => parse_forward_target(text()?, directory).map(OptionValue::Text),
        ValueKind::GatewayTarget => parse_gateway_target(text()?, directory).map(OptionValue::Text),
        ValueKind::ProgramUser => parse_program_user(text()?).map(OptionValue::ProgramUser),
        ValueKind::ServerUser => parse_user(text()?).map(OptionValue::ProgramUser),
        ValueKind::ProgramGroup => parse_program_group(text()?).map(OptionValue::Number),
        ValueKind::VariableName => parse_variable_name(text()?).map(OptionValue::Text),
        ValueKind::ForwardHost => parse_forward_host(text()?).map(OptionValue::Text),
        ValueKind::UpgradeProtocol => parse_upgrade_protocol(text()?).map(OptionValue::Text),
        ValueKind::ProxyName => parse_proxy_name(text()?).map(OptionValue::Text),
        ValueKind::HashKey => parse_hash_key(text()?).map(OptionValue::HashKey),
        ValueKind::CookieName => parse_cookie_name(text()?).map(OptionValue::Text),
        ValueKind::CookieTest => parse_cookie_test(text()?).map(OptionValue::CookieTest),
        ValueKind::SearchText => parse_search_text(text()?).map(OptionValue::Text),
        ValueKind::OutgoingHost => parse_outgoing_host(text()?).map(OptionValue::OutgoingHost),
        ValueKind::EnvironmentName => parse_environment_name(text()?).map(OptionValue::Text),
        ValueKind::CompiledDirectory => {
            parse_compiled_directory(text()?, directory).map(OptionValue::CompiledDirectory)
        }
        ValueKind::RequestTarget => parse_request_target(text()?).map(OptionValue::Text),
        ValueKind::PathPattern => parse_path_pattern(text()?).map(OptionValue::PathPattern),
        ValueKind::FieldMatch => parse_field_match(text()?).map(OptionValue::FieldMatch),
        ValueKind::FieldName => parse_field_name(text()?).map(OptionValue::Text),
        ValueKind::FieldValue => parse_field_value(text()?).map(OptionValue::Text),
        ValueKind::Root => parse_root(text()?, directory).map(OptionValue::Root),
        ValueKind::SitePath if is_off => Ok(OptionValue::Text(String::new())),
        ValueKind::SitePath => parse_site_path(text()?).map(OptionValue::Text),
        ValueKind::PathPrefix => Ok(OptionValue::Text(parse_site_path(text()?)?.trim_end_matches('/').to_owned())),
        ValueKind::ErrorPageFile => parse_error_page_file(text()?, directory).map(OptionValue::ErrorPageFile),
        ValueKind::FileName => parse_file_name(text()?).map(OptionValue::Text),
        ValueKind::File | ValueKind::FileGlob => Ok(OptionValue::File(directory.join(not_empty(text()?)?))),
        ValueKind::Extension => parse_extension(text()?).map(OptionValue::Text),
        ValueKind::MediaType => parse_media_type(text()?).map(OptionValue::Text),
        ValueKind::RedirectTarget => parse_target(text()?, REDIRECT_STARTS).map(OptionValue::Template),
        ValueKind::RewriteTarget => parse_target(text()?, REWRITE_STARTS).map(OptionValue::Template),
        ValueKind::Methods => parse_methods(text()?).map(OptionValue::Methods),
        ValueKind::QueryTest => parse_query_test(text()?).map(OptionValue::QueryTest),
        ValueKind::FieldTest => parse_field_test(text()?).map(OptionValue::FieldTest),
        ValueKind::RequestFieldName => parse_request_field_name(text()?).map(OptionValue::Text),
        ValueKind::FieldTemplate(place) => parse_field_template(text()?, place).map(OptionValue::Template),
        ValueKind::Condition(place) => parse_when(text()?, place).map(OptionValue::Condition),
        ValueKind::Expression(place) => parse_expression(text()?, place).map(OptionValue::Expression),
        ValueKind::MapPattern => parse_map_pattern(text()?).map(OptionValue::MapPattern),
        ValueKind::Name => parse_name(text()?).map(OptionValue::Text),
        ValueKind::Client => parse_clients(text()?, directory).map(OptionValue::Clients),
        ValueKind::Rate => parse_rate(text()?).map(OptionValue::Rate),
        ValueKind::LimitKey => parse_limit_key(text()?).map(OptionValue::LimitKey),
        ValueKind::PasswordFile if is_off => Ok(OptionValue::PasswordFile(None)),
        ValueKind::PasswordFile => Ok(OptionValue::PasswordFile(Some(directory.join(not_empty(text()?)?)))),
        ValueKind::Origin => OriginPattern::parse(text()?).map(OptionValue::Origin).map_err(Wrong::new),
        ValueKind::FieldCopies => parse_field_copies(text()?).map(OptionValue::FieldCopies),
        ValueKind::LogTarget => parse_log_target(text()?, directory).map(OptionValue::LogTarget),
        ValueKind::LogFormat => parse_log_format(text()?).map(OptionValue::LogFormat),
    }
}

pub(super) fn wrong_type(kind: ValueKind, value: &KdlValue) -> Wrong {
    let found = match value {
        KdlValue::String(_) => "a text",
        KdlValue::Integer(_) => "a number",
        KdlValue::Float(_) => "a number with a fraction",
        KdlValue::Bool(_) => "`on` or `off`",
        KdlValue::Null => "nothing (`#null`)",
    };
    Wrong::new(format!("expected {}, found {found}", kind.describe()))
}

fn parse_flag(value: &KdlValue) -> Result<OptionValue, Wrong> {
    match value {
        KdlValue::Bool(flag) => Ok(OptionValue::Flag(*flag)),
        KdlValue::String(text) if text == "on" => Ok(OptionValue::Flag(true)),
        KdlValue::String(text) if text == "off" => Ok(OptionValue::Flag(false)),
        KdlValue::String(text) => {
            Err(Wrong::help(format!("`{text}` is neither `on` nor `off`"), "write `on` or `off`"))
        }
        _ => Err(wrong_type(ValueKind::Flag, value)),
    }
}

fn parse_number(kind: ValueKind, value: &KdlValue, min: u64, max: u64) -> Result<OptionValue, Wrong> {
    match value {
        KdlValue::Integer(number) => match u64::try_from(*number) {
            Ok(number) if (min..=max).contains(&number) => Ok(OptionValue::Number(number)),
            _ => Err(Wrong::help(format!("{number} is out of range"), format!("expected {}", kind.describe()))),
        },
        KdlValue::String(text) if text.parse::<u64>().is_ok() => {
            Err(Wrong::help(format!("expected {}, found a text", kind.describe()), "remove the quotes"))
        }
        _ => Err(wrong_type(kind, value)),
    }
}

fn parse_size(kind: ValueKind, value: &KdlValue, min: u64, max: u64) -> Result<OptionValue, Wrong> {
    let bytes = match value {
        KdlValue::Integer(bytes) => u64::try_from(*bytes).ok(),
        KdlValue::String(text) => with_unit(text, SIZE_UNITS).ok_or_else(|| {
            let help = match meant_size(text) {
                Some(meant) => format!("write `\"{meant}\"`"),
                None => "write a whole number of B, KiB, MiB, GiB or TiB: `\"16KiB\"`".to_owned(),
            };
            Wrong::help(format!("`{text}` is not a size"), help)
        })?,
        _ => return Err(wrong_type(kind, value)),
    };
    match bytes {
        Some(bytes) if (min..=max).contains(&bytes) => Ok(OptionValue::Number(bytes)),
        _ => Err(Wrong::help("the size is out of range", format!("from {} to {}", format_size(min), format_size(max)))),
    }
}

/// The size that is meant by one in others' units.
pub(crate) fn meant_size(text: &str) -> Option<String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, ours) = OTHER_SIZE_UNITS.iter().find(|(other, _)| *other == unit.trim_start())?;
    (digits > 0).then(|| format!("{number}{ours}"))
}

fn parse_duration(kind: ValueKind, value: &KdlValue, min: Duration, max: Duration) -> Result<OptionValue, Wrong> {
    let text = match value {
        KdlValue::String(text) => text,
        KdlValue::Integer(number) => {
            return Err(Wrong::help("a time needs a unit", format!("for seconds, write `\"{number}s\"`")));
        }
        _ => return Err(wrong_type(kind, value)),
    };
    parse_time(text, min, max).map(OptionValue::Duration)
}

/// Reads a time.
pub(crate) fn parse_time(text: &str, min: Duration, max: Duration) -> Result<Duration, Wrong> {
    let milliseconds = with_unit(text, DURATION_UNITS).ok_or_else(|| {
        Wrong::help(format!("`{text}` is not a time"), "write a whole number of ms, s, m, h or d: `\"30s\"`")
    })?;
    match milliseconds.map(Duration::from_millis) {
        Some(duration) if (min..=max).contains(&duration) => Ok(duration),
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

pub(super) fn parse_choice(text: &str, words: &[&str]) -> Result<String, Wrong> {
    if words.contains(&text) {
        return Ok(text.to_owned());
    }
    Err(Wrong::help(format!("`{text}` is not a valid value"), did_you_mean(text, words)))
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
            format!("`{{{name}}}` is not a placeholder here"),
            "`{host}` is the host, `{host:1}` its first letter, up to `{host:253}`",
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
pub(super) fn split_placeholders(text: &str) -> Result<Vec<(bool, &str)>, Wrong> {
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
            _ => return Err(Wrong::help(format!("`{text}` has a brace that is not closed"), "write `{name}`")),
        }
    }
    pieces.push((false, rest));
    Ok(pieces)
}

/// Reads the name of a map, secret or snippet.
fn parse_name(text: &str) -> Result<String, Wrong> {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if text.is_empty() || text.len() > 64 || !text.bytes().all(is_of_name) {
        let help = "names have letters, digits, `-` and `_`, at most 64";
        return Err(Wrong::help(format!("`{text}` is not a name"), help));
    }
    Ok(text.to_owned())
}

pub(super) fn not_empty(text: &str) -> Result<&str, Wrong> {
    if text.is_empty() { Err(Wrong::new("a path or name is missing")) } else { Ok(text) }
}
