//! Integers with a prefix (RFC 7541, section 5.1; RFC 9204, section 4.1.1).

/// Error of an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvalidInteger {
    /// The integer continues after the end of the input.
    Incomplete,
    /// The integer exceeds its limit.
    TooLarge,
}

/// Maximum number of bytes after the prefix of a 32-bit integer: five have 35 bits. More could only be padding.
const CONTINUATION_BYTES_MAX: usize = 5;
/// Maximum number of bytes after the prefix of a 62-bit integer.
const LONG_CONTINUATION_BYTES_MAX: usize = 9;

/// Reads the integer at `*at`, whose first byte has a prefix of `prefix_bits`. Moves `*at` after it. No valid length or
/// index exceeds 32 bits.
#[inline]
pub(crate) fn read(block: &[u8], at: &mut usize, prefix_bits: u32) -> Result<usize, InvalidInteger> {
    let mask = 0xffu8 >> (8 - prefix_bits);
    let first = *block.get(*at).ok_or(InvalidInteger::Incomplete)? & mask;
    *at += 1;
    if first < mask {
        return Ok(usize::from(first));
    }
    let value = read_continuation(block, at, u64::from(mask), CONTINUATION_BYTES_MAX)?;
    u32::try_from(value).map(|value| value as usize).map_err(|_| InvalidInteger::TooLarge)
}

/// Reads an integer of up to 62 bits, such as the id of a QUIC stream.
pub(crate) fn read_long(block: &[u8], at: &mut usize, prefix_bits: u32) -> Result<u64, InvalidInteger> {
    let mask = 0xffu8 >> (8 - prefix_bits);
    let first = *block.get(*at).ok_or(InvalidInteger::Incomplete)? & mask;
    *at += 1;
    if first < mask {
        return Ok(u64::from(first));
    }
    let value = read_continuation(block, at, u64::from(mask), LONG_CONTINUATION_BYTES_MAX)?;
    if value < 1 << 62 { Ok(value) } else { Err(InvalidInteger::TooLarge) }
}

fn read_continuation(
    block: &[u8],
    at: &mut usize,
    prefix: u64,
    continuation_bytes_max: usize,
) -> Result<u64, InvalidInteger> {
    let mut value = prefix;
    for index in 0..continuation_bytes_max {
        let byte = *block.get(*at).ok_or(InvalidInteger::Incomplete)?;
        *at += 1;
        value += u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(InvalidInteger::TooLarge)
}

/// Appends an integer; `first` contains the bits before the prefix.
#[inline]
pub(crate) fn write(out: &mut Vec<u8>, first: u8, prefix_bits: u32, value: usize) {
    let mask = (1usize << prefix_bits) - 1;
    if value < mask {
        out.push(first | value as u8);
        return;
    }
    out.push(first | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{InvalidInteger, read, read_long, write};

    #[test]
    fn examples_of_appendix_c_1() {
        for (prefix_bits, value, bytes) in
            [(5, 10, &[0b01010][..]), (5, 1337, &[0b11111, 0b1001_1010, 0b1010]), (8, 42, &[0b10_1010])]
        {
            let mut out = Vec::new();
            write(&mut out, 0, prefix_bits, value);
            assert_eq!(out, bytes);
            let mut at = 0;
            assert_eq!(read(bytes, &mut at, prefix_bits), Ok(value));
            assert_eq!(at, bytes.len());
        }
    }

    #[test]
    fn rejected() {
        for (bytes, expect) in [
            (&[][..], InvalidInteger::Incomplete),
            (&[0x7f], InvalidInteger::Incomplete),
            (&[0x7f, 0x80], InvalidInteger::Incomplete),
            (&[0x7f, 0xff, 0xff, 0xff, 0xff, 0x0f], InvalidInteger::TooLarge),
            (&[0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00], InvalidInteger::TooLarge),
            (&[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], InvalidInteger::TooLarge),
        ] {
            assert_eq!(read(bytes, &mut 0, 7), Err(expect), "{bytes:x?}");
        }
        let long = [0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(read_long(&long, &mut 0, 7), Err(InvalidInteger::TooLarge));
        assert_eq!(read_long(&long[..5], &mut 0, 7), Err(InvalidInteger::Incomplete));
        assert_eq!(read(&[0x7f, 0x80, 0xff, 0xff, 0xff, 0x0f], &mut 0, 7), Ok(0xffff_ffff));
    }

    proptest! {
        #[test]
        fn there_and_back(prefix_bits in 4u32..=8, value: u32) {
            let mut out = Vec::new();
            write(&mut out, 0, prefix_bits, value as usize);
            let mut at = 0;
            prop_assert_eq!(read(&out, &mut at, prefix_bits), Ok(value as usize));
            prop_assert_eq!(at, out.len());
        }

        #[test]
        fn long_there_and_back(prefix_bits in 3u32..=8, value in 0u64..1 << 62) {
            let mut out = Vec::new();
            write(&mut out, 0, prefix_bits, value as usize);
            let mut at = 0;
            prop_assert_eq!(read_long(&out, &mut at, prefix_bits), Ok(value));
            prop_assert_eq!(at, out.len());
        }
    }
}
