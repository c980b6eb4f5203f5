//! Sections without the dynamic table. They are the same for all connections.

use super::static_table::{find_static, find_static_name};
use super::{DecoderLimits, Indexing, OpenedSection, QpackDecoder};
use crate::field_section::{StaticCoding, integer, literal, status_digits};
use crate::http::{Span, Status};

/// Encoding of heads that all connections share.
#[derive(Clone, Copy, Debug)]
pub enum Qpack {}

impl StaticCoding for Qpack {
    fn write_prefix(out: &mut Vec<u8>) {
        write_prefix(out);
    }

    fn write_status(out: &mut Vec<u8>, status: Status) {
        write_status(out, status);
    }

    fn write_literal(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
        write_literal(out, name, value);
    }

    fn write_date_name(out: &mut Vec<u8>, value_bytes: usize) {
        write_name(out, b"date", false);
        integer::write(out, 0, 7, value_bytes);
    }

    fn decode_places(section: &[u8], text: &mut Vec<u8>) -> Vec<(Span, usize)> {
        match QpackDecoder::new(DecoderLimits::default()).open(0, section) {
            Ok(OpenedSection::Ready(reader)) => reader.decode_places(section, text).unwrap_or_default(),
            _ => Vec::new(),
        }
    }
}

/// Appends the prefix of a section that uses no dynamic table (RFC 9204, section 4.5.1).
#[inline]
pub fn write_prefix(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0]);
}

/// Appends `:status`.
pub fn write_status(out: &mut Vec<u8>, status: Status) {
    write_literal(out, b":status", &status_digits(status));
}

/// Appends a field with its name in lower case, valid at the end of any section.
pub fn write_literal(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let is_never_indexed = Indexing::of(name, value) == Indexing::Never;
    if !is_never_indexed && write_static(out, name, value) {
        return;
    }
    write_name(out, name, is_never_indexed);
    literal::write(out, 0, 7, value);
}

/// Appends an indexed field of the static table (section 4.5.2). Returns whether it has the field.
pub(super) fn write_static(out: &mut Vec<u8>, name: &[u8], value: &[u8]) -> bool {
    let Some(index) = find_static_name(name).and_then(|first| find_static(first, value)) else { return false };
    integer::write(out, 0xc0, 6, index);
    true
}

/// Appends the name of a field, as a reference to the static table or as a literal (sections 4.5.4 and 4.5.6).
pub(super) fn write_name(out: &mut Vec<u8>, name: &[u8], is_never_indexed: bool) {
    match find_static_name(name) {
        Some(index) => integer::write(out, if is_never_indexed { 0x70 } else { 0x50 }, 4, index),
        None => literal::write(out, if is_never_indexed { 0x30 } else { 0x20 }, 3, name),
    }
}
