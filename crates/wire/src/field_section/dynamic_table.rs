//! The dynamic table of HPACK (RFC 7541, section 2.3.2) and QPACK (RFC 9204, section 3.2).

use std::collections::VecDeque;

use super::field_rules::is_valid_entry;
use super::{FIELD_OVERHEAD_BYTES, TableField};

/// Entries in order of insertion; index 0 is the newest. The memory grows with the entries, to at most twice the
/// table's size.
#[derive(Debug, Default)]
pub(crate) struct DynamicTable {
    /// Entries from the oldest to the newest.
    entries: VecDeque<DynamicEntry>,
    /// Names and values of all entries, after those of evicted ones.
    bytes: Vec<u8>,
    /// Part of `bytes` that belongs to evicted entries.
    gone_bytes: usize,
    /// Size of the entries (section 4.1).
    size_bytes: usize,
    size_bytes_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct DynamicEntry {
    name_bytes: u32,
    value_bytes: u32,
    /// Offset in `bytes`.
    position: u32,
    /// Hash of name and value, for lookups by the encoder.
    hash: u32,
    /// Index of the name in the static table; 0 if it has none.
    name_index: u8,
    is_valid: bool,
}

impl DynamicEntry {
    fn size_bytes(&self) -> usize {
        self.name_bytes as usize + self.value_bytes as usize + FIELD_OVERHEAD_BYTES
    }
}

impl DynamicTable {
    pub(crate) fn new(size_bytes_max: usize) -> Self {
        Self { size_bytes_max, ..Self::default() }
    }

    pub(crate) fn size_bytes_max(&self) -> usize {
        self.size_bytes_max
    }

    /// Sets the limit and evicts entries that exceed it (section 4.3).
    pub(crate) fn set_size_bytes_max(&mut self, size_bytes_max: usize) {
        self.size_bytes_max = size_bytes_max;
        self.evict_to(size_bytes_max);
    }

    /// Returns the entry with this index; 0 is the newest.
    pub(crate) fn get(&self, index: usize) -> Option<TableField<'_>> {
        let entry = self.entries.get(self.entries.len().checked_sub(1 + index)?)?;
        Some(self.found(entry))
    }

    /// Adds an entry and evicts older ones. An entry that is larger than the table empties it (section 4.4).
    pub(crate) fn insert(&mut self, name: &[u8], value: &[u8], name_index: u8, hash: u32) {
        let size_bytes = name.len() + value.len() + FIELD_OVERHEAD_BYTES;
        if size_bytes > self.size_bytes_max {
            self.evict_to(0);
            return;
        }
        self.evict_to(self.size_bytes_max - size_bytes);
        // The table moves its entries to the front only when as many bytes were evicted. So each byte is copied once on
        // average, and memory stays bounded.
        if self.gone_bytes >= self.size_bytes_max / 2 {
            self.drop_gone();
        }
        let position = self.bytes.len() as u32;
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        let (name_bytes, value_bytes) = (name.len() as u32, value.len() as u32);
        let is_valid = is_valid_entry(name, value, name_index);
        self.entries.push_back(DynamicEntry { name_bytes, value_bytes, position, hash, name_index, is_valid });
        self.size_bytes += size_bytes;
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns how many entries an entry with `text_bytes` of name and value would evict. The entry must not be larger
    /// than the table.
    pub(crate) fn evicted_by(&self, text_bytes: usize) -> usize {
        let mut room_bytes = self.size_bytes_max - self.size_bytes;
        let is_kept = move |entry: &DynamicEntry| {
            let is_enough = room_bytes >= text_bytes + FIELD_OVERHEAD_BYTES;
            room_bytes += entry.size_bytes();
            is_enough
        };
        self.entries.iter().position(is_kept).unwrap_or(self.entries.len())
    }

    /// Returns the index of the newest entry with this hash, name and value.
    pub(crate) fn find(&self, name: &[u8], value: &[u8], hash: u32) -> Option<usize> {
        let mut newest_first = self.entries.iter().rev();
        newest_first.position(|entry| {
            entry.hash == hash && {
                let found = self.found(entry);
                found.name == name && found.value == value
            }
        })
    }

    /// Returns the index of the newest entry with this name.
    pub(crate) fn find_name(&self, name: &[u8]) -> Option<usize> {
        self.entries.iter().rev().position(|entry| self.found(entry).name == name)
    }

    fn found(&self, entry: &DynamicEntry) -> TableField<'_> {
        let start = entry.position as usize;
        let name_end = start + entry.name_bytes as usize;
        let end = name_end + entry.value_bytes as usize;
        TableField {
            name: &self.bytes[start..name_end],
            value: &self.bytes[name_end..end],
            name_index: entry.name_index,
            is_valid: entry.is_valid,
        }
    }

    fn evict_to(&mut self, size_bytes: usize) {
        while self.size_bytes > size_bytes
            && let Some(entry) = self.entries.pop_front()
        {
            self.size_bytes -= entry.size_bytes();
            self.gone_bytes += (entry.name_bytes + entry.value_bytes) as usize;
        }
        if self.entries.is_empty() {
            self.bytes.clear();
            self.gone_bytes = 0;
        }
    }

    /// Memory that the table uses.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.entries.capacity() * size_of::<DynamicEntry>()
    }

    /// Frees memory that is not needed now.
    pub(crate) fn shrink(&mut self) {
        self.drop_gone();
        self.bytes.shrink_to_fit();
        self.entries.shrink_to_fit();
    }

    /// Moves the entries to the front of `bytes`.
    fn drop_gone(&mut self) {
        self.bytes.drain(..self.gone_bytes);
        self.gone_bytes = 0;
        let mut position = 0;
        for entry in &mut self.entries {
            entry.position = position;
            position += entry.name_bytes + entry.value_bytes;
        }
    }
}

/// Hash to distinguish entries (FNV-1a). Collisions that a peer provokes only cost comparisons of its own data.
pub(crate) fn hash(name: &[u8], value: &[u8]) -> u32 {
    let bytes = name.iter().chain(value);
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_first_and_memory_stays_bounded() {
        let mut table = DynamicTable::new(200);
        for number in 0..10_000u32 {
            let (name, value) = (format!("n{}", number % 7), format!("{number}"));
            table.insert(name.as_bytes(), value.as_bytes(), 0, number);
            assert!(table.size_bytes <= 200);
            assert!(table.bytes.capacity() <= 512);
            if number % 100 == 0 {
                table.shrink();
                assert!(table.bytes.capacity() < 200);
            }
            for (age, entry) in (0..table.entries.len()).enumerate() {
                let value = format!("{}", number as usize - age);
                let found = table.get(entry).unwrap();
                assert_eq!(found.value, value.as_bytes());
                assert_eq!(table.find(found.name, found.value, number - age as u32), Some(entry));
            }
        }
        assert_eq!(table.entries.len(), 5);
        table.insert(&[b'x'; 169], b"", 0, 0);
        assert_eq!(table.get(0), None, "larger than the table");
        table.insert(&[b'x'; 168], b"", 0, 0);
        assert_eq!(table.find_name(&[b'x'; 168]), Some(0));
        table.set_size_bytes_max(199);
        assert_eq!((table.get(0), table.size_bytes), (None, 0));
    }
}
