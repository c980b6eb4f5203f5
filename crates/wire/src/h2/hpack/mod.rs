//! HPACK, the compression of header fields (RFC 7541).

mod decoder;
mod encoder;
mod static_coding;
mod static_table;

pub use crate::field_section::{
    DecodedBlock, DecodedField, FIELD_OVERHEAD_BYTES, Indexing, InvalidBlock, is_connection_specific, known_field,
    static_name_index,
};
pub use decoder::Decoder;
pub use encoder::{Encoder, write_literal, write_status};
pub use static_coding::Hpack;

#[cfg(test)]
mod tests;

/// Header block of a response, encoded once and sent many times on any connection.
pub type PreparedBlock = crate::field_section::prepared::PreparedResponseHead<Hpack>;

/// Default size of a dynamic table (RFC 9113, section 6.5.2).
pub const DEFAULT_TABLE_BYTES: usize = 4096;
