use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

/// Counts the memory of upstream response content until its last reference is dropped. This includes content that is
/// still being received, and evicted content that slow clients still read.
#[derive(Debug, Default)]
pub struct ContentMemory {
    bytes: AtomicU64,
}

/// Content counted until its last clone or slice is dropped.
struct HeldContent {
    content: Bytes,
    memory: Arc<ContentMemory>,
}

impl ContentMemory {
    /// Counts this content; returns `None` if the total would exceed `bytes_max`.
    pub fn hold(self: &Arc<Self>, content: Bytes, bytes_max: u64) -> Option<Bytes> {
        let bytes = content.len() as u64;
        // If the limit is exceeded, dropping `held` subtracts the bytes again.
        let held = HeldContent { content, memory: Arc::clone(self) };
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        (before + bytes <= bytes_max).then(|| Bytes::from_owner(held))
    }

    /// Content held now, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl AsRef<[u8]> for HeldContent {
    fn as_ref(&self) -> &[u8] {
        &self.content
    }
}

impl Drop for HeldContent {
    fn drop(&mut self) {
        self.memory.bytes.fetch_sub(self.content.len() as u64, Ordering::Relaxed);
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
}
