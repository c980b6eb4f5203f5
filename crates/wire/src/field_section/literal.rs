//! String literals (RFC 7541, section 5.2; RFC 9204, section 4.1.2). The bit above the prefix of the length marks the
//! Huffman code.

use super::huffman;
use super::integer::{self, InvalidInteger};

/// Error of a string literal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvalidString {
    /// The literal continues after the end of its block.
    Incomplete,
    /// The length is not valid.
    Length,
    /// The Huffman code is not valid.
    Huffman,
}

impl From<InvalidInteger> for InvalidString {
    fn from(invalid: InvalidInteger) -> Self {
        match invalid {
            InvalidInteger::Incomplete => Self::Incomplete,
            InvalidInteger::TooLarge => Self::Length,
        }
    }
}

/// Returns the encoded string at `*at`, whose length has a prefix of `prefix_bits` and is at most `encoded_bytes_max`. Moves
/// `*at` after it.
#[inline]
pub(crate) fn locate<'a>(
    block: &'a [u8],
    at: &mut usize,
    prefix_bits: u32,
    encoded_bytes_max: usize,
) -> Result<&'a [u8], InvalidString> {
    let length = integer::read(block, at, prefix_bits)?;
    if length > encoded_bytes_max {
        return Err(InvalidString::Length);
    }
    let end = at.checked_add(length).filter(|end| *end <= block.len());
    let end = end.ok_or(InvalidString::Incomplete)?;
    let string = &block[*at..end];
    *at = end;
    Ok(string)
}

/// Appends the string at `*at`, whose length has a prefix of `prefix_bits` and is at most `encoded_bytes_max`. Moves `*at`
/// after it.
#[inline]
pub(crate) fn read(
    block: &[u8],
    at: &mut usize,
    prefix_bits: u32,
    encoded_bytes_max: usize,
    text: &mut Vec<u8>,
) -> Result<(), InvalidString> {
    let is_huffman = block.get(*at).is_some_and(|first| first >> prefix_bits & 1 == 1);
    let string = locate(block, at, prefix_bits, encoded_bytes_max)?;
    if is_huffman {
        return huffman::decode(string, text).map_err(|_| InvalidString::Huffman);
    }
    text.extend_from_slice(string);
    Ok(())
}

/// Appends a string in the shorter of both encodings. `first` contains the bits before that of the Huffman code.
pub(crate) fn write(out: &mut Vec<u8>, first: u8, prefix_bits: u32, string: &[u8]) {
    let encoded_bytes = huffman::encoded_bytes(string);
    if encoded_bytes < string.len() {
        integer::write(out, first | 1 << prefix_bits, prefix_bits, encoded_bytes);
        huffman::encode(string, out);
    } else {
        integer::write(out, first, prefix_bits, string.len());
        out.extend_from_slice(string);
    }
}
