//! Decoder for header blocks (RFC 7541, sections 3 and 6).

use super::static_table::{STATIC_ENTRIES, static_entry};
use super::{DEFAULT_TABLE_BYTES, DecodedBlock, DecodedField, InvalidBlock, static_name_index};
use crate::field_section::dynamic_table::DynamicTable;
use crate::field_section::{BlockDecoder, TableField};
use crate::field_section::{integer, literal};
use crate::http::Span;

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
        let mut decoded = DecodedBlock::default();
        let mut at = self.read_size_updates(block)?;
        while at < block.len() {
            let start = text.len();
            let field = self.read_field(block, &mut at, text, decoded.is_too_large)?;
            let Some(field) = field else { continue };
            decoded.add(field, start, list_bytes_max, text, &mut on_field);
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
            literal::read(block, at, 7, usize::MAX, text)?;
            static_name_index(&text[start..])
        } else {
            let field = self.entry(index)?;
            text.extend_from_slice(field.name);
            field.name_index
        };
        let name = Span::new(start, text.len());
        literal::read(block, at, 7, usize::MAX, text)?;
        let value = Span::new(name.end(), text.len());
        if is_indexed {
            self.table.insert(name.of(text), value.of(text), name_index, 0);
        }
        let is_never_indexed = first & 0xf0 == 0x10;
        Ok(Some(DecodedField { name, value, name_index, is_never_indexed, is_valid: false }))
    }

    #[inline]
    fn read_indexed(
        &self,
        index: usize,
        text: &mut Vec<u8>,
        skips: bool,
    ) -> Result<Option<DecodedField>, InvalidBlock> {
        let field = self.entry(index)?;
        Ok((!skips).then(|| DecodedField::copied(field, text)))
    }

    /// Returns an entry in the address space of both tables (section 2.3.3).
    #[inline]
    fn entry(&self, index: usize) -> Result<TableField<'_>, InvalidBlock> {
        match index {
            0 => Err(InvalidBlock("index 0")),
            1..=STATIC_ENTRIES => {
                let (name, value) = static_entry(index);
                Ok(TableField { name, value, name_index: index as u8, is_valid: true })
            }
            _ => self.table.get(index - STATIC_ENTRIES - 1).ok_or(InvalidBlock("no such index")),
        }
    }
}

impl BlockDecoder for Decoder {
    fn decode(
        &mut self,
        block: &[u8],
        list_bytes_max: usize,
        text: &mut Vec<u8>,
        on_field: impl FnMut(&[u8], DecodedField),
    ) -> Result<DecodedBlock, InvalidBlock> {
        self.decode(block, list_bytes_max, text, on_field)
    }
}
