//! Passive data connections: a port for one client.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::task::Poll;

use socket2::{Domain, Protocol, Socket as RawSocket, Type};

use crate::connection::{Socket, Transport};

/// Ports of a configured range that are tried for a data connection.
const PORTS_TRIED_MAX: u16 = 64;

/// Length of the accept queue. Some room is left for connections of others, which are closed, so that they cannot keep
/// the client out.
const BACKLOG: i32 = 8;

/// Connections of others that are closed before the rest of the worker gets its turn.
const STRANGERS_A_TURN_MAX: u32 = 16;

/// Port that the next data connection comes to.
#[derive(Default)]
pub(super) enum DataChannel {
    #[default]
    None,
    /// The client may connect until the deadline, in milliseconds.
    Listening(Socket, u64),
}

impl DataChannel {
    /// Listens on a port of this address. With a range, begins at a random port of it: a port that others can guess
    /// is easier to connect to before the client does.
    pub(super) fn listen(
        address: IpAddr,
        ports: Option<RangeInclusive<u16>>,
        deadline_ms: u64,
    ) -> io::Result<(Self, u16)> {
        let Some(ports) = ports else { return listen_on(address, 0, deadline_ms) };
        let (first, count) = (*ports.start(), u32::from(ports.end() - ports.start()) + 1);
        let start = fastrand::u32(0..count);
        let mut result = Err(io::ErrorKind::AddrInUse.into());
        for index in 0..count.min(PORTS_TRIED_MAX.into()) {
            result = listen_on(address, first + ((start + index) % count) as u16, deadline_ms);
            if !result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse) {
                break;
            }
        }
        result
    }

    /// Accepts the connection of this client. Others' connections are closed: a host that guesses the port must not get the
    /// data (port stealing).
    pub(super) fn poll_accept(&mut self, client: IpAddr) -> Poll<io::Result<Transport>> {
        let Self::Listening(socket, _) = self else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
        for _ in 0..STRANGERS_A_TURN_MAX {
            let (accepted, peer) = std::task::ready!(socket.poll_accept())?;
            if peer.ip().to_canonical() == client.to_canonical() {
                *self = Self::None;
                return Poll::Ready(Ok(Transport::Plain(accepted)));
            }
        }
        Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()))
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Listening(..))
    }

    pub(super) fn socket_mut(&mut self) -> Option<&mut Socket> {
        match self {
            Self::None => None,
            Self::Listening(socket, _) => Some(socket),
        }
    }

    pub(super) fn deadline_ms(&self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Listening(_, deadline_ms) => Some(*deadline_ms),
        }
    }

    pub(super) fn has_expired(&self, now_ms: u64) -> bool {
        self.deadline_ms().is_some_and(|deadline_ms| deadline_ms <= now_ms)
    }
}

fn listen_on(address: IpAddr, port: u16, deadline_ms: u64) -> io::Result<(DataChannel, u16)> {
    let address = SocketAddr::new(address, port);
    let socket = RawSocket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    // Earlier connections of the port may still be in TIME_WAIT.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let port = socket.local_addr()?.as_socket().map_or(0, |address| address.port());
    Ok((DataChannel::Listening(Socket::new(socket.into()), deadline_ms), port))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn accept(data: &mut DataChannel, client: IpAddr) -> Option<io::Result<Transport>> {
        for _ in 0..200 {
            if let Poll::Ready(result) = data.poll_accept(client) {
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
    fn ranges_of_ports() {
        let (_first, port) = DataChannel::listen(LOCAL, None, 0).unwrap();
        let taken = DataChannel::listen(LOCAL, Some(port..=port), 0);
        assert!(taken.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse));
        let (_second, other) = DataChannel::listen(LOCAL, Some(20_000..=40_000), 0).unwrap();
        assert!((20_000..=40_000).contains(&other));
    }
}
