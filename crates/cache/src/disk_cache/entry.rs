//! Form of an entry: content, then key, labels and properties, then a trailer with lengths and checksums. Files have it, and
//! values that instances share.
//!
//! The content comes first, so that the kernel sends whole pages of a file. Checksums are XXH3 with 128 bits. They find damage,
//! not forgery: only the server's user can write to the directory.

use std::io;

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use super::EntryText;

/// Last bytes of each entry; the number is the version of the form.
const MAGIC: [u8; 8] = *b"TCcache3";

/// First bytes of files in forms of earlier versions.
const EARLIER_MAGICS: [[u8; 8]; 2] = [*b"TCcache1", *b"TCcache2"];

/// Bytes of a name.
const NAME_BYTES: usize = 16;

/// Bytes of a checksum.
const CHECKSUM_BYTES: usize = size_of::<u128>();

/// Bytes of the trailer: lengths, the checksum of the content, that of all between content and itself, and the magic.
const TRAILER_BYTES: usize = 4 + 4 + 4 + 8 + 2 * CHECKSUM_BYTES + MAGIC.len();

/// Bytes at the end of an entry that are read at first: nearly always with key, labels and properties.
const END_BYTES: u64 = 4 << 10;

/// Longest key, labels and properties: those of a request and response head, which have limits of their own.
const TEXT_BYTES_MAX: u32 = 4 << 20;

/// Name of an entry: a hash of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryName([u8; NAME_BYTES]);

/// Parts of an entry.
pub(crate) struct EntryParts<'a> {
    pub(crate) text: EntryText<'a>,
    pub(crate) meta: &'a [u8],
    pub(crate) content: &'a [u8],
}

/// Entry that was read, with all checksums as they must be.
pub(crate) struct ReadEntry {
    pub(crate) labels: Vec<u8>,
    pub(crate) meta: Vec<u8>,
    pub(crate) content: Bytes,
}

/// Texts of an entry, with a checksum as it must be. The content is not read.
pub(super) struct EntryTexts {
    /// Key, labels and properties, one after the other.
    texts: Bytes,
    key_bytes: usize,
    label_bytes: usize,
    pub(super) content_bytes: u64,
    content_checksum: u128,
}

/// Lengths and checksums at the end of an entry.
struct EntryTrailer {
    key_bytes: u32,
    label_bytes: u32,
    meta_bytes: u32,
    content_bytes: u64,
    content_checksum: u128,
    text_checksum: u128,
}

impl EntryName {
    /// Name of the entry with this key.
    pub fn of(key: &[u8]) -> Self {
        let mut name = [0; NAME_BYTES];
        name.copy_from_slice(&digest(&SHA256, key).as_ref()[..NAME_BYTES]);
        Self(name)
    }

    /// Hexadecimal digits.
    pub(crate) fn digits(self) -> String {
        let halves = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        halves.map(|half| char::from(b"0123456789abcdef"[usize::from(half)])).collect()
    }

    /// Name of the directory, and of the file in it.
    pub(super) fn file_names(self) -> (String, String) {
        let text = self.digits();
        let (directory, file) = text.split_at(2);
        (directory.to_owned(), file.to_owned())
    }

    /// Path of the file, with its directory.
    pub(super) fn path(self) -> String {
        let mut path = self.digits();
        path.insert(2, '/');
        path
    }

    /// True for the name of a directory of entries.
    pub(super) fn is_directory(name: &[u8]) -> bool {
        name.len() == 2 && are_digits(name)
    }

    /// Entry of a file in a directory.
    pub(super) fn of_file_names(directory: &str, file: &str) -> Option<Self> {
        let text = format!("{directory}{file}");
        if !Self::is_directory(directory.as_bytes()) || text.len() != 2 * NAME_BYTES || !are_digits(text.as_bytes()) {
            return None;
        }
        let number = u128::from_str_radix(&text, 16).ok()?;
        Some(Self(number.to_be_bytes()))
    }

    /// Number that spreads names.
    pub(super) fn shard(self) -> usize {
        usize::from(self.0[0])
    }
}

/// True for hexadecimal digits, as entries have them in their names.
fn are_digits(text: &[u8]) -> bool {
    text.iter().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte))
}

impl EntryParts<'_> {
    /// Size of the file.
    pub(super) fn file_bytes(&self) -> u64 {
        let EntryText { key, labels } = self.text;
        (self.content.len() + key.len() + labels.len() + self.meta.len() + TRAILER_BYTES) as u64
    }

    /// Part of the entry after its content.
    pub(super) fn end(&self) -> io::Result<Vec<u8>> {
        let EntryText { key, labels } = self.text;
        let mut end = [key, labels, self.meta].concat();
        for text in [key, labels, self.meta] {
            let length = u32::try_from(text.len()).ok().filter(|length| *length <= TEXT_BYTES_MAX);
            end.extend_from_slice(&length.ok_or(io::ErrorKind::FileTooLarge)?.to_le_bytes());
        }
        end.extend_from_slice(&(self.content.len() as u64).to_le_bytes());
        end.extend_from_slice(&xxh3_128(self.content).to_le_bytes());
        end.extend_from_slice(&xxh3_128(&end).to_le_bytes());
        end.extend_from_slice(&MAGIC);
        Ok(end)
    }

    /// The whole entry.
    pub(crate) fn to_bytes(&self) -> io::Result<Vec<u8>> {
        Ok([self.content, &self.end()?].concat())
    }
}

impl EntryTrailer {
    /// Trailer at the end of these bytes, which are the last ones of an entry of this length.
    fn of(end: &[u8], entry_bytes: u64) -> io::Result<Self> {
        let trailer = end.last_chunk::<TRAILER_BYTES>().ok_or_else(damaged)?;
        let mut rest = &trailer[..];
        let found = Self {
            key_bytes: u32::from_le_bytes(take(&mut rest)?),
            label_bytes: u32::from_le_bytes(take(&mut rest)?),
            meta_bytes: u32::from_le_bytes(take(&mut rest)?),
            content_bytes: u64::from_le_bytes(take(&mut rest)?),
            content_checksum: u128::from_le_bytes(take(&mut rest)?),
            text_checksum: u128::from_le_bytes(take(&mut rest)?),
        };
        let texts = [found.key_bytes, found.label_bytes, found.meta_bytes];
        let is_fit = rest == MAGIC && texts.iter().all(|bytes| *bytes <= TEXT_BYTES_MAX);
        let length = found.content_bytes.checked_add(found.end_bytes());
        (is_fit && length == Some(entry_bytes)).then_some(found).ok_or_else(damaged)
    }

    /// Bytes of the entry after its content.
    fn end_bytes(&self) -> u64 {
        [self.key_bytes, self.label_bytes, self.meta_bytes].into_iter().map(u64::from).sum::<u64>()
            + TRAILER_BYTES as u64
    }

    /// Texts in these bytes, which are all after the content.
    fn texts(&self, end: Bytes) -> io::Result<EntryTexts> {
        let checked = end.len() - CHECKSUM_BYTES - MAGIC.len();
        if xxh3_128(&end[..checked]) != self.text_checksum {
            return Err(damaged());
        }
        let texts = end.slice(..end.len() - TRAILER_BYTES);
        let [key_bytes, label_bytes] = [self.key_bytes, self.label_bytes].map(|bytes| bytes as usize);
        let Self { content_bytes, content_checksum, .. } = *self;
        Ok(EntryTexts { texts, key_bytes, label_bytes, content_bytes, content_checksum })
    }
}

impl EntryTexts {
    /// Reads the texts of an entry of this length. `read_at` fills a buffer with the bytes from an offset.
    pub(super) fn read(
        entry_bytes: u64,
        mut read_at: impl FnMut(&mut [u8], u64) -> io::Result<()>,
    ) -> io::Result<Self> {
        let mut read_end = |length: u64| {
            let mut end = vec![0; length as usize];
            read_at(&mut end, entry_bytes - length).map(|()| Bytes::from(end))
        };
        let mut end = read_end(entry_bytes.min(END_BYTES))?;
        let trailer = EntryTrailer::of(&end, entry_bytes)?;
        // At most the length of the entry, as the trailer's check has found.
        let end_bytes = trailer.end_bytes();
        if end_bytes > end.len() as u64 {
            end = read_end(end_bytes)?;
        }
        trailer.texts(end.slice(end.len() - end_bytes as usize..))
    }

    pub(super) fn key(&self) -> &[u8] {
        &self.texts[..self.key_bytes]
    }

    pub(super) fn labels(&self) -> &[u8] {
        &self.texts[self.key_bytes..][..self.label_bytes]
    }

    pub(super) fn meta(&self) -> &[u8] {
        &self.texts[self.key_bytes + self.label_bytes..]
    }

    /// True if this is the content of the entry.
    pub(super) fn is_of(&self, content: &[u8]) -> bool {
        content.len() as u64 == self.content_bytes && xxh3_128(content) == self.content_checksum
    }
}

/// Reads the entry with this key from all of its bytes, and checks all of it.
pub(crate) fn read_entry(entry: &[u8], wanted: &[u8]) -> io::Result<ReadEntry> {
    let texts = EntryTexts::read(entry.len() as u64, |buffer, offset| {
        let bytes = entry.get(offset as usize..).and_then(|bytes| bytes.get(..buffer.len()));
        bytes.map(|bytes| buffer.copy_from_slice(bytes)).ok_or_else(damaged)
    })?;
    let content = &entry[..texts.content_bytes as usize];
    if texts.key() != wanted || !texts.is_of(content) {
        return Err(damaged());
    }
    let [labels, meta] = [texts.labels(), texts.meta()].map(<[u8]>::to_vec);
    Ok(ReadEntry { labels, meta, content: Bytes::copy_from_slice(content) })
}

/// True if a file with these first bytes is an entry of an earlier version.
pub(super) fn is_earlier(first: [u8; 8]) -> bool {
    EARLIER_MAGICS.contains(&first)
}

/// Error of an entry that is not whole.
pub(super) fn damaged() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

fn take<const N: usize>(input: &mut &[u8]) -> io::Result<[u8; N]> {
    let (first, rest) = input.split_first_chunk::<N>().ok_or_else(damaged)?;
    *input = rest;
    Ok(*first)
}
