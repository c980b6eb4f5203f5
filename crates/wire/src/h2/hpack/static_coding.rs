//! HPACK without the dynamic table.

use super::{Decoder, static_name_index, write_literal, write_status};
use crate::field_section::{StaticCoding, integer};
use crate::http::{Span, Status};

/// Encoding of heads that all connections share.
#[derive(Clone, Copy, Debug)]
pub enum Hpack {}

impl StaticCoding for Hpack {
    fn write_prefix(_: &mut Vec<u8>) {}

    fn write_status(out: &mut Vec<u8>, status: Status) {
        write_status(out, status);
    }

    fn write_literal(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        write_literal(out, name, value);
    }

    fn write_date_name(out: &mut Vec<u8>, value_bytes: usize) {
        integer::write(out, 0, 4, usize::from(static_name_index(b"date")));
        integer::write(out, 0, 7, value_bytes);
    }

    fn decode_places(block: &[u8], text: &mut Vec<u8>) -> Vec<(Span, usize)> {
        Decoder::default().decode_places(block, text).unwrap_or_default()
    }
}
