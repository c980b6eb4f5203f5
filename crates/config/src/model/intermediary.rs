//! Fields that a proxy adds to messages and removes from them as an intermediary (RFC 9110, sections 6.5 and 7.6).

use wire::http::forwarding::{is_request_trailer, is_response_trailer, may_be_trailer};

/// Name of the proxy, and trailer fields that it passes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intermediary {
    /// Name in `Via`.
    pub via_name: String,
    /// Maximum number of times that proxies of this name may have forwarded a request.
    pub via_passes_max: usize,
    /// Additional trailer fields of requests that pass, in lower case.
    pub request_trailers: Vec<Box<str>>,
    /// Trailer fields of responses, likewise.
    pub response_trailers: Vec<Box<str>>,
}

impl Default for Intermediary {
    fn default() -> Self {
        Self {
            via_name: "tailcoat".into(),
            via_passes_max: 10,
            request_trailers: Vec::new(),
            response_trailers: Vec::new(),
        }
    }
}

impl Intermediary {
    /// True if a trailer field of a request is passed on.
    pub fn passes_request_trailer(&self, name: &[u8]) -> bool {
        is_request_trailer(name) || is_named(&self.request_trailers, name)
    }

    /// True if a trailer field of a response is passed on. Of gRPC, applications name their own (metadata).
    pub fn passes_response_trailer(&self, name: &[u8], is_grpc: bool) -> bool {
        is_response_trailer(name) || is_named(&self.response_trailers, name) || (is_grpc && may_be_trailer(name))
    }

    /// The first name of a field that may not be in a trailer section.
    pub(crate) fn misplaced(&self) -> Option<&str> {
        let mut names = self.request_trailers.iter().chain(&self.response_trailers);
        names.find(|name| !may_be_trailer(name.as_bytes())).map(|name| &**name)
    }
}

fn is_named(names: &[Box<str>], name: &[u8]) -> bool {
    names.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}
