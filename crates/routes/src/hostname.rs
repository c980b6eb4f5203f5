//! Host names of listeners and routes, as Gateway API defines them.

/// Host names that both a listener and a route have: the more specific of the two, or `None` if no host matches both.
/// Names are in lower case; `*.example.com` matches one label or more.
pub fn intersection<'a>(listener: Option<&'a str>, route: &'a str) -> Option<&'a str> {
    let Some(listener) = listener else { return Some(route) };
    match (listener.strip_prefix('*'), route.strip_prefix('*')) {
        (None, None) => (listener == route).then_some(route),
        (Some(_), None) => matches_hostname(listener, route).then_some(route),
        (None, Some(_)) => matches_hostname(route, listener).then_some(listener),
        (Some(of_listener), Some(of_route)) if of_route.ends_with(of_listener) => Some(route),
        (Some(of_listener), Some(of_route)) => of_listener.ends_with(of_route).then_some(listener),
    }
}

/// True if a host, in lower case and without port, matches a name or `*.` and a name.
pub fn matches_hostname(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix('*') {
        Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
        None => pattern == host,
    }
}

/// True if the text is a host name in lower case, with `*.` in front of it or without.
pub fn is_valid_hostname(text: &str) -> bool {
    let name = text.strip_prefix("*.").unwrap_or(text);
    let is_label = |label: &str| {
        let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intersections() {
        for (listener, route, expect) in [
            (None, "a.example", Some("a.example")),
            (Some("a.example"), "a.example", Some("a.example")),
            (Some("a.example"), "b.example", None),
            (Some("*.example"), "a.example", Some("a.example")),
            (Some("*.example"), "a.b.example", Some("a.b.example")),
            (Some("*.example"), "example", None),
            (Some("a.example"), "*.example", Some("a.example")),
            (Some("*.example"), "*.b.example", Some("*.b.example")),
            (Some("*.b.example"), "*.example", Some("*.b.example")),
            (Some("*.b.example"), "*.c.example", None),
            (Some("*.example"), "*.anexample", None),
        ] {
            assert_eq!(intersection(listener, route), expect, "{listener:?} {route}");
        }
    }

    #[test]
    fn valid_hostnames() {
        for (text, expect) in [
            ("a.example", true),
            ("*.example", true),
            ("*", false),
            ("*.*.example", false),
            ("A.example", false),
            ("a..example", false),
            ("-a.example", false),
            ("a.example:80", false),
            ("", false),
        ] {
            assert_eq!(is_valid_hostname(text), expect, "{text}");
        }
    }
}
