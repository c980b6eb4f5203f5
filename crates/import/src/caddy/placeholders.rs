//! Placeholders such as `{uri}` in texts.

use super::maps::MAP_PLACEHOLDER;
use super::matcher::HostGroups;

/// Place of a text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TextPlace {
    /// The target of `redirect` and `rewrite`.
    Target,
    /// The value of a header field.
    Field,
    /// A text without placeholders.
    Fixed,
}

/// A text in our form.
///
/// # Errors
///
/// The placeholder that has no counterpart there.
pub(super) fn text(text: &str, within: TextPlace, host: Option<&str>) -> Result<String, String> {
    let mut result = String::new();
    let mut rest = text;
    let mut has_query_later = false;
    while let Some(start) = rest.find('{') {
        push_literal(&rest[..start], within, &mut result);
        let is_name = |c: char| c.is_ascii_alphanumeric() || "._-:[]/*>".contains(c);
        let end = rest[start + 1..].find(|c| !is_name(c)).map_or(rest.len(), |at| start + 1 + at);
        if !rest[end..].starts_with('}') || end == start + 1 {
            push_literal("{", within, &mut result);
            rest = &rest[start + 1..];
            continue;
        }
        let name = &rest[start + 1..end];
        rest = &rest[end + 1..];
        if within == TextPlace::Target && matches!(name, "query" | "http.request.uri.query") {
            // Ours has the question mark.
            match result.strip_suffix('?') {
                // Own arguments after those of the request come first.
                Some(_) if rest.len() > 1 && rest.starts_with('&') => {
                    has_query_later = true;
                    rest = &rest[1..];
                }
                Some(path) => result = format!("{path}{{query}}"),
                None if result.ends_with('&') => result = format!("{}{{&query}}", result.trim_end_matches('&')),
                None => result.push_str("{query}"),
            }
            continue;
        }
        result
            .push_str(&placeholder(name, within, host).ok_or_else(|| format!("`{{{name}}}` has no counterpart here"))?);
    }
    push_literal(rest, within, &mut result);
    if has_query_later {
        result.push_str("{&query}");
    }
    Ok(result)
}

/// A text with groups of expressions that all hosts fit.
pub(super) fn with_host_groups(text: &str, all: &[HostGroups]) -> String {
    let mut text = text.to_owned();
    for (name, groups) in all {
        for (number, group) in groups.iter().enumerate() {
            for start in ["re", "http.regexp"] {
                text = text.replace(&format!("{{{start}.{name}.{number}}}"), group);
                text = text.replace(&format!("{{{start}.{number}}}"), group);
            }
        }
    }
    text
}

/// A target whose numbered groups are those of the condition on the request, if no pattern has groups.
///
/// # Errors
///
/// The reason why it has none.
pub(super) fn with_groups_of(target: String, has_pattern: bool, tests: &[String]) -> Result<String, String> {
    let number = |text: &str| {
        let end = text.find(|one: char| !one.is_ascii_digit()).filter(|end| *end > 0)?;
        text[end..].starts_with('}').then_some(end)
    };
    let has_groups = target.match_indices('{').any(|(at, _)| number(&target[at + 1..]).is_some());
    if has_pattern || !has_groups {
        return Ok(target);
    }
    let texts: String = tests.concat();
    if texts.matches(" matches ").count() != 1 || texts.contains("not (") {
        return Err("it has groups of an expression that is not the only one".to_owned());
    }
    let mut result = String::new();
    for (index, part) in target.split('{').enumerate() {
        let start = match number(part) {
            _ if index == 0 => "",
            Some(_) => "{match.",
            None => "{",
        };
        result.push_str(start);
        result.push_str(part);
    }
    match result.starts_with("{match.") || result.contains("//{match.") {
        true => Err("clients would choose the host to which it leads".to_owned()),
        false => Ok(result),
    }
}

fn push_literal(text: &str, within: TextPlace, result: &mut String) {
    match within {
        TextPlace::Fixed => result.push_str(text),
        TextPlace::Target | TextPlace::Field => result.push_str(&text.replace('{', "{{").replace('}', "}}")),
    }
}

/// Returns `true` for the host of all requests of a site, which has no other.
pub(super) fn is_known(host: &&str) -> bool {
    !host.contains(['*', '\u{1}'])
}

fn placeholder(name: &str, within: TextPlace, host: Option<&str>) -> Option<String> {
    if let Some(number) = name.strip_prefix("labels.").or(name.strip_prefix("http.request.host.labels.")) {
        // Labels count from the end of the host.
        let host = host.filter(is_known)?;
        return host.split('.').rev().nth(number.parse().ok()?).map(str::to_owned);
    }
    if within == TextPlace::Fixed {
        return match name {
            "host" | "http.request.host" => host.filter(is_known).map(str::to_owned),
            _ => None,
        };
    }
    if let Some(map) = name.strip_prefix(MAP_PLACEHOLDER) {
        return Some(format!("{{map.{map}}}"));
    }
    let is_field = within == TextPlace::Field;
    Some(
        match name {
            "host" | "http.request.host" | "hostport" | "http.request.hostport" => "{host}",
            "path" | "http.request.uri.path" | "http.request.orig_uri.path" => "{path}",
            "uri" | "http.request.uri" | "http.request.orig_uri" => "{path}{query}",
            "scheme" | "http.request.scheme" => "{scheme}",
            "query" | "http.request.uri.query" => return None,
            "remote_host" | "http.request.remote.host" | "client_ip" | "http.vars.client_ip" | "remote" if is_field => {
                "{client}"
            }
            "http.auth.user.id" if is_field => "{user}",
            "uuid" | "http.request.uuid" if is_field => "{request_id}",
            "tls_version" | "http.request.tls.version" if is_field => "{tls_version}",
            "tls_cipher" | "http.request.tls.cipher_suite" if is_field => "{tls_cipher_suite}",
            "http.request.tls.server_name" if is_field => "{tls_server_name}",
            "tls_client_subject" | "http.request.tls.client.subject" if is_field => "{tls_client}",
            _ => return others(name, is_field),
        }
        .to_owned(),
    )
}

fn others(name: &str, is_field: bool) -> Option<String> {
    if is_field {
        let field = name.strip_prefix("header.").or(name.strip_prefix("http.request.header."))?;
        return Some(format!("{{request.header.{field}}}"));
    }
    if let Some(argument) = name.strip_prefix("query.").or(name.strip_prefix("http.request.uri.query.")) {
        return Some(format!("{{query.{argument}}}"));
    }
    // A group of the only expression of the matcher: `re.NAME.1`, `re.1`.
    let group = name.strip_prefix("re.").or(name.strip_prefix("http.regexp."))?;
    let group = group.rsplit_once('.').map_or(group, |(_, group)| group);
    Some(format!("{{{group}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_translated() {
        let check = |input: &str, within: TextPlace, expect: Result<&str, &str>| {
            let found = text(input, within, None);
            match (&found, expect) {
                (Ok(found), Ok(expect)) => assert_eq!(found, expect, "{input}"),
                (Err(why), Err(expect)) => assert!(why.contains(expect), "{input}: {why}"),
                _ => panic!("{input}: {found:?}, expected {expect:?}"),
            }
        };
        check("https://{host}{uri}", TextPlace::Target, Ok("https://{host}{path}{query}"));
        check("/a?{query}", TextPlace::Target, Ok("/a{query}"));
        check("/a?b=c&{query}", TextPlace::Target, Ok("/a?b=c{&query}"));
        check("?{query}&a=b", TextPlace::Target, Ok("?a=b{&query}"));
        check("/{re.x.1}/{http.regexp.x.name}", TextPlace::Target, Ok("/{1}/{name}"));
        check("{remote_host}", TextPlace::Field, Ok("{client}"));
        check("{http.request.header.X-A}", TextPlace::Field, Ok("{request.header.X-A}"));
        check("a {b c} d", TextPlace::Field, Ok("a {{b c}} d"));
        check("{system.hostname}", TextPlace::Field, Err("system.hostname"));
        check("{labels.0}", TextPlace::Target, Err("labels.0"));
        let found = text("https://{labels.1}.{labels.0}{uri}", TextPlace::Target, Some("www.a.de"));
        assert_eq!(found.as_deref(), Ok("https://a.de{path}{query}"));
    }
}
