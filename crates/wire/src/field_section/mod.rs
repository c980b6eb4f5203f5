//! Shared by HTTP/2 and HTTP/3: rules for heads and trailers, the parts that HPACK and QPACK have in common, priorities
//! (RFC 9218), and budgets for what a peer can cost.

pub(crate) mod budget;
pub(crate) mod dynamic_table;
pub(crate) mod huffman;
pub(crate) mod integer;
pub(crate) mod literal;
pub(crate) mod outgoing_request;
pub(crate) mod prepared;
pub(crate) mod priority;
pub(crate) mod request_head;
pub(crate) mod response_head;

mod error_codes;
mod field_rules;
mod indexing;
mod known_name;

pub(crate) use error_codes::error_codes;
pub(crate) use field_rules::decode_trailers;
pub use field_rules::is_connection_specific;
pub use indexing::Indexing;
pub use known_name::{known_field, static_name_index};

use crate::http::{Fields, Span};
use integer::InvalidInteger;
use literal::InvalidString;

/// Overhead of an entry in a table or of a field in a list, in addition to name and value (RFC 7541, section 4.1; RFC
/// 9113, section 6.5.2; RFC 9114, section 4.2.2; RFC 9204, section 3.2.1).
pub const FIELD_OVERHEAD_BYTES: usize = 32;

/// Field of a block, as spans of the decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedField {
    /// Name as sent.
    pub name: Span,
    /// Value as sent.
    pub value: Span,
    /// [Index of the name](static_name_index) in HPACK's static table, if the block or a table gave it. 0 does not mean
    /// that the static table lacks the name. A name with an index needs no validation.
    pub name_index: u8,
    /// True if intermediaries must not index the field either (RFC 7541, section 6.2.3; RFC 9204, section 4.5.4).
    pub is_never_indexed: bool,
    /// True if the field comes from a table, which has validated it. False does not mean that it is invalid. It says nothing
    /// of the name if that has an index or begins with a colon.
    pub is_valid: bool,
}

/// Entry of a static or dynamic table. Most fields of a connection come from a table, again and again, so the table
/// validates them once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TableField<'a> {
    pub name: &'a [u8],
    pub value: &'a [u8],
    /// Index of the name in HPACK's static table, or 0.
    pub name_index: u8,
    pub is_valid: bool,
}

impl DecodedField {
    /// Appends a field of a table to `text`.
    #[inline]
    pub(crate) fn copied(field: TableField<'_>, text: &mut Vec<u8>) -> Self {
        let TableField { name, value, name_index, is_valid } = field;
        let start = text.len();
        text.extend_from_slice(name);
        text.extend_from_slice(value);
        let name = Span::new(start, start + name.len());
        let value = Span::new(name.end(), text.len());
        Self { name, value, name_index, is_never_indexed: false, is_valid }
    }
}

/// Result of decoding a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodedBlock {
    /// Size of the list of fields in bytes (RFC 9113, section 6.5.2; RFC 9114, section 4.2.2).
    pub list_bytes: usize,
    /// True if the list exceeded its limit. The decoder dropped the fields beyond, but added them to the table.
    pub is_too_large: bool,
}

impl DecodedBlock {
    /// Counts a field whose text begins at `start`. Passes it to `on_field`, or removes its text beyond the limit.
    #[inline]
    pub(crate) fn add(
        &mut self,
        field: DecodedField,
        start: usize,
        list_bytes_max: usize,
        text: &mut Vec<u8>,
        on_field: &mut impl FnMut(&[u8], DecodedField),
    ) {
        self.list_bytes = self.list_bytes.saturating_add(text.len() - start).saturating_add(FIELD_OVERHEAD_BYTES);
        self.is_too_large |= self.list_bytes > list_bytes_max;
        if self.is_too_large {
            text.truncate(start);
        } else {
            on_field(text, field);
        }
    }
}

/// Error of an invalid block. The dynamic tables of both sides may differ from here on, so the connection must end with
/// COMPRESSION_ERROR (RFC 9113, section 4.3) or QPACK_DECOMPRESSION_FAILED (RFC 9204, section 2.2). The text is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidBlock(pub &'static str);

impl From<InvalidInteger> for InvalidBlock {
    fn from(_: InvalidInteger) -> Self {
        Self("malformed integer")
    }
}

impl From<InvalidString> for InvalidBlock {
    fn from(invalid: InvalidString) -> Self {
        Self(match invalid {
            InvalidString::Incomplete => "string longer than its block",
            InvalidString::Length => "malformed integer",
            InvalidString::Huffman => "malformed Huffman code",
        })
    }
}

/// Decoder of a connection for blocks of fields: HPACK or QPACK.
pub(crate) trait BlockDecoder {
    /// Decodes a whole block. Appends names and values to `text` and passes each field to `on_field` in order, until
    /// the list exceeds `list_bytes_max`.
    fn decode(
        &mut self,
        block: &[u8],
        list_bytes_max: usize,
        text: &mut Vec<u8>,
        on_field: impl FnMut(&[u8], DecodedField),
    ) -> Result<DecodedBlock, InvalidBlock>;
}

/// Encoding of fields without a dynamic table: HPACK or QPACK.
pub trait StaticCoding {
    /// Appends the prefix of a block.
    fn write_prefix(out: &mut Vec<u8>);

    /// Appends `:status`.
    fn write_status(out: &mut Vec<u8>, status: crate::http::Status);

    /// Appends a field with its name in lower case.
    fn write_literal(out: &mut Vec<u8>, name: &[u8], value: &[u8]);

    /// Appends a Date field whose value of `value_bytes` is not Huffman coded and follows.
    fn write_date_name(out: &mut Vec<u8>, value_bytes: usize);

    /// Returns the names of a block's fields as spans of `text`, and the length of each field in the block. The block
    /// must be valid and must not use the dynamic table.
    fn decode_places(block: &[u8], text: &mut Vec<u8>) -> Vec<(Span, usize)>;
}

/// Returns the digits of a status.
pub(crate) fn status_digits(status: crate::http::Status) -> [u8; 3] {
    let code = status.code();
    [b'0' + (code / 100) as u8, b'0' + (code / 10 % 10) as u8, b'0' + (code % 10) as u8]
}

/// Returns the fields that HTTP/2 and HTTP/3 allow (RFC 9113, section 8.2.2; RFC 9114, section 4.2).
pub(crate) fn sendable(fields: &Fields) -> impl Iterator<Item = (&[u8], &[u8])> {
    fields.iter().filter(|(name, _)| !is_connection_specific(name))
}
