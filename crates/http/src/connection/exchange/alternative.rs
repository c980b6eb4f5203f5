//! Alt-Svc (RFC 7838): tells clients of HTTP/1.1 and HTTP/2 over TLS that the same port has HTTP/3.

use std::sync::Arc;

use wire::h2::hpack::write_literal;

use crate::handler::FieldChange;
use crate::tls::TlsInfo;

/// Name of the field.
pub(crate) const ALT_SVC: &str = "Alt-Svc";

/// Time for which clients remember the port, in seconds.
const MAX_AGE_SECONDS: u32 = 86_400;

/// Responses of a connection that tell of the alternative, from the first one. Clients remember it, so that the field
/// would only cost bytes and time in later ones. More than one, because the first may be lost, or of another origin.
pub(crate) const RESPONSES_WITH_ALTERNATIVE: u8 = 8;

/// Alt-Svc field of a listener with HTTP/3, encoded once. Its copies share the memory.
#[derive(Clone, Debug)]
pub struct AlternativeService {
    h1: Arc<[u8]>,
    h2: Arc<[u8]>,
}

impl AlternativeService {
    /// Makes the field for HTTP/3 at a UDP port of the same host.
    pub fn new(port: u16) -> Self {
        let (value, mut h2) = (format!("h3=\":{port}\"; ma={MAX_AGE_SECONDS}"), Vec::new());
        write_literal(&mut h2, ALT_SVC.to_ascii_lowercase().as_bytes(), value.as_bytes());
        Self { h1: format!("{ALT_SVC}: {value}\r\n").into_bytes().into(), h2: h2.into() }
    }

    /// Field line of HTTP/1.
    pub fn h1(&self) -> &[u8] {
        &self.h1
    }

    /// Field line of HTTP/2.
    pub fn h2(&self) -> &[u8] {
        &self.h2
    }

    /// Value of the field.
    pub fn value(&self) -> &[u8] {
        &self.h1[ALT_SVC.len() + 2..self.h1.len() - 2]
    }

    /// True if the site of a connection has HTTP/3. A site with cipher suites of TLS 1.2 only has not.
    pub fn is_for(tls: Option<&TlsInfo>) -> bool {
        // Connections without TLS have listeners without an alternative.
        tls.is_none_or(|tls| tls.has_http3)
    }

    /// True if changes of a head set the field. `clear` as its value makes clients forget HTTP/3.
    pub fn is_changed_by(changes: &[FieldChange]) -> bool {
        changes.iter().any(|change| change.name.eq_ignore_ascii_case(ALT_SVC) && !change.value.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text() {
        let alternative = AlternativeService::new(8443);
        assert_eq!(alternative.h1(), b"Alt-Svc: h3=\":8443\"; ma=86400\r\n");
        assert_eq!(alternative.value(), b"h3=\":8443\"; ma=86400");
    }
}
