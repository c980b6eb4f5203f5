//! TLS over a connection's socket, once the client's first message is there.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::BorrowedFd;
use std::task::{Poll, ready};

use super::Socket;
use crate::tls::ServerConnection;

/// Bytes that are enciphered at once: four full records, which one write sends.
const WRITE_BYTES_MAX: usize = 64 << 10;

/// Ciphertext that is read at once: no more than a record, so that what it says always finds room.
pub(super) const READ_BYTES_MAX: usize = 16 << 10;

/// Bytes of a small record. A client can use nothing of a record before all of it has come.
const SMALL_RECORD_BYTES: usize = 4 << 10;

/// Bytes of a full record.
const RECORD_BYTES_MAX: usize = 16 << 10;

/// The first bytes of a connection, about what is sent before the client's first acknowledgement (RFC 6928), go in small
/// records.
const EARLY_BYTES: usize = 16 << 10;

/// A socket with a session of TLS.
#[derive(Debug)]
pub struct TlsSocket {
    socket: Socket,
    session: ServerConnection,
    /// Ciphertext that the session has not taken, because it had plaintext to give.
    unread: Vec<u8>,
    /// Bytes that were enciphered, and not all sent.
    in_flight_bytes: usize,
    /// How many bytes are still to go in small records.
    early_bytes: usize,
    /// What is written next begins a response.
    has_read: bool,
}

impl TlsSocket {
    /// A socket from which the client's first message was read.
    pub fn new(socket: Socket, mut session: ServerConnection) -> Self {
        // What is enciphered at once is limited here.
        session.set_buffer_limit(None);
        let unread = Vec::new();
        Self { socket, session, unread, in_flight_bytes: 0, early_bytes: EARLY_BYTES, has_read: true }
    }

    /// The session.
    pub fn session(&self) -> &ServerConnection {
        &self.session
    }

    /// The socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The socket, for whoever waits for it.
    pub fn socket_mut(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// Goes on with the handshake until it is complete. `buffer` is for what is read, and takes at least a record.
    ///
    /// # Errors
    /// The handshake failed, of which the client has been told as far as possible; `UnexpectedEof` if it has gone.
    pub fn poll_handshake(&mut self, buffer: &mut [u8]) -> Poll<io::Result<()>> {
        loop {
            if self.session.wants_write() {
                ready!(self.poll_flush())?;
            }
            if !self.session.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            if ready!(self.poll_feed(buffer))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }

    /// Reads what has come; 0 is the end. A client that ends without saying so is one that has ended: what it sent says
    /// itself whether it is complete.
    pub fn poll_read(&mut self, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            match self.session.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Poll::Ready(Ok(0)),
                result => {
                    self.has_read = true;
                    return Poll::Ready(result);
                }
            }
            // Answers to what concerns only TLS (a new key). If they are stuck, they go with what is written next.
            if self.session.wants_write()
                && let Poll::Ready(Err(error)) = self.poll_flush()
            {
                return Poll::Ready(Err(error));
            }
            ready!(self.poll_feed(buffer))?;
        }
    }

    /// Sends several pieces, as far as they are taken.
    pub fn poll_write(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.in_flight_bytes == 0 {
            self.in_flight_bytes = self.encipher(pieces)?;
        }
        ready!(self.poll_flush())?;
        Poll::Ready(Ok(std::mem::take(&mut self.in_flight_bytes)))
    }

    /// Sends a part of a file, as far as it is taken; 0 is the end of the file.
    pub fn poll_send_file(&mut self, file: BorrowedFd<'_>, offset: u64, length: usize) -> Poll<io::Result<usize>> {
        if self.in_flight_bytes > 0 {
            return self.poll_write(&[]);
        }
        let mut content = Vec::with_capacity(length.min(WRITE_BYTES_MAX));
        if rustix::io::pread(file, rustix::buffer::spare_capacity(&mut content), offset)? == 0 {
            return Poll::Ready(Ok(0));
        }
        self.poll_write(&[IoSlice::new(&content)])
    }

    /// Says that nothing more comes, and ends the sending side.
    pub fn shutdown_write(&mut self) -> io::Result<()> {
        self.session.send_close_notify();
        // If the socket takes nothing, the client has not even read the last response, and finds out by its end.
        let _ = self.poll_flush()?;
        self.socket.shutdown_write()
    }

    /// Enciphers what fits; returns how much.
    fn encipher(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let total = pieces.iter().map(|piece| piece.len()).sum::<usize>().min(WRITE_BYTES_MAX);
        let mut small_bytes = self.early_bytes.min(total);
        if std::mem::take(&mut self.has_read) && total > RECORD_BYTES_MAX {
            small_bytes = small_bytes.max(SMALL_RECORD_BYTES);
        }
        self.early_bytes -= self.early_bytes.min(total);
        let mut at = 0;
        while at < total {
            let length = if at < small_bytes { SMALL_RECORD_BYTES.min(total - at) } else { total - at };
            let mut writer = self.session.writer();
            let taken = match pieces {
                [piece] => writer.write(&piece[at..at + length])?,
                pieces => writer.write_vectored(&part(pieces, at, length))?,
            };
            if taken == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            at += taken;
        }
        Ok(total)
    }

    /// Sends what is enciphered.
    fn poll_flush(&mut self) -> Poll<io::Result<()>> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Blocking(&mut self.socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Gives the session what has come; returns how many bytes, 0 at the end.
    fn poll_feed(&mut self, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if !self.unread.is_empty() {
            let unread = std::mem::take(&mut self.unread);
            self.feed(&unread)?;
            return Poll::Ready(Ok(unread.len()));
        }
        let room = buffer.len().min(READ_BYTES_MAX);
        let count = ready!(self.socket.poll_read(&mut buffer[..room]))?;
        if count == 0 {
            // So it knows that there is no more, and whether it may be so.
            self.session.read_tls(&mut io::empty())?;
            self.session.process_new_packets().map_err(invalid)?;
        }
        self.feed(&buffer[..count])?;
        Poll::Ready(Ok(count))
    }

    /// Gives the session ciphertext. What it doesn't take is kept.
    pub fn feed(&mut self, mut ciphertext: &[u8]) -> io::Result<()> {
        while !ciphertext.is_empty() {
            match self.session.read_tls(&mut ciphertext) {
                // After the client has said that it ends, nothing counts.
                Ok(0) => return Ok(()),
                Ok(_) => {}
                // Its plaintext has to be read first.
                Err(error) if error.kind() == io::ErrorKind::Other => {
                    self.unread = ciphertext.to_vec();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            if let Err(error) = self.session.process_new_packets() {
                // What is wrong, for the client; it may have gone.
                let _ = self.poll_flush();
                return Err(invalid(error));
            }
        }
        Ok(())
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// A part of several pieces.
fn part<'a>(pieces: &'a [IoSlice<'a>], mut at: usize, mut length: usize) -> Vec<IoSlice<'a>> {
    let mut found = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let from = at.min(piece.len());
        let to = (from + length).min(piece.len());
        at -= from;
        length -= to - from;
        if from < to {
            found.push(IoSlice::new(&piece[from..to]));
        }
    }
    found
}

/// The socket, as the session wants to write to it.
pub(super) struct Blocking<'a>(pub(super) &'a mut Socket);

impl Write for Blocking<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        or_would_block(self.0.poll_write(bytes))
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match pieces {
            [piece] => or_would_block(self.0.poll_write(piece)),
            pieces => or_would_block(self.0.poll_write_vectored(pieces)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn or_would_block(polled: Poll<io::Result<usize>>) -> io::Result<usize> {
    match polled {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_pieces() {
        let pieces = [IoSlice::new(b"abc"), IoSlice::new(b""), IoSlice::new(b"defg")];
        for (at, length, expect) in [
            (0, 7, vec!["abc", "defg"]),
            (0, 3, vec!["abc"]),
            (2, 2, vec!["c", "d"]),
            (3, 2, vec!["de"]),
            (5, 9, vec!["fg"]),
        ] {
            let found: Vec<_> = part(&pieces, at, length).iter().map(|piece| piece.to_vec()).collect();
            assert_eq!(
                found,
                expect.iter().map(|piece| piece.as_bytes().to_vec()).collect::<Vec<_>>(),
                "{at} {length}"
            );
        }
    }
}
