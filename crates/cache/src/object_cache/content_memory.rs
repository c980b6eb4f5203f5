use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

/// Counts the memory of upstream response content and of large files until its last reference is dropped. This includes
/// content that is still being received, and evicted content that slow clients still read.
#[derive(Debug, Default)]
pub struct ContentMemory {
    bytes: AtomicU64,
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
