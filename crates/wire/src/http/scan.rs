//! Search for bytes in short texts such as the lines of a head, eight at a time.

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Returns the offset of the first ASCII control character (RFC 5234, appendix B.1: CTL).
#[inline]
pub(crate) fn find_control(bytes: &[u8]) -> Option<usize> {
    let deletes = |word: u64| word ^ (ONES * 0x7f);
    find(bytes, |word| below(word, b' ') | below(deletes(word), 1), |byte| byte.is_ascii_control())
}

/// Returns the offset of the first byte that is not a visible ASCII character (RFC 5234, appendix B.1: VCHAR).
#[inline]
pub(crate) fn find_invisible(bytes: &[u8]) -> Option<usize> {
    // For bytes from 0x7f on, the highest bit is set or adding one sets it.
    let above = |word: u64| word.wrapping_add(ONES) | word;
    find(bytes, |word| below(word, b'!') | above(word), |byte| !byte.is_ascii_graphic())
}

/// Sets the highest bit of the lowest byte of `word` that is below `bound`, which is 0x80 at most. Higher bytes may
/// have the bit set by mistake, because the subtraction borrows from them.
fn below(word: u64, bound: u8) -> u64 {
    word.wrapping_sub(ONES * u64::from(bound)) & !word
}

/// Returns the offset of the first matching byte. `marks` sets the highest bit of matching bytes in a word of eight;
/// `is_such` tests a single byte.
#[inline]
fn find(bytes: &[u8], marks: impl Fn(u64) -> u64, is_such: impl Fn(u8) -> bool) -> Option<usize> {
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let marked = marks(u64::from_le_bytes(*word)) & HIGH_BITS;
        if marked != 0 {
            return Some(index * 8 + marked.trailing_zeros() as usize / 8);
        }
    }
    rest.iter().position(|&byte| is_such(byte)).map(|at| words.len() * 8 + at)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::{find_control, find_invisible};

    #[test]
    fn each_byte_at_each_place() {
        for length in 1..40 {
            for at in 0..length {
                for byte in 0..=u8::MAX {
                    let mut bytes = vec![b'a'; length];
                    bytes[at] = byte;
                    // The bytes after it do not hide it.
                    bytes[at + 1..].iter_mut().step_by(2).for_each(|byte| *byte = 0);
                    let found = |is_such: fn(&u8) -> bool| bytes.iter().position(is_such);
                    assert_eq!(find_control(&bytes), found(u8::is_ascii_control), "{bytes:?}");
                    assert_eq!(find_invisible(&bytes), found(|byte| !byte.is_ascii_graphic()), "{bytes:?}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn as_a_plain_search(bytes in vec(prop_oneof![any::<u8>(), 0x1e..0x22_u8, 0x7d..0x82_u8, b'a'..b'f'], 0..100)) {
            let found = |is_such: fn(&u8) -> bool| bytes.iter().position(is_such);
            prop_assert_eq!(find_control(&bytes), found(u8::is_ascii_control));
            prop_assert_eq!(find_invisible(&bytes), found(|byte| !byte.is_ascii_graphic()));
        }
    }
}
