//! QpackDecoder for field sections (RFC 9204, sections 2.2 and 4.5).

use super::static_table::static_entry;
use super::{DecodedBlock, DecodedField, InvalidBlock, entries_max, static_name_index};
use crate::field_section::dynamic_table::DynamicTable;
use crate::field_section::{BlockDecoder, TableField};
use crate::field_section::{integer, literal};
use crate::http::Span;

/// Limits for the peer's encoder, which the settings of the connection announce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderLimits {
    /// Size of the dynamic table (SETTINGS_QPACK_MAX_TABLE_CAPACITY). 0 disables the table.
    pub table_bytes_max: usize,
    /// Streams that may wait for instructions (SETTINGS_QPACK_BLOCKED_STREAMS).
    pub blocked_streams_max: usize,
}

/// QpackDecoder of one connection, with the dynamic table that the peer's encoder fills.
#[derive(Debug)]
pub struct QpackDecoder {
    pub(super) table: DynamicTable,
    pub(super) limits: DecoderLimits,
    /// Number of entries ever inserted.
    pub(super) inserted: u64,
    /// Inserted entries of which the peer's encoder knows that they have arrived (section 2.1.4).
    pub(super) acknowledged: u64,
    /// Streams with a section that waits for instructions, and the insert count that it waits for.
    blocked: Vec<(u64, u64)>,
    /// Buffer for an entry to insert.
    pub(super) text: Vec<u8>,
}

/// Result of reading the prefix of a section.
pub(crate) enum OpenedSection<'a> {
    /// The section waits for instructions; the caller must keep it.
    Blocked,
    /// The section can be decoded.
    Ready(SectionReader<'a>),
}

/// QpackDecoder for one section.
#[derive(Debug)]
pub(crate) struct SectionReader<'a> {
    table: &'a DynamicTable,
    inserted: u64,
    /// Entries that the section needs (section 4.5.1.1). 0 if it uses no dynamic table.
    pub required: u64,
    base: u64,
    /// Offset of the first field.
    start: usize,
}

impl QpackDecoder {
    /// Creates a decoder with an empty table.
    pub fn new(limits: DecoderLimits) -> Self {
        Self {
            table: DynamicTable::new(0),
            limits,
            inserted: 0,
            acknowledged: 0,
            blocked: Vec::new(),
            text: Vec::new(),
        }
    }

    /// Decodes the whole section of a stream. Appends names and values to `text` and passes each field to `on_field` in
    /// order, until the list exceeds `list_bytes_max`. The cost is bounded by the length of `section` and by
    /// `list_bytes_max`, however often the section refers to an entry. Appends instructions for the peer's encoder to
    /// `instructions`. Returns `None` if the section waits for [instructions](QpackDecoder::handle_instructions). Then the
    /// caller must call again after [`QpackDecoder::poll_unblocked`] has returned the stream, or [cancel](QpackDecoder::cancel) it.
    pub fn decode(
        &mut self,
        stream: u64,
        section: &[u8],
        list_bytes_max: usize,
        text: &mut Vec<u8>,
        instructions: &mut Vec<u8>,
        on_field: impl FnMut(&[u8], DecodedField),
    ) -> Result<Option<DecodedBlock>, InvalidBlock> {
        let OpenedSection::Ready(mut reader) = self.open(stream, section)? else { return Ok(None) };
        let required = reader.required;
        let decoded = reader.decode(section, list_bytes_max, text, on_field)?;
        self.acknowledge(stream, required, instructions);
        Ok(Some(decoded))
    }

    /// Reads the prefix of a stream's section (section 4.5.1). After the section is decoded, the caller must
    /// [acknowledge](Self::acknowledge) it.
    pub(crate) fn open(&mut self, stream: u64, section: &[u8]) -> Result<OpenedSection<'_>, InvalidBlock> {
        let mut at = 0;
        let encoded = integer::read(section, &mut at, 8)? as u64;
        let required = self.required_insert_count(encoded)?;
        let is_negative = section.get(at).is_some_and(|first| first & 0x80 != 0);
        let delta = integer::read(section, &mut at, 7)? as u64;
        let base = if is_negative { required.checked_sub(delta + 1) } else { Some(required + delta) };
        let base = base.ok_or(InvalidBlock("negative base"))?;
        if required > self.inserted {
            self.block(stream, required)?;
            return Ok(OpenedSection::Blocked);
        }
        let (table, inserted) = (&self.table, self.inserted);
        Ok(OpenedSection::Ready(SectionReader { table, inserted, required, base, start: at }))
    }

    /// Section 4.5.1.1: the count is encoded modulo twice the number of entries that the table can have.
    fn required_insert_count(&self, encoded: u64) -> Result<u64, InvalidBlock> {
        if encoded == 0 {
            return Ok(0);
        }
        let invalid = InvalidBlock("invalid insert count");
        let entries_max = entries_max(self.limits.table_bytes_max);
        let full_range = 2 * entries_max;
        if encoded > full_range {
            return Err(invalid);
        }
        let value_max = self.inserted + entries_max;
        let wrapped_max = value_max / full_range * full_range;
        let mut required = wrapped_max + encoded - 1;
        if required > value_max {
            required = required.checked_sub(full_range).ok_or(invalid)?;
        }
        if required == 0 { Err(invalid) } else { Ok(required) }
    }

    /// Section 2.1.2: a stream counts once, whatever the number of its sections.
    fn block(&mut self, stream: u64, required: u64) -> Result<(), InvalidBlock> {
        if let Some((_, before)) = self.blocked.iter_mut().find(|(id, _)| *id == stream) {
            *before = required;
            return Ok(());
        }
        if self.blocked.len() >= self.limits.blocked_streams_max {
            return Err(InvalidBlock("too many blocked streams"));
        }
        self.blocked.push((stream, required));
        Ok(())
    }

    /// Appends Section Acknowledgment, unless the section used no dynamic table (section 4.4.1).
    pub(crate) fn acknowledge(&mut self, stream: u64, required: u64, instructions: &mut Vec<u8>) {
        if required > 0 {
            integer::write(instructions, 0x80, 7, stream as usize);
            self.acknowledged = self.acknowledged.max(required);
        }
    }

    /// Returns a stream whose section no longer waits.
    pub fn poll_unblocked(&mut self) -> Option<u64> {
        let index = self.blocked.iter().position(|(_, required)| *required <= self.inserted)?;
        Some(self.blocked.remove(index).0)
    }

    /// Returns the number of streams that wait for instructions.
    pub fn blocked_streams(&self) -> usize {
        self.blocked.len()
    }

    /// Abandons a stream that was reset or whose sections are not read any more. Appends Stream Cancellation (section
    /// 4.4.2), which a decoder without a table need not send.
    pub fn cancel(&mut self, stream: u64, instructions: &mut Vec<u8>) {
        self.blocked.retain(|(id, _)| *id != stream);
        if self.limits.table_bytes_max > 0 {
            integer::write(instructions, 0x40, 6, stream as usize);
        }
    }

    /// Frees memory that the table does not need now.
    pub fn shrink(&mut self) {
        self.table.shrink();
        self.text = Vec::new();
        self.blocked.shrink_to_fit();
    }

    /// Returns an entry of the table by its absolute index (section 3.2.4).
    pub(super) fn entry(&self, absolute: u64) -> Option<TableField<'_>> {
        entry(&self.table, self.inserted, absolute)
    }
}

fn entry(table: &DynamicTable, inserted: u64, absolute: u64) -> Option<TableField<'_>> {
    table.get(usize::try_from(inserted.checked_sub(1 + absolute)?).ok()?)
}

/// Place of an entry or a name.
#[derive(Clone, Copy)]
enum Reference {
    Static(usize),
    /// Relative to the base, downward (section 3.2.5).
    Relative(usize),
    /// Relative to the base, upward (section 3.2.6).
    PostBase(usize),
}

impl SectionReader<'_> {
    /// Returns the names of a section's fields, and the length of each field in the section.
    pub(super) fn decode_places(&self, section: &[u8], text: &mut Vec<u8>) -> Result<Vec<(Span, usize)>, InvalidBlock> {
        let (mut places, mut at) = (Vec::new(), self.start);
        while at < section.len() {
            let start = at;
            if let Some(field) = self.read_field(section, &mut at, text, false)? {
                places.push((field.name, at - start));
            }
        }
        Ok(places)
    }

    /// Reads a field line (sections 4.5.2 to 4.5.6). With `skips` an indexed field is not copied and the result is
    /// `None`.
    #[inline]
    fn read_field(
        &self,
        section: &[u8],
        at: &mut usize,
        text: &mut Vec<u8>,
        skips: bool,
    ) -> Result<Option<DecodedField>, InvalidBlock> {
        let first = section[*at];
        let reference = match first {
            0x80.. => {
                let index = integer::read(section, at, 6)?;
                let is_static = first & 0x40 != 0;
                let reference = if is_static { Reference::Static(index) } else { Reference::Relative(index) };
                return self.read_indexed(reference, text, skips);
            }
            0x10..0x20 => {
                let reference = Reference::PostBase(integer::read(section, at, 4)?);
                return self.read_indexed(reference, text, skips);
            }
            0x40.. => {
                let index = integer::read(section, at, 4)?;
                Some(if first & 0x10 != 0 { Reference::Static(index) } else { Reference::Relative(index) })
            }
            0x20.. => None,
            _ => Some(Reference::PostBase(integer::read(section, at, 3)?)),
        };
        let start = text.len();
        let name_index = match reference {
            Some(reference) => {
                let field = self.find(reference)?;
                text.extend_from_slice(field.name);
                field.name_index
            }
            None => {
                literal::read(section, at, 3, usize::MAX, text)?;
                static_name_index(&text[start..])
            }
        };
        let name = Span::new(start, text.len());
        literal::read(section, at, 7, usize::MAX, text)?;
        let value = Span::new(name.end(), text.len());
        let never_indexed_bit = match first {
            0x40.. => 0x20,
            0x20.. => 0x10,
            _ => 0x08,
        };
        let is_never_indexed = first & never_indexed_bit != 0;
        Ok(Some(DecodedField { name, value, name_index, is_never_indexed, is_valid: false }))
    }

    #[inline]
    fn read_indexed(
        &self,
        reference: Reference,
        text: &mut Vec<u8>,
        skips: bool,
    ) -> Result<Option<DecodedField>, InvalidBlock> {
        let field = self.find(reference)?;
        Ok((!skips).then(|| DecodedField::copied(field, text)))
    }

    /// Returns an entry. Section 2.2.3: a reference to an entry that was evicted, or that
    /// the required insert count does not cover, is invalid.
    #[inline]
    fn find(&self, reference: Reference) -> Result<TableField<'_>, InvalidBlock> {
        let invalid = InvalidBlock("no such index");
        let absolute = match reference {
            Reference::Static(index) => return static_entry(index).ok_or(invalid),
            Reference::Relative(index) => self.base.checked_sub(1 + index as u64).ok_or(invalid)?,
            Reference::PostBase(index) => self.base + index as u64,
        };
        if absolute >= self.required {
            return Err(invalid);
        }
        entry(self.table, self.inserted, absolute).ok_or(invalid)
    }
}

impl BlockDecoder for SectionReader<'_> {
    fn decode(
        &mut self,
        section: &[u8],
        list_bytes_max: usize,
        text: &mut Vec<u8>,
        mut on_field: impl FnMut(&[u8], DecodedField),
    ) -> Result<DecodedBlock, InvalidBlock> {
        let (mut decoded, mut at) = (DecodedBlock::default(), self.start);
        while at < section.len() {
            let start = text.len();
            let field = self.read_field(section, &mut at, text, decoded.is_too_large)?;
            let Some(field) = field else { continue };
            decoded.add(field, start, list_bytes_max, text, &mut on_field);
        }
        Ok(decoded)
    }
}
