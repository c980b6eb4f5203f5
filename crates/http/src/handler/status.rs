//! Status views: metrics, and a page that plots them.

use std::net::IpAddr;
use std::sync::Arc;

use base64ct::{Base64, Encoding};
use sha2::{Digest, Sha256};
use wire::http::forwarding::{is_client_address_field, is_same_field};
use wire::http::{Fields, KnownField, Method, Request, Status};

use super::{Body, BuiltResponse, HandlerOutcome, LateOutcome, PageFormat, Response, Routed, error_response};
use crate::config::{StatusView, StatusViewKind};
use crate::log::LogClient;
use crate::observer::Observer;
use crate::status::{MetricsFormat, PAGE, render};

/// Most open requests of each worker that the page lists.
const REQUESTS_SHOWN_MAX: usize = 20;

/// Handler for metrics and the status page.
#[derive(Debug)]
pub struct StatusHandler {
    view: StatusView,
    /// True if access rules guard it; otherwise only clients on this machine have access.
    is_guarded: bool,
    observer: Arc<Observer>,
    /// Content-Security-Policy of the page.
    content_security_policy: String,
}

impl StatusHandler {
    /// Creates the handler for this configuration.
    pub fn new(view: &StatusView, is_guarded: bool, observer: &Arc<Observer>) -> Self {
        let content_security_policy = content_security_policy(PAGE);
        Self { view: *view, is_guarded, observer: Arc::clone(observer), content_security_policy }
    }

    /// Handles a request.
    pub fn handle(self: &Arc<Self>, routed: &Routed<'_>) -> HandlerOutcome {
        let format = PageFormat::wanted_by(&routed.request);
        if !self.is_guarded && !is_of_this_machine(routed) {
            return HandlerOutcome::Ready(Response::Built(error_response(Status::FORBIDDEN, format)));
        }
        if !matches!(routed.request.method(), Method::Get | Method::Head) {
            let mut response = error_response(Status::METHOD_NOT_ALLOWED, format);
            response.fields.push("Allow", "GET, HEAD");
            return HandlerOutcome::Ready(Response::Built(response));
        }
        match (self.view.kind, routed.query) {
            (StatusViewKind::Metrics, _) => {
                let accept = routed.request.field(KnownField::Accept).unwrap_or_default();
                let (this, format) = (Arc::clone(self), MetricsFormat::wanted_by(accept));
                HandlerOutcome::Wait(Box::pin(async move { this.metrics(format).await }))
            }
            (StatusViewKind::Page, Some(b"json")) => {
                let this = Arc::clone(self);
                HandlerOutcome::Wait(Box::pin(async move { this.data().await }))
            }
            (StatusViewKind::Page, _) => self.page(),
        }
    }

    async fn metrics(&self, format: MetricsFormat) -> LateOutcome {
        let status = self.observer.status(0).await;
        answer(format.content_type(), render(&status, format).into_bytes())
    }

    async fn data(&self) -> LateOutcome {
        let status = self.observer.status(REQUESTS_SHOWN_MAX).await;
        // Local invariant: it has only strings, numbers and lists of them.
        answer("application/json", serde_json::to_vec(&status).unwrap_or_default())
    }

    fn page(&self) -> HandlerOutcome {
        let mut response = built("text/html; charset=utf-8", PAGE.as_bytes().to_vec());
        response.fields.push("Content-Security-Policy", self.content_security_policy.as_str());
        HandlerOutcome::Ready(Response::Built(response))
    }
}

/// True if a request comes from this machine and is meant for it. In DNS rebinding, another site's name resolves to
/// this machine, and a local browser sends that name as Host.
fn is_of_this_machine(routed: &Routed<'_>) -> bool {
    let is_local = match routed.client {
        LogClient::Ip(address) => address.ip().to_canonical().is_loopback(),
        LogClient::Unix => true,
    };
    // A trusted proxy has said that the client is local, too.
    let is_vouched_for = routed.proxied.is_some_and(|proxied| proxied.entries > 0);
    is_local && (is_vouched_for || !is_from_proxy(&routed.request)) && is_name_of_this_machine(routed.host)
}

/// True if a proxy has forwarded the request: it may run on this machine for clients from anywhere.
fn is_from_proxy(request: &Request<'_>) -> bool {
    const PREFIX: &[u8] = b"x-forwarded-";
    request.head.fields.iter().map(|field| field.name.of(request.bytes)).any(|name| {
        let is_forwarded = name.get(..PREFIX.len()).is_some_and(|start| is_same_field(start, PREFIX));
        is_forwarded
            || [&b"via"[..], b"forwarded"].iter().any(|known| is_same_field(name, known))
            || is_client_address_field(name)
    })
}

fn is_name_of_this_machine(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    // An HTTP/1.0 client without a host is not a browser.
    host.is_empty() || host == "localhost" || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

fn answer(content_type: &'static str, content: Vec<u8>) -> LateOutcome {
    HandlerOutcome::Ready(Response::Built(built(content_type, content)))
}

fn built(content_type: &'static str, content: Vec<u8>) -> Box<BuiltResponse> {
    let mut fields = Fields::new();
    fields.push("Content-Type", content_type);
    fields.push("Cache-Control", "no-store");
    fields.push("X-Content-Type-Options", "nosniff");
    fields.push("Referrer-Policy", "no-referrer");
    BuiltResponse::with_fields(Status::OK, fields, Body::from_bytes(content))
}

/// Lets the page run its own script and send requests to its own origin, and nothing else.
fn content_security_policy(page: &str) -> String {
    let script = page.split_once("<script>").and_then(|(_, rest)| rest.split_once("</script>"));
    let hash = Base64::encode_string(&Sha256::digest(script.map_or("", |(script, _)| script)));
    format!(
        "default-src 'none'; script-src 'sha256-{hash}'; style-src 'unsafe-inline'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::StageCounts;

    #[test]
    fn names_of_this_machine() {
        for (host, expect) in [
            ("", true),
            ("localhost", true),
            ("127.0.0.1", true),
            ("127.1.2.3", true),
            ("[::1]", true),
            ("192.0.2.1", false),
            ("evil.example", false),
            ("localhost.evil.example", false),
        ] {
            assert_eq!(is_name_of_this_machine(host.as_bytes()), expect, "{host}");
        }
    }

    /// The page shows the words of [`StageCounts::label`].
    #[test]
    fn states_have_words() {
        for (name, _) in StageCounts::default().by_name().iter().filter(|(name, _)| *name != "idle") {
            let label = format!("{name}: \"{}\"", StageCounts::label(name));
            assert!(PAGE.contains(&label), "{label}");
        }
    }

    #[test]
    fn the_page_has_one_script_and_asks_no_other_server() {
        assert_eq!(PAGE.matches("<script").count(), 1);
        let policy = content_security_policy("<p><script>a()</script>");
        assert!(policy.contains("script-src 'sha256-qVpDBgj7bpq5hMAcGp3AOc79J3Y1Z4HvySTwKrWDoy4='"), "{policy}");
        for elsewhere in ["http://", "https://", "@import", "url("] {
            // Namespace URLs are never fetched.
            let page = PAGE.replace("http://www.w3.org/", "");
            assert!(!page.contains(elsewhere), "{elsewhere}");
        }
    }
}
