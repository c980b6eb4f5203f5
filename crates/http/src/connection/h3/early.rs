//! Requests in early data (0-RTT), before the handshake is complete (RFC 8470).
//!
//! An attacker may have the server receive such a request twice: in a copy of the client's first packets, and from the
//! client, which repeats it. So only safe methods are served. A field tells handlers and upstreams.

use wire::http::{KnownField, RequestHead, Span};

use super::{H3ConnectionState, H3Turn, H3WorkerConnection};
use crate::tls::QuicHandshake;

/// Field that marks a request which may be repeated (RFC 8470, section 5.1).
const FIELD: &[u8] = b"early-data";

/// Value of the field.
const VALUE: &[u8] = b"1";

impl H3WorkerConnection {
    /// Begins HTTP/3 when the client's first packet is processed, if it may have early data.
    pub(super) fn on_first_message(&mut self, turn: &H3Turn<'_>) {
        if self.state == H3ConnectionState::Handshaking && self.streams.transport.proto.has_early_data() {
            self.early_since_ms = Some(turn.exchange.now.monotonic_ms);
            let handshake = self.streams.transport.proto.session().and_then(QuicHandshake::of);
            self.begin(handshake);
        }
    }

    /// Time at which a handshake with early data must be complete.
    pub(super) fn early_deadline_ms(&self) -> Option<u64> {
        let timeout = self.context.generation().limits.tls_handshake_timeout;
        self.early_since_ms.map(|since_ms| since_ms + timeout.as_millis() as u64)
    }
}

/// Marks a request in early data. Returns false if its method is not safe.
pub(super) fn mark_early(head: &mut RequestHead, text: &mut Vec<u8>) -> bool {
    if !head.method.is_safe() {
        return false;
    }
    // A client that is a proxy may have marked it.
    if !head.fields.iter().any(|field| field.name.of(text).eq_ignore_ascii_case(FIELD)) {
        let mut append = |bytes: &[u8]| {
            let start = text.len();
            text.extend_from_slice(bytes);
            Span::new(start, text.len())
        };
        let (name, value) = (append(FIELD), append(VALUE));
        head.push_field(name, value, KnownField::Other);
    }
    true
}
