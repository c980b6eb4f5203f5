//! Reading header blocks (RFC 7541, sections 3 and 6).

use super::dynamic_table::DynamicTable;
use super::integer::{self, InvalidInteger};
use super::static_table::{STATIC_ENTRIES, static_entry};
use super::{DEFAULT_TABLE_BYTES, FIELD_OVERHEAD_BYTES, huffman, static_name_index};
use crate::http::Span;

/// Not a header block: the peer's tables and ours differ from here on, so the connection has to end (RFC 9113, section
/// 4.3). The text says what was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidBlock(pub &'static str);

impl From<InvalidInteger> for InvalidBlock {
    fn from(_: InvalidInteger) -> Self {
        Self("malformed integer")
    }
}

/// A field of a block, in the text that the block was decoded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedField {
    /// The name, as it was sent.
    pub name: Span,
    /// The value, as it was sent.
    pub value: Span,
    /// The index of the name in the static table, if it was told or remembered; 0 if it may or may not be there. A name
    /// with an index needs no validation.
    pub name_index: u8,
    /// Whether whoever passes the field on must not index it either (RFC 7541, section 6.2.3).
    pub is_never_indexed: bool,
}

/// What a whole block was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedBlock {
    /// The size of its header list (RFC 9113, section 6.5.2), in bytes.
    pub list_bytes: usize,
    /// Whether the list was larger than allowed. Fields beyond were not given out, but the table has taken note of them.
    pub is_too_large: bool,
}

/// One direction of a connection: what the peer has put into the dynamic table.
#[derive(Debug)]
pub struct Decoder {
    table: DynamicTable,
    /// What we allow the peer: SETTINGS_HEADER_TABLE_SIZE once it was acknowledged.
    table_bytes_max: usize,
    /// The table is larger than allowed by now, so the next block has to begin with its new size (section 4.2).
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
    /// Sets how large the peer may make the table, in bytes. To be called when the peer has acknowledged it.
    pub fn set_table_bytes_max(&mut self, table_bytes_max: usize) {
        self.table_bytes_max = table_bytes_max;
        self.awaits_size_update = self.table.size_bytes_max() > table_bytes_max;
    }

    /// Gives memory back that the table does not need now.
    pub fn shrink(&mut self) {
        self.table.shrink();
    }

    /// Decodes a whole block. Names and values are appended to `text`, fields are given to `on_field` in order, until the
    /// list has more than `list_bytes_max` bytes. What is decoded costs at most as much as `block` is long and
    /// `list_bytes_max` allows, however often entries are referred to (the HPACK bomb, CVE-2016-6581).
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

    /// The names of a block's fields, and how many bytes of the block each field has.
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

    /// Size updates come only at the beginning of a block, at most two of them (section 4.2). Returns where fields begin.
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

    /// Reads one field (sections 6.1 and 6.2). With `skips`, an indexed one is not copied: `None`.
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

    /// Name, value and static index of the name of an entry in the address space of both tables (section 2.3.3).
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
