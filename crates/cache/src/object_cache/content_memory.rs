use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;

use super::OpenFile;

/// Counts the memory of content until its last reference is dropped. This includes content that is still being received, and
/// evicted content that slow clients still read.
#[derive(Debug, Default)]
pub struct ContentMemory {
    bytes: AtomicU64,
}

/// Memory for the content of large files that are in use.
#[derive(Debug, Default)]
pub struct FileMemory {
    held: Arc<ContentMemory>,
    bytes_max: AtomicU64,
    is_short: AtomicBool,
}

/// Memory counted for content that will be read; dropping it subtracts the bytes again.
#[derive(Debug)]
pub struct ReservedMemory {
    bytes: u64,
    memory: Arc<ContentMemory>,
}

/// Content counted until its last clone or slice is dropped.
struct HeldContent {
    content: Bytes,
    _reserved: ReservedMemory,
}

impl ContentMemory {
    /// Counts this content; returns `None` if the total would exceed `bytes_max`.
    pub fn hold(self: &Arc<Self>, content: Bytes, bytes_max: u64) -> Option<Bytes> {
        let reserved = self.reserve(content.len() as u64, bytes_max)?;
        Some(reserved.hold(content))
    }

    /// Counts memory before content is read into it; returns `None` if the total would exceed `bytes_max`.
    pub fn reserve(self: &Arc<Self>, bytes: u64, bytes_max: u64) -> Option<ReservedMemory> {
        let sum = |before: u64| before.checked_add(bytes).filter(|sum| *sum <= bytes_max);
        self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).ok()?;
        Some(ReservedMemory { bytes, memory: Arc::clone(self) })
    }

    /// Content held now, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl FileMemory {
    /// Least number of files that fit.
    const FILES_MIN: u64 = 32;

    /// Sets the limit.
    pub(super) fn set_limit(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
    }

    /// Content held now, in bytes.
    pub fn bytes(&self) -> u64 {
        self.held.bytes()
    }

    /// Counts memory for a file of this size, in bytes; `None` if the file is too large or the memory is used up.
    pub fn reserve(&self, bytes: u64) -> Option<ReservedMemory> {
        let bytes_max = self.bytes_max.load(Ordering::Relaxed);
        if bytes > OpenFile::PIECE_BYTES.min(bytes_max / Self::FILES_MIN) {
            return None;
        }
        let reserved = self.held.reserve(bytes, bytes_max);
        if reserved.is_none() {
            self.is_short.store(true, Ordering::Relaxed);
        }
        reserved
    }

    /// True if a file has found no memory since the last call.
    pub(super) fn take_shortage(&self) -> bool {
        self.is_short.load(Ordering::Relaxed) && self.is_short.swap(false, Ordering::Relaxed)
    }
}

impl ReservedMemory {
    /// Counts this content instead. It must not be longer than the memory that was reserved.
    pub fn hold(mut self, content: Bytes) -> Bytes {
        let spare = self.bytes.saturating_sub(content.len() as u64);
        self.memory.bytes.fetch_sub(spare, Ordering::Relaxed);
        self.bytes -= spare;
        Bytes::from_owner(HeldContent { content, _reserved: self })
    }
}

impl AsRef<[u8]> for HeldContent {
    fn as_ref(&self) -> &[u8] {
        &self.content
    }
}

impl Drop for ReservedMemory {
    fn drop(&mut self) {
        self.memory.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_counts_as_long_as_it_is_held() {
        let memory = Arc::new(ContentMemory::default());
        let content = memory.hold(Bytes::from_static(b"12345678"), 10).unwrap();
        let slice = content.slice(2..4);
        assert!(memory.hold(Bytes::from_static(b"123"), 10).is_none());
        assert_eq!(memory.bytes(), 8);
        drop(content);
        assert_eq!((memory.bytes(), &slice[..]), (8, &b"34"[..]));
        drop(slice);
        assert!(memory.hold(Bytes::from_static(b"123"), 10).is_some());
        assert_eq!(memory.bytes(), 0);
    }

    #[test]
    fn memory_of_files_is_for_many() {
        let memory = FileMemory::default();
        assert!(memory.reserve(1).is_none(), "there is none");
        memory.set_limit(3_200);
        assert!(memory.reserve(101).is_none(), "too large for 32 of them");
        let held: Vec<_> = (0..32).map_while(|_| memory.reserve(100)).collect();
        assert_eq!((held.len(), memory.bytes(), memory.take_shortage()), (32, 3_200, false));
        assert!(memory.reserve(100).is_none());
        assert!(memory.take_shortage() && !memory.take_shortage());
        drop(held);
        assert_eq!(memory.bytes(), 0);
        memory.set_limit(u64::MAX);
        assert!(memory.reserve(OpenFile::PIECE_BYTES).is_some() && memory.reserve(OpenFile::PIECE_BYTES + 1).is_none());
    }

    #[test]
    fn memory_counts_before_content_is_read() {
        let memory = Arc::new(ContentMemory::default());
        let reserved = memory.reserve(8, 10).unwrap();
        assert!(memory.reserve(3, 10).is_none() && memory.reserve(u64::MAX, 10).is_none());
        assert_eq!(memory.bytes(), 8);
        let content = reserved.hold(Bytes::from_static(b"123456"));
        assert_eq!((memory.bytes(), &content[..]), (6, &b"123456"[..]));
        let unused = memory.reserve(4, 10).unwrap();
        drop((content, unused));
        assert_eq!(memory.bytes(), 0);
    }
}
