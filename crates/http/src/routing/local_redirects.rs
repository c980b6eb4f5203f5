//! Local redirects of scripts (RFC 3875, section 6.2.2), and internal redirects of upstreams (`X-Accel-Redirect`).
//! Instead of a response, a script or upstream names a path of the site. The server then serves that path as if the
//! client had sent a GET request for it.

use std::future::{Future, ready};
use std::pin::Pin;

use wire::http::{Status, path};

use super::rules::RewrittenTarget;
use crate::config::FieldAction;
use crate::handler::{BuiltResponse, ClientGone, FieldChange, Response, ResponseFilter};

/// Local redirects of one request.
#[derive(Debug, Default)]
pub(super) struct LocalRedirects {
    followed: u32,
}

impl LocalRedirects {
    /// Returns the target of a local redirect; `None` for any other response. Returns an error response if the limit of
    /// redirects is exceeded or the target is not a path.
    pub(super) fn next(&mut self, response: &Response) -> Option<Result<RewrittenTarget, Response>> {
        let (location, most) = response.local_redirect()?;
        let target = parse(location).filter(|_| self.followed < most);
        self.followed += 1;
        Some(target.ok_or_else(|| Response::Built(BuiltResponse::new(Status::INTERNAL_SERVER_ERROR))))
    }
}

/// Filter that adds the fields of an internal redirect to the response of its target; `None` if there are none.
pub(super) fn redirect_filter(response: Response) -> Option<Box<dyn ResponseFilter>> {
    let fields = response.redirected_fields();
    (!fields.is_empty()).then(|| Box::new(RedirectedFields(fields)) as Box<dyn ResponseFilter>)
}

/// Fields of an upstream for the response of another handler.
struct RedirectedFields(Vec<FieldChange>);

impl ResponseFilter for RedirectedFields {
    fn filter(self: Box<Self>, response: Response) -> Pin<Box<dyn Future<Output = Result<Response, ClientGone>>>> {
        let mut fields = self.0;
        if let Response::Built(response) = &response {
            if response.status.code() >= 400 {
                // The others describe content that there is not.
                fields.retain(|field| field.action == FieldAction::Add);
            } else if response.forwarded.is_some() {
                // Another upstream knows its content better.
                let replaced = fields.iter_mut().filter(|field| field.action == FieldAction::Set);
                replaced.for_each(|field| field.action = FieldAction::Default);
            }
        }
        Box::pin(ready(Ok(response.with_changes(fields))))
    }
}

fn parse(location: &[u8]) -> Option<RewrittenTarget> {
    let location = location.split(|&byte| byte == b'#').next().unwrap_or_default();
    let (raw, query) = match memchr::memchr(b'?', location) {
        Some(at) => (&location[..at], Some(location[at + 1..].to_vec())),
        None => (location, None),
    };
    let mut buffer = Vec::new();
    let path = path::normalise(raw, &mut buffer).ok()?.to_vec();
    Some(RewrittenTarget { path, query })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::Forwarded;

    fn redirect(location: &str) -> Response {
        let mut response = BuiltResponse::new(Status::OK);
        let forwarded =
            Forwarded { local_redirect: Some(location.into()), local_redirects_max: 2, ..Forwarded::default() };
        response.forwarded = Some(Box::new(forwarded));
        Response::Built(response)
    }

    #[test]
    fn targets() {
        for (location, expect) in [
            ("/a", Some((&b"/a"[..], None))),
            ("/a/../b%20c?d=%2F#e", Some((b"/b c", Some(&b"d=%2F"[..])))),
            ("/a?", Some((b"/a", Some(b"")))),
            ("/..", None),
            ("/%00", None),
        ] {
            let target = LocalRedirects::default().next(&redirect(location)).unwrap().ok();
            let found = target.as_ref().map(|target| (target.path.as_slice(), target.query.as_deref()));
            assert_eq!(found, expect, "{location}");
        }
        assert!(LocalRedirects::default().next(&Response::Built(BuiltResponse::new(Status::OK))).is_none());
    }

    #[test]
    fn circles_end() {
        let mut redirects = LocalRedirects::default();
        assert!(redirects.next(&redirect("/a")).unwrap().is_ok());
        assert!(redirects.next(&redirect("/a")).unwrap().is_ok());
        let Some(Err(Response::Built(response))) = redirects.next(&redirect("/a")) else { panic!("it goes on") };
        assert_eq!(response.status, Status::INTERNAL_SERVER_ERROR);
    }
}
