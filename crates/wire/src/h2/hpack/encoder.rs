//! Encoder for header blocks (RFC 7541, section 6).

use super::static_table::{STATIC_ENTRIES, static_index};
use super::{DEFAULT_TABLE_BYTES, Indexing, static_name_index};
use crate::field_section::dynamic_table::{DynamicTable, hash};
use crate::field_section::{integer, literal, status_digits};
use crate::http::Status;

/// Encoder of one connection, with a copy of the dynamic table in the peer's decoder.
#[derive(Debug)]
pub struct Encoder {
    table: DynamicTable,
    /// Size of the table that the encoder wants, whatever the peer permits.
    table_bytes_wanted: usize,
    /// Smallest and last size since the last block, if the size changed (section 4.2).
    size_update: Option<(usize, usize)>,
    /// Buffer for a name in lower case.
    name: Vec<u8>,
}

impl Encoder {
    /// Creates an encoder with a dynamic table of at most `table_bytes_wanted`. 0 disables the table; servers need
    /// none, because they encode responses in advance for all connections.
    pub fn new(table_bytes_wanted: usize) -> Self {
        // The peer assumes the default size until an update. An empty table needs no update, because entries that were
        // never added use no memory.
        let mut encoder = Self {
            table: DynamicTable::new(DEFAULT_TABLE_BYTES),
            table_bytes_wanted,
            size_update: None,
            name: Vec::new(),
        };
        if table_bytes_wanted > 0 && table_bytes_wanted < DEFAULT_TABLE_BYTES {
            encoder.set_table_bytes_max(DEFAULT_TABLE_BYTES);
        }
        encoder
    }

    /// Sets the limit of the table to the peer's SETTINGS_HEADER_TABLE_SIZE, in bytes.
    pub fn set_table_bytes_max(&mut self, table_bytes_max: usize) {
        let size_bytes = if self.table_bytes_wanted == 0 {
            table_bytes_max.min(DEFAULT_TABLE_BYTES)
        } else {
            table_bytes_max.min(self.table_bytes_wanted)
        };
        if size_bytes == self.table.size_bytes_max() {
            return;
        }
        let smallest = self.size_update.map_or(size_bytes, |(smallest, _)| smallest.min(size_bytes));
        self.size_update = Some((smallest, size_bytes));
        self.table.set_size_bytes_max(size_bytes);
    }

    /// Begins a block and writes a size update if the table's size has changed. Call it once before each block,
    /// including prepared ones.
    #[inline]
    pub fn begin_block(&mut self, out: &mut Vec<u8>) {
        if let Some((smallest, last)) = self.size_update.take() {
            if smallest < last {
                integer::write(out, 0x20, 5, smallest);
            }
            integer::write(out, 0x20, 5, last);
        }
    }

    /// Appends a field. Its name may have upper case letters and is sent in lower case (RFC 9113, section 8.2.1).
    pub fn write_field(&mut self, name: &[u8], value: &[u8], indexing: Option<Indexing>, out: &mut Vec<u8>) {
        let mut lower_case = std::mem::take(&mut self.name);
        lower_case.clear();
        lower_case.extend(name.iter().map(u8::to_ascii_lowercase));
        self.write_lower_case(&lower_case, value, indexing, out);
        self.name = lower_case;
    }

    fn write_lower_case(&mut self, name: &[u8], value: &[u8], indexing: Option<Indexing>, out: &mut Vec<u8>) {
        let indexing = indexing.unwrap_or_else(|| Indexing::of(name, value));
        let name_index = static_name_index(name);
        if indexing != Indexing::Never
            && name_index > 0
            && let Some(index) = static_index(name_index, value)
        {
            integer::write(out, 0x80, 7, index);
            return;
        }
        if self.table_bytes_wanted == 0 || indexing != Indexing::Incremental {
            let indexing = if indexing == Indexing::Never { indexing } else { Indexing::Without };
            write_with_name(out, indexing, self.name_reference(name, name_index), name, value);
            return;
        }
        let hash = hash(name, value);
        if let Some(index) = self.table.find(name, value, hash) {
            integer::write(out, 0x80, 7, 1 + STATIC_ENTRIES + index);
            return;
        }
        // An entry larger than half of the table evicts entries that are worth more.
        let is_small = name.len() + value.len() <= self.table.size_bytes_max() / 2;
        let indexing = if is_small { indexing } else { Indexing::Without };
        write_with_name(out, indexing, self.name_reference(name, name_index), name, value);
        if is_small {
            self.table.insert(name, value, name_index, hash);
        }
    }

    /// Returns the index for the name; 0 if the name itself must be sent.
    fn name_reference(&self, name: &[u8], name_index: u8) -> usize {
        if name_index > 0 {
            return usize::from(name_index);
        }
        self.table.find_name(name).map_or(0, |index| 1 + STATIC_ENTRIES + index)
    }
}

/// Appends `:status` without using the dynamic table.
pub fn write_status(out: &mut Vec<u8>, status: Status) {
    let digits = status_digits(status);
    let name_index = static_name_index(b":status");
    match static_index(name_index, &digits) {
        Some(index) => integer::write(out, 0x80, 7, index),
        None => write_with_name(out, Indexing::Without, usize::from(name_index), b":status", &digits),
    }
}

/// Appends a field with its name in lower case. The encoding does not use or change the dynamic table, so it is valid
/// at the end of any block on any connection.
pub fn write_literal(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let name_index = static_name_index(name);
    let indexing = match Indexing::of(name, value) {
        Indexing::Incremental => Indexing::Without,
        indexing => indexing,
    };
    match static_index_of(name_index, value).filter(|_| indexing != Indexing::Never) {
        Some(index) => integer::write(out, 0x80, 7, index),
        None => write_with_name(out, indexing, usize::from(name_index), name, value),
    }
}

fn static_index_of(name_index: u8, value: &[u8]) -> Option<usize> {
    if name_index == 0 { None } else { static_index(name_index, value) }
}

fn write_with_name(out: &mut Vec<u8>, indexing: Indexing, name_reference: usize, name: &[u8], value: &[u8]) {
    match indexing {
        Indexing::Incremental => integer::write(out, 0x40, 6, name_reference),
        Indexing::Without => integer::write(out, 0x00, 4, name_reference),
        Indexing::Never => integer::write(out, 0x10, 4, name_reference),
    }
    if name_reference == 0 {
        literal::write(out, 0, 7, name);
    }
    literal::write(out, 0, 7, value);
}
