use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::task::Poll;

use super::{Socket, TlsSocket};
use crate::object_cache::OpenFile;

/// Transport of a connection: its socket, or TLS on it.
///
/// After a write returns `Pending`, the next write must begin with the same bytes, because TLS has encrypted some of
/// them.
#[derive(Debug)]
pub(crate) enum Transport {
    /// Connection without TLS.
    Plain(Socket),
    /// Connection with TLS.
    Tls(Box<TlsSocket>),
}

impl Transport {
    /// Reads received bytes into `buffer`; 0 is the end of the stream. With TLS, `buffer` must have room for more than
    /// a record.
    pub(crate) fn poll_read(&mut self, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_read(buffer),
            Self::Tls(tls) => tls.poll_read(buffer),
        }
    }

    /// Sends as much of `bytes` as the transport accepts.
    pub(crate) fn poll_write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_write(bytes),
            Self::Tls(tls) => tls.poll_write(&[IoSlice::new(bytes)]),
        }
    }

    /// Sends as much of several pieces as the transport accepts.
    pub(crate) fn poll_write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_write_vectored(pieces),
            Self::Tls(tls) => tls.poll_write(pieces),
        }
    }

    /// Sends as much of `bytes` as the transport accepts, and announces more. A head and the beginning of a file then
    /// share a segment.
    pub(crate) fn poll_write_more(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_write_more(bytes),
            Self::Tls(tls) => tls.poll_write(&[IoSlice::new(bytes)]),
        }
    }

    /// Must be called before a part of a file is sent, after all output before it was accepted. With TLS, the kernel
    /// may take over at this point. `length` is the total number of bytes to send.
    ///
    /// # Errors
    /// The session is lost, so the connection must be closed.
    pub(crate) fn prepare_file(&mut self, length: u64) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(tls) => tls.prepare_file(length),
        }
    }

    /// Waits until all output is so far that the sending side may be closed without losing it.
    pub(crate) fn poll_drained(&mut self) -> Poll<()> {
        match self {
            Self::Plain(_) => Poll::Ready(()),
            Self::Tls(tls) => tls.poll_drained(),
        }
    }

    /// Sends as much of a part of a file as the transport accepts; the part must be in the page cache. 0 is the end of
    /// the file.
    pub(crate) fn poll_send_file(&mut self, file: &OpenFile, offset: u64, length: usize) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(socket) => socket.poll_send_file(file.fd.as_fd(), offset, length),
            Self::Tls(tls) => tls.poll_send_file(file.fd.as_fd(), offset, length),
        }
    }

    /// Starts or ends holding back the last, incomplete segment until more output follows.
    pub(crate) fn cork(&mut self, is_corked: bool) {
        self.socket_mut().cork(is_corked);
    }

    /// Closes the sending side, so that the client sees the end of the last response.
    pub(crate) fn shutdown_write(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.shutdown_write(),
            Self::Tls(tls) => tls.shutdown_write(),
        }
    }

    /// Sends `close_notify` with TLS before the connection is closed (RFC 8446, section 6.1). An error does not matter,
    /// because the client may have gone.
    pub(crate) fn end(&mut self) {
        if let Self::Tls(tls) = self {
            let _ = tls.shutdown_write();
        }
    }

    /// Makes closing reset the connection, so that the client does not treat a partial response as complete.
    pub(crate) fn abort_on_close(&self) {
        self.socket().abort_on_close();
    }

    /// True if the peer is known to have fully closed or reset the connection.
    pub(crate) fn is_broken(&self) -> bool {
        self.socket().is_broken()
    }

    /// True if the peer is known to have closed its side, even if its earlier input has not all been read.
    pub(crate) fn is_ended(&self) -> bool {
        self.socket().is_ended()
    }

    /// Local address that the client connected to; `None` for a unix socket.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        self.socket().local_address()
    }

    /// Socket of the transport, for registering and waiting.
    pub(crate) fn socket_mut(&mut self) -> &mut Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => tls.socket_mut(),
        }
    }

    /// Returns the bare socket.
    pub(crate) fn into_socket(self) -> Socket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => tls.into_socket(),
        }
    }

    /// Bytes of memory that TLS holds for received data and unsent output.
    pub(crate) fn held_bytes(&self) -> usize {
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
