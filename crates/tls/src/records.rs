//! TLS 1.3 records that must end a connection with an alert. rustls closes the connection without one.

use rustls::crypto::cipher::{InboundOpaqueMessage, InboundPlainMessage, MessageDecrypter};
use rustls::{ContentType, Error, PeerMisbehaved};

/// Decrypter that rejects forbidden records.
pub(super) struct StrictRecords {
    decrypter: Box<dyn MessageDecrypter>,
    fragments: Fragments,
}

/// Handshake message that a record has started and a later one must complete.
#[derive(Debug, Default)]
struct Fragments {
    /// Received bytes of the message's head: a type, and a length of three bytes (RFC 8446, section 4).
    head_bytes: u8,
    /// Length, as far as received.
    length: usize,
    /// Bytes of the body not received yet.
    missing_bytes: usize,
}

impl StrictRecords {
    pub(super) fn new(decrypter: Box<dyn MessageDecrypter>) -> Self {
        Self { decrypter, fragments: Fragments::default() }
    }
}

impl MessageDecrypter for StrictRecords {
    fn decrypt<'a>(
        &mut self,
        record: InboundOpaqueMessage<'a>,
        sequence: u64,
    ) -> Result<InboundPlainMessage<'a>, Error> {
        let message = self.decrypter.decrypt(record, sequence).map_err(|error| match error {
            // Only padding (section 5.4).
            Error::PeerMisbehaved(PeerMisbehaved::IllegalTlsInnerPlaintext) => unexpected_message(),
            error => error,
        })?;
        match message.typ {
            // Section 5.4.
            ContentType::Handshake | ContentType::Alert if message.payload.is_empty() => Err(unexpected_message()),
            ContentType::Handshake => {
                self.fragments.on_record(message.payload);
                Ok(message)
            }
            // No record of another type comes between a message's fragments (section 5.1).
            _ if self.fragments.are_incomplete() => Err(unexpected_message()),
            _ => Ok(message),
        }
    }
}

/// Error for which rustls sends the alert unexpected_message. The more specific errors have no alert.
fn unexpected_message() -> Error {
    PeerMisbehaved::IllegalMiddleboxChangeCipherSpec.into()
}

impl Fragments {
    fn on_record(&mut self, mut content: &[u8]) {
        while let Some((first, rest)) = content.split_first() {
            if self.missing_bytes > 0 {
                let taken = self.missing_bytes.min(content.len());
                self.missing_bytes -= taken;
                content = &content[taken..];
                continue;
            }
            if self.head_bytes > 0 {
                self.length = self.length << 8 | usize::from(*first);
            }
            self.head_bytes += 1;
            content = rest;
            if self.head_bytes == 4 {
                *self = Self { missing_bytes: self.length, ..Self::default() };
            }
        }
    }

    fn are_incomplete(&self) -> bool {
        self.head_bytes > 0 || self.missing_bytes > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_end_where_their_length_says() {
        let check = |records: &[&[u8]], expect: &[bool]| {
            let mut fragments = Fragments::default();
            let found = records.iter().map(|record| {
                fragments.on_record(record);
                fragments.are_incomplete()
            });
            assert_eq!(found.collect::<Vec<_>>(), expect, "{records:?}");
        };
        check(&[&[24, 0, 0, 1, 0]], &[false]);
        check(&[&[24], &[0, 0], &[1], &[0]], &[true, true, true, false]);
        check(&[&[24, 0, 0, 1, 0, 24, 0, 0, 1], &[1]], &[true, false]);
        check(&[&[20, 0, 1, 0], &[0; 255], &[0]], &[true, true, false]);
        check(&[&[14, 0, 0, 0], &[14, 0, 0, 0]], &[false, false]);
    }
}
