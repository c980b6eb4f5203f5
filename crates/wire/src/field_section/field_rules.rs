//! Rules for fields that make a message malformed (RFC 9113, section 8.2; RFC 9114, section 4.2), and the decoder for
//! trailers. Sections without an RFC are those of RFC 9113; RFC 9114 has the same rules.

use super::{BlockDecoder, DecodedField, InvalidBlock, static_name_index};
use crate::h1::is_token_byte;
use crate::http::Fields;

/// Error of a malformed message (section 8.1.1). Its stream is reset with PROTOCOL_ERROR or H3_MESSAGE_ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Index of `transfer-encoding` in the static table.
const TRANSFER_ENCODING: u8 = static_name_index(b"transfer-encoding");

/// Checks a field that is not a pseudo-field, and whose spans are those of `text`.
#[inline]
pub(crate) fn check_field(text: &[u8], field: DecodedField) -> Result<(), Malformed> {
    match field.name_index {
        0 if !field.is_valid => check_name(field.name.of(text), field.value.of(text))?,
        // Names in the static table are lower case, and only one of them is specific to connections.
        TRANSFER_ENCODING => return Err(Malformed),
        _ => {}
    }
    if field.is_valid { Ok(()) } else { check_value(field.value.of(text)) }
}

/// Checks an entry of a table for all fields that refer to it.
pub(super) fn is_valid_entry(name: &[u8], value: &[u8], name_index: u8) -> bool {
    // Names in the static table and those of pseudo-fields are checked where they are used.
    let is_name_checked_later = name_index > 0 || name.first() == Some(&b':');
    check_value(value).is_ok() && (is_name_checked_later || check_name(name, value).is_ok())
}

/// Checks a name that the static table lacks; `value` matters for TE.
fn check_name(name: &[u8], value: &[u8]) -> Result<(), Malformed> {
    // `fold` has no early exit, unlike `all`, so the loop needs no branch for each byte.
    let is_valid = !name.is_empty() && name.iter().fold(true, |valid, byte| valid & NAME_BYTES[usize::from(*byte)]);
    let is_te_of_h1 = name == b"te" && !value.eq_ignore_ascii_case(b"trailers");
    if is_valid && !is_connection_specific(name) && !is_te_of_h1 { Ok(()) } else { Err(Malformed) }
}

/// Bytes of names: those of tokens (RFC 9110, section 5.6.2) except upper case letters.
static NAME_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < table.len() {
        table[byte] = is_token_byte(byte as u8) && !(byte as u8).is_ascii_uppercase();
        byte += 1;
    }
    table
};

/// Checks a value as strictly as for HTTP/1 (section 8.2.1; RFC 9110, section 5.5): no control characters except tabs,
/// no surrounding white space.
pub(crate) fn check_value(value: &[u8]) -> Result<(), Malformed> {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    if is_blank(value.first()) || is_blank(value.last()) {
        return Err(Malformed);
    }
    // The last block overlaps the one before, so that no bytes are left to check one by one.
    let is_malformed = if let Some(last) = value.last_chunk::<16>() {
        value.as_chunks::<16>().0.iter().any(|block| has_control(block)) || has_control(last)
    } else if let (Some(first), Some(last)) = (value.first_chunk::<8>(), value.last_chunk::<8>()) {
        has_control(first) || has_control(last)
    } else {
        has_control(value)
    };
    if is_malformed { Err(Malformed) } else { Ok(()) }
}

/// Returns whether bytes contain a control character other than a tab.
#[inline]
fn has_control(bytes: &[u8]) -> bool {
    // `fold` has no early exit, unlike `any`, so the compiler vectorizes it for blocks of a known length.
    bytes.iter().fold(false, |found, byte| found | (*byte < b' ') & (*byte != b'\t') | (*byte == 0x7f))
}

/// Decodes a trailer section (section 8.1). Rejects pseudo-fields and sections beyond the limits.
pub(crate) fn decode_trailers(
    decoder: &mut impl BlockDecoder,
    block: &[u8],
    list_bytes_max: usize,
    fields_max: usize,
) -> Result<Result<Fields, Malformed>, InvalidBlock> {
    let (mut text, mut fields, mut count, mut outcome) = (Vec::new(), Fields::new(), 0, Ok(()));
    let decoded = decoder.decode(block, list_bytes_max, &mut text, |text, field| {
        let (name, value) = (field.name.of(text), field.value.of(text));
        count += 1;
        let checked = if name.first() == Some(&b':') { Err(Malformed) } else { check_field(text, field) };
        outcome = outcome.and(checked);
        if count <= fields_max {
            fields.push(name, value);
        }
    })?;
    let is_too_large = decoded.is_too_large || count > fields_max;
    Ok(if is_too_large { Err(Malformed) } else { outcome.map(|()| fields) })
}

/// Returns whether a field is specific to HTTP/1 connections and makes a message malformed (RFC 9113, section 8.2.2;
/// RFC 9114, section 4.2). The name is case-insensitive. TE is not among them, because the value `trailers` is allowed.
pub fn is_connection_specific(name: &[u8]) -> bool {
    let known: &[u8] = match name.len() {
        7 => b"upgrade",
        10 if name[0].eq_ignore_ascii_case(&b'k') => b"keep-alive",
        10 => b"connection",
        16 => b"proxy-connection",
        17 => b"transfer-encoding",
        _ => return false,
    };
    name.eq_ignore_ascii_case(known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Span;

    fn check(name: &str, value: &str, name_index: u8) -> Result<(), Malformed> {
        let (text, name_bytes) = ([name, value].concat(), name.len());
        let (name, value) = (Span::new(0, name_bytes), Span::new(name_bytes, text.len()));
        let field = DecodedField { name, value, name_index, is_never_indexed: false, is_valid: false };
        check_field(text.as_bytes(), field)
    }

    #[test]
    fn fields() {
        for (name, value, expect) in [
            ("accept", "a b", true),
            ("x", "", true),
            ("x", "\u{e9}\t.", true),
            ("te", "trailers", true),
            ("te", "gzip", false),
            ("Accept", "a", false),
            ("", "a", false),
            ("a b", "a", false),
            ("a:", "a", false),
            ("connection", "close", false),
            ("keep-alive", "", false),
            ("proxy-connection", "", false),
            ("transfer-encoding", "chunked", false),
            ("upgrade", "h2c", false),
            ("x", " a", false),
            ("x", "a\t", false),
            ("x", "a\rb", false),
            ("x", "a\nb", false),
            ("x", "a\0b", false),
            ("x", "\x7f", false),
        ] {
            assert_eq!(check(name, value, 0).is_ok(), expect, "{name}: {value:?}");
        }
        assert_eq!(check("transfer-encoding", "", 57), Err(Malformed));
    }

    #[test]
    fn control_characters_are_found_everywhere() {
        for length in 1..50 {
            let mut value = vec![b'x'; length];
            assert_eq!(check_value(&value), Ok(()), "{length}");
            for at in 0..length {
                for byte in [0, b'\n', b'\r', 0x1f, 0x7f] {
                    value[at] = byte;
                    assert_eq!(check_value(&value), Err(Malformed), "{byte:#x} at {at} of {length}");
                }
                value[at] = b'x';
            }
        }
    }
}
