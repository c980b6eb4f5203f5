//! HPACK, the compression of header fields (RFC 7541).

mod decoder;
mod dynamic_table;
mod encoder;
mod huffman;
mod integer;
mod prepared;
mod static_table;

pub use decoder::{DecodedBlock, DecodedField, Decoder, InvalidBlock};
pub use encoder::{Encoder, Indexing, write_literal, write_status};
pub use prepared::{PreparedBlock, is_connection_specific};
pub use static_table::{known_field, static_name_index};

#[cfg(test)]
mod tests;

/// Overhead of an entry in a table or of a field in a header list, in addition to name and value (RFC 7541, section
/// 4.1; RFC 9113, section 6.5.2).
pub const FIELD_OVERHEAD_BYTES: usize = 32;

/// Default size of a dynamic table (RFC 9113, section 6.5.2).
pub const DEFAULT_TABLE_BYTES: usize = 4096;
