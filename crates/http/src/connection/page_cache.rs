//! Loading parts of files into the page cache before they are sent.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Task, Poll, ready};

use crate::object_cache::{Blocking, OpenFile};

/// Bytes of a file that are loaded into the page cache at once.
pub(crate) const WARM_BYTES: u64 = 512 << 10;

/// Read that loads the next part of a file into the page cache.
#[derive(Debug, Default)]
pub(crate) struct PageCacheWarming(Option<Blocking<()>>);

impl PageCacheWarming {
    /// True if a read is in progress.
    pub(crate) fn is_reading(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the number of bytes from `offset` on, at most `length`, that can be sent without waiting for a disk.
    /// Another thread loads missing pages into the page cache. While this is pending, offset and length must stay.
    pub(crate) fn poll_resident(
        &mut self,
        file: &Arc<OpenFile>,
        offset: u64,
        length: u64,
        now_ns: i64,
        task: &mut Task<'_>,
    ) -> Poll<u64> {
        let chunk = length.min(WARM_BYTES);
        if self.0.is_none() {
            match file.resident_bytes(offset, length, now_ns) {
                0 if !file.is_resident(offset, chunk) => {}
                0 => return Poll::Ready(chunk),
                bytes => return Poll::Ready(bytes),
            }
        }
        let read = self.0.get_or_insert_with(|| {
            let file = Arc::clone(file);
            Blocking::spawn(move || file.warm(offset, chunk))
        });
        // A new read is polled at once, because only a polled future wakes the task. An error (a panic, or the end of
        // the process) is ignored here; the later read of the file meets it, too.
        let _ = ready!(Pin::new(read).poll(task));
        self.0 = None;
        Poll::Ready(chunk)
    }
}
