use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::task::Poll;

use super::{Socket, TlsSocket};
use crate::object_cache::OpenFile;

/// What carries the bytes of a connection: its socket, or TLS over it.
///
/// What was to be written and was not taken (`Pending`) has to come first in the next attempt, for TLS has enciphered some
/// of it.
#[derive(Debug)]
pub enum Transport {
    /// The socket.
    Plain(Socket),
    /// TLS.
    Tls(Box<TlsSocket>),
}

impl Transport {
    /// Reads what has come into `buffer`; 0 is the end. With TLS, `buffer` has room for more than a record.
    pub fn poll_read(&mut self, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_read(buffer),
            Self::Tls(tls) => tls.poll_read(buffer),
        }
    }

    /// Sends what is taken of `bytes`.
    pub fn poll_write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_write(bytes),
            Self::Tls(tls) => tls.poll_write(&[IoSlice::new(bytes)]),
        }
    }

    /// Sends what is taken of several pieces.
    pub fn poll_write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_write_vectored(pieces),
            Self::Tls(tls) => tls.poll_write(pieces),
        }
    }

    /// Sends what is taken of `bytes`, and lets it wait for what comes after them, so that a head and the beginning of a
    /// file share a segment.
    pub fn poll_write_more(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_write_more(bytes),
            Self::Tls(tls) => tls.poll_write(&[IoSlice::new(bytes)]),
        }
    }

    /// To be called before a part of a file is sent, when all before it was taken: with TLS, the kernel may take over then.
    /// Of the whole, `length` bytes are to be sent.
    ///
    /// # Errors
    /// The connection can't go on.
    pub fn prepare_file(&mut self, length: u64) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(tls) => tls.prepare_file(length),
        }
    }

    /// Waits until all that was sent has come so far that the sending side may be ended without losing it.
    pub fn poll_drained(&mut self) -> Poll<()> {
        match self {
            Self::Plain(_) => Poll::Ready(()),
            Self::Tls(tls) => tls.poll_drained(),
        }
    }

    /// Sends what is taken of a part of a file that is in the page cache. 0 is the end of the file.
    pub fn poll_send_file(&mut self, file: &OpenFile, offset: u64, length: usize) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_send_file(file.fd.as_fd(), offset, length),
            Self::Tls(tls) => tls.poll_send_file(file.fd.as_fd(), offset, length),
        }
    }

    /// Has the last, incomplete segment wait for what follows, or no longer.
    pub fn cork(&mut self, is_corked: bool) {
        self.socket_mut().cork(is_corked);
    }

    /// Ends the sending side, so that the client sees the end of the last response.
    pub fn shutdown_write(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.shutdown_write(),
            Self::Tls(tls) => tls.shutdown_write(),
        }
    }

    /// Says that nothing more comes, before the connection is closed, where its end does not say so itself (RFC 8446,
    /// section 6.1). Whether the client still hears it is no matter.
    pub fn end(&mut self) {
        if let Self::Tls(tls) = self {
            let _ = tls.shutdown_write();
        }
    }

    /// Makes closing reset the connection, so that the client doesn't take what it got for the whole.
    pub fn abort_on_close(&self) {
        self.socket().abort_on_close();
    }

    /// Whether the peer is known to have broken the connection off.
    pub fn is_broken(&self) -> bool {
        self.socket().is_broken()
    }

    /// Whether the peer is known to have ended its side, even if not all that it sent before has been read.
    pub fn is_ended(&self) -> bool {
        self.socket().is_ended()
    }

    /// Where the client has connected to; `None` for a unix socket.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.socket().local_address()
    }

    /// The socket, for whoever waits for it.
    pub fn socket_mut(&mut self) -> &mut Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => tls.socket_mut(),
        }
    }

    /// Bytes of memory that TLS keeps of what has come, or is to be sent.
    pub fn held_bytes(&self) -> usize {
        match self {
            Self::Plain(_) => 0,
            Self::Tls(socket) => socket.held_bytes(),
        }
    }

    fn socket(&self) -> &Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => tls.socket(),
        }
    }
}
