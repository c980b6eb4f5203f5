//! Integers of variable length (RFC 9000, section 16), and a reader of packets.

/// Largest integer of variable length.
pub(crate) const VARINT_MAX: u64 = (1 << 62) - 1;

/// Reader of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Number of bytes left.
    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    /// Bytes left.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        let (&first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (word, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u32::from_be_bytes(*word))
    }

    /// Next bytes, as many as `count`.
    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(bytes)
    }

    /// Next bytes, as an array.
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*bytes)
    }

    /// Integer of variable length.
    #[inline]
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let first = *self.rest.first()?;
        match first >> 6 {
            0 => {
                self.rest = &self.rest[1..];
                Some(u64::from(first))
            }
            1 => self.array().map(|bytes| u64::from(u16::from_be_bytes(bytes) & 0x3fff)),
            2 => self.array().map(|bytes| u64::from(u32::from_be_bytes(bytes) & 0x3fff_ffff)),
            _ => self.array().map(|bytes| u64::from_be_bytes(bytes) & VARINT_MAX),
        }
    }

    /// Bytes after their length, which is an integer of variable length.
    pub(crate) fn prefixed(&mut self) -> Option<&'a [u8]> {
        let count = usize::try_from(self.varint()?).ok()?;
        self.bytes(count)
    }
}

/// Length of an integer of variable length, in bytes.
#[inline]
pub(crate) const fn varint_bytes(value: u64) -> usize {
    match value {
        0..0x40 => 1,
        0x40..0x4000 => 2,
        0x4000..0x4000_0000 => 4,
        _ => 8,
    }
}

/// Writes an integer of variable length. Larger ones than [`VARINT_MAX`] are cut to it.
#[inline]
pub(crate) fn write_varint(out: &mut Vec<u8>, value: u64) {
    match varint_bytes(value) {
        1 => out.push(value as u8),
        2 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        4 => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(value.min(VARINT_MAX) | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

/// Writes an integer of variable length in two bytes. It must be below 16,384.
#[inline]
pub(crate) fn write_varint2(out: &mut Vec<u8>, value: u64) {
    debug_assert!(value < 0x4000);
    out.extend_from_slice(&(value as u16 & 0x3fff | 0x4000).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_written() {
        // RFC 9000, appendix A.1.
        for (bytes, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
        ] {
            assert_eq!(Reader::new(bytes).varint(), Some(value));
            assert_eq!(Reader::new(&bytes[..bytes.len() - 1]).varint(), None);
            let mut out = Vec::new();
            write_varint(&mut out, value);
            assert_eq!((out.as_slice(), varint_bytes(value)), (bytes, bytes.len()));
        }
        assert_eq!(Reader::new(&[0x40, 0x25]).varint(), Some(37), "longer than necessary");
    }
}
