//! Form of a stored value: the stamp of the fetch, then an entry as on disk.

use std::io;

use super::FetchStamp;
use crate::disk_cache::{EntryParts, EntryText, read_entry};
use bytes::Bytes;

/// First bytes of each value; the number is the version of the form.
const MAGIC: [u8; 8] = *b"TCshare1";

/// Longest epoch, in bytes.
const EPOCH_BYTES_MAX: usize = 64;

/// Value that was read.
pub(super) struct ReadValue {
    pub(super) stamp: FetchStamp,
    pub(super) labels: Vec<u8>,
    pub(super) meta: Vec<u8>,
    pub(super) content: Bytes,
}

/// Writes the value of an entry.
pub(super) fn write(stamp: &FetchStamp, text: EntryText<'_>, meta: &[u8], content: &[u8]) -> io::Result<Vec<u8>> {
    let epoch = stamp.epoch.as_bytes();
    let epoch_bytes = u8::try_from(epoch.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let entry = EntryParts { text, meta, content }.to_bytes()?;
    let (next, engine_ms) = (stamp.next.to_le_bytes(), stamp.engine_ms.to_le_bytes());
    Ok([&MAGIC[..], &[epoch_bytes], epoch, &next, &engine_ms, &entry].concat())
}

/// Reads the value of the entry with this key; `None` if it is not whole, or another key's.
pub(super) fn read(value: &[u8], key: &[u8]) -> Option<ReadValue> {
    let (epoch_bytes, rest) = value.strip_prefix(&MAGIC)?.split_first()?;
    let (epoch, rest) = rest.split_at_checked(usize::from(*epoch_bytes))?;
    let (next, rest) = rest.split_first_chunk()?;
    let (engine_ms, entry) = rest.split_first_chunk()?;
    let epoch = str::from_utf8(epoch).ok().filter(|epoch| epoch.len() <= EPOCH_BYTES_MAX)?;
    let stamp =
        FetchStamp { epoch: epoch.into(), next: u64::from_le_bytes(*next), engine_ms: u64::from_le_bytes(*engine_ms) };
    let entry = read_entry(entry, key).ok()?;
    Some(ReadValue { stamp, labels: entry.labels, meta: entry.meta, content: entry.content })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_values_are_not_read() {
        let stamp = FetchStamp { epoch: "0123".into(), next: 7, engine_ms: 9 };
        let text = EntryText { key: b"key", labels: b"label" };
        let value = write(&stamp, text, b"meta", b"content").unwrap();
        let found = read(&value, b"key").unwrap();
        assert_eq!(
            (found.stamp, &*found.labels, &*found.meta, &*found.content),
            (stamp.clone(), &b"label"[..], &b"meta"[..], &b"content"[..])
        );
        assert!(read(&value, b"yek").is_none());
        assert!(read(&[&value[..], b"x"].concat(), b"key").is_none());
        let stamp_bytes = 8 + 1 + 4 + 8 + 8;
        for at in 0..value.len() {
            assert!(read(&value[..at], b"key").is_none(), "cut at {at}");
            let mut other = value.clone();
            other[at] ^= 1;
            // The stamp has no checksum of its own: the encryption of values authenticates all of it.
            let is_stamp = (8..stamp_bytes).contains(&at);
            assert!(read(&other, b"key").is_none_or(|found| is_stamp && found.stamp != stamp), "{at}");
        }
    }
}
