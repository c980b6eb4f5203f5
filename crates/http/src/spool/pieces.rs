//! Bytes in memory, in pieces, with a read position.

use std::collections::VecDeque;

/// Size to which a piece is filled before the next one begins.
const PIECE_BYTES: usize = 16 << 10;

/// Bytes in memory. Those before the read position stay until they are freed.
#[derive(Debug, Default)]
pub(super) struct SpoolPieces {
    pieces: VecDeque<Vec<u8>>,
    /// Pieces before the read position that are kept.
    read_pieces: usize,
    /// Bytes already read of the next piece.
    read_bytes: usize,
    /// Bytes held, read or not.
    held_bytes: usize,
    unread_bytes: usize,
}

impl SpoolPieces {
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    pub(super) fn unread_bytes(&self) -> usize {
        self.unread_bytes
    }

    /// Appends bytes; small ones join the last piece.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.held_bytes += bytes.len();
        self.unread_bytes += bytes.len();
        match self.pieces.back_mut() {
            Some(last) if last.len() + bytes.len() <= PIECE_BYTES => last.extend_from_slice(bytes),
            _ => self.pieces.push_back(bytes.to_vec()),
        }
    }

    /// The next unread bytes; empty if there are none.
    pub(super) fn front(&self) -> &[u8] {
        let piece = self.pieces.get(self.read_pieces).map_or(&[][..], Vec::as_slice);
        &piece[self.read_bytes..]
    }

    /// Counts bytes of [`Self::front`] as read, and frees what was read unless all is kept.
    pub(super) fn advance(&mut self, count: usize, keeps_all: bool) {
        self.unread_bytes -= count;
        self.read_bytes += count;
        if self.front().is_empty() && self.read_pieces < self.pieces.len() {
            self.read_bytes = 0;
            if keeps_all {
                self.read_pieces += 1;
            } else if let Some(piece) = self.pieces.remove(self.read_pieces) {
                self.held_bytes -= piece.len();
            }
        }
    }

    /// Moves the read position back to the first byte.
    pub(super) fn rewind(&mut self) {
        (self.read_pieces, self.read_bytes, self.unread_bytes) = (0, 0, self.held_bytes);
    }

    /// Frees the bytes before the read position.
    pub(super) fn forget_read(&mut self) {
        for piece in self.pieces.drain(..self.read_pieces) {
            self.held_bytes -= piece.len();
        }
        self.read_pieces = 0;
    }

    /// Takes all pieces out; none may have been read.
    pub(super) fn take(&mut self) -> VecDeque<Vec<u8>> {
        std::mem::take(self).pieces
    }

    /// Puts pieces back before those that were added since.
    pub(super) fn put_back(&mut self, mut pieces: VecDeque<Vec<u8>>) {
        let bytes: usize = pieces.iter().map(Vec::len).sum();
        pieces.append(&mut self.pieces);
        self.pieces = pieces;
        self.held_bytes += bytes;
        self.unread_bytes += bytes;
    }
}
