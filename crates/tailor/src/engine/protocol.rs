//! The protocol that a connection speaks: where requests become bytes, and bytes responses. All else of the engine (slots,
//! lines, TLS, time, counting) is the same for all of them, so HTTP/2 joins here, as a variant.

use wire::h1::MalformedResponse;

use super::response::{Finished, ResponseReader, Step};
use super::shared::Shared;
use super::workload::{Form, Request};

/// The client's side of one connection.
#[derive(Debug)]
pub(crate) enum Protocol {
    /// HTTP/1.0 and 1.1: responses come whole, in the order of their requests.
    Http1(ResponseReader),
}

impl Default for Protocol {
    fn default() -> Self {
        Self::Http1(ResponseReader::default())
    }
}

impl Protocol {
    /// Writes a request behind what is to be sent.
    pub(crate) fn write_request(&mut self, request: &Request, form: Form, out: &mut Vec<u8>) {
        match self {
            Self::Http1(_) => out.extend_from_slice(request.encoded(form)),
        }
    }

    /// Takes the next bytes from the server. `first` is the request, of those under way, that was sent first.
    pub(crate) fn feed(&mut self, input: &[u8], first: u32, shared: &mut Shared) -> Result<Step, MalformedResponse> {
        let index = first as usize;
        let (known, scratch) = (&mut shared.known_heads[index], &mut shared.scratch_head);
        match self {
            Self::Http1(reader) => reader.feed(input, &shared.requests[index], known, scratch),
        }
    }

    /// The verdict on the response that is complete; its request is no longer under way.
    pub(crate) fn finish(&mut self, request: &Request) -> Finished {
        match self {
            Self::Http1(reader) => reader.finish(request),
        }
    }

    /// The server ended the connection in order. Returns whether the response under way is whole with that.
    pub(crate) fn on_close(&self) -> bool {
        match self {
            Self::Http1(reader) => reader.on_close(),
        }
    }

    /// Bytes of content that are still to come, if it is known.
    pub(crate) fn expected_bytes(&self) -> Option<u64> {
        match self {
            Self::Http1(reader) => reader.expected_bytes(),
        }
    }

    /// Is ready for a new connection; forgets responses that won't be whole.
    pub(crate) fn reset(&mut self) {
        match self {
            Self::Http1(reader) => reader.reset(),
        }
    }
}
