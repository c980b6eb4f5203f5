use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::Poll;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, acceptfrom_with};

/// Non-blocking socket of a connection, TCP or unix, and its known readiness.
///
/// The owner registers the socket with the worker's epoll instance when it must wait, and passes events on to it. Most
/// connections that end with their first response never need that.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    /// True if reading may succeed. Edge-triggered: after it becomes false, epoll reports when it is true again.
    is_readable: bool,
    /// True if writing may succeed; also edge-triggered.
    is_writable: bool,
    /// True if the peer has closed its side or the connection is broken. No edge will follow, so a read is always
    /// tried.
    is_ended: bool,
    /// True if neither side can send any more, because the peer has reset or fully closed the connection.
    is_broken: bool,
    is_corked: bool,
    /// Events registered with epoll; empty if the socket is not registered.
    watched: EventFlags,
}

/// Events that are watched from the first wait on.
const READ_EVENTS: EventFlags = EventFlags::IN.union(EventFlags::RDHUP).union(EventFlags::ET);

impl Socket {
    /// Wraps a socket that was just accepted; it must be non-blocking.
    pub fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            is_readable: true,
            is_writable: true,
            is_ended: false,
            is_broken: false,
            is_corked: false,
            watched: EventFlags::empty(),
        }
    }

    /// Wraps a socket that connects; it must be non-blocking. [`Self::poll_connected`] waits for the end of that.
    pub(super) fn connecting(fd: OwnedFd) -> Self {
        Self { is_writable: false, ..Self::new(fd) }
    }

    /// Waits until the connection is established or has failed.
    pub(super) fn poll_connected(&mut self) -> Poll<io::Result<()>> {
        if !self.is_writable {
            return Poll::Pending;
        }
        // Input may have come with the same event.
        self.is_readable = true;
        Poll::Ready(rustix::net::sockopt::socket_error(&self.fd)?.map_err(io::Error::from))
    }

    /// Reads received bytes into `buffer`; 0 is the end of the stream.
    pub fn poll_read(&mut self, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        if !self.is_readable {
            return Poll::Pending;
        }
        match rustix::net::recv(&self.fd, &mut *buffer, RecvFlags::empty()) {
            Ok((_, count)) => {
                // No more input was available at the read. epoll reports any later input, even if the socket is
                // registered only afterwards.
                self.is_readable = count == buffer.len() || count == 0 || self.is_ended;
                Poll::Ready(Ok(count))
            }
            Err(Errno::AGAIN) => {
                self.is_readable = false;
                self.is_ended = false;
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }

    /// Makes the next read try again, although the last one returned less than it could have.
    pub(super) fn retry_read(&mut self) {
        self.is_readable = true;
    }

    /// Sends as much of `bytes` as the kernel accepts.
    pub fn poll_write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_sending(bytes.len(), |socket| rustix::net::send(socket, bytes, SendFlags::NOSIGNAL))
    }

    /// Sends as much of several pieces as the kernel accepts.
    pub fn poll_write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut no_control = SendAncillaryBuffer::default();
        let length = pieces.iter().map(|piece| piece.len()).sum();
        self.poll_sending(length, |socket| rustix::net::sendmsg(socket, pieces, &mut no_control, SendFlags::NOSIGNAL))
    }

    /// Sends as much of `bytes` as the kernel accepts, with `MSG_MORE`. A head and the beginning of a file then share a
    /// segment.
    pub fn poll_write_more(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_sending(bytes.len(), |socket| rustix::net::send(socket, bytes, SendFlags::MORE | SendFlags::NOSIGNAL))
    }

    /// Sends as much of a part of a file as the kernel accepts. 0 is the end of the file.
    pub fn poll_send_file(&mut self, file: BorrowedFd<'_>, offset: u64, length: usize) -> Poll<io::Result<usize>> {
        let sent = self.poll_call(|socket| rustix::fs::sendfile(socket, file, Some(&mut { offset }), length));
        if let Poll::Ready(Ok(count)) = sent
            && (1..length).contains(&count)
        {
            // Either the socket is full, or the file is shorter now. Polling costs less than another sendfile, which
            // looks up pages of the file before it checks for room.
            self.is_writable = self.has_room();
        }
        sent
    }

    /// Accepts a connection, if this is a listening TCP socket.
    pub(super) fn poll_accept(&mut self) -> Poll<io::Result<(Self, SocketAddr)>> {
        if !self.is_readable {
            return Poll::Pending;
        }
        match acceptfrom_with(&self.fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok((accepted, peer)) => {
                let peer = peer.ok_or(Errno::NOTCONN)?.try_into()?;
                Poll::Ready(Ok((Self::new(accepted), peer)))
            }
            Err(Errno::AGAIN) => {
                self.is_readable = false;
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }

    /// Local address that the client connected to; `None` for a unix socket.
    pub fn local_address(&self) -> Option<SocketAddr> {
        rustix::net::getsockname(&self.fd).ok()?.try_into().ok()
    }

    /// Closes the sending side, so that the client sees the end of the last response.
    pub fn shutdown_write(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.fd, Shutdown::Write)?)
    }

    /// Makes closing reset the connection, so that the client does not treat a partial response as complete.
    pub fn abort_on_close(&self) {
        // Sockets that cannot be reset are closed normally.
        let _ = rustix::net::sockopt::set_socket_linger(&self.fd, Some(Duration::ZERO));
    }

    /// True if the peer is known to have fully closed or reset the connection, so that nothing can be sent to it. A
    /// peer that only stopped sending may still wait for responses.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// True if the peer is known to have closed its side or reset the connection, even if its earlier input has not all
    /// been read.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Makes the kernel gather output into full segments, or send what it has gathered. Has no effect on sockets
    /// without segments.
    pub fn cork(&mut self, is_corked: bool) {
        if self.is_corked != is_corked {
            let _ = rustix::net::sockopt::set_tcp_cork(&self.fd, is_corked);
            self.is_corked = is_corked;
        }
    }

    /// Events that must be registered with epoll now that the socket must be waited for; `None` if all are registered.
    /// The flag is true if the socket must be added, and false if its events must be modified.
    pub(super) fn unwatched(&mut self) -> Option<(EventFlags, bool)> {
        let wanted = if self.is_writable { READ_EVENTS | self.watched } else { READ_EVENTS | EventFlags::OUT };
        let is_new = self.watched.is_empty();
        (wanted != std::mem::replace(&mut self.watched, wanted)).then_some((wanted, is_new))
    }

    /// Ends the watch by epoll; returns true if the caller must remove the socket from epoll.
    pub(super) fn end_watch(&mut self) -> bool {
        !std::mem::replace(&mut self.watched, EventFlags::empty()).is_empty()
    }

    /// File descriptor of the socket.
    pub(super) fn into_descriptor(self) -> OwnedFd {
        self.fd
    }

    /// Updates the readiness from epoll's events.
    pub(super) fn on_events(&mut self, events: EventFlags) {
        let is_broken = events.intersects(EventFlags::ERR | EventFlags::HUP);
        self.is_broken |= events.contains(EventFlags::HUP);
        self.is_ended |= is_broken || events.contains(EventFlags::RDHUP);
        self.is_readable |= self.is_ended || events.contains(EventFlags::IN);
        self.is_writable |= is_broken || events.contains(EventFlags::OUT);
    }

    /// Waits until the socket accepts more, so that TCP holds everything sent before. Layers above TCP (kTLS) may still
    /// hold data that closing the sending side would drop.
    pub(super) fn poll_room(&mut self) -> Poll<()> {
        if !self.is_writable {
            return Poll::Pending;
        }
        self.is_writable = self.has_room();
        if self.is_writable { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Asks the kernel if the socket accepts more or is broken. If not, epoll reports when it does.
    fn has_room(&self) -> bool {
        let mut polled = [PollFd::new(&self.fd, PollFlags::OUT)];
        rustix::event::poll(&mut polled, Some(&Timespec::default())) != Ok(0)
    }

    /// Makes a system call that sends up to `length` bytes, and updates the readiness.
    fn poll_sending(
        &mut self,
        length: usize,
        call: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        let sent = self.poll_call(call);
        if let Poll::Ready(Ok(count)) = sent {
            // A partial send means that the socket is full. The kernel has recorded that room is awaited, just as after
            // a failed call.
            self.is_writable = count == length;
        }
        sent
    }

    /// Makes a system call that would block if the socket accepts nothing.
    pub(super) fn poll_call(
        &mut self,
        call: impl FnOnce(BorrowedFd<'_>) -> rustix::io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        if !self.is_writable {
            return Poll::Pending;
        }
        match call(self.fd.as_fd()) {
            Err(Errno::AGAIN) => {
                self.is_writable = false;
                Poll::Pending
            }
            result => Poll::Ready(result.map_err(io::Error::from)),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use rustix::event::epoll;

    use super::*;

    fn pair() -> (UnixStream, Socket) {
        let (client, server) = UnixStream::pair().unwrap();
        server.set_nonblocking(true).unwrap();
        (client, Socket::new(server.into()))
    }

    fn read(socket: &mut Socket) -> Option<usize> {
        match socket.poll_read(&mut [0; 8]) {
            Poll::Ready(count) => Some(count.unwrap()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn reading_waits_for_an_event_once_there_is_nothing_left() {
        let (mut client, mut socket) = pair();
        client.write_all(b"123456789").unwrap();
        assert_eq!([read(&mut socket), read(&mut socket), read(&mut socket)], [Some(8), Some(1), None]);
        client.write_all(b"1").unwrap();
        assert_eq!(read(&mut socket), None, "of what came since, only epoll tells");
        socket.on_events(EventFlags::IN);
        assert_eq!(read(&mut socket), Some(1));
        // Reports an error that another call has returned already.
        socket.on_events(EventFlags::ERR);
        assert_eq!([read(&mut socket), read(&mut socket)], [None, None]);
        client.write_all(b"1").unwrap();
        drop(client);
        socket.on_events(EventFlags::IN | EventFlags::RDHUP);
        assert_eq!([read(&mut socket), read(&mut socket), read(&mut socket)], [Some(1), Some(0), Some(0)]);
    }

    #[test]
    fn writing_is_watched_for_from_when_it_is_stuck() {
        let (mut client, mut socket) = pair();
        assert_eq!(socket.unwatched(), Some((READ_EVENTS, true)));
        assert_eq!(socket.unwatched(), None);
        while socket.poll_write(&[0; 4096]).is_ready() {}
        assert_eq!(socket.unwatched(), Some((READ_EVENTS | EventFlags::OUT, false)));
        client.read_exact(&mut [0; 4096]).unwrap();
        assert!(socket.poll_write(&[0]).is_pending(), "only epoll tells that it takes more");
        socket.on_events(EventFlags::OUT);
        assert_eq!(socket.unwatched(), None);
    }

    /// After a call has filled a socket, no further call fails, and epoll reports when there is room.
    #[test]
    fn a_full_socket_is_not_tried_again() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_nonblocking(true).unwrap();
        let mut take_all = || {
            let mut buffer = vec![0; 1 << 20];
            while client.read(&mut buffer).is_ok_and(|count| count > 0) {}
        };
        let (server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        let mut socket = Socket::new(server.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (events, _) = socket.unwatched().unwrap();
        epoll::add(&epoll, &socket, epoll::EventData::new_u64(0), events | EventFlags::OUT).unwrap();
        let has_event = || {
            let mut events = Vec::with_capacity(1);
            let limit = Timespec { tv_sec: 10, tv_nsec: 0 };
            epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), Some(&limit)).unwrap() == 1
        };
        assert!(has_event(), "there is room at first");
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![0; 64 << 20]).unwrap();
        let content = vec![0; 64 << 20];
        let fill = |socket: &mut Socket| {
            [
                socket.poll_write(&content),
                socket.poll_write_vectored(&[IoSlice::new(&content), IoSlice::new(&content)]),
                socket.poll_write_more(&content),
                socket.poll_send_file(file.as_fd(), 0, content.len()),
            ]
        };
        for _ in 0..3 {
            let [first, others @ ..] = fill(&mut socket);
            assert!(matches!(first, Poll::Ready(Ok(1..))) && others.iter().all(Poll::is_pending));
            take_all();
            assert!(has_event());
            socket.on_events(EventFlags::OUT);
            let sent = socket.poll_send_file(file.as_fd(), 0, content.len());
            assert!(matches!(sent, Poll::Ready(Ok(1..))), "{sent:?}");
            assert!(socket.poll_write(&content).is_pending());
            take_all();
            assert!(has_event());
            socket.on_events(EventFlags::OUT);
        }
        // A file that has become shorter does not mean that the socket is full.
        file.set_len(10).unwrap();
        while socket.poll_write(&[0]).is_pending() {
            take_all();
            assert!(has_event());
            socket.on_events(EventFlags::OUT);
        }
        assert!(matches!(socket.poll_send_file(file.as_fd(), 0, 20), Poll::Ready(Ok(10))));
        assert!(matches!(socket.poll_send_file(file.as_fd(), 10, 10), Poll::Ready(Ok(0))));
    }
}
