//! Internal redirects: an upstream names a path of the site in `X-Accel-Redirect`, or a file in `X-Sendfile`, and the
//! client gets what the site has there. Only paths that the configuration allows are obeyed.

use std::os::unix::ffi::OsStrExt;

use wire::http::{Fields, path};

use super::ForwardPlan;
use crate::config::{FieldAction, InternalRedirects};
use crate::handler::{FieldChange, InternalRedirect};
use crate::log::{LogClient, escaped, event};

const ACCEL_REDIRECT: &str = "X-Accel-Redirect";
const SENDFILE: &str = "X-Sendfile";

/// Fields of the upstream that replace those of the target, as in nginx.
const KEPT: [&str; 4] = ["Content-Type", "Content-Disposition", "Cache-Control", "Expires"];

/// Beginning of the fields that are for a server in front of an application, as nginx has them.
const ACCEL: &[u8] = b"X-Accel-";

/// Field that sets the lifetime of a response in the cache.
pub(in crate::handler) const ACCEL_EXPIRES: &str = "X-Accel-Expires";

/// Removes fields that are for this server alone. A response cache needs one of them, and removes it later.
#[inline]
pub(super) fn strip(fields: &mut Fields, has_cache: bool) {
    let is_accel = |name: &[u8]| {
        name.len() > ACCEL.len() && name[0] | 0x20 == b'x' && name[..ACCEL.len()].eq_ignore_ascii_case(ACCEL)
    };
    if fields.iter().any(|(name, _)| is_accel(name)) {
        fields.retain(|name| !is_accel(name) || (has_cache && name.eq_ignore_ascii_case(ACCEL_EXPIRES.as_bytes())));
    }
}

/// Takes the redirect of a response out of its fields. `None` if there is none, or it is not allowed.
#[inline]
pub(super) fn take(fields: &mut Fields, plan: &ForwardPlan, client: LogClient) -> Option<Box<InternalRedirect>> {
    let may_redirect = |name: &[u8]| {
        let is_long_enough = name.len() == ACCEL_REDIRECT.len() || name.len() == SENDFILE.len();
        is_long_enough && name.first().is_some_and(|first| first | 0x20 == b'x')
    };
    if !fields.iter().any(|(name, _)| may_redirect(name)) {
        return None;
    }
    take_named(fields, plan, client)
}

fn take_named(fields: &mut Fields, plan: &ForwardPlan, client: LogClient) -> Option<Box<InternalRedirect>> {
    let allowed = &plan.config.internal_redirects;
    let mut redirect = None;
    for (name, option) in [(ACCEL_REDIRECT, "x-accel-redirect"), (SENDFILE, "x-sendfile")] {
        let Some(value) = fields.get(name).map(<[u8]>::to_vec) else { continue };
        fields.set(name, "");
        let target = match name {
            SENDFILE => path_of_file(&value, allowed),
            _ => Some(value.clone()).filter(|target| is_allowed(target, allowed)),
        };
        if target.is_none() {
            let (upstream, value) = (&plan.config.upstream, escaped(&value));
            let values: &[(&str, &dyn std::fmt::Display)] =
                &[("upstream", upstream), ("field", &name), ("value", &value), ("client", &client)];
            let help = format!("allow it with `{option}` in the handler, or do not send the field");
            plan.log.warn_of(client, event("internal redirect ignored", values), &help);
        }
        redirect = redirect.or(target);
    }
    Some(Box::new(InternalRedirect { target: redirect?, fields: kept(fields) }))
}

/// True if the normalised path is one that upstreams may name.
fn is_allowed(target: &[u8], allowed: &InternalRedirects) -> bool {
    let end = memchr::memchr2(b'?', b'#', target).unwrap_or(target.len());
    let mut buffer = Vec::new();
    let path = path::normalise(&target[..end], &mut buffer);
    path.is_ok_and(|path| allowed.accel.iter().any(|pattern| pattern.matches(path)))
}

/// Path of the site for a file; `None` if its directory is not one that upstreams may name.
fn path_of_file(file: &[u8], allowed: &InternalRedirects) -> Option<Vec<u8>> {
    let is_plain = |segment: &[u8]| !matches!(segment, b"" | b"." | b"..");
    allowed.sendfile.iter().find_map(|sendfile| {
        let directory = sendfile.directory.as_os_str().as_bytes();
        let directory = directory.strip_suffix(b"/").unwrap_or(directory);
        let rest = file.strip_prefix(directory)?.strip_prefix(b"/")?;
        if !rest.split(|&byte| byte == b'/').all(is_plain) {
            return None;
        }
        let mut path = Vec::new();
        path::encode(sendfile.path.as_bytes(), &mut path);
        path.push(b'/');
        path::encode(rest, &mut path);
        Some(path)
    })
}

/// Changes of the target's response.
fn kept(fields: &Fields) -> Vec<FieldChange> {
    let change = |action, name: &str, value: &[u8]| FieldChange { action, name: name.into(), value: value.into() };
    let replaced = KEPT.iter().filter_map(|name| Some(change(FieldAction::Set, name, fields.get(name)?)));
    let cookies = fields.values(b"set-cookie").map(|cookie| change(FieldAction::Add, "Set-Cookie", cookie));
    replaced.chain(cookies).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{PathPattern, SendfileDirectory};

    fn allowed() -> InternalRedirects {
        let sendfile = SendfileDirectory { directory: "/srv/files".into(), path: "/in".into() };
        InternalRedirects { accel: vec![PathPattern::Prefix("/in/".into())], sendfile: vec![sendfile] }
    }

    #[test]
    fn allowed_paths() {
        for (target, expect) in [
            ("/in/a", true),
            ("/in/a?b=/../c", true),
            ("/in/%61", true),
            ("/%69n/a", true),
            ("/in/../out", false),
            ("/in/%2e%2e/out", false),
            ("/in/..", false),
            ("/../in/a", false),
            ("/out", false),
            ("/inn", false),
            ("in/a", false),
            ("http://other/in/a", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(target.as_bytes(), &allowed()), expect, "{target}");
            assert!(!is_allowed(target.as_bytes(), &InternalRedirects::default()), "{target}");
        }
    }

    #[test]
    fn files() {
        for (file, expect) in [
            ("/srv/files/a b?.pdf", Some("/in/a%20b%3F.pdf")),
            ("/srv/files/a/%2e%2e/b", Some("/in/a/%252e%252e/b")),
            ("/srv/files/../b", None),
            ("/srv/files/a/./b", None),
            ("/srv/files", None),
            ("/srv/files/", None),
            ("/srv/files2/a", None),
            ("/etc/passwd", None),
            ("a", None),
        ] {
            let found = path_of_file(file.as_bytes(), &allowed());
            assert_eq!(found.as_deref(), expect.map(str::as_bytes), "{file}");
        }
    }
}
