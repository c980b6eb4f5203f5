//! Cookies of a user (RFC 6265), of a single server.

/// Cookies of a user. There is one server, so Domain and Secure have no effect.
#[derive(Clone, Debug, Default)]
pub(super) struct CookieJar(Vec<Cookie>);

#[derive(Clone, Debug)]
struct Cookie {
    name: Vec<u8>,
    value: Vec<u8>,
    path: Vec<u8>,
}

impl CookieJar {
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Stores or removes the cookie of a Set-Cookie field. `target` is that of the request.
    pub(super) fn set(&mut self, field: &[u8], target: &[u8]) {
        let mut parts = field.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let first = parts.next().unwrap_or_default();
        let Some(at) = first.iter().position(|&byte| byte == b'=').filter(|&at| at > 0) else { return };
        let mut path = default_path(target);
        let mut is_expired = false;
        for part in parts {
            let at = part.iter().position(|&byte| byte == b'=').unwrap_or(part.len());
            let value = part.get(at + 1..).unwrap_or_default().trim_ascii();
            match &part[..at].to_ascii_lowercase()[..] {
                b"path" if value.starts_with(b"/") => path = value,
                // Servers remove cookies by a time in the past; all of them use the first year of the clock.
                b"max-age" => is_expired = value.starts_with(b"-") || value == b"0",
                b"expires" => is_expired |= value.windows(4).any(|year| year == b"1970" || year == b"-70 "),
                _ => {}
            }
        }
        let (name, value) = (first[..at].trim_ascii(), first[at + 1..].trim_ascii());
        self.0.retain(|cookie| (cookie.name.as_slice(), cookie.path.as_slice()) != (name, path));
        if !is_expired {
            self.0.push(Cookie { name: name.to_vec(), value: value.to_vec(), path: path.to_vec() });
        }
    }

    /// Writes the value of the Cookie field for a target. Returns whether there is one.
    pub(super) fn write(&self, target: &[u8], out: &mut Vec<u8>) -> bool {
        let mut is_any = false;
        for cookie in self.0.iter().filter(|cookie| is_below(target, &cookie.path)) {
            out.extend_from_slice(if is_any { b"; " } else { b"Cookie: " });
            out.extend_from_slice(&cookie.name);
            out.push(b'=');
            out.extend_from_slice(&cookie.value);
            is_any = true;
        }
        is_any
    }
}

/// Path without the query.
fn path_of(target: &[u8]) -> &[u8] {
    target.split(|&byte| byte == b'?').next().unwrap_or_default()
}

/// Path of a cookie without one (RFC 6265, section 5.1.4).
fn default_path(target: &[u8]) -> &[u8] {
    let path = path_of(target);
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at @ 1..) => &path[..at],
        _ => b"/",
    }
}

/// Path matching of RFC 6265, section 5.1.4.
fn is_below(target: &[u8], path: &[u8]) -> bool {
    match path_of(target).strip_prefix(path) {
        Some(rest) => rest.is_empty() || path.ends_with(b"/") || rest.starts_with(b"/"),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies() {
        let mut jar = CookieJar::default();
        for (field, target) in [
            ("a=1; Path=/; HttpOnly", "/login?x=/y/z"),
            ("b=2", "/shop/cart"),
            ("c=3; path=/other", "/"),
            ("a=4; Path=/", "/"),
            ("d=5; Path=/; Max-Age=60", "/"),
            ("e=6; Path=/", "/"),
            ("e=; Path=/; Max-Age=0", "/"),
            ("f=7; Path=/", "/"),
            ("f=; Path=/; Expires=Thu, 01 Jan 1970 00:00:00 GMT", "/"),
            ("=x", "/"),
            ("", "/"),
        ] {
            jar.set(field.as_bytes(), target.as_bytes());
        }
        for (target, expect) in [
            ("/", "Cookie: a=4; d=5"),
            ("/shop/list?a", "Cookie: b=2; a=4; d=5"),
            ("/shopping", "Cookie: a=4; d=5"),
            ("/other", "Cookie: c=3; a=4; d=5"),
        ] {
            let mut out = Vec::new();
            assert!(jar.write(target.as_bytes(), &mut out));
            assert_eq!(String::from_utf8_lossy(&out), expect, "{target}");
        }
        jar.clear();
        assert!(!jar.write(b"/", &mut Vec::new()));
    }
}
