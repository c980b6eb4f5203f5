use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

/// A connection to a server.
#[derive(Debug)]
pub(super) enum UpstreamStream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Passes a call to the stream, of whichever kind.
macro_rules! either {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket {
            UpstreamStream::Tcp($stream) => $call,
            UpstreamStream::Unix($stream) => $call,
            UpstreamStream::Tls($stream) => $call,
        }
    };
}

/// Passes a call to the socket; for TLS, to the one below it.
macro_rules! below {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket {
            UpstreamStream::Tcp($stream) => $call,
            UpstreamStream::Unix($stream) => $call,
            UpstreamStream::Tls(stream) => {
                let $stream = stream.get_ref().0;
                $call
            }
        }
    };
}

impl UpstreamStream {
    pub(super) fn poll_read(&mut self, task: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if let Self::Tls(stream) = self
            && stream.get_ref().1.wants_write()
        {
            // A caller that has sent all only reads: encrypted bytes that did not fit into the socket are flushed
            // here.
            let _ = Pin::new(stream).poll_flush(task)?;
        }
        let mut buffer = ReadBuf::new(buffer);
        ready!(either!(self, stream => Pin::new(stream).poll_read(task, &mut buffer)))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    pub(super) fn poll_write(&mut self, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        either!(self, stream => Pin::new(stream).poll_write(task, bytes))
    }

    pub(super) async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        poll_fn(|task| self.poll_read(task, buffer)).await
    }

    pub(super) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        either!(self, stream => stream.write_all(bytes).await)?;
        either!(self, stream => stream.flush().await)
    }

    pub(super) fn poll_shutdown(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(self, stream => Pin::new(stream).poll_shutdown(task))
    }

    /// True if TLS holds no decrypted bytes that were not read.
    fn has_all_been_read(&self) -> bool {
        !matches!(self, Self::Tls(stream) if !stream.get_ref().1.wants_read())
    }

    /// True if there is nothing to read: neither unexpected bytes nor the end. Makes a system call only if the
    /// runtime believes that there is something to read.
    pub(super) fn is_quiet(&self) -> bool {
        let mut byte = [0];
        let read = below!(self, stream => {
            stream.try_io(Interest::READABLE, || {
                let peek = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
                Ok(rustix::net::recv(stream, &mut byte, peek)?.0)
            })
        });
        self.has_all_been_read() && read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Checks the same as [`is_quiet`](Self::is_quiet), always by a system call: the runtime may not know the latest
    /// state.
    pub(super) fn is_quiet_for_certain(&self) -> bool {
        let mut byte = [0];
        let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let read = below!(self, stream => recv(stream, &mut byte, peek));
        self.has_all_been_read() && read.is_err_and(|error| error == rustix::io::Errno::AGAIN)
    }
}
