use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::net::{RecvFlags, SendFlags};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A connection's socket.
#[derive(Debug)]
pub enum Socket {
    /// TCP
    Tcp(TcpStream),
    /// A unix socket.
    Unix(UnixStream),
    /// TCP, just accepted (and non-blocking), and not yet known to the runtime: mostly the first request is already there,
    /// and if the connection ends with its answer, making it known would have been two system calls and a wake-up for
    /// nothing. `None` only while it is made known.
    New(Option<std::net::TcpStream>),
}

/// Passes a call on to whichever socket of the runtime it is.
macro_rules! either {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket {
            Socket::Tcp($stream) => $call,
            Socket::Unix($stream) => $call,
            Socket::New(_) => return Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    };
}

impl Socket {
    /// Reads what has come into `buffer`; 0 is the end.
    pub fn poll_read(&mut self, task: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if let Some(result) = self.call_new(|socket| Ok(rustix::net::recv(socket, &mut *buffer, RecvFlags::empty())?.0))
        {
            return Poll::Ready(result);
        }
        let mut buffer = ReadBuf::new(buffer);
        ready!(either!(self, stream => Pin::new(stream).poll_read(task, &mut buffer)))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Sends what the kernel takes of `bytes`.
    pub fn poll_write(&mut self, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(result) = self.call_new(|socket| Ok(rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)?)) {
            return Poll::Ready(result);
        }
        either!(self, stream => Pin::new(stream).poll_write(task, bytes))
    }

    /// Sends what the kernel takes of several pieces.
    pub fn poll_write_vectored(&mut self, task: &mut Context<'_>, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if let Some(result) = self.call_new(|socket| Ok(rustix::io::writev(socket, pieces)?)) {
            return Poll::Ready(result);
        }
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
        match self {
            Self::Tcp(stream) => Ok(rustix::net::shutdown(stream, rustix::net::Shutdown::Write)?),
            Self::Unix(stream) => Ok(rustix::net::shutdown(stream, rustix::net::Shutdown::Write)?),
            Self::New(stream) => stream.as_ref().map_or(Ok(()), |stream| stream.shutdown(std::net::Shutdown::Write)),
        }
    }

    /// Makes a system call on a socket that is still new. `None` if it isn't, or no longer because it has to be waited for.
    fn call_new(&mut self, call: impl FnOnce(BorrowedFd<'_>) -> io::Result<usize>) -> Option<io::Result<usize>> {
        let Self::New(stream) = self else { return None };
        match call(stream.as_ref()?.as_fd()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => match TcpStream::from_std(stream.take()?) {
                Ok(stream) => {
                    *self = Self::Tcp(stream);
                    None
                }
                Err(error) => Some(Err(error)),
            },
            result => Some(result),
        }
    }

    /// Makes a system call that would block when the socket takes nothing.
    fn poll_call(
        &mut self,
        task: &mut Context<'_>,
        mut call: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        if let Some(result) = self.call_new(&mut call) {
            return Poll::Ready(result);
        }
        loop {
            ready!(either!(self, stream => stream.poll_write_ready(task)))?;
            match either!(self, stream => stream.try_io(Interest::WRITABLE, || call(stream.as_fd()))) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }
}
