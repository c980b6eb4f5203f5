//! Escaping, so that no byte from a client can forge a line or a field, or reach a terminal as a command.
//!
//! Text formats write `"`, `\`, control bytes and bytes from 0x7f on as `\xHH`, as nginx and Apache do. A backslash is
//! always escaped, so [`CUT_MARK`] never comes from a client.

use super::super::record::RecordValue;

/// Mark after a value that was cut.
pub(super) const CUT_MARK: &[u8] = b"\\...";

/// Bytes that fit into a register of any CPU with SIMD.
const LANES: usize = 16;
/// Step for shorter values, such as most targets.
const HALF_LANES: usize = LANES / 2;

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Set of bytes that one context escapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EscapeSet([bool; 256]);

impl EscapeSet {
    /// Set for values in quotes.
    pub(super) const QUOTED: Self = {
        let mut set = [false; 256];
        let mut byte = 0;
        while byte < 256 {
            set[byte] = byte < b' ' as usize || byte >= 0x7f || byte == b'"' as usize || byte == b'\\' as usize;
            byte += 1;
        }
        Self(set)
    };

    /// Set for values that end at a space.
    pub(super) const WORD: Self = Self::QUOTED.with(b' ');

    /// Adds a byte.
    pub(super) const fn with(mut self, byte: u8) -> Self {
        self.0[byte as usize] = true;
        self
    }

    /// True for a byte that is escaped.
    pub(super) fn has(&self, byte: u8) -> bool {
        self.0[usize::from(byte)]
    }
}

/// Appends an escaped value that stands in quotes; `-` for no value.
#[inline]
pub(super) fn push_quoted(out: &mut Vec<u8>, value: RecordValue<'_>) {
    push_value(out, value, is_plain::<b' '>, &EscapeSet::QUOTED);
}

/// Appends an escaped value that ends at a space; `-` for no value.
#[inline]
pub(super) fn push_word(out: &mut Vec<u8>, value: RecordValue<'_>) {
    push_value(out, value, is_plain::<b'!'>, &EscapeSet::WORD);
}

/// Appends a value and escapes the bytes of this set; `-` for no value.
pub(super) fn push_escaped(out: &mut Vec<u8>, value: RecordValue<'_>, set: &EscapeSet) {
    push_value(out, value, |_| false, set);
}

#[inline]
fn push_value(out: &mut Vec<u8>, value: RecordValue<'_>, is_plain: impl Fn(&[u8]) -> bool, set: &EscapeSet) {
    if value.bytes.is_empty() {
        out.push(b'-');
    } else if is_plain(value.bytes) {
        out.extend_from_slice(value.bytes);
    } else {
        push_special(out, value.bytes, set);
    }
    if value.cut {
        out.extend_from_slice(CUT_MARK);
    }
}

/// Not inlined, so that its callers stay small.
#[inline(never)]
fn push_special(out: &mut Vec<u8>, bytes: &[u8], set: &EscapeSet) {
    push_runs(out, bytes, |byte| set.has(byte), push_hex);
}

/// True if no byte needs escaping: all are from `LOWEST` to `~`, without `"` and `\`. Nearly all values are plain.
/// Checks many bytes at once; the last ones partly twice.
pub(super) fn is_plain<const LOWEST: u8>(bytes: &[u8]) -> bool {
    if let Some(last) = bytes.last_chunk::<LANES>() {
        are_plain::<LOWEST, LANES>(bytes.as_chunks().0.iter().chain([last]))
    } else if let (Some(first), Some(last)) = (bytes.first_chunk::<HALF_LANES>(), bytes.last_chunk()) {
        are_plain::<LOWEST, HALF_LANES>([first, last])
    } else {
        bytes.iter().all(|byte| !is_special::<LOWEST>(*byte))
    }
}

/// Combines the bytes at the same offset of all chunks, so that one test at the end suffices.
#[inline]
fn are_plain<'a, const LOWEST: u8, const LANES: usize>(chunks: impl IntoIterator<Item = &'a [u8; LANES]>) -> bool {
    let mut special = [false; LANES];
    for chunk in chunks {
        for (special, byte) in special.iter_mut().zip(chunk) {
            *special |= is_special::<LOWEST>(*byte);
        }
    }
    special == [false; LANES]
}

#[inline]
fn is_special<const LOWEST: u8>(byte: u8) -> bool {
    (byte.wrapping_sub(LOWEST) > b'~' - LOWEST) | (byte == b'"') | (byte == b'\\')
}

/// Appends runs of plain bytes as they are, and each byte that `is_special` with `push_special`.
pub(super) fn push_runs(
    out: &mut Vec<u8>,
    bytes: &[u8],
    is_special: impl Fn(u8) -> bool,
    push_special: impl Fn(&mut Vec<u8>, u8),
) {
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|byte| is_special(*byte)) {
        out.extend_from_slice(&rest[..at]);
        push_special(out, rest[at]);
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

/// Appends `\xHH`.
pub(super) fn push_hex(out: &mut Vec<u8>, byte: u8) {
    out.extend_from_slice(&[b'\\', b'x', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
}

/// Appends `%HH`.
pub(super) fn push_percent(out: &mut Vec<u8>, byte: u8) {
    out.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::{EscapeSet, RecordValue, is_plain, push_quoted, push_word};

    /// At every length and offset, the fast check finds exactly the bytes of the table.
    #[test]
    fn plain_is_what_the_table_says() {
        for length in 1..3 * super::LANES {
            for at in 0..length {
                for byte in 0..=255 {
                    let mut bytes = vec![b'a'; length];
                    bytes[at] = byte;
                    assert_eq!(is_plain::<b' '>(&bytes), !EscapeSet::QUOTED.has(byte), "{byte} at {at} of {length}");
                    assert_eq!(is_plain::<b'!'>(&bytes), !EscapeSet::WORD.has(byte), "{byte} at {at} of {length}");
                }
            }
        }
    }

    fn escaped_one_by_one(bytes: &[u8], set: &EscapeSet) -> String {
        let escape = |byte: &u8| if set.has(*byte) { format!("\\x{byte:02X}") } else { char::from(*byte).to_string() };
        if bytes.is_empty() { "-".into() } else { bytes.iter().map(escape).collect() }
    }

    proptest! {
        #[test]
        fn values_are_escaped_as_byte_by_byte(
            bytes in prop_oneof![vec(any::<u8>(), 0..40), vec(b' '..=b'~', 0..80)],
            cut: bool,
        ) {
            let mark = if cut { "\\..." } else { "" };
            let value = RecordValue { bytes: &bytes, cut };
            let (mut quoted, mut word) = (Vec::new(), Vec::new());
            push_quoted(&mut quoted, value);
            push_word(&mut word, value);
            prop_assert_eq!(quoted, (escaped_one_by_one(&bytes, &EscapeSet::QUOTED) + mark).into_bytes());
            prop_assert_eq!(word, (escaped_one_by_one(&bytes, &EscapeSet::WORD) + mark).into_bytes());
        }
    }
}
