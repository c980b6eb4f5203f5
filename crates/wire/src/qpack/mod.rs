//! QPACK, the compression of fields in HTTP/3 (RFC 9204).
//!
//! A [`QpackDecoder`] announces no dynamic table unless [`DecoderLimits`] say so. An [`QpackEncoder`] uses the dynamic table only if it
//! wants one and the peer permits it. Neither keeps input: the caller keeps an incomplete instruction, and a section that
//! waits for instructions.

mod decoder;
mod encoder;
mod encoder_stream;
mod references;
mod static_coding;
mod static_table;

pub use crate::field_section::{
    DecodedBlock, DecodedField, FIELD_OVERHEAD_BYTES, Indexing, InvalidBlock, is_connection_specific, known_field,
    static_name_index,
};
pub use decoder::{DecoderLimits, QpackDecoder};
pub(crate) use decoder::{OpenedSection, SectionReader};
pub use encoder::QpackEncoder;
pub use encoder_stream::InvalidInstruction;
pub use static_coding::{Qpack, write_literal, write_prefix, write_status};

#[cfg(test)]
mod tests;

/// Field section of a response, encoded once and sent many times on any connection.
pub type PreparedSection = crate::field_section::prepared::PreparedResponseHead<Qpack>;

/// Returns the number of entries that a table can have at most (section 3.2.2).
fn entries_max(table_bytes_max: usize) -> u64 {
    (table_bytes_max / FIELD_OVERHEAD_BYTES) as u64
}
