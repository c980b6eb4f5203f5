//! Form of an entry: a head with lengths and checksums, then key, labels, properties and content. Files have it, and values that
//! instances share.

use std::fs::File;
use std::io::{self, Read};

use aws_lc_rs::digest::{Context, SHA256};
use bytes::Bytes;

use super::EntryText;

/// First bytes of each entry; the number is the version of the form.
const MAGIC: [u8; 8] = *b"TCcache2";

/// Bytes of a checksum.
const CHECKSUM_BYTES: usize = 16;

/// Bytes of the head: magic, lengths, and the checksums of head, key, labels and properties, and of the content.
const HEAD_BYTES: usize = MAGIC.len() + 4 + 4 + 4 + 8 + 2 * CHECKSUM_BYTES;

/// Longest key, labels and properties: those of a request and response head, which have limits of their own.
const TEXT_BYTES_MAX: u32 = 4 << 20;

/// Name of an entry: a hash of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryName([u8; CHECKSUM_BYTES]);

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

/// Texts that were read.
struct EntryTexts {
    key: Vec<u8>,
    labels: Vec<u8>,
    meta: Vec<u8>,
}

/// Lengths and checksums of an entry.
struct EntryHead {
    key_bytes: u32,
    label_bytes: u32,
    meta_bytes: u32,
    content_bytes: u64,
    text_checksum: [u8; CHECKSUM_BYTES],
    content_checksum: [u8; CHECKSUM_BYTES],
}

impl EntryName {
    /// Name of the entry with this key.
    pub fn of(key: &[u8]) -> Self {
        Self(checksum(&[key]))
    }

    /// Hexadecimal digits.
    pub(crate) fn digits(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Name of the directory, and of the file in it.
    pub(super) fn file_names(self) -> (String, String) {
        let text = self.digits();
        let (directory, file) = text.split_at(2);
        (directory.to_owned(), file.to_owned())
    }

    /// Entry of a file in a directory.
    pub(super) fn of_file_names(directory: &str, file: &str) -> Option<Self> {
        let text = format!("{directory}{file}");
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if directory.len() != 2 || text.len() != 2 * CHECKSUM_BYTES || !text.bytes().all(is_hex) {
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

impl EntryParts<'_> {
    /// Size of the file.
    pub(super) fn file_bytes(&self) -> u64 {
        (HEAD_BYTES + self.text.key.len() + self.text.labels.len() + self.meta.len() + self.content.len()) as u64
    }

    /// Head of the file.
    pub(super) fn head(&self) -> io::Result<Vec<u8>> {
        let length = |text: &[u8]| u32::try_from(text.len()).ok().filter(|length| *length <= TEXT_BYTES_MAX);
        let EntryText { key, labels } = self.text;
        let lengths = (length(key), length(labels), length(self.meta));
        let (Some(key_bytes), Some(label_bytes), Some(meta_bytes)) = lengths else {
            return Err(io::ErrorKind::FileTooLarge.into());
        };
        let content_bytes = self.content.len() as u64;
        let mut head = EntryHead {
            key_bytes,
            label_bytes,
            meta_bytes,
            content_bytes,
            text_checksum: [0; CHECKSUM_BYTES],
            content_checksum: checksum(&[self.content]),
        };
        head.text_checksum = head.checksum_of(key, labels, self.meta);
        Ok(head.to_bytes())
    }

    /// The whole entry.
    pub(crate) fn to_bytes(&self) -> io::Result<Vec<u8>> {
        Ok([&self.head()?, self.text.key, self.text.labels, self.meta, self.content].concat())
    }
}

impl EntryHead {
    fn lengths(&self) -> Vec<u8> {
        let numbers = [self.key_bytes, self.label_bytes, self.meta_bytes].map(u32::to_le_bytes);
        [&numbers.concat()[..], &self.content_bytes.to_le_bytes()].concat()
    }

    fn to_bytes(&self) -> Vec<u8> {
        [&MAGIC[..], &self.lengths(), &self.content_checksum, &self.text_checksum].concat()
    }

    fn checksum_of(&self, key: &[u8], labels: &[u8], meta: &[u8]) -> [u8; CHECKSUM_BYTES] {
        checksum(&[&MAGIC, &self.lengths(), &self.content_checksum, key, labels, meta])
    }

    /// Reads the head of an entry of this length, with its texts.
    fn read(input: &mut impl Read, entry_bytes: u64) -> io::Result<(Self, EntryTexts)> {
        let mut bytes = [0; HEAD_BYTES];
        read_exact(input, &mut bytes)?;
        let (magic, rest) = bytes.split_at(MAGIC.len());
        let (numbers, checksums) = rest.split_at(rest.len() - 2 * CHECKSUM_BYTES);
        let number = |from: usize, to: usize| {
            numbers[from..to].iter().rev().fold(0_u64, |number, byte| (number << 8) | u64::from(*byte))
        };
        let (mut content_checksum, mut text_checksum) = ([0; CHECKSUM_BYTES], [0; CHECKSUM_BYTES]);
        content_checksum.copy_from_slice(&checksums[..CHECKSUM_BYTES]);
        text_checksum.copy_from_slice(&checksums[CHECKSUM_BYTES..]);
        let [key_bytes, label_bytes, meta_bytes] = [0, 4, 8].map(|at| number(at, at + 4) as u32);
        let content_bytes = number(12, 20);
        let head = Self { key_bytes, label_bytes, meta_bytes, content_bytes, text_checksum, content_checksum };
        let texts = [key_bytes, label_bytes, meta_bytes];
        let text_bytes = texts.into_iter().map(u64::from).sum::<u64>();
        let is_fit = magic == MAGIC && texts.iter().all(|bytes| *bytes <= TEXT_BYTES_MAX);
        let length = (HEAD_BYTES as u64 + text_bytes).checked_add(content_bytes);
        if !is_fit || length != Some(entry_bytes) {
            return Err(damaged());
        }
        let mut read_text = |bytes: u32| {
            let mut text = vec![0; bytes as usize];
            read_exact(input, &mut text).map(|()| text)
        };
        let [key, labels, meta] = [read_text(key_bytes)?, read_text(label_bytes)?, read_text(meta_bytes)?];
        match head.checksum_of(&key, &labels, &meta) == head.text_checksum {
            true => Ok((head, EntryTexts { key, labels, meta })),
            false => Err(damaged()),
        }
    }

    /// Returns the entry if its content is whole.
    fn check(&self, labels: Vec<u8>, meta: Vec<u8>, content: Bytes) -> io::Result<ReadEntry> {
        match checksum(&[&content]) == self.content_checksum {
            true => Ok(ReadEntry { labels, meta, content }),
            false => Err(damaged()),
        }
    }
}

/// Reads the key and the labels of an entry's file, and the size of the file. The content is not checked.
pub(super) fn read_text(mut file: &File) -> io::Result<(Vec<u8>, Vec<u8>, u64)> {
    let bytes = length_of(file, u64::MAX)?;
    let (_, EntryTexts { key, labels, .. }) = EntryHead::read(&mut file, bytes)?;
    Ok((key, labels, bytes))
}

/// Reads the file of the entry with this key, and checks it. A larger file is not read.
pub(super) fn read_file(mut file: &File, wanted: &[u8], file_bytes_max: u64) -> io::Result<ReadEntry> {
    let bytes = length_of(file, file_bytes_max)?;
    read_entry(&mut file, bytes, wanted)
}

/// Takes the entry with this key from all bytes of its file, and checks it. The content stays where it is.
pub(super) fn entry_of(file: &Bytes, wanted: &[u8]) -> io::Result<ReadEntry> {
    let mut rest = &file[..];
    let (head, EntryTexts { key, labels, meta }) = EntryHead::read(&mut rest, file.len() as u64)?;
    let content = file.slice(file.len() - rest.len()..);
    if key == wanted { head.check(labels, meta, content) } else { Err(damaged()) }
}

/// Reads the entry of this length with this key, and checks all of it.
pub(crate) fn read_entry(input: &mut impl Read, entry_bytes: u64, wanted: &[u8]) -> io::Result<ReadEntry> {
    let (head, EntryTexts { key, labels, meta }) = EntryHead::read(input, entry_bytes)?;
    let length = usize::try_from(head.content_bytes).map_err(|_| damaged())?;
    if key != wanted {
        return Err(damaged());
    }
    let mut content = vec![0; length];
    read_exact(input, &mut content)?;
    head.check(labels, meta, content.into())
}

fn length_of(file: &File, file_bytes_max: u64) -> io::Result<u64> {
    let metadata = file.metadata()?;
    match metadata.len() {
        _ if !metadata.is_file() => Err(damaged()),
        bytes if bytes > file_bytes_max => Err(io::ErrorKind::FileTooLarge.into()),
        bytes => Ok(bytes),
    }
}

fn read_exact(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<()> {
    input.read_exact(buffer).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged(),
        _ => error,
    })
}

fn damaged() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// First bytes of SHA-256: enough to tell damage from chance, and names apart.
fn checksum(parts: &[&[u8]]) -> [u8; CHECKSUM_BYTES] {
    let mut context = Context::new(&SHA256);
    parts.iter().for_each(|part| context.update(part));
    let mut checksum = [0; CHECKSUM_BYTES];
    checksum.copy_from_slice(&context.finish().as_ref()[..CHECKSUM_BYTES]);
    checksum
}
