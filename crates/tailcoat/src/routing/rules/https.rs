//! Rules that depend on whether a client uses TLS.

use wire::http::{Status, path};

use crate::config::{FieldAction, Listen, RulesConfig, SiteConfig};
use crate::handler::{BuiltResponse, FieldChange, Routed};

/// Rules of a site about TLS.
#[derive(Debug)]
pub struct Https {
    /// Port that clients without TLS are redirected to; `None` if they are not redirected.
    redirect_port: Option<u16>,
    /// `Strict-Transport-Security` for responses over TLS. RFC 6797, section 7.2, forbids it in others.
    strict_transport_security: Option<FieldChange>,
}

/// Port that `https` URLs may omit.
const DEFAULT_PORT: u16 = 443;

impl Https {
    /// Takes the rules about TLS of a site, whose rules are merged with those of all sites.
    pub fn new(rules: &RulesConfig, site: &SiteConfig) -> Self {
        let port = site.tls_listen.iter().find_map(|listen| match listen {
            Listen::Tcp(address) => Some(address.port()),
            Listen::Unix(..) | Listen::Inherited(_) => None,
        });
        let redirects = rules.redirects_to_https == Some(true);
        Self {
            // If a proxy in front terminates TLS, the site has no TLS port of its own.
            redirect_port: redirects.then(|| port.unwrap_or(DEFAULT_PORT)),
            strict_transport_security: rules.strict_transport_security.as_ref().map(|value| FieldChange {
                action: FieldAction::Default,
                name: "Strict-Transport-Security".into(),
                value: value.clone().into_bytes(),
            }),
        }
    }

    /// Redirects a client without TLS to the same URL with `https`.
    pub fn redirect(&self, routed: &Routed<'_>) -> Option<Box<BuiltResponse>> {
        let port = self.redirect_port.filter(|_| !routed.is_secure())?;
        // `*` of OPTIONS has no URL, and without Host the target of the redirect is unknown.
        if !routed.path.starts_with(b"/") || routed.host.is_empty() {
            return Some(BuiltResponse::new(Status::BAD_REQUEST));
        }
        let mut url = b"https://".to_vec();
        url.extend_from_slice(routed.host);
        if port != DEFAULT_PORT {
            url.extend_from_slice(format!(":{port}").as_bytes());
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
    pub fn response_field(&self, routed: &Routed<'_>) -> Option<&FieldChange> {
        self.strict_transport_security.as_ref().filter(|_| routed.is_secure())
    }
}
