//! Cross-origin resource sharing: the model.

/// Cross-origin resource sharing (Fetch standard, section 3.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cors {
    /// Origins whose scripts may read responses.
    pub origins: Vec<OriginPattern>,
    /// Methods for requests that need a preflight; `*` is any.
    pub methods: Vec<String>,
    /// Header fields of such requests; `*` is any.
    pub headers: Vec<String>,
    /// Header fields of responses that scripts may read; `*` is any.
    pub exposed_headers: Vec<String>,
    /// Permits cookies and other credentials.
    pub allows_credentials: bool,
    /// Seconds for which clients may keep the response to a preflight.
    pub age_max_seconds: Option<u32>,
}

/// Origins of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginPattern {
    /// `*`: any.
    Any,
    /// `https://a.example`: just this, in lower case.
    Exact(String),
    /// `https://*.a.example`: the start up to the host, and the end from its dot.
    Below(String, String),
}

impl OriginPattern {
    /// Reads `*`, an origin, or an origin whose host begins with `*.`.
    ///
    /// # Errors
    /// The text is none of these.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let text = text.to_ascii_lowercase();
        let parts = text.split_once("://").filter(|(scheme, host)| {
            let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"/\\?#\"',".contains(&byte);
            !scheme.is_empty() && !host.is_empty() && host.bytes().all(is_plain)
        });
        match parts.map(|(scheme, host)| (scheme, host.strip_prefix('*').unwrap_or(host), host.starts_with('*'))) {
            Some((scheme, end, true)) if end.starts_with('.') && !end.contains('*') => {
                Ok(Self::Below(format!("{scheme}://"), end.to_owned()))
            }
            Some((_, host, false)) if !host.contains('*') => Ok(Self::Exact(text)),
            _ => Err(format!("{text:?} is no origin; write `https://a.example`, `https://*.a.example` or `*`")),
        }
    }

    /// True if an origin, as clients send it, is one of these.
    pub fn matches(&self, origin: &[u8]) -> bool {
        let has_end = |rest: &[u8], end: &str| {
            rest.len() > end.len() && rest[rest.len() - end.len()..].eq_ignore_ascii_case(end.as_bytes())
        };
        match self {
            Self::Any => true,
            Self::Exact(exact) => origin.eq_ignore_ascii_case(exact.as_bytes()),
            Self::Below(start, end) => origin
                .split_at_checked(start.len())
                .is_some_and(|(first, rest)| first.eq_ignore_ascii_case(start.as_bytes()) && has_end(rest, end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins() {
        for (pattern, origin, expect) in [
            ("*", "https://a.example", true),
            ("*", "null", true),
            ("https://a.example", "https://a.example", true),
            ("https://A.example", "HTTPS://a.example", true),
            ("https://a.example", "http://a.example", false),
            ("https://a.example", "https://a.example:8443", false),
            ("https://a.example", "https://a.example.evil", false),
            ("https://*.a.example", "https://b.a.example", true),
            ("https://*.a.example", "https://c.b.a.example", true),
            ("https://*.a.example", "https://a.example", false),
            ("https://*.a.example", "https://.a.example", false),
            ("https://*.a.example", "https://ba.example", false),
            ("https://*.a.example:8443", "https://b.a.example:8443", true),
            ("https://*.a.example", "null", false),
        ] {
            assert_eq!(OriginPattern::parse(pattern).unwrap().matches(origin.as_bytes()), expect, "{pattern} {origin}");
        }
        for text in ["", "a.example", "https://", "https://a*.example", "https://*", "https://a.example/", "://a"] {
            assert!(OriginPattern::parse(text).is_err(), "{text}");
        }
    }
}
