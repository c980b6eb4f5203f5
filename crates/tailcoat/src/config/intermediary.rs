//! What a proxy adds to messages, and what it leaves out of them, as their intermediary (RFC 9110, sections 6.5 and 7.6).

use wire::http::forwarding::{is_request_trailer, is_response_trailer, may_be_trailer};

/// How a proxy names itself, and which trailer fields it passes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intermediary {
    /// Its name in Via.
    pub via_name: String,
    /// How often a request may have been forwarded by proxies of this name.
    pub via_passes_max: usize,
    /// Trailer fields of requests that are passed on besides the usual ones, in lower case.
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
    pub(super) fn misplaced(&self) -> Option<&str> {
        let mut names = self.request_trailers.iter().chain(&self.response_trailers);
        names.find(|name| !may_be_trailer(name.as_bytes())).map(|name| &**name)
    }
}

fn is_named(names: &[Box<str>], name: &[u8]) -> bool {
    names.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()))
}
