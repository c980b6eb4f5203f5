//! Redirects to the site's scheme and host, and rules that depend on whether a client uses TLS.

use wire::http::{KnownField, Status, path};

use crate::config::{FieldAction, HostPattern, Listen, RulesConfig, SiteConfig};
use crate::handler::{BuiltResponse, FieldChange, Routed};

/// Rules of a site about its scheme and host.
#[derive(Debug)]
pub(crate) struct Https {
    /// Port that clients without TLS are redirected to; `None` if they are not redirected.
    redirect_port: Option<u16>,
    /// Host that clients are redirected to, and the site's names; `None` if they are not redirected.
    canonical_host: Option<(Box<str>, Box<[HostPattern]>)>,
    /// `Strict-Transport-Security` for responses over TLS. RFC 6797, section 7.2, forbids it in others.
    strict_transport_security: Option<FieldChange>,
}

/// Port that `https` URLs may omit.
const DEFAULT_PORT: u16 = 443;

impl Https {
    /// Takes the rules about TLS of a site, whose rules are merged with those of all sites.
    pub(crate) fn new(rules: &RulesConfig, site: &SiteConfig) -> Self {
        let port = site.tls_listen.iter().find_map(|listen| match listen {
            Listen::Tcp(address) => Some(address.port()),
            Listen::Unix(..) | Listen::Inherited(_) => None,
        });
        let redirects = rules.redirects_to_https == Some(true);
        Self {
            // If a proxy in front terminates TLS, the site has no TLS port of its own.
            redirect_port: redirects.then(|| port.unwrap_or(DEFAULT_PORT)),
            canonical_host: match &rules.canonical_host {
                Some(HostPattern::Exact(host)) => Some((host.as_str().into(), site.names.as_slice().into())),
                _ => None,
            },
            strict_transport_security: rules.strict_transport_security.as_ref().map(|value| FieldChange {
                action: FieldAction::Default,
                name: "Strict-Transport-Security".into(),
                value: value.clone().into_bytes(),
            }),
        }
    }

    /// True if it redirects some requests.
    pub(super) fn redirects(&self) -> bool {
        self.redirect_port.is_some() || self.canonical_host.is_some()
    }

    /// Host that the client should have requested, if it is not the one that it has.
    fn other_host(&self, routed: &Routed<'_>) -> Option<&[u8]> {
        let (host, names) = self.canonical_host.as_ref()?;
        let is_name = |name: &HostPattern| match name {
            HostPattern::Exact(name) => name.as_bytes() == routed.host,
            HostPattern::Suffix(suffix) => routed.host.ends_with(suffix.as_bytes()),
            HostPattern::Prefix(prefix) => routed.host.starts_with(prefix.as_bytes()),
        };
        (host.as_bytes() != routed.host && names.iter().any(is_name)).then_some(host.as_bytes())
    }

    /// Redirects a client without TLS to the same URL with `https`, and one of another name to the site's host.
    pub(crate) fn redirect(&self, routed: &Routed<'_>) -> Option<Box<BuiltResponse>> {
        let (port, other_host) = (self.redirect_port.filter(|_| !routed.is_secure()), self.other_host(routed));
        if port.is_none() && (other_host.is_none() || !routed.path.starts_with(b"/")) {
            return None;
        }
        // `*` of OPTIONS has no URL, and without Host the target of the redirect is unknown.
        if !routed.path.starts_with(b"/") || routed.host.is_empty() {
            return Some(BuiltResponse::new(Status::BAD_REQUEST));
        }
        let mut url = if port.is_some() { b"https".to_vec() } else { routed.scheme().as_bytes().to_vec() };
        url.extend_from_slice(b"://");
        url.extend_from_slice(other_host.unwrap_or(routed.host));
        match port {
            Some(DEFAULT_PORT) => {}
            Some(port) => url.extend_from_slice(format!(":{port}").as_bytes()),
            None => url.extend_from_slice(port_asked(routed)),
        }
        path::encode(routed.path, &mut url);
        if let Some(query) = routed.query {
            url.push(b'?');
            url.extend_from_slice(query);
        }
        let mut response = BuiltResponse::new(Status::PERMANENT_REDIRECT);
        response.fields.push("Location", url);
        Some(response)
    }

    /// Field to add to a response; `None` if the request came without TLS.
    pub(crate) fn response_field(&self, routed: &Routed<'_>) -> Option<&FieldChange> {
        self.strict_transport_security.as_ref().filter(|_| routed.is_secure())
    }
}

/// Port in the client's `Host`, with its colon; empty if there is none.
fn port_asked<'a>(routed: &Routed<'a>) -> &'a [u8] {
    let host = routed.request.field(KnownField::Host).unwrap_or_default();
    let digits = host.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (rest, _) = host.split_at(host.len() - digits);
    if digits > 0 && rest.ends_with(b":") { &host[rest.len() - 1..] } else { b"" }
}
