//! Cache keys: the URL of a request, and other parts of it that can change the upstream's response.

use memchr::{memchr, memchr2, memchr3, memmem};
use wire::http::KnownField;
use wire::http::forwarding::is_same_field;

use crate::config::{ClientFields, ForwardConfig, NamePattern, ResponseCaching};
use crate::handler::Routed;

/// Separator between the URL and the variant, for URLs with several responses.
pub(super) const VARIANT_MARK: u8 = 0;

/// Separator between the URL and a field that overrides part of it.
const OVERRIDE_MARK: u8 = 1;

/// Scheme in all keys. HTTPS requests differ by X-Forwarded-Proto, so that purging a URL removes both its plain and
/// its TLS responses.
pub(super) const SCHEME: &str = "http";

/// Rules that turn requests into cache keys.
#[derive(Debug)]
pub(super) struct KeyRules {
    has_host: bool,
    /// Query parameters that are part of the key; empty for all.
    parameters: Vec<NamePattern>,
    /// Query parameters that are left out of the key.
    ignored_parameters: Vec<NamePattern>,
    /// True if the upstream sees clients' own Forwarded and X-Forwarded-*, not only those of trusted proxies.
    keeps_client_fields: bool,
    /// True if the upstream sees the original target as well as the rewritten one.
    tells_target_asked: bool,
}

impl KeyRules {
    pub(super) fn new(caching: &ResponseCaching, forward: &ForwardConfig) -> Self {
        Self {
            has_host: caching.key_host,
            parameters: caching.key_parameters.clone(),
            ignored_parameters: caching.ignored_parameters.clone(),
            keeps_client_fields: forward.client_fields == ClientFields::Keep,
            tells_target_asked: forward.tells_target_asked,
        }
    }

    /// Writes a request's key. Scheme, host and port are as sent, because an upstream may put them into its response.
    /// The path is as sent, because its decoded form may name another resource. Then come the query, except ignored
    /// parameters, and fields that override any of these.
    pub(super) fn write_key(&self, routed: &Routed<'_>, out: &mut Vec<u8>) {
        let request = &routed.request;
        let target = request.target();
        let (authority, path_and_query) = split_target(target, request.field(KnownField::Host).unwrap_or_default());
        self.write_url(authority, path_and_query, out);
        if routed.tls.is_some() {
            // In the form in which the upstream sees it.
            self.write_override(b"x-forwarded-proto", b"https", true, out);
        }
        for field in &request.head.fields {
            if field.known == KnownField::Other {
                let (name, value) = (field.name.of(request.bytes), field.value.of(request.bytes));
                self.write_override(name, value, routed.proxied.is_some() || field.is_set_here, out);
            }
        }
        let identity = request.head.identity.of(request.bytes);
        if !identity.is_empty() {
            out.push(OVERRIDE_MARK);
            out.extend_from_slice(b"identity=");
            out.extend_from_slice(identity);
        }
        if self.tells_target_asked && request.target_asked() != target {
            // No field has this name.
            out.push(OVERRIDE_MARK);
            out.extend_from_slice(b"target=");
            self.write_path_and_query(split_target(request.target_asked(), b"").1, out);
        }
    }

    /// Writes the key of a path and query on a host.
    pub(super) fn write_url(&self, authority: &[u8], path_and_query: &[u8], out: &mut Vec<u8>) {
        out.clear();
        out.extend_from_slice(SCHEME.as_bytes());
        out.extend_from_slice(b"://");
        if self.has_host {
            out.extend(authority.iter().map(u8::to_ascii_lowercase));
        }
        if !path_and_query.starts_with(b"/") {
            out.push(b'/');
        }
        self.write_path_and_query(path_and_query, out);
    }

    fn write_path_and_query(&self, path_and_query: &[u8], out: &mut Vec<u8>) {
        let chooses = !self.parameters.is_empty() || !self.ignored_parameters.is_empty();
        match memchr(b'?', path_and_query).filter(|_| chooses) {
            None => out.extend_from_slice(path_and_query),
            Some(at) => {
                out.extend_from_slice(&path_and_query[..at]);
                self.write_query(&path_and_query[at + 1..], out);
            }
        }
    }

    fn write_query(&self, query: &[u8], out: &mut Vec<u8>) {
        let mut separator = b'?';
        for parameter in query.split(|&byte| byte == b'&') {
            let name = &parameter[..memchr(b'=', parameter).unwrap_or(parameter.len())];
            if self.counts(name) || memchr(b';', parameter).is_some() {
                // Some servers split parameters at a semicolon: the second one must not hide in an ignored parameter
                // (parameter cloaking).
                out.push(separator);
                out.extend_from_slice(parameter);
                separator = b'&';
            }
        }
    }

    /// True if a parameter is part of the key. Ignored patterns match the name as written, because every decoding
    /// keeps its beginning. For a list of counted names that is not safe: servers decode names, cut them at a
    /// bracket, turn dots into underscores or ignore case. So only plain names are left out.
    fn counts(&self, name: &[u8]) -> bool {
        let is_plain =
            |name: &[u8]| name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
        !self.ignored_parameters.iter().any(|pattern| pattern.matches(name))
            && (self.parameters.is_empty()
                || !is_plain(name)
                || self.parameters.iter().any(|pattern| pattern.matches_in_any_case(name)))
    }

    /// True if upstreams get our value in this field (lower case), not the client's, and the key lacks it.
    pub(super) fn is_written_by_us(&self, name: &[u8]) -> bool {
        let is_any = |names: &[&[u8]]| names.iter().any(|other| is_same_field(name, other));
        is_any(&[b"via"])
            || (!self.keeps_client_fields && is_any(&[b"forwarded", b"x-forwarded-for"]))
            // Comes from the target, if that has a host.
            || (!self.has_host && is_any(&[b"host", b"x-forwarded-host"]))
    }

    /// Writes a field that makes applications see another URL, scheme or method. A request with such a field gets a
    /// response of its own, and so can't poison the cache for others.
    pub(super) fn write_override(&self, name: &[u8], value: &[u8], is_passed_on: bool, out: &mut Vec<u8>) {
        // Shortest relevant name, and first letters of relevant names.
        if name.len() < b"x-host".len() || !matches!(name[0] | 0x20, b'x' | b'f') {
            return;
        }
        let is_of_way = is_same_field(name, b"x-forwarded-for") || is_same_field(name, b"x-forwarded-by");
        let is_forwarded = is_same_field(name, b"forwarded");
        let is_override =
            match is_forwarded || name.get(..12).is_some_and(|begin| is_same_field(begin, b"x-forwarded-")) {
                // Otherwise our own values replace them, and the key says the same.
                true => !is_of_way && (self.keeps_client_fields || is_passed_on),
                false => OVERRIDES.iter().any(|other| is_same_field(name, other)),
            };
        if !is_override {
            return;
        }
        out.push(OVERRIDE_MARK);
        out.extend(name.iter().map(|&byte| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() }));
        out.push(b'=');
        match is_forwarded {
            true => write_forwarded(value, out),
            false => out.extend_from_slice(value),
        }
    }
}

/// Fields that make applications see another URL or method, as well as X-Forwarded-*. Frameworks and gateways are
/// known to read them.
const OVERRIDES: [&[u8]; 12] = [
    b"front-end-https",
    b"x-host",
    b"x-http-host-override",
    b"x-http-method",
    b"x-http-method-override",
    b"x-method-override",
    b"x-original-host",
    b"x-original-uri",
    b"x-original-url",
    b"x-rewrite-url",
    b"x-scheme",
    b"x-url-scheme",
];

/// Writes the part of Forwarded (RFC 7239) about the request: all except `for` and `by`.
fn write_forwarded(value: &[u8], out: &mut Vec<u8>) {
    for pair in value.split(|byte| matches!(byte, b',' | b';')).map(<[u8]>::trim_ascii) {
        let is_of_way = pair.get(..4).is_some_and(|begin| begin.eq_ignore_ascii_case(b"for="))
            || pair.get(..3).is_some_and(|begin| begin.eq_ignore_ascii_case(b"by="));
        if !is_of_way {
            out.extend_from_slice(pair);
            out.push(b';');
        }
    }
}

/// Splits into authority, and path and query. An absolute target (RFC 9112, section 3.2.2) overrides the Host field.
pub(super) fn split_target<'a>(target: &'a [u8], host: &'a [u8]) -> (&'a [u8], &'a [u8]) {
    if target.starts_with(b"/") {
        return (host, target);
    }
    // Parsed before; any other form never reaches the cache.
    let rest = memmem::find(target, b"://").map_or(target, |at| &target[at + 3..]);
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    rest.split_at(end)
}

/// Part of a key before its variant and overrides: the URL.
pub(super) fn url_of_key(key: &[u8]) -> &[u8] {
    let end = key.iter().position(|byte| matches!(*byte, VARIANT_MARK | OVERRIDE_MARK)).unwrap_or(key.len());
    &key[..end]
}

/// True if a path has segments that some server resolves to another path: `..` and `.`, encoded once or twice, with
/// parameters (`..;`), after a backslash. Servers resolve them differently: the path may be below a cached one here,
/// and below another there (cache deception).
#[inline]
pub(super) fn leads_elsewhere(path_and_query: &[u8]) -> bool {
    let path = &path_and_query[..memchr(b'?', path_and_query).unwrap_or(path_and_query.len())];
    let may_lead = memchr2(b'%', b'\\', path).is_some() || memmem::find(path, b"/.").is_some();
    may_lead && has_dot_segments(path)
}

/// True if servers disagree on where a path ends. Some begin parameters at a semicolon, or decode delimiters (`;`,
/// `?`, `#`, `/`, a backslash, control bytes, encoded once or twice). So `/account;a.css` may be the file here, and
/// the account there (cache deception).
pub(super) fn is_ambiguous(path_and_query: &[u8]) -> bool {
    let path = &path_and_query[..memchr(b'?', path_and_query).unwrap_or(path_and_query.len())];
    if memchr3(b'%', b';', b'\\', path).is_none() {
        return false;
    }
    let mut rest = path;
    while let Some((byte, after)) = decode_twice(rest) {
        let is_encoded = rest.len() - after.len() > 1;
        match byte {
            b';' | b'\\' | ..=0x1f | 0x7f => return true,
            b'/' | b'?' | b'#' if is_encoded => return true,
            _ => rest = after,
        }
    }
    false
}

#[cold]
fn has_dot_segments(path: &[u8]) -> bool {
    // Dots in a segment that has only dots; `None` for any other segment.
    let (mut dots, mut is_in_parameters) = (Some(0), false);
    let mut rest = path;
    while let Some((byte, after)) = decode_twice(rest) {
        rest = after;
        match byte {
            b'/' | b'\\' if matches!(dots, Some(1 | 2)) => return true,
            b'/' | b'\\' => (dots, is_in_parameters) = (Some(0), false),
            b';' => is_in_parameters = true,
            _ if is_in_parameters => {}
            b'.' => dots = dots.map(|dots| dots + 1),
            _ => dots = None,
        }
    }
    matches!(dots, Some(1 | 2))
}

/// Splits off the first byte, decoded up to twice.
fn decode_twice(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let [high, low, rest_of_encoded @ ..] = rest else { return Some((first, rest)) };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    match (first, digit(*high), digit(*low)) {
        // Decoding `%252e` once leaves `%2e`.
        (b'%', Some(2), Some(5)) if rest_of_encoded.len() >= 2 => {
            let [high, low, after @ ..] = rest_of_encoded else { return None };
            match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => Some(((high << 4 | low) as u8, after)),
                _ => Some((b'%', rest_of_encoded)),
            }
        }
        (b'%', Some(high), Some(low)) => Some(((high << 4 | low) as u8, rest_of_encoded)),
        _ => Some((first, rest)),
    }
}

#[cfg(test)]
mod tests {
    use wire::h1::{HeadLimits, parse_request_head};
    use wire::http::{Request, RequestHead};

    use super::*;
    use crate::config::ForwardedField;
    use crate::handler::{ClientLinkCell, Now, Proxied};
    use crate::log::LogClient;

    fn rules(change: impl FnOnce(&mut ResponseCaching, &mut ForwardConfig)) -> KeyRules {
        let (mut caching, mut forward) = (ResponseCaching::default(), ForwardConfig::to("x"));
        change(&mut caching, &mut forward);
        KeyRules::new(&caching, &forward)
    }

    fn patterns(patterns: &[&str]) -> Vec<NamePattern> {
        patterns.iter().map(|pattern| NamePattern::new(pattern)).collect()
    }

    /// Key of a GET with this target and these fields as lines.
    fn key(rules: &KeyRules, target: &str, lines: &str) -> String {
        key_of(rules, target, lines, None)
    }

    fn key_of(rules: &KeyRules, target: &str, lines: &str, proxied: Option<Proxied>) -> String {
        let bytes = format!("GET {target} HTTP/1.1\r\n{}\r\n", lines.replace('\n', "\r\n")).into_bytes();
        let mut head = RequestHead::default();
        let limits = HeadLimits { head_bytes_max: 4096, fields_max: 99, target_bytes_max: 999 };
        parse_request_head(&bytes, &mut head, &limits).unwrap().unwrap();
        let mut key = b"rest".to_vec();
        let routed = Routed {
            request: Request { head: &head, bytes: &bytes },
            path: b"/",
            query: None,
            host: b"h",
            client: LogClient::Unix,
            tls: None,
            proxied,
            trace: None,
            locations: None,
            link: &ClientLinkCell::default(),
            has_next: false,
            now: Now::read(),
        };
        rules.write_key(&routed, &mut key);
        String::from_utf8(key).unwrap()
    }

    #[test]
    fn urls() {
        let ignoring = rules(|caching, _| caching.ignored_parameters = patterns(&["utm_*", "fbclid"]));
        let check = |rules: &KeyRules, target: &str, host: &str, expect: &str| {
            assert_eq!(key(rules, target, &format!("Host: {host}\n")), expect, "{target} {host}");
        };
        check(&ignoring, "/", "Example.org", "http://example.org/");
        check(&ignoring, "/a%2Fb//c?", "h:81", "http://h:81/a%2Fb//c?");
        check(&ignoring, "/a?x=1&utm_source=y&&Z", "h", "http://h/a?x=1&&Z");
        check(&ignoring, "/a?fbclid=1&utm_", "h", "http://h/a");
        check(&ignoring, "/a?fbclid2=1&fbclid", "h", "http://h/a?fbclid2=1");
        check(&ignoring, "http://H2:81/b?c", "h", "http://h2:81/b?c");
        check(&ignoring, "http://h2?c", "h", "http://h2/?c");
        check(&ignoring, "http://h2", "h", "http://h2/");
        // Parameter cloaking.
        check(&ignoring, "/a?utm_source=1;b=2&x", "h", "http://h/a?utm_source=1;b=2&x");
        // Other spellings of the same host are other hosts: an upstream may repeat the spelling.
        check(&ignoring, "/", "h.", "http://h./");
        check(&ignoring, "/", "h:80", "http://h:80/");

        let choosing = rules(|caching, _| caching.key_parameters = patterns(&["page", "q"]));
        check(&choosing, "/a?x=1&page=2&page", "h", "http://h/a?page=2&page");
        check(&choosing, "/a?x=1", "h", "http://h/a");
        // Spellings that some language decodes to a counted parameter.
        for other in ["%70age=3", "page[]=3", "page%5B%5D=3", "+page=3", "%20page=3", "PAGE=3", "pa.ge=3", "page%00=3"]
        {
            check(&choosing, &format!("/a?x=1&{other}"), "h", &format!("http://h/a?{other}"));
        }
        check(&choosing, "/a?pages=1&_=2&x-page=3", "h", "http://h/a");
        let none = rules(|caching, _| caching.ignored_parameters = patterns(&["*"]));
        check(&none, "/a?x=1&y", "h", "http://h/a");
        let any_host = rules(|caching, _| caching.key_host = false);
        check(&any_host, "http://h2/b?c", "h", "http:///b?c");
    }

    #[test]
    fn fields_that_name_another_url() {
        let check = |rules: &KeyRules, lines: &str, expect: &str| {
            let lines = format!("Host: h\n{lines}\n");
            assert_eq!(key(rules, "/", &lines), format!("http://h/{expect}"), "{lines}");
        };
        let usual = rules(|_, _| {});
        let keeping = rules(|_, forward| forward.client_fields = ClientFields::Keep);
        for line in ["X: y", "X-Forwarded-For: 1", "Accept: x", "X-Requested-With: x", "Fetch: x", "X-Real-IP: 1"] {
            check(&usual, line, "");
            check(&keeping, line, "");
        }
        check(&usual, "X-Original-URL: /admin", "\u{1}x-original-url=/admin");
        check(
            &usual,
            "X_Rewrite_URL: /a\nX-HTTP-Method-Override: PUT",
            "\u{1}x-rewrite-url=/a\u{1}x-http-method-override=PUT",
        );
        // Tailcoat removes these fields.
        check(&usual, "X-Forwarded-Host: evil\nX-Forwarded-Proto: x\nForwarded: host=evil\nX-Forwarded-Port: 81", "");
        check(&keeping, "X-Forwarded-Host: evil", "\u{1}x-forwarded-host=evil");
        check(&keeping, "X_Forwarded_Port: 81", "\u{1}x-forwarded-port=81");
        check(&keeping, "Forwarded: For=1;host=a;proto=b, by=2", "\u{1}forwarded=host=a;proto=b;");
        let proxied = Proxied { peer: LogClient::Unix, field: ForwardedField::XForwardedFor, entries: 1 };
        let key = key_of(&usual, "/", "Host: h\nX-Forwarded-For: 1\nX-Forwarded-Proto: https\n", Some(proxied));
        assert_eq!(key, "http://h/\u{1}x-forwarded-proto=https");
    }

    #[test]
    fn fields_that_we_write() {
        let usual = rules(|_, _| {});
        let keeping = rules(|_, forward| forward.client_fields = ClientFields::Keep);
        let any_host = rules(|caching, _| caching.key_host = false);
        for (name, expect) in [
            ("via", [true, true, true]),
            ("forwarded", [true, false, true]),
            ("x-forwarded-for", [true, false, true]),
            ("x_forwarded_for", [true, false, true]),
            ("x-forwarded-host", [false, false, true]),
            ("host", [false, false, true]),
            ("x-forwarded-proto", [false, false, false]),
            ("accept", [false, false, false]),
        ] {
            let found = [&usual, &keeping, &any_host].map(|rules| rules.is_written_by_us(name.as_bytes()));
            assert_eq!(found, expect, "{name}");
        }
    }

    #[test]
    fn paths_that_end_elsewhere() {
        let check = |target: &str, expect: bool| assert_eq!(is_ambiguous(target.as_bytes()), expect, "{target}");
        for target in ["/", "/a.css", "/a%20b%41", "/a?b;c%3f", "/%", "/%2", "/a%25", "/a%2541"] {
            check(target, false);
        }
        for target in [
            "/a;b.css",
            "/a%3bb.css",
            "/a%3Fb.css",
            "/a%23.css",
            "/a%2fb.css",
            "/a%0a.css",
            "/a%00.css",
            "/a%253b.css",
            "/a\\b.css",
            "/a%5cb.css",
            "/a%7f",
        ] {
            check(target, true);
        }
    }

    #[test]
    fn paths_that_lead_elsewhere() {
        let check = |target: &str, expect: bool| assert_eq!(leads_elsewhere(target.as_bytes()), expect, "{target}");
        for target in [
            "/",
            "/a.css",
            "/.a",
            "/..a",
            "/...",
            "/a%20b",
            "/a%2fb",
            "/%",
            "/%2",
            "/%zz",
            "/a;b",
            "/a?/../",
            "/%25%2e%2e/",
        ] {
            check(target, false);
        }
        for target in [
            "/..",
            "/.",
            "/a/../b",
            "/a/./b",
            "/%2e%2E/a",
            "/a/.%2e",
            "/a%2f..%2fb",
            "/a/%252e%252e/b",
            "/a%252f..",
            "/a/..;/b",
            "/a/..;x=y",
            "/a/..%3b/b",
            "/a\\..\\b",
            "/a/..%5cb",
        ] {
            check(target, true);
        }
    }
}
