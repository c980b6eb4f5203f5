//! Changes of an upstream's response: URLs in `Location` and `Refresh`, cookies, and texts in the content.

use std::sync::Arc;

use wire::http::{Fields, Status};

use super::substitution::{Patterns, SubstitutedContent};
use crate::config::{ForwardConfig, ResponseRewrites, TextRewrite};
use crate::handler::{Body, BuiltResponse, ContentStream, Segment};

/// Content up to this length that is there at once is changed at once, and keeps a known length.
const AT_ONCE_BYTES_MAX: u64 = 64 << 10;

/// Most bytes of a changed content that is kept whole.
const CHANGED_BYTES_MAX: usize = 1 << 20;

/// Fields that describe the bytes of the upstream's content.
const OF_BYTES: [&str; 5] = ["Accept-Ranges", "Content-MD5", "Content-Digest", "Repr-Digest", "Digest"];

/// Changes of a handler's responses, prepared for use.
#[derive(Debug)]
pub(super) struct Rewriter {
    rewrites: Arc<ResponseRewrites>,
    /// Prefix that the upstream does not see.
    prefix: String,
    /// Texts to replace in content, if there are any.
    patterns: Option<Arc<Patterns>>,
}

impl Rewriter {
    /// Changes of a configuration; `None` if it has none.
    pub(super) fn new(config: &ForwardConfig) -> Option<Self> {
        let rewrites = config.rewrites.as_ref()?;
        let patterns = (!rewrites.substitutions.is_empty()).then(|| Arc::new(Patterns::new(&rewrites.substitutions)));
        Some(Self { rewrites: Arc::clone(rewrites), prefix: config.strip_prefix.clone(), patterns })
    }

    /// Changes a response. `hosts` are names that the upstream may use for itself.
    pub(super) fn apply(&self, response: &mut BuiltResponse, hosts: &[&[u8]]) {
        if self.rewrites.changes_heads() {
            let mut fields = Fields::new();
            for (name, value) in response.fields.iter() {
                match self.changed(name, value, hosts) {
                    Some(changed) => fields.push(name, changed),
                    None => fields.push(name, value),
                };
            }
            response.fields = fields;
        }
        if let Some(patterns) = &self.patterns
            && self.is_searched(response.status, &response.fields)
        {
            substitute(response, patterns);
        }
    }

    /// New value of a field, if it changes.
    fn changed(&self, name: &[u8], value: &[u8], hosts: &[&[u8]]) -> Option<Vec<u8>> {
        match name.len() {
            8 if name.eq_ignore_ascii_case(b"Location") => self.location(value, hosts),
            7 if name.eq_ignore_ascii_case(b"Refresh") => {
                let at = memchr::memchr(b'=', value).map(|at| at + 1)?;
                let quote = usize::from(matches!(value.get(at), Some(b'"' | b'\'')));
                let (before, url) = value.split_at(at + quote);
                Some([before, &self.location(url, hosts)?].concat())
            }
            10 if name.eq_ignore_ascii_case(b"Set-Cookie") => self.cookie(value),
            _ => None,
        }
    }

    fn location(&self, url: &[u8], hosts: &[&[u8]]) -> Option<Vec<u8>> {
        if let Some(changed) = begin_replaced(url, &self.rewrites.locations) {
            return Some(changed);
        }
        if !self.rewrites.is_location_automatic {
            return None;
        }
        let path = match url {
            [b'/', b'/', ..] => return None,
            [b'/', ..] => url,
            _ => {
                let rest = strip_scheme(url)?;
                let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#')).unwrap_or(rest.len());
                let (host, path) = rest.split_at(end);
                hosts.iter().any(|known| known.eq_ignore_ascii_case(host)).then_some(path)?
            }
        };
        let slash: &[u8] = if path.starts_with(b"/") { b"" } else { b"/" };
        Some([self.prefix.as_bytes(), slash, path].concat())
    }

    fn cookie(&self, value: &[u8]) -> Option<Vec<u8>> {
        let ResponseRewrites { cookie_domains, cookie_paths, .. } = &*self.rewrites;
        if cookie_domains.is_empty() && cookie_paths.is_empty() {
            return None;
        }
        let mut changed = Vec::with_capacity(value.len());
        for (index, attribute) in value.split(|byte| *byte == b';').enumerate() {
            let at = memchr::memchr(b'=', attribute).unwrap_or(attribute.len());
            let (name, rest) = (attribute[..at].trim_ascii(), attribute[at..].strip_prefix(b"=").unwrap_or_default());
            let is = |wanted: &[u8]| index > 0 && name.eq_ignore_ascii_case(wanted);
            let new = match () {
                () if is(b"domain") => domain(rest.trim_ascii(), cookie_domains),
                () if is(b"path") => begin_replaced(rest.trim_ascii(), cookie_paths),
                () => None,
            };
            if new.as_ref().is_some_and(Vec::is_empty) {
                continue;
            }
            if index > 0 {
                changed.push(b';');
            }
            match new {
                Some(new) => {
                    changed.extend_from_slice(&attribute[..at]);
                    changed.push(b'=');
                    changed.extend_from_slice(&new);
                }
                None => changed.extend_from_slice(attribute),
            }
        }
        Some(changed)
    }

    /// True if texts in the content of a response with this head are replaced.
    fn is_searched(&self, status: Status, fields: &Fields) -> bool {
        let is_whole = !matches!(status, Status::PARTIAL_CONTENT | Status::SWITCHING_PROTOCOLS);
        let is_type = |value: &[u8]| {
            let end = value.iter().position(|byte| *byte == b';').unwrap_or(value.len());
            let media_type = value[..end].trim_ascii();
            let mut others = self.rewrites.substitute_types.iter();
            media_type.eq_ignore_ascii_case(b"text/html")
                || others.any(|other| media_type.eq_ignore_ascii_case(other.as_bytes()))
        };
        let is_plain = |coding: &[u8]| coding.is_empty() || coding.eq_ignore_ascii_case(b"identity");
        let forbids = |value: &[u8]| {
            value.split(|byte| *byte == b',').any(|one| one.trim_ascii().eq_ignore_ascii_case(b"no-transform"))
        };
        is_whole
            && fields.get("Content-Type").is_some_and(is_type)
            && fields.values(b"content-encoding").all(is_plain)
            && !fields.values(b"cache-control").any(forbids)
    }
}

fn strip_scheme(url: &[u8]) -> Option<&[u8]> {
    [&b"http://"[..], b"https://"].iter().find_map(|scheme| {
        let begin = url.get(..scheme.len())?;
        begin.eq_ignore_ascii_case(scheme).then(|| &url[scheme.len()..])
    })
}

/// Text with its beginning replaced by the first rewrite that fits.
fn begin_replaced(text: &[u8], rewrites: &[TextRewrite]) -> Option<Vec<u8>> {
    rewrites.iter().find_map(|rewrite| {
        let rest = text.strip_prefix(rewrite.from.as_bytes())?;
        Some([rewrite.to.as_bytes(), rest].concat())
    })
}

/// New value of Domain; empty to remove it.
fn domain(value: &[u8], rewrites: &[TextRewrite]) -> Option<Vec<u8>> {
    // RFC 6265, section 5.2.3: a leading dot has no meaning.
    let plain = |domain: &[u8]| domain.strip_prefix(b".").unwrap_or(domain).to_ascii_lowercase();
    let fits = |rewrite: &&TextRewrite| rewrite.from == "*" || plain(value) == plain(rewrite.from.as_bytes());
    rewrites.iter().find(fits).map(|rewrite| rewrite.to.clone().into_bytes())
}

/// Replaces texts in a response's content.
fn substitute(response: &mut BuiltResponse, patterns: &Arc<Patterns>) {
    for name in OF_BYTES {
        if response.fields.has(name) {
            response.fields.remove(name);
        }
    }
    if let Some(etag) = response.fields.get("ETag").filter(|etag| !etag.starts_with(b"W/")) {
        let weak = [b"W/", etag].concat();
        response.fields.set("ETag", weak);
    }
    if let Some(forwarded) = &mut response.forwarded {
        // The length of the changed content is not known before.
        forwarded.content_length = None;
    }
    if response.body.is_empty() {
        return;
    }
    let length = response.body.length();
    let is_there = response.body.stream.is_none() && length.is_some_and(|length| length <= AT_ONCE_BYTES_MAX);
    let Body { segments, stream } = std::mem::take(&mut response.body);
    let mut beginning = Vec::new();
    for segment in &segments {
        if let Segment::Bytes(bytes) = segment {
            beginning.extend_from_slice(bytes);
        }
    }
    if is_there && let Some(changed) = patterns.replace_all(&beginning, CHANGED_BYTES_MAX) {
        response.body = Body::from_bytes(changed);
        return;
    }
    let source = Box::new(SubstitutedContent::new(Arc::clone(patterns), beginning, stream));
    response.body = Body { segments: Vec::new(), stream: Some(ContentStream { source, length: None }) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewriter(change: impl FnOnce(&mut ResponseRewrites), prefix: &str) -> Rewriter {
        let mut config = ForwardConfig::to("x");
        change(Arc::make_mut(config.rewrites.get_or_insert_default()));
        config.strip_prefix = prefix.into();
        Rewriter::new(&config).unwrap()
    }

    fn rewrite(from: &str, to: &str) -> TextRewrite {
        TextRewrite { from: from.into(), to: to.into() }
    }

    fn check(rewriter: &Rewriter, name: &str, value: &str, expect: &str) {
        let changed = rewriter.changed(name.as_bytes(), value.as_bytes(), &[b"app:8080"]);
        let changed = changed.map_or(value.to_owned(), |changed| String::from_utf8(changed).unwrap());
        assert_eq!(changed, expect, "{name}: {value}");
    }

    #[test]
    fn locations() {
        let named = rewriter(
            |rewrites| {
                rewrites.locations = vec![rewrite("http://a/two/", "/one/"), rewrite("http://a/", "https://b/")];
            },
            "",
        );
        check(&named, "Location", "http://a/two/x", "/one/x");
        check(&named, "location", "http://a/x", "https://b/x");
        check(&named, "Location", "http://c/", "http://c/");
        check(&named, "Refresh", "5; url=http://a/x", "5; url=https://b/x");
        check(&named, "Refresh", "5; URL='http://a/x'", "5; URL='https://b/x'");
        check(&named, "Refresh", "5", "5");
        check(&named, "X-Location", "http://a/", "http://a/");
        let automatic = rewriter(|rewrites| rewrites.is_location_automatic = true, "/app");
        check(&automatic, "Location", "http://app:8080/x?y", "/app/x?y");
        check(&automatic, "Location", "HTTPS://APP:8080", "/app/");
        check(&automatic, "Location", "http://app:8080?x", "/app/?x");
        check(&automatic, "Location", "/x", "/app/x");
        check(&automatic, "Location", "//app:8080/x", "//app:8080/x");
        check(&automatic, "Location", "http://app:80801/x", "http://app:80801/x");
        check(&automatic, "Location", "x", "x");
    }

    #[test]
    fn cookies() {
        let named = rewriter(
            |rewrites| {
                rewrites.cookie_domains = vec![rewrite("app.internal", "example.org"), rewrite("gone", "")];
                rewrites.cookie_paths = vec![rewrite("/", "/app/")];
            },
            "",
        );
        check(&named, "Set-Cookie", "a=/; Path=/; Secure", "a=/; Path=/app/; Secure");
        check(&named, "Set-Cookie", "path=/; Domain=.App.Internal; path=/x", "path=/; Domain=example.org; path=/app/x");
        check(&named, "Set-Cookie", "a=b; Domain=gone; HttpOnly", "a=b; HttpOnly");
        check(&named, "Set-Cookie", "a=b; Domain=other", "a=b; Domain=other");
        let any = rewriter(|rewrites| rewrites.cookie_domains = vec![rewrite("*", "b")], "");
        check(&any, "Set-Cookie", "a=b; Domain=other; Path=/", "a=b; Domain=b; Path=/");
    }

    #[test]
    fn searched_content() {
        let rewriter = rewriter(|rewrites| rewrites.substitute_types = vec!["text/css".into()], "");
        let check = |status: Status, lines: &[(&str, &str)], expect: bool| {
            let mut fields = Fields::new();
            lines.iter().for_each(|(name, value)| _ = fields.push(name, value));
            assert_eq!(rewriter.is_searched(status, &fields), expect, "{lines:?}");
        };
        let html = ("Content-Type", "Text/HTML; charset=utf-8");
        check(Status::OK, &[html], true);
        check(Status::NOT_FOUND, &[("Content-Type", "text/css")], true);
        check(Status::OK, &[html, ("Content-Encoding", "identity")], true);
        check(Status::OK, &[html, ("Content-Encoding", "gzip")], false);
        check(Status::OK, &[html, ("Cache-Control", "private, No-Transform")], false);
        check(Status::PARTIAL_CONTENT, &[html], false);
        check(Status::OK, &[("Content-Type", "text/plain")], false);
        check(Status::OK, &[], false);
    }
}
