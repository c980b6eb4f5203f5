//! QpackEncoder for field sections (RFC 9204, sections 2.1 and 4.5).

use super::encoder_stream::{InvalidInstruction, Unhandled, handle_each};
use super::entries_max;
use super::references::References;
use super::static_coding::{write_name, write_static};
use super::static_table::find_static_name;
use super::{FIELD_OVERHEAD_BYTES, Indexing, static_name_index};
use crate::field_section::dynamic_table::{DynamicTable, hash};
use crate::field_section::{integer, literal};

/// QpackEncoder of one connection, with a copy of the dynamic table in the peer's decoder.
#[derive(Debug)]
pub struct QpackEncoder {
    table: DynamicTable,
    /// Size of the table that the encoder wants, whatever the peer permits.
    table_bytes_wanted: usize,
    /// Size that the peer permits, which determines how insert counts are encoded.
    peer_table_bytes_max: usize,
    blocked_streams_max: u64,
    /// Number of entries ever inserted.
    inserted: u64,
    references: References,
    /// Buffers for a name in lower case and for the field lines of a section, which its prefix precedes.
    name: Vec<u8>,
    lines: Vec<u8>,
}

/// Section that an [`QpackEncoder`] has begun.
#[derive(Debug)]
struct OutgoingSection {
    stream: u64,
    base: u64,
    /// True if the section may use the dynamic table.
    is_dynamic: bool,
    /// True if the section may refer to entries that may not have arrived.
    may_block: bool,
    required: u64,
    oldest: u64,
}

impl QpackEncoder {
    /// Creates an encoder with a dynamic table of at most `table_bytes_wanted`. 0 disables the table; servers need
    /// none, because they encode responses in advance for all connections.
    pub fn new(table_bytes_wanted: usize) -> Self {
        Self {
            table: DynamicTable::new(0),
            table_bytes_wanted,
            peer_table_bytes_max: 0,
            blocked_streams_max: 0,
            inserted: 0,
            references: References::default(),
            name: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// Applies the peer's settings. Call it once, when they have arrived. Appends Set Dynamic Table Capacity to
    /// `instructions` if the table is used.
    pub fn set_peer_limits(&mut self, table_bytes_max: u64, blocked_streams_max: u64, instructions: &mut Vec<u8>) {
        self.peer_table_bytes_max = usize::try_from(table_bytes_max).unwrap_or(usize::MAX);
        self.blocked_streams_max = blocked_streams_max;
        let size_bytes = self.table_bytes_wanted.min(self.peer_table_bytes_max);
        if size_bytes > 0 {
            self.table.set_size_bytes_max(size_bytes);
            integer::write(instructions, 0x20, 5, size_bytes);
        }
    }

    /// Appends the section of a stream to `out`, and insertions to `instructions`, which the caller must send on the
    /// encoder stream. Names may have upper case letters and are sent in lower case.
    pub fn encode<'a>(
        &mut self,
        stream: u64,
        fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        out: &mut Vec<u8>,
        instructions: &mut Vec<u8>,
    ) {
        let mut section = OutgoingSection {
            stream,
            base: self.inserted,
            is_dynamic: self.table.size_bytes_max() > 0 && self.references.has_room(),
            may_block: self.references.may_block(stream, self.blocked_streams_max),
            required: 0,
            oldest: u64::MAX,
        };
        let (mut name_buffer, mut lines) = (std::mem::take(&mut self.name), std::mem::take(&mut self.lines));
        lines.clear();
        for (name, value) in fields {
            name_buffer.clear();
            name_buffer.extend(name.iter().map(u8::to_ascii_lowercase));
            self.write_field(&mut section, &name_buffer, value, &mut lines, instructions);
        }
        self.write_prefix(&section, out);
        out.extend_from_slice(&lines);
        (self.name, self.lines) = (name_buffer, lines);
        if section.required > 0 {
            self.references.on_sent(section.stream, section.required, section.oldest);
        }
    }

    fn write_prefix(&self, section: &OutgoingSection, out: &mut Vec<u8>) {
        if section.required == 0 {
            return super::write_prefix(out);
        }
        let encoded = section.required % (2 * entries_max(self.peer_table_bytes_max)) + 1;
        integer::write(out, 0, 8, encoded as usize);
        match section.base.checked_sub(section.required) {
            Some(delta) => integer::write(out, 0, 7, delta as usize),
            None => integer::write(out, 0x80, 7, (section.required - section.base - 1) as usize),
        }
    }

    fn write_field(
        &mut self,
        section: &mut OutgoingSection,
        name: &[u8],
        value: &[u8],
        out: &mut Vec<u8>,
        instructions: &mut Vec<u8>,
    ) {
        let indexing = Indexing::of(name, value);
        if indexing != Indexing::Never && write_static(out, name, value) {
            return;
        }
        if section.is_dynamic && indexing == Indexing::Incremental {
            let hash = hash(name, value);
            let found = self.table.find(name, value, hash).map(|index| self.inserted - 1 - index as u64);
            let absolute = match found {
                Some(absolute) => Some(absolute),
                None => self.insert(section, name, value, hash, instructions),
            };
            if let Some(absolute) = absolute.filter(|absolute| self.may_refer(section, *absolute)) {
                section.required = section.required.max(absolute + 1);
                section.oldest = section.oldest.min(absolute);
                return match section.base.checked_sub(1 + absolute) {
                    Some(relative) => integer::write(out, 0x80, 6, relative as usize),
                    None => integer::write(out, 0x10, 4, (absolute - section.base) as usize),
                };
            }
        }
        write_name(out, name, indexing == Indexing::Never);
        literal::write(out, 0, 7, value);
    }

    fn may_refer(&self, section: &OutgoingSection, absolute: u64) -> bool {
        section.may_block || absolute < self.references.known_received
    }

    /// Inserts an entry, unless it is large or would evict an entry that is in use (sections 2.1.1 and 2.1.3). Returns
    /// its absolute index.
    fn insert(
        &mut self,
        section: &OutgoingSection,
        name: &[u8],
        value: &[u8],
        hash: u32,
        instructions: &mut Vec<u8>,
    ) -> Option<u64> {
        let text_bytes = name.len() + value.len();
        // An entry larger than half of the table evicts entries that are worth more.
        if text_bytes + FIELD_OVERHEAD_BYTES > self.table.size_bytes_max() / 2 {
            return None;
        }
        let evicted_end = self.inserted - self.table.len() as u64 + self.table.evicted_by(text_bytes) as u64;
        if self.table.evicted_by(text_bytes) > 0 && evicted_end > self.references.evictable_end().min(section.oldest) {
            return None;
        }
        match find_static_name(name) {
            Some(index) => integer::write(instructions, 0xc0, 6, index),
            None => literal::write(instructions, 0x40, 5, name),
        }
        literal::write(instructions, 0, 7, value);
        self.table.insert(name, value, static_name_index(name), hash);
        self.inserted += 1;
        Some(self.inserted - 1)
    }

    /// Handles input of the peer's decoder stream (section 4.4). Returns the bytes consumed; the caller keeps an
    /// incomplete instruction, which has at most ten bytes.
    pub fn handle_instructions(&mut self, input: &[u8]) -> Result<usize, InvalidInstruction> {
        handle_each(input, |input, at| self.on_instruction(input, at))
    }

    fn on_instruction(&mut self, input: &[u8], at: &mut usize) -> Result<(), Unhandled> {
        match input[*at] {
            0x80.. => {
                let stream = integer::read_long(input, at, 7)?;
                if !self.references.on_acknowledged(stream) {
                    return Err("acknowledgement of no section".into());
                }
            }
            0x40.. => self.references.on_cancelled(integer::read_long(input, at, 6)?),
            _ => {
                let increment = integer::read_long(input, at, 6)?;
                let known = self.references.known_received.saturating_add(increment);
                if increment == 0 || known > self.inserted {
                    return Err("invalid insert count increment".into());
                }
                self.references.known_received = known;
            }
        }
        Ok(())
    }
}
