//! Read buffer that all forwards of a worker share.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

/// Read buffer of a worker. It holds nothing between two polls.
///
/// A forward that reads while another of the same worker does gets a buffer of its own.
#[derive(Default)]
pub struct ReadBuffer {
    bytes: Cell<Vec<u8>>,
}

/// Buffer that was lent; returned on drop.
pub(super) struct LentBuffer<'a> {
    owner: &'a ReadBuffer,
    bytes: Vec<u8>,
    length: usize,
}

impl ReadBuffer {
    /// Lends a buffer of this length, whose content is arbitrary.
    #[inline]
    pub(super) fn lend(&self, length: usize) -> LentBuffer<'_> {
        let mut bytes = self.bytes.take();
        if bytes.len() < length {
            // A new one, because the old content need not be copied.
            bytes = vec![0; length];
        }
        LentBuffer { owner: self, bytes, length }
    }
}

impl Deref for LentBuffer<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl DerefMut for LentBuffer<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

impl Drop for LentBuffer<'_> {
    #[inline]
    fn drop(&mut self) {
        self.owner.bytes.set(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_buffer_serves_forwards_one_after_another() {
        let buffer = ReadBuffer::default();
        let place = |lent: &LentBuffer<'_>| lent.bytes.as_ptr();
        let mut first = buffer.lend(8);
        first.fill(1);
        let second = buffer.lend(4);
        assert_eq!((&*first, &*second), (&[1; 8][..], &[0; 4][..]), "neither sees the other's bytes");
        assert_ne!(place(&first), place(&second));
        drop(second);
        let at = place(&first);
        drop(first);
        let third = buffer.lend(6);
        assert_eq!((place(&third), third.len()), (at, 6));
        drop(third);
        assert_eq!(buffer.lend(16).len(), 16);
    }
}
