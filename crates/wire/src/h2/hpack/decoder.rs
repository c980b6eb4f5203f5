//! Decoder for header blocks (RFC 7541, sections 3 and 6).

use super::dynamic_table::DynamicTable;
use super::integer::{self, InvalidInteger};
use super::static_table::{STATIC_ENTRIES, static_entry};
use super::{DEFAULT_TABLE_BYTES, FIELD_OVERHEAD_BYTES, huffman, static_name_index};
use crate::http::Span;

/// Error of an invalid header block. The dynamic tables of both sides differ from here on, so the connection must end
/// (RFC 9113, section 4.3). The text is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidBlock(pub &'static str);

impl From<InvalidInteger> for InvalidBlock {
    fn from(_: InvalidInteger) -> Self {
        Self("malformed integer")
    }
}

/// Field of a block, as spans of the decoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedField {
    /// Name as sent.
    pub name: Span,
    /// Value as sent.
    pub value: Span,
    /// Index of the name in the static table, if the block or the dynamic table gave it. 0 does not mean that the
    /// static table lacks the name. A name with an index needs no validation.
    pub name_index: u8,
    /// True if intermediaries must not index the field either (RFC 7541, section 6.2.3).
    pub is_never_indexed: bool,
}

/// Result of decoding a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedBlock {
    /// Size of the header list in bytes (RFC 9113, section 6.5.2).
    pub list_bytes: usize,
    /// True if the list exceeded its limit. The decoder dropped the fields beyond, but added them to the table.
    pub is_too_large: bool,
}

/// Decoder of one connection, with the dynamic table that the peer's encoder fills.
#[derive(Debug)]
pub struct Decoder {
    table: DynamicTable,
    /// Limit for the peer: SETTINGS_HEADER_TABLE_SIZE after the peer has acknowledged it.
    table_bytes_max: usize,
    /// True if the table exceeds a reduced limit, so that the next block must begin with a size update (section 4.2).
    awaits_size_update: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            table: DynamicTable::new(DEFAULT_TABLE_BYTES),
            table_bytes_max: DEFAULT_TABLE_BYTES,
            awaits_size_update: false,
        }
    }
}

impl Decoder {
    /// Sets the limit of the table in bytes. Call it when the peer has acknowledged the setting.
    pub fn set_table_bytes_max(&mut self, table_bytes_max: usize) {
        self.table_bytes_max = table_bytes_max;
        self.awaits_size_update = self.table.size_bytes_max() > table_bytes_max;
    }

    /// Frees memory that the table does not need now.
    pub fn shrink(&mut self) {
        self.table.shrink();
    }

    /// Decodes a whole block. Appends names and values to `text` and passes each field to `on_field` in order, until
    /// the list exceeds `list_bytes_max`. The cost is bounded by the length of `block` and by `list_bytes_max`, however
    /// often the block refers to an entry (the HPACK bomb, CVE-2016-6581).
    pub fn decode(
        &mut self,
        block: &[u8],
        list_bytes_max: usize,
        text: &mut Vec<u8>,
        mut on_field: impl FnMut(&[u8], DecodedField),
    ) -> Result<DecodedBlock, InvalidBlock> {
        let mut decoded = DecodedBlock { list_bytes: 0, is_too_large: false };
        let mut at = self.read_size_updates(block)?;
        while at < block.len() {
            let start = text.len();
            let field = self.read_field(block, &mut at, text, decoded.is_too_large)?;
            let Some(field) = field else { continue };
            decoded.list_bytes =
                decoded.list_bytes.saturating_add(text.len() - start).saturating_add(FIELD_OVERHEAD_BYTES);
            decoded.is_too_large |= decoded.list_bytes > list_bytes_max;
            if decoded.is_too_large {
                text.truncate(start);
            } else {
                on_field(text, field);
            }
        }
        Ok(decoded)
    }

    /// Returns the names of a block's fields, and the length of each field in the block.
    pub(super) fn decode_places(
        &mut self,
        block: &[u8],
        text: &mut Vec<u8>,
    ) -> Result<Vec<(Span, usize)>, InvalidBlock> {
        let (mut places, mut at) = (Vec::new(), 0);
        while at < block.len() {
            let start = at;
            if let Some(field) = self.read_field(block, &mut at, text, false)? {
                places.push((field.name, at - start));
            }
        }
        Ok(places)
    }

    /// Reads size updates. At most two may occur, at the beginning of a block (section 4.2). Returns the offset of the
    /// first field.
    fn read_size_updates(&mut self, block: &[u8]) -> Result<usize, InvalidBlock> {
        let (mut at, mut count) = (0, 0);
        while let Some(first) = block.get(at)
            && first & 0xe0 == 0x20
        {
            let size_bytes = integer::read(block, &mut at, 5)?;
            count += 1;
            if size_bytes > self.table_bytes_max {
                return Err(InvalidBlock("table size larger than allowed"));
            }
            if count > 2 {
                return Err(InvalidBlock("too many table size updates"));
            }
            self.table.set_size_bytes_max(size_bytes);
            self.awaits_size_update = false;
        }
        if self.awaits_size_update {
            return Err(InvalidBlock("no table size update after a smaller size was acknowledged"));
        }
        Ok(at)
    }

    /// Reads a field (sections 6.1 and 6.2). With `skips` an indexed field is not copied and the result is `None`.
    #[inline]
    fn read_field(
        &mut self,
        block: &[u8],
        at: &mut usize,
        text: &mut Vec<u8>,
        skips: bool,
    ) -> Result<Option<DecodedField>, InvalidBlock> {
        let first = block[*at];
        if first & 0x80 != 0 {
            let index = integer::read(block, at, 7)?;
            return self.read_indexed(index, text, skips);
        }
        let (prefix_bits, is_indexed) = match first {
            0x40.. => (6, true),
            0x20..0x40 => return Err(InvalidBlock("table size update after a field")),
            _ => (4, false),
        };
        let index = integer::read(block, at, prefix_bits)?;
        let start = text.len();
        let name_index = if index == 0 {
            read_string(block, at, text)?;
            static_name_index(&text[start..])
        } else {
            let (name, _, name_index) = self.entry(index)?;
            text.extend_from_slice(name);
            name_index
        };
        let name = Span::new(start, text.len());
        read_string(block, at, text)?;
        let value = Span::new(name.end(), text.len());
        if is_indexed {
            self.table.insert(name.of(text), value.of(text), name_index, 0);
        }
        Ok(Some(DecodedField { name, value, name_index, is_never_indexed: first & 0xf0 == 0x10 }))
    }

    #[inline]
    fn read_indexed(
        &self,
        index: usize,
        text: &mut Vec<u8>,
        skips: bool,
    ) -> Result<Option<DecodedField>, InvalidBlock> {
        let (name, value, name_index) = self.entry(index)?;
        if skips {
            return Ok(None);
        }
        let start = text.len();
        text.extend_from_slice(name);
        text.extend_from_slice(value);
        let name = Span::new(start, start + name.len());
        let value = Span::new(name.end(), text.len());
        Ok(Some(DecodedField { name, value, name_index, is_never_indexed: false }))
    }

    /// Returns name, value and static name index of an entry in the address space of both tables (section 2.3.3).
    #[inline]
    fn entry(&self, index: usize) -> Result<(&[u8], &[u8], u8), InvalidBlock> {
        match index {
            0 => Err(InvalidBlock("index 0")),
            1..=STATIC_ENTRIES => {
                let (name, value) = static_entry(index);
                Ok((name, value, index as u8))
            }
            _ => {
                let found = self.table.get(index - STATIC_ENTRIES - 1).ok_or(InvalidBlock("no such index"))?;
                Ok((found.name, found.value, found.name_index))
            }
        }
    }
}

/// Appends a string literal (section 5.2).
fn read_string(block: &[u8], at: &mut usize, text: &mut Vec<u8>) -> Result<(), InvalidBlock> {
    let is_huffman = block.get(*at).is_some_and(|first| first & 0x80 != 0);
    let length = integer::read(block, at, 7)?;
    let end = at.checked_add(length).filter(|end| *end <= block.len());
    let end = end.ok_or(InvalidBlock("string longer than its block"))?;
    let string = &block[*at..end];
    *at = end;
    if is_huffman {
        return huffman::decode(string, text).map_err(|_| InvalidBlock("malformed Huffman code"));
    }
    text.extend_from_slice(string);
    Ok(())
}
