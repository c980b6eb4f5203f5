//! Bytes of TLS in CRYPTO frames (RFC 9000, section 19.6).

use std::collections::BTreeMap;

use crate::codec::varint_bytes;
use crate::error::TransportError;
use crate::frame::write_crypto;
use crate::ranges::RangeSet;
use crate::recovery::SentPackets;
use crate::streams::SentFrame;

/// Bytes that the client may send ahead of what has arrived in order (RFC 9000, section 7.5, wants 4,096 at least). Chains of
/// client certificates need more.
const AHEAD_BYTES_MAX: u64 = 16 << 10;

/// Parts that may wait for bytes before them.
const PARTS_MAX: usize = 64;

/// Bytes that are left for a CRYPTO frame at least, so that frames are not cut small.
const FRAME_BYTES_MIN: usize = 32;

/// Bytes of TLS of one packet number space, in both directions.
#[derive(Debug, Default)]
pub(super) struct CryptoStream {
    /// Bytes to send, from the first one of the space.
    output: Vec<u8>,
    /// Bytes of `output` that must be sent, now or again.
    unsent: RangeSet,
    acked: RangeSet,
    /// Bytes that TLS has read.
    read_bytes: u64,
    /// Parts that arrived before earlier ones, by offset.
    parts: BTreeMap<u64, Vec<u8>>,
}

impl CryptoStream {
    /// Adds bytes to send.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let start = self.output.len() as u64;
        self.output.extend_from_slice(bytes);
        if !bytes.is_empty() {
            self.unsent.insert(start..self.output.len() as u64);
        }
    }

    /// True if there are bytes to send.
    pub(super) fn can_send(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Writes frames up to a length of `out`.
    pub(super) fn write_frames(&mut self, out: &mut Vec<u8>, end: usize, sent: &mut SentPackets) {
        while let Some(range) = self.unsent.first() {
            let header_bytes = 1 + varint_bytes(range.start) + 2;
            let room = end.saturating_sub(out.len() + header_bytes);
            let bytes = (room as u64).min(range.end - range.start);
            if room < FRAME_BYTES_MIN && bytes < range.end - range.start {
                break;
            }
            let part = range.start..range.start + bytes;
            write_crypto(out, part.start, &self.output[part.start as usize..part.end as usize]);
            sent.frames.push_back(SentFrame::Crypto { offset: part.start as u32, bytes: bytes as u16 });
            self.unsent.remove(part);
        }
    }

    pub(super) fn on_acked(&mut self, offset: u32, bytes: u16) {
        let range = u64::from(offset)..u64::from(offset) + u64::from(bytes);
        self.unsent.remove(range.clone());
        self.acked.insert(range);
    }

    /// Lets bytes be sent again, unless the peer has them.
    pub(super) fn on_lost(&mut self, offset: u32, bytes: u16) {
        let range = u64::from(offset)..u64::from(offset) + u64::from(bytes);
        let missing: Vec<_> = self.acked.gaps(range).collect();
        for part in missing {
            self.unsent.insert(part);
        }
    }

    /// Handles a frame. Calls `read` with bytes in order.
    ///
    /// # Errors
    /// The peer is too far ahead, or `read` fails.
    pub(super) fn receive(
        &mut self,
        offset: u64,
        data: &[u8],
        read: &mut dyn FnMut(&[u8]) -> Result<(), TransportError>,
    ) -> Result<(), TransportError> {
        let end = offset + data.len() as u64;
        if end > self.read_bytes + AHEAD_BYTES_MAX {
            return Err(TransportError::crypto_buffer_exceeded("too many bytes of the handshake"));
        }
        if end <= self.read_bytes {
            return Ok(());
        }
        if offset > self.read_bytes {
            let known = self.parts.get(&offset).map(Vec::len);
            // The packet will be acknowledged, so that the part is not sent again.
            if known.is_none() && self.parts.len() >= PARTS_MAX {
                return Err(TransportError::crypto_buffer_exceeded("too many parts of the handshake"));
            }
            if known.is_none_or(|known| known < data.len()) {
                self.parts.insert(offset, data.to_vec());
            }
            return Ok(());
        }
        read(&data[(self.read_bytes - offset) as usize..])?;
        self.read_bytes = end;
        while let Some((offset, part)) = self.parts.pop_first() {
            if offset > self.read_bytes {
                self.parts.insert(offset, part);
                break;
            }
            let end = offset + part.len() as u64;
            if end > self.read_bytes {
                read(&part[(self.read_bytes - offset) as usize..])?;
                self.read_bytes = end;
            }
        }
        Ok(())
    }

    /// Bytes that TLS has read.
    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn receive(stream: &mut CryptoStream, offset: u64, data: &[u8]) -> Result<Vec<u8>, TransportError> {
        let mut read = Vec::new();
        stream.receive(offset, data, &mut |bytes| {
            read.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(read)
    }

    #[test]
    fn bytes_are_read_once_and_in_order() {
        let mut stream = CryptoStream::default();
        assert_eq!(receive(&mut stream, 3, b"defg").unwrap(), b"");
        assert_eq!(receive(&mut stream, 3, b"de").unwrap(), b"");
        assert_eq!(receive(&mut stream, 8, b"i").unwrap(), b"");
        assert_eq!(receive(&mut stream, 0, b"abcd").unwrap(), b"abcdefg");
        assert_eq!(receive(&mut stream, 0, b"abc").unwrap(), b"");
        assert_eq!(receive(&mut stream, 5, b"fgh").unwrap(), b"hi");
        assert!(receive(&mut stream, 9, &[0; AHEAD_BYTES_MAX as usize + 1]).is_err());
        for offset in (100..).step_by(2).take(PARTS_MAX) {
            assert!(receive(&mut stream, offset, b"x").is_ok());
        }
        assert!(receive(&mut stream, 100, b"xy").is_ok(), "a part that is known has a place");
        let error = receive(&mut stream, 99, b"x").unwrap_err();
        assert_eq!(error.code, TransportError::CRYPTO_BUFFER_EXCEEDED);
    }

    #[test]
    fn lost_bytes_are_sent_again_unless_they_arrived() {
        let (mut stream, mut sent) = (CryptoStream::default(), SentPackets::new(Instant::now()));
        stream.push(&[7; 100]);
        let mut out = Vec::new();
        stream.write_frames(&mut out, 60, &mut sent);
        assert!((58..=60).contains(&out.len()) && stream.can_send());
        stream.write_frames(&mut out, 200, &mut sent);
        assert!(!stream.can_send());
        let frames: Vec<_> = sent.frames.drain(..).collect();
        let [SentFrame::Crypto { offset: 0, bytes: first }, SentFrame::Crypto { offset, bytes }] = frames[..] else {
            panic!("{frames:?}");
        };
        assert_eq!((u32::from(first), u32::from(first + bytes)), (offset, 100));
        stream.on_acked(offset, bytes);
        stream.on_lost(0, 100);
        assert_eq!((stream.unsent.first(), stream.unsent.len()), (Some(0..u64::from(first)), 1));
        stream.on_acked(0, first);
        assert_eq!((stream.acked.first(), stream.can_send()), (Some(0..100), false));
    }
}
