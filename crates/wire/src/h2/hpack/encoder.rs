//! Writing header blocks (RFC 7541, section 6).

use super::dynamic_table::DynamicTable;
use super::static_table::{STATIC_ENTRIES, static_index};
use super::{DEFAULT_TABLE_BYTES, huffman, integer, static_name_index};
use crate::http::Status;

/// What the dynamic tables on the way make of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// It is put into the table, for it will be sent again.
    Incremental,
    /// It is not, for its value is another each time.
    Without,
    /// It must not be, here and wherever it is passed on: a secret could be guessed by what a guess takes when compressed
    /// (section 7.1).
    Never,
}

impl Indexing {
    /// What suits a field with this name, in lower case: secrets never, what hardly comes twice with the same value not.
    pub fn of(name: &[u8], value: &[u8]) -> Self {
        match name {
            b"authorization" | b"proxy-authorization" | b"set-cookie" => Self::Never,
            // Short cookies are guessed easily; long ones are sent again and again (section 7.1.3).
            b"cookie" if value.len() < 20 => Self::Never,
            b"age" | b"content-length" | b"content-range" | b"date" | b"etag" | b"expires" | b"if-modified-since"
            | b"if-none-match" | b"last-modified" | b"location" | b":path" => Self::Without,
            _ => Self::Incremental,
        }
    }
}

/// One direction of a connection: what we have put into the peer's table.
#[derive(Debug)]
pub struct Encoder {
    table: DynamicTable,
    /// What we want to use of the table, however much the peer allows.
    table_bytes_wanted: usize,
    /// The smallest and the last size since the last block, if it changed (section 4.2).
    size_update: Option<(usize, usize)>,
    /// A name in lower case.
    name: Vec<u8>,
}

impl Encoder {
    /// An encoder that uses a dynamic table of at most so many bytes; with 0, none. A connection of a server, whose
    /// responses are encoded beforehand for all connections, does well without.
    pub fn new(table_bytes_wanted: usize) -> Self {
        // The peer takes the table for as large as the default until it is told otherwise. Entries that we never put into
        // it take nothing, so a table that stays empty needs no telling.
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

    /// The peer's SETTINGS_HEADER_TABLE_SIZE, in bytes.
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

    /// To be called once at the beginning of each block, also of one that was encoded beforehand: tells of a table size
    /// that has changed.
    #[inline]
    pub fn begin_block(&mut self, out: &mut Vec<u8>) {
        if let Some((smallest, last)) = self.size_update.take() {
            if smallest < last {
                integer::write(out, 0x20, 5, smallest);
            }
            integer::write(out, 0x20, 5, last);
        }
    }

    /// Appends a field. Its name may be in any case and is sent in lower case (RFC 9113, section 8.2.1).
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
        // An entry of more than half of the table would cost more others than it is worth.
        let is_small = name.len() + value.len() <= self.table.size_bytes_max() / 2;
        let indexing = if is_small { indexing } else { Indexing::Without };
        write_with_name(out, indexing, self.name_reference(name, name_index), name, value);
        if is_small {
            self.table.insert(name, value, name_index, hash);
        }
    }

    /// The index by which the name is sent, 0 if it is sent itself.
    fn name_reference(&self, name: &[u8], name_index: u8) -> usize {
        if name_index > 0 {
            return usize::from(name_index);
        }
        self.table.find_name(name).map_or(0, |index| 1 + STATIC_ENTRIES + index)
    }
}

/// Appends `:status`, which needs no dynamic table.
pub fn write_status(out: &mut Vec<u8>, status: Status) {
    let code = status.code();
    let digits = [b'0' + (code / 100) as u8, b'0' + (code / 10 % 10) as u8, b'0' + (code % 10) as u8];
    let name_index = static_name_index(b":status");
    match static_index(name_index, &digits) {
        Some(index) => integer::write(out, 0x80, 7, index),
        None => write_with_name(out, Indexing::Without, usize::from(name_index), b":status", &digits),
    }
}

/// Appends a field, its name in lower case, in a form that is the same for all connections and may be put at the end of
/// any block: no dynamic table is used or changed.
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
        write_string(out, name);
    }
    write_string(out, value);
}

/// Appends a string, in the shorter of both forms (section 5.2).
fn write_string(out: &mut Vec<u8>, string: &[u8]) {
    let encoded_bytes = huffman::encoded_bytes(string);
    if encoded_bytes < string.len() {
        integer::write(out, 0x80, 7, encoded_bytes);
        huffman::encode(string, out);
    } else {
        integer::write(out, 0, 7, string.len());
        out.extend_from_slice(string);
    }
}

/// Tells entries apart quickly (FNV-1a). That a peer could make it collide only costs comparing what it sent itself.
fn hash(name: &[u8], value: &[u8]) -> u32 {
    let bytes = name.iter().chain(value);
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
