//! Instructions on the encoder stream (RFC 9204, section 4.3) and on the decoder stream (section 4.4).

use super::static_table::static_entry;
use super::{FIELD_OVERHEAD_BYTES, QpackDecoder, static_name_index};
use crate::field_section::TableField;
use crate::field_section::integer::{self, InvalidInteger};
use crate::field_section::literal::{self, InvalidString};

/// Error of an invalid instruction. The connection must end with QPACK_ENCODER_STREAM_ERROR or
/// QPACK_DECODER_STREAM_ERROR, depending on the stream. The text is fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidInstruction(pub &'static str);

/// Reason not to handle an instruction.
pub(super) enum Unhandled {
    /// The rest of the instruction has not arrived.
    Incomplete,
    Invalid(InvalidInstruction),
}

impl From<InvalidInteger> for Unhandled {
    fn from(invalid: InvalidInteger) -> Self {
        match invalid {
            InvalidInteger::Incomplete => Self::Incomplete,
            InvalidInteger::TooLarge => Self::from("malformed integer"),
        }
    }
}

impl From<InvalidString> for Unhandled {
    fn from(invalid: InvalidString) -> Self {
        match invalid {
            InvalidString::Incomplete => Self::Incomplete,
            InvalidString::Length => Self::from("entry larger than the table"),
            InvalidString::Huffman => Self::from("malformed Huffman code"),
        }
    }
}

impl From<&'static str> for Unhandled {
    fn from(reason: &'static str) -> Self {
        Self::Invalid(InvalidInstruction(reason))
    }
}

/// A Huffman code has at most 30 bits a byte, so a longer string can't decode to an entry that the table can hold.
const ENCODED_BYTES_PER_BYTE: usize = 4;

/// Handles instructions one by one. Returns the bytes of complete instructions.
pub(super) fn handle_each(
    input: &[u8],
    mut handle_one: impl FnMut(&[u8], &mut usize) -> Result<(), Unhandled>,
) -> Result<usize, InvalidInstruction> {
    let mut at = 0;
    while at < input.len() {
        let mut end = at;
        match handle_one(input, &mut end) {
            Ok(()) => at = end,
            Err(Unhandled::Incomplete) => break,
            Err(Unhandled::Invalid(invalid)) => return Err(invalid),
        }
    }
    Ok(at)
}

impl QpackDecoder {
    /// Handles input of the peer's encoder stream. Returns the bytes consumed; the caller keeps an incomplete
    /// instruction, which is at most about eight times as long as the table. Appends Insert Count Increment to
    /// `instructions`.
    pub fn handle_instructions(
        &mut self,
        input: &[u8],
        instructions: &mut Vec<u8>,
    ) -> Result<usize, InvalidInstruction> {
        let consumed_bytes = handle_each(input, |input, at| self.on_instruction(input, at))?;
        if self.inserted > self.acknowledged {
            integer::write(instructions, 0, 6, (self.inserted - self.acknowledged) as usize);
            self.acknowledged = self.inserted;
        }
        Ok(consumed_bytes)
    }

    fn on_instruction(&mut self, input: &[u8], at: &mut usize) -> Result<(), Unhandled> {
        let first = input[*at];
        let mut entry = std::mem::take(&mut self.text);
        entry.clear();
        let handled = match first {
            0x80.. => self.read_name_reference(input, at, first & 0x40 != 0, &mut entry),
            0x40.. => self.read_literal_name(input, at, &mut entry),
            0x20.. => {
                integer::read(input, at, 5).map_err(Unhandled::from).and_then(|size_bytes| self.set_size(size_bytes))
            }
            _ => self.read_duplicate(input, at, &mut entry),
        };
        self.text = entry;
        handled
    }

    /// Reads Insert with Name Reference (section 4.3.2).
    fn read_name_reference(
        &mut self,
        input: &[u8],
        at: &mut usize,
        is_static: bool,
        entry: &mut Vec<u8>,
    ) -> Result<(), Unhandled> {
        let index = integer::read(input, at, 6)?;
        let mut end = *at;
        literal::locate(input, &mut end, 7, self.string_bytes_max())?;
        let name_index = if is_static {
            let field = static_entry(index).ok_or("no such index")?;
            entry.extend_from_slice(field.name);
            field.name_index
        } else {
            let field = self.relative(index)?;
            entry.extend_from_slice(field.name);
            field.name_index
        };
        let name_bytes = entry.len();
        literal::read(input, at, 7, self.string_bytes_max(), entry)?;
        self.insert(entry, name_bytes, name_index)
    }

    /// Reads Insert with Literal Name (section 4.3.3).
    fn read_literal_name(&mut self, input: &[u8], at: &mut usize, entry: &mut Vec<u8>) -> Result<(), Unhandled> {
        // Nothing is decoded before the whole instruction has arrived. So a peer that sends it byte by byte causes no work.
        let mut end = *at;
        literal::locate(input, &mut end, 5, self.string_bytes_max())?;
        literal::locate(input, &mut end, 7, self.string_bytes_max())?;
        literal::read(input, at, 5, self.string_bytes_max(), entry)?;
        let name_bytes = entry.len();
        literal::read(input, at, 7, self.string_bytes_max(), entry)?;
        let name_index = static_name_index(&entry[..name_bytes]);
        self.insert(entry, name_bytes, name_index)
    }

    /// Reads Duplicate (section 4.3.4).
    fn read_duplicate(&mut self, input: &[u8], at: &mut usize, entry: &mut Vec<u8>) -> Result<(), Unhandled> {
        let index = integer::read(input, at, 5)?;
        let field = self.relative(index)?;
        entry.extend_from_slice(field.name);
        entry.extend_from_slice(field.value);
        let (name_bytes, name_index) = (field.name.len(), field.name_index);
        self.insert(entry, name_bytes, name_index)
    }

    fn string_bytes_max(&self) -> usize {
        self.table.size_bytes_max() * ENCODED_BYTES_PER_BYTE
    }

    /// Returns an entry by its index relative to the last insertion (section 3.2.5).
    fn relative(&self, index: usize) -> Result<TableField<'_>, Unhandled> {
        let absolute = self.inserted.checked_sub(1 + index as u64);
        absolute.and_then(|absolute| self.entry(absolute)).ok_or(Unhandled::from("no such index"))
    }

    /// Section 3.2.2: an entry larger than the table is an error, unlike in HPACK.
    fn insert(&mut self, entry: &[u8], name_bytes: usize, name_index: u8) -> Result<(), Unhandled> {
        if entry.len() + FIELD_OVERHEAD_BYTES > self.table.size_bytes_max() {
            return Err("entry larger than the table".into());
        }
        let (name, value) = entry.split_at(name_bytes);
        self.table.insert(name, value, name_index, 0);
        self.inserted += 1;
        Ok(())
    }

    /// Handles Set Dynamic Table Capacity (section 4.3.1).
    fn set_size(&mut self, size_bytes: usize) -> Result<(), Unhandled> {
        if size_bytes > self.limits.table_bytes_max {
            return Err("table capacity larger than allowed".into());
        }
        self.table.set_size_bytes_max(size_bytes);
        Ok(())
    }
}
