//! Data connections: in passive mode, a port for one client; in active mode, a connection to the client.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::task::{Context as Task, Poll, ready};

use socket2::{Domain, Protocol, Socket as RawSocket, Type};

use crate::connection::{Socket, Transport};

/// Ports that are tried for a data connection.
const PORTS_TRIED_MAX: u16 = 64;

/// Ports of data connections if none are configured: those that Linux takes for outgoing connections by default. The kernel
/// would choose, too, but searches only a quarter of them. Closed transfers (TIME_WAIT) fill these, and after 100,000
/// transfers in a minute, its search takes 20 times the CPU time of a transfer.
const DEFAULT_PORTS: RangeInclusive<u16> = 32_768..=60_999;

/// Length of the accept queue. Some room is left for connections of others, which are closed, so that they cannot keep
/// the client out.
const BACKLOG: i32 = 8;

/// Connections of others that are closed before the rest of the worker gets its turn.
const STRANGERS_A_TURN_MAX: u32 = 16;

/// Way to the next data connection.
#[derive(Default)]
pub(super) enum DataChannel {
    #[default]
    None,
    /// The client may connect until the deadline, in milliseconds.
    Listening(Socket, u64),
    /// Active mode: the server connects when a transfer begins.
    Named { from: IpAddr, to: SocketAddr },
    /// The server connects to the client.
    Connecting(Socket),
}

impl DataChannel {
    /// Listens on a port of this address. Begins at a random port of the range: a port that others can guess is easier to
    /// connect to before the client does.
    pub(super) fn listen(
        address: IpAddr,
        ports: Option<RangeInclusive<u16>>,
        deadline_ms: u64,
    ) -> io::Result<(Self, u16)> {
        let is_configured = ports.is_some();
        let ports = ports.unwrap_or(DEFAULT_PORTS);
        let (first, count) = (*ports.start(), u32::from(ports.end() - ports.start()) + 1);
        let start = (unpredictable() % u64::from(count)) as u32;
        let mut result = Err(io::ErrorKind::AddrInUse.into());
        for index in 0..count.min(PORTS_TRIED_MAX.into()) {
            result = listen_on(address, first + ((start + index) % count) as u16, deadline_ms);
            if !result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse) {
                return result;
            }
        }
        // Other programs may use many of the default ports.
        if is_configured { result } else { listen_on(address, 0, deadline_ms) }
    }

    /// Establishes the data connection with this client.
    pub(super) fn poll_connection(&mut self, client: IpAddr, task: &Task<'_>) -> Poll<io::Result<Transport>> {
        if let Self::Named { from, to } = *self {
            *self = Self::Connecting(connect(from, to)?);
        }
        match self {
            Self::None | Self::Named { .. } => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
            Self::Listening(..) => self.poll_accept(client, task),
            Self::Connecting(socket) => {
                ready!(socket.poll_connected())?;
                match std::mem::take(self) {
                    Self::Connecting(socket) => Poll::Ready(Ok(Transport::Plain(socket))),
                    // Local invariant: it is the variant of above.
                    _ => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
                }
            }
        }
    }

    /// Accepts the connection of this client. Others' connections are closed: a host that guesses the port must not get the
    /// data (port stealing).
    fn poll_accept(&mut self, client: IpAddr, task: &Task<'_>) -> Poll<io::Result<Transport>> {
        let Self::Listening(socket, _) = self else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
        for _ in 0..STRANGERS_A_TURN_MAX {
            let (accepted, peer) = ready!(socket.poll_accept())?;
            if peer.ip().to_canonical() == client.to_canonical() {
                *self = Self::None;
                return Poll::Ready(Ok(Transport::Plain(accepted)));
            }
        }
        // Other connections get their turn first. A failure would let others end the transfer.
        task.waker().wake_by_ref();
        Poll::Pending
    }

    pub(super) fn is_open(&self) -> bool {
        !matches!(self, Self::None)
    }

    pub(super) fn socket_mut(&mut self) -> Option<&mut Socket> {
        match self {
            Self::None | Self::Named { .. } => None,
            Self::Listening(socket, _) | Self::Connecting(socket) => Some(socket),
        }
    }

    pub(super) fn deadline_ms(&self) -> Option<u64> {
        match self {
            Self::None | Self::Named { .. } | Self::Connecting(_) => None,
            Self::Listening(_, deadline_ms) => Some(*deadline_ms),
        }
    }

    pub(super) fn has_expired(&self, now_ms: u64) -> bool {
        self.deadline_ms().is_some_and(|deadline_ms| deadline_ms <= now_ms)
    }
}

/// Random number that clients cannot derive from earlier ones, which they see.
pub(super) fn unpredictable() -> u64 {
    // SipHash with a random key of the thread and a counter.
    RandomState::new().hash_one(())
}

/// Begins to connect from this address of the server to the client.
fn connect(from: IpAddr, to: SocketAddr) -> io::Result<Socket> {
    let (from, to) = (SocketAddr::new(from.to_canonical(), 0), SocketAddr::new(to.ip().to_canonical(), to.port()));
    let socket = RawSocket::new(Domain::for_address(to), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.bind(&from.into())?;
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Err(error),
        _ => Ok(Socket::connecting(socket.into())),
    }
}

fn listen_on(address: IpAddr, port: u16, deadline_ms: u64) -> io::Result<(DataChannel, u16)> {
    let address = SocketAddr::new(address, port);
    let socket = RawSocket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    // Earlier connections of the port may still be in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let port = match port {
        0 => socket.local_addr()?.as_socket().map_or(0, |address| address.port()),
        port => port,
    };
    Ok((DataChannel::Listening(Socket::new(socket.into()), deadline_ms), port))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn accept(data: &mut DataChannel, client: IpAddr) -> Option<io::Result<Transport>> {
        for _ in 0..200 {
            if let Poll::Ready(result) = data.poll_connection(client, &Task::from_waker(std::task::Waker::noop())) {
                return Some(result);
            }
            if let Some(socket) = data.socket_mut() {
                socket.on_events(rustix::event::epoll::EventFlags::IN);
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        None
    }

    #[test]
    fn only_the_clients_own_connection_is_accepted() {
        let (mut data, port) = DataChannel::listen(LOCAL, None, 5).unwrap();
        assert!(data.is_open() && data.has_expired(5) && !data.has_expired(4));
        let _stranger = TcpStream::connect((LOCAL, port)).unwrap();
        let other = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
        assert!(accept(&mut data, other).is_none(), "the stranger is closed, and the client still waited for");
        let _client = TcpStream::connect((LOCAL, port)).unwrap();
        assert!(accept(&mut data, LOCAL).unwrap().is_ok() && !data.is_open());
    }

    #[test]
    fn active_mode_connects_to_the_client() {
        let client = std::net::TcpListener::bind((LOCAL, 0)).unwrap();
        let to = client.local_addr().unwrap();
        let connect = |data: &mut DataChannel| {
            let _ = data.poll_connection(LOCAL, &Task::from_waker(std::task::Waker::noop()));
            for _ in 0..200 {
                if let Some(socket) = data.socket_mut() {
                    socket.on_events(rustix::event::epoll::EventFlags::OUT);
                }
                match data.poll_connection(LOCAL, &Task::from_waker(std::task::Waker::noop())) {
                    Poll::Ready(result) => return result,
                    Poll::Pending => std::thread::sleep(std::time::Duration::from_millis(5)),
                }
            }
            panic!("no result")
        };
        let mut data = DataChannel::Named { from: LOCAL, to };
        assert!(data.is_open() && connect(&mut data).is_ok() && !data.is_open());
        assert!(client.accept().is_ok());
        drop(client);
        assert!(connect(&mut DataChannel::Named { from: LOCAL, to }).is_err(), "the client does not listen");
    }

    #[test]
    fn ranges_of_ports() {
        let (_first, port) = DataChannel::listen(LOCAL, None, 0).unwrap();
        let taken = DataChannel::listen(LOCAL, Some(port..=port), 0);
        assert!(taken.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse));
        let (_second, other) = DataChannel::listen(LOCAL, Some(20_000..=40_000), 0).unwrap();
        assert!((20_000..=40_000).contains(&other));
    }
}
