use std::fmt;

use super::{Host, Method};

/// Parsed request target (RFC 9112, section 3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTarget<'a> {
    /// Form of the target.
    pub form: TargetForm,
    /// Host in the target. In absolute-form it overrides the Host field (RFC 9112, section 3.2.2); authority-form has
    /// one, too. The name is never empty.
    pub host: Option<Host<'a>>,
    /// Path as sent, beginning with `/` and still encoded: see [`path::normalise`](super::path::normalise). `*` in
    /// asterisk-form; empty in authority-form.
    pub path: &'a [u8],
    /// Query as sent, without `?`.
    pub query: Option<&'a [u8]>,
}

/// Form of a request target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetForm {
    /// `/path?query`
    Origin,
    /// `http://host/path?query`
    Absolute,
    /// `host:port`, for CONNECT only.
    Authority,
    /// `*`, for OPTIONS only.
    Asterisk,
}

/// Error of an invalid request target; answer with 400 (RFC 9112, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidTarget;

impl fmt::Display for InvalidTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("malformed request target")
    }
}

impl std::error::Error for InvalidTarget {}

impl<'a> RequestTarget<'a> {
    /// Parses the target of a request with this method.
    ///
    /// Rejects control characters, spaces, bytes from 0x80 and fragments. Accepts a few bytes that RFC 3986 forbids,
    /// because clients send them unencoded: see `PATH` and `QUERY`. Normalization checks the percent-encoding of the
    /// path. The server never decodes the query, so invalid encodings are allowed there; `?q=100%` is common.
    pub fn parse(target: &'a [u8], method: Method) -> Result<Self, InvalidTarget> {
        match (target, method) {
            // RFC 9112, section 3.2.3: CONNECT must use authority-form, and no other method may.
            (_, Method::Connect) => parse_authority(target),
            ([b'/', ..], _) => parse_path_and_query(target, TargetForm::Origin, None),
            // RFC 9112, section 3.2.4: only OPTIONS may use asterisk-form.
            (b"*", Method::Options) => Ok(Self { form: TargetForm::Asterisk, host: None, path: target, query: None }),
            _ => parse_absolute(target),
        }
    }
}

/// `authority = uri-host ":" port`; both parts are required (RFC 9110, section 9.3.6).
fn parse_authority(target: &[u8]) -> Result<RequestTarget<'_>, InvalidTarget> {
    let host = Host::parse(target).map_err(|_| InvalidTarget)?;
    if host.port.is_none() {
        return Err(InvalidTarget);
    }
    Ok(RequestTarget { form: TargetForm::Authority, host: Some(host), path: b"", query: None })
}

/// Parses an `absolute-URI` with scheme http or https. Rejects user information, which only serves to deceive (RFC
/// 9110, section 4.2.4), and an empty host (section 4.2.1).
fn parse_absolute(target: &[u8]) -> Result<RequestTarget<'_>, InvalidTarget> {
    let rest = strip_scheme(target, b"http://").or_else(|| strip_scheme(target, b"https://")).ok_or(InvalidTarget)?;
    let authority_end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, path_and_query) = rest.split_at(authority_end);
    let host = Host::parse(authority).map_err(|_| InvalidTarget)?;
    if host.name.is_empty() {
        return Err(InvalidTarget);
    }
    parse_path_and_query(path_and_query, TargetForm::Absolute, Some(host))
}

/// Schemes are case-insensitive (RFC 3986, section 3.1).
fn strip_scheme<'a>(target: &'a [u8], scheme: &[u8]) -> Option<&'a [u8]> {
    let (start, rest) = target.split_at_checked(scheme.len())?;
    start.eq_ignore_ascii_case(scheme).then_some(rest)
}

fn parse_path_and_query<'a>(
    bytes: &'a [u8],
    form: TargetForm,
    host: Option<Host<'a>>,
) -> Result<RequestTarget<'a>, InvalidTarget> {
    let is = |class: u8| move |byte: &u8| BYTE_CLASSES[usize::from(*byte)] & class != 0;
    let path_end = bytes.iter().position(|byte| !is(PATH)(byte)).unwrap_or(bytes.len());
    let (path, rest) = bytes.split_at(path_end);
    let query = match rest {
        [] => None,
        [b'?', query @ ..] if query.iter().all(is(QUERY)) => Some(query),
        _ => return Err(InvalidTarget),
    };
    // An empty path means "/" (RFC 9110, section 4.2.3). Only absolute-form can have one.
    let path = if path.is_empty() { b"/" } else { path };
    Ok(RequestTarget { form, host, path, query })
}

/// Bytes of a path: `pchar` and `/` of RFC 3986, and in addition:
/// - `[ ] ^ |`, which the browsers' URL standard does not encode in a path;
/// - `` " < > ` { } ``, which programs and users of curl send (templates, JSON) and all common servers accept.
///
/// None of them has a meaning for file systems or in HTTP. The backslash is not among them: browsers convert it to `/`,
/// so a client that sends one means something else than the server.
const PATH: u8 = 1;

/// Bytes of a query: those of a path, `?`, and the backslash, which browsers do not change in a query.
const QUERY: u8 = 2;

static BYTE_CLASSES: [u8; 256] = byte_classes();

const fn byte_classes() -> [u8; 256] {
    let mut classes = [0; 256];
    let mut byte = 0x21;
    while byte <= 0x7e {
        classes[byte] = match byte as u8 {
            b'#' => 0,
            b'?' | b'\\' => QUERY,
            _ => PATH | QUERY,
        };
        byte += 1;
    }
    classes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{InvalidTarget, RequestTarget, TargetForm};
    use crate::http::{Host, Method};

    #[test]
    fn origin_form() {
        let check = |target: &str, path: &str, query: Option<&str>| {
            let parsed = RequestTarget::parse(target.as_bytes(), Method::Get);
            let (path, query) = (path.as_bytes(), query.map(str::as_bytes));
            assert_eq!(parsed, Ok(RequestTarget { form: TargetForm::Origin, host: None, path, query }), "{target:?}");
        };
        check("/", "/", None);
        check("/a/b.html", "/a/b.html", None);
        check("/?", "/", Some(""));
        check("/a?b=c&d", "/a", Some("b=c&d"));
        check("/a?b?c/d", "/a", Some("b?c/d"));
        check("//a", "//a", None);
        check("/a:80@b;c=d,e!$&'()*+", "/a:80@b;c=d,e!$&'()*+", None);
        check("/%zz?%", "/%zz", Some("%"));
        check("/a|b\"c^{d}[e]<f>`", "/a|b\"c^{d}[e]<f>`", None);
        check("/a?{\"b\":[1,2]}\\|^", "/a", Some("{\"b\":[1,2]}\\|^"));
        check("/http://example.com/", "/http://example.com/", None);
    }

    #[test]
    fn absolute_form() {
        let check = |target: &str, host: &str, port: Option<u16>, path: &str, query: Option<&str>| {
            let parsed = RequestTarget::parse(target.as_bytes(), Method::Get);
            let host = Some(Host { name: host.as_bytes(), port });
            let (path, query) = (path.as_bytes(), query.map(str::as_bytes));
            assert_eq!(parsed, Ok(RequestTarget { form: TargetForm::Absolute, host, path, query }), "{target:?}");
        };
        check("http://example.com/a?b", "example.com", None, "/a", Some("b"));
        check("http://example.com", "example.com", None, "/", None);
        check("http://example.com?a/b", "example.com", None, "/", Some("a/b"));
        check("HTTPS://Example.com:8443/", "Example.com", Some(8443), "/", None);
        check("http://[::1]:80//a", "[::1]", Some(80), "//a", None);
    }

    #[test]
    fn the_forms_of_single_methods() {
        let check = |target: &str, method: Method, form: Option<TargetForm>| {
            let parsed = RequestTarget::parse(target.as_bytes(), method).map(|target| target.form);
            assert_eq!(parsed, form.ok_or(InvalidTarget), "{target:?} {method:?}");
        };
        check("*", Method::Options, Some(TargetForm::Asterisk));
        check("*", Method::Get, None);
        check("**", Method::Options, None);
        check("*?a", Method::Options, None);
        check("example.com:443", Method::Connect, Some(TargetForm::Authority));
        check("[::1]:443", Method::Connect, Some(TargetForm::Authority));
        check("example.com", Method::Connect, None);
        check("example.com:", Method::Connect, None);
        check(":443", Method::Connect, None);
        check("/", Method::Connect, None);
        check("http://example.com/", Method::Connect, None);
        check("example.com:443", Method::Get, None);
    }

    #[test]
    fn rejected() {
        for target in [
            "",
            "a",
            "a/b",
            "?a",
            "/a b",
            "/a\tb",
            "/a\0",
            "/\x7f",
            "/é",
            "/a#b",
            "/a?b#c",
            "/a?b c",
            "/a\\b",
            "/a?\x01",
            "http://",
            "http:///a",
            "http://?a",
            "http://:80/",
            "http:/a",
            "http:a",
            "ftp://example.com/",
            "file:///etc/passwd",
            "http://user@example.com/",
            "http://user:pw@example.com/",
            "http://example.com#a",
            "http://example.com\\a",
            "http://exa mple.com/",
            "http://example.com:x/",
            "example.com/a",
        ] {
            assert_eq!(RequestTarget::parse(target.as_bytes(), Method::Get), Err(InvalidTarget), "{target:?}");
        }
    }

    proptest! {
        #[test]
        fn the_pieces_are_the_whole(target in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..40).prop_map(|mut bytes| { bytes.insert(0, b'/'); bytes }),
            "/[!-~]{0,30}".prop_map(String::into_bytes),
        ]) {
            if let Ok(parsed) = RequestTarget::parse(&target, Method::Get) {
                let mut joined = parsed.path.to_vec();
                if let Some(query) = parsed.query {
                    joined.push(b'?');
                    joined.extend_from_slice(query);
                }
                prop_assert_eq!(&joined, &target);
                prop_assert!(parsed.path.starts_with(b"/"));
                prop_assert!(target.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'#'));
                let absolute = [b"http://h".as_slice(), &target].concat();
                let absolute = RequestTarget::parse(&absolute, Method::Get).unwrap();
                prop_assert_eq!((absolute.path, absolute.query), (parsed.path, parsed.query));
            }
        }
    }
}
