//! Decoder for response heads (RFC 9113, section 8.3.2; RFC 9114, section 4.3.2).

use super::field_rules::{Malformed, check_field};
use super::{BlockDecoder, InvalidBlock};
use crate::h1::parse_content_length;
use crate::http::{Fields, Status};

/// Decodes a response's head into `fields`. Returns its status and Content-Length.
pub(crate) fn decode_response(
    decoder: &mut impl BlockDecoder,
    block: &[u8],
    list_bytes_max: usize,
    fields_max: usize,
    text: &mut Vec<u8>,
    fields: &mut Fields,
) -> Result<Result<(Status, Option<u64>), Malformed>, InvalidBlock> {
    fields.clear();
    text.clear();
    let (mut status, mut content_length, mut count, mut outcome) = (None, None, 0, Ok(()));
    let decoded = decoder.decode(block, list_bytes_max, text, |text, field| {
        let (name, value) = (field.name.of(text), field.value.of(text));
        let mut on_field = || {
            if name.first() == Some(&b':') {
                // `:status` must come first, exactly once.
                let parsed = if name == b":status" { parse_status(value) } else { None };
                let is_first = status.is_none() && count == 0;
                status = Some(parsed.filter(|_| is_first).ok_or(Malformed)?);
                return Ok(());
            }
            count += 1;
            check_field(text, field)?;
            if name == b"content-length" {
                let length = parse_content_length(value).filter(|_| content_length.is_none());
                content_length = Some(length.ok_or(Malformed)?);
            }
            if count <= fields_max {
                fields.push(name, value);
            }
            Ok(())
        };
        let checked = on_field();
        outcome = outcome.and(checked);
    })?;
    if decoded.is_too_large || count > fields_max {
        return Ok(Err(Malformed));
    }
    // RFC 9113, section 8.6, and RFC 9114, section 4.5: there is no status 101.
    let status = status.filter(|status| *status != Status::SWITCHING_PROTOCOLS);
    Ok(outcome.and_then(|()| status.ok_or(Malformed)).map(|status| (status, content_length)))
}

fn parse_status(value: &[u8]) -> Option<Status> {
    let [hundreds @ b'1'..=b'9', tens @ b'0'..=b'9', units @ b'0'..=b'9'] = value else { return None };
    let digit = |byte: &u8| u16::from(byte - b'0');
    Status::new(digit(hundreds) * 100 + digit(tens) * 10 + digit(units))
}
