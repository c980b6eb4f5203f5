//! Values of nginx's directives in our words: times, sizes, texts with variables.

use std::time::Duration;

use regex::Regex;

use crate::config;

/// A time such as `90`, `1h30m` or `500ms`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let count: u64 = rest[..digits].parse().ok()?;
        let unit_end = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |length| digits + length);
        let milliseconds = match rest[digits..unit_end].trim() {
            "ms" => 1,
            "" | "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            "M" => 30 * 86_400_000,
            "y" => 365 * 86_400_000,
            _ => return None,
        };
        total = total.checked_add(Duration::from_millis(count.checked_mul(milliseconds)?))?;
        rest = &rest[unit_end..];
    }
    (!text.is_empty()).then_some(total)
}

/// A time in our syntax.
pub(super) fn time(text: &str) -> Option<String> {
    duration(text).map(config::format_duration)
}

/// A size such as `8k`, `10m` or `1g`, as our configuration writes it.
pub(super) fn size(text: &str) -> Option<String> {
    size_bytes(text).map(config::format_size)
}

pub(super) fn size_bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit: u64 = match &text[digits..] {
        "" => 1,
        "k" | "K" => 1 << 10,
        "m" | "M" => 1 << 20,
        "g" | "G" => 1 << 30,
        _ => return None,
    };
    text[..digits].parse::<u64>().ok()?.checked_mul(unit)
}

/// Place of a text with variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Within {
    /// The target of `redirect` and `rewrite`.
    Target,
    /// The value of `request-header` and `response-header`.
    Field,
    /// The format of an access log.
    Log,
}

/// The target of `redirect` and `rewrite`, which may name groups of the pattern.
///
/// # Errors
///
/// The name of a variable that has no counterpart there, or the reason why such a target is not allowed.
pub(super) fn target(text: &str, pattern: &str) -> Result<String, String> {
    let expression = pattern.strip_prefix('~').and_then(|expression| Regex::new(expression).ok());
    let groups: Vec<&str> = expression.iter().flat_map(|expression| expression.capture_names()).flatten().collect();
    let target = with_placeholders(text, Within::Target, &groups)?;
    let authority = target.split_once("://").map_or("", |(_, rest)| rest);
    let of_host = authority.strip_prefix("{map.host-").and_then(|rest| rest.split_once('}'));
    if of_host.is_some_and(|(_, rest)| !rest.starts_with('.')) {
        return Err(
            "clients would choose the host; write a site for each name, with `canonical-host` or `redirect`".to_owned()
        );
    }
    Ok(target)
}

/// A text with nginx's variables, with our placeholders.
///
/// # Errors
///
/// The name of a variable that has no counterpart there.
pub(super) fn text(text: &str, within: Within) -> Result<String, String> {
    with_placeholders(text, within, &[])
}

fn with_placeholders(text: &str, within: Within, groups: &[&str]) -> Result<String, String> {
    let mut result = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('$') {
        result.push_str(&literal(&rest[..start], within));
        let (name, following) = variable(&rest[start + 1..]);
        rest = following;
        if name == "is_args" {
            // The variable comes before the arguments, and `{query}` includes its question mark.
            continue;
        }
        if within == Within::Target && matches!(name, "args" | "query_string") {
            push_query(&mut result);
            continue;
        }
        if within == Within::Target && name == "http_host" && result.contains('?') {
            // A URL in an argument needs the port, too.
            result.push_str("{request.header.Host}");
            continue;
        }
        if groups.contains(&name) {
            result.push_str(&format!("{{{name}}}"));
            continue;
        }
        result.push_str(&placeholder(name, within).ok_or_else(|| format!("`${name}` has no counterpart here"))?);
    }
    result.push_str(&literal(rest, within));
    Ok(result)
}

/// Name of the variable at the start of a text, after its sign, and the rest.
pub(super) fn variable(text: &str) -> (&str, &str) {
    if let Some((name, rest)) = text.strip_prefix('{').and_then(|text| text.split_once('}')) {
        return (name, rest);
    }
    let is_group = text.starts_with(|c: char| c.is_ascii_digit());
    let belongs = |c: char| if is_group { c.is_ascii_digit() } else { c.is_ascii_alphanumeric() || c == '_' };
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

fn placeholder(name: &str, within: Within) -> Option<String> {
    if let Some(map) = name.strip_prefix("map.").filter(|_| within != Within::Log) {
        return Some(format!("{{map.{map}}}"));
    }
    if within == Within::Field
        && let Some(field) = name.strip_prefix("sent_http_")
    {
        return Some(format!("{{response.header.{}}}", field_name(field)));
    }
    if within == Within::Field && name == "upstream_cache_status" {
        return Some("{cache_status}".to_owned());
    }
    if within == Within::Target {
        if name.starts_with(|c: char| c.is_ascii_digit()) {
            return Some(format!("{{{name}}}"));
        }
        if let Some(argument) = name.strip_prefix("arg_") {
            return Some(format!("{{query.{argument}}}"));
        }
    }
    let known = config::nginx_variable(name).map(|variable| match within {
        Within::Target => variable.target,
        Within::Field => variable.field,
        Within::Log => variable.log,
    });
    match (known, name.strip_prefix("http_")) {
        (Some(known), _) if !known.is_empty() => Some(known.to_owned()),
        (None, Some(field)) if within != Within::Target => Some(format!("{{request.header.{}}}", field_name(field))),
        _ => None,
    }
}

/// The name of a variable in conditions and maps; `None` if it has none.
pub(super) fn expression_name(name: &str) -> Option<String> {
    if let Some(field) = name.strip_prefix("sent_http_") {
        return Some(format!("response.header.{}", field_name(field)));
    }
    let families = [("http_", "request.header."), ("cookie_", "cookie."), ("arg_", "query."), ("map.", "map.")];
    let family = families.into_iter().find_map(|(prefix, family)| Some((name.strip_prefix(prefix)?, family)));
    Some(match (name, family) {
        ("http_host", _) => "request.header.Host".to_owned(),
        (_, Some((field, family @ "request.header."))) => format!("{family}{}", field_name(field)),
        (_, Some((rest, family))) => format!("{family}{rest}"),
        ("host" | "server_name", _) => "host".to_owned(),
        ("scheme", _) => "scheme".to_owned(),
        ("request_method", _) => "method".to_owned(),
        ("uri" | "document_uri", _) => "path".to_owned(),
        ("args" | "query_string", _) => "query".to_owned(),
        ("remote_addr", _) => "client".to_owned(),
        ("status", _) => "status".to_owned(),
        ("request_id", _) => "request_id".to_owned(),
        ("remote_user", _) => "user".to_owned(),
        ("ssl_protocol", _) => "tls_version".to_owned(),
        ("ssl_server_name", _) => "tls_server_name".to_owned(),
        _ => return None,
    })
}

/// A text of a map.
///
/// # Errors
///
/// The name of a variable that has no counterpart there.
pub(super) fn of_map(text: &str) -> Result<String, String> {
    let mut result = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('$') {
        result.push_str(&literal(&rest[..start], Within::Field));
        let (name, following) = variable(&rest[start + 1..]);
        rest = following;
        let is_group = name.starts_with(|c: char| c.is_ascii_digit());
        let name = if is_group { Some(format!("match.{name}")) } else { expression_name(name) };
        let name = name.ok_or_else(|| format!("`{}` has a variable without a counterpart here", text.trim()))?;
        result.push_str(&format!("{{{name}}}"));
    }
    result.push_str(&literal(rest, Within::Field));
    Ok(result)
}

/// `X-Request-Id` for `x_request_id`.
pub(super) fn field_name(variable: &str) -> String {
    let words = variable.split('_').map(|word| {
        let mut letters = word.chars();
        letters.next().map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + letters.as_str())
    });
    words.collect::<Vec<_>>().join("-")
}

/// Appends the query to a target: with its question mark, or after another argument.
pub(super) fn push_query(target: &mut String) {
    if target.ends_with(['?', '&']) {
        target.pop();
    }
    target.push_str(if target.contains('?') { "{&query}" } else { "{query}" });
}

/// Braces of a text are written twice, since one begins a placeholder.
fn literal(text: &str, within: Within) -> String {
    match within {
        Within::Target => text.to_owned(),
        Within::Field | Within::Log => text.replace('{', "{{").replace('}', "}}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_in_our_units() {
        let check = |text: &str, expect: Option<&str>| assert_eq!(time(text).as_deref(), expect, "{text}");
        check("90", Some("90s"));
        check("75s", Some("75s"));
        check("1h30m", Some("90m"));
        check("500ms", Some("500ms"));
        check("1y", Some("365d"));
        check("", None);
        check("soon", None);
        check("5x", None);
        let check = |text: &str, expect: Option<&str>| assert_eq!(size(text).as_deref(), expect, "{text}");
        check("8k", Some("8KiB"));
        check("10m", Some("10MiB"));
        check("512", Some("512B"));
        check("99999999999999999999g", None);
        check("ten", None);
    }

    #[test]
    fn variables_become_placeholders() {
        let check = |source: &str, within: Within, expect: Result<&str, &str>| {
            let expect = expect.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(text(source, within), expect, "{source}");
        };
        check("https://$host$request_uri", Within::Target, Ok("https://{host}{path}{query}"));
        check("/b/$1?x=$arg_y", Within::Target, Ok("/b/{1}?x={query.y}"));
        check("/index.php$is_args$args", Within::Target, Ok("/index.php{query}"));
        check("/index.php?$args", Within::Target, Ok("/index.php{query}"));
        check("/i?q=1&$args", Within::Target, Ok("/i?q=1{&query}"));
        check("/i?rd=$http_host", Within::Target, Ok("/i?rd={request.header.Host}"));
        check("$remote_addr", Within::Field, Ok("{client}"));
        check("${http_x_trace}!", Within::Field, Ok("{request.header.X-Trace}!"));
        check("{a}", Within::Field, Ok("{{a}}"));
        check(
            "$remote_addr [$time_local] \"$request\" $status",
            Within::Log,
            Ok("{client} [{time}] \"{request}\" {status}"),
        );
        assert_eq!(target("/v/$ver/$2", r"~^/v(?<ver>\d+)/(.*)$").as_deref(), Ok("/v/{ver}/{2}"));
        check("$geoip_country", Within::Log, Err("`$geoip_country` has no counterpart here"));
        check("$remote_addr", Within::Target, Err("`$remote_addr` has no counterpart here"));
    }
}
