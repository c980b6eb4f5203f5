//! Variable-length integers of QUIC (RFC 9000, section 16).

/// Smallest number that has no encoding.
pub(super) const VARINT_END: u64 = 1 << 62;

/// Reads the integer at `*at`, which need not have its shortest form. Moves `*at` after it. Returns `None` if it is
/// incomplete.
#[inline]
pub(super) fn read(input: &[u8], at: &mut usize) -> Option<u64> {
    let first = *input.get(*at)?;
    let length = 1 << (first >> 6);
    let bytes = input.get(*at..*at + length)?;
    *at += length;
    let rest = bytes[1..].iter();
    Some(rest.fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte)))
}

/// Appends an integer in its shortest form.
#[inline]
pub(super) fn write(out: &mut Vec<u8>, value: u64) {
    debug_assert!(value < VARINT_END);
    match value {
        0..0x40 => out.push(value as u8),
        0x40..0x4000 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        0x4000..0x4000_0000 => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 9000, appendix A.1.
    #[test]
    fn examples() {
        for (bytes, expect) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], Some(151_288_809_941_952_652)),
            (&[0x9d, 0x7f, 0x3e, 0x7d], Some(494_878_333)),
            (&[0x7b, 0xbd], Some(15_293)),
            (&[0x25], Some(37)),
            (&[0x40, 0x25], Some(37)),
            (&[0x40], None),
            (&[0xc0, 0, 0, 0, 0, 0, 0], None),
            (&[], None),
        ] {
            let mut at = 0;
            assert_eq!(read(bytes, &mut at), expect, "{bytes:x?}");
            assert_eq!(at, if expect.is_some() { bytes.len() } else { 0 });
        }
    }

    proptest! {
        #[test]
        fn there_and_back(value in 0..VARINT_END, shift in 0..62_u32) {
            let (mut out, mut at) = (Vec::new(), 0);
            write(&mut out, value >> shift);
            prop_assert_eq!(read(&out, &mut at), Some(value >> shift));
            prop_assert_eq!(at, out.len());
        }
    }
}
