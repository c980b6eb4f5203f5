use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::net::SendFlags;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A connection's socket.
#[derive(Debug)]
pub enum Socket {
    /// TCP
    Tcp(TcpStream),
    /// A unix socket.
    Unix(UnixStream),
}

/// Passes a call on to whichever socket it is.
macro_rules! either {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket {
            Socket::Tcp($stream) => $call,
            Socket::Unix($stream) => $call,
        }
    };
}

impl Socket {
    /// Reads what has come into `buffer`; 0 is the end.
    pub fn poll_read(&mut self, task: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        ready!(either!(self, stream => Pin::new(stream).poll_read(task, &mut buffer)))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Sends what the kernel takes of `bytes`.
    pub fn poll_write(&mut self, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, stream => Pin::new(stream).poll_write(task, bytes))
    }

    /// Sends what the kernel takes of several pieces.
    pub fn poll_write_vectored(&mut self, task: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        either!(self, stream => Pin::new(stream).poll_write_vectored(task, pieces))
    }

    /// Sends what the kernel takes of `bytes`, and lets it wait for what comes after them, so that a head and the
    /// beginning of a file share a segment.
    pub fn poll_write_more(&mut self, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_call(task, |socket| Ok(rustix::net::send(socket, bytes, SendFlags::MORE | SendFlags::NOSIGNAL)?))
    }

    /// Sends what the kernel takes of a part of a file. 0 is the end of the file.
    pub fn poll_send_file(
        &mut self,
        task: &mut Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        length: usize,
    ) -> Poll<io::Result<usize>> {
        self.poll_call(task, |socket| Ok(rustix::fs::sendfile(socket, file, Some(&mut { offset }), length)?))
    }

    /// Ends the sending side, so that the client sees the end of the last response.
    pub fn shutdown_write(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(self.as_fd(), rustix::net::Shutdown::Write)?)
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        either!(self, stream => stream.as_fd())
    }

    /// Makes a system call that would block when the socket takes nothing.
    fn poll_call(
        &mut self,
        task: &mut Context<'_>,
        mut call: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(either!(self, stream => stream.poll_write_ready(task)))?;
            match either!(self, stream => stream.try_io(Interest::WRITABLE, || call(stream.as_fd()))) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }
}
