//! Listeners: TCP, unix sockets, and sockets that were open when the process began.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use listenfd::ListenFd;
use nix::sys::socket::setsockopt;
use nix::{setsockopt_impl, sockopt_impl};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{Domain, Protocol, Socket as RawSocket, Type};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::config::{Config, Listen, Server};
use crate::connection::Socket;
use crate::log::Client;

/// How long the kernel keeps a connection without data to itself, before it hands that over, too. The kernel counts it in
/// answers to the client's SYN, of which this is one more: the least there is, so that time limits begin early.
const DEFER_ACCEPT_SECONDS: usize = 1;

sockopt_impl!(
    /// Wake the listener when data comes, not when the connection does (tcp(7)).
    TcpDeferAccept, SetOnly, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, usize
);

sockopt_impl!(
    /// Take data in the first segment, and how many such connections may wait (tcp(7)).
    TcpFastOpen, SetOnly, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, usize
);

/// An address to listen on, and the sites that use it.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenerPlan {
    /// The address.
    pub listen: Listen,
    /// Indices of its sites.
    pub sites: Vec<usize>,
    /// Whether connections of trusted proxies begin with the PROXY protocol.
    pub is_proxied: bool,
    /// Whether TLS is spoken there.
    pub has_tls: bool,
}

/// The listeners that a configuration needs, in the order in which its sites name them.
pub fn plan(config: &Config) -> Vec<ListenerPlan> {
    let mut plans: Vec<ListenerPlan> = Vec::new();
    let mut numbers: HashMap<&Listen, usize> = HashMap::new();
    for (site, config) in config.sites.iter().enumerate() {
        for listen in &config.listen {
            let number = *numbers.entry(listen).or_insert(plans.len());
            if number == plans.len() {
                let is_proxied = config.proxied_listen.contains(listen);
                let has_tls = config.tls_listen.contains(listen);
                plans.push(ListenerPlan { listen: listen.clone(), sites: Vec::new(), is_proxied, has_tls });
            }
            plans[number].sites.push(site);
        }
    }
    plans
}

/// A listening socket, of no runtime yet.
#[derive(Debug)]
pub enum Listener {
    /// TCP
    Tcp(std::net::TcpListener),
    /// A unix socket.
    Unix(std::os::unix::net::UnixListener),
}

/// A listening socket of a worker's runtime.
pub(super) struct AsyncListener {
    /// As a stream, for that type of the runtime takes any descriptor and lets us make the system call: the runtime's own
    /// listeners would make each accepted connection known to the runtime.
    socket: TcpStream,
    is_unix: bool,
}

/// Opens a listener for each of `workers` workers. TCP listeners have a socket each, among which the kernel shares out the
/// connections; of others all workers have the same.
///
/// # Errors
/// The address is taken, not of this machine or not allowed; `inherited` has no such socket.
pub fn bind(listen: &Listen, workers: usize, server: &Server, inherited: &mut Inherited) -> io::Result<Vec<Listener>> {
    match listen {
        Listen::Tcp(address) => match bind_tcp(*address, workers, server) {
            // All addresses of IPv6 on a machine without: none.
            Err(error) if is_without_ipv6(&error) && address.ip() == Ipv6Addr::UNSPECIFIED => Ok(Vec::new()),
            listeners => listeners,
        },
        Listen::Unix(path, mode) => share(Listener::Unix(bind_unix(path, *mode, server.listen_backlog)?), workers),
        Listen::Inherited(name) => share(inherited.take(name)?, workers),
    }
}

fn bind_tcp(address: SocketAddr, workers: usize, server: &Server) -> io::Result<Vec<Listener>> {
    if workers == 1 {
        return Ok(vec![listen_tcp(address, server, false)?]);
    }
    // With SO_REUSEPORT the kernel would let a second server of the same user have the same address and share the
    // connections with it. So it is tried without first; that also settles a port of 0.
    let address = match listen_tcp(address, server, false)? {
        Listener::Tcp(probe) => probe.local_addr()?,
        Listener::Unix(_) => address,
    };
    (0..workers).map(|_| listen_tcp(address, server, true)).collect()
}

fn is_without_ipv6(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

fn listen_tcp(address: SocketAddr, server: &Server, shares_port: bool) -> io::Result<Listener> {
    let socket = RawSocket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shares_port)?;
    if address.is_ipv6() {
        // An address of IPv6 is one of IPv6 only, whatever the system's setting, so that both can be given.
        socket.set_only_v6(true)?;
    }
    // Options of the listener pass on to the connections, which saves a system call for each.
    socket.set_tcp_nodelay(server.no_delay)?;
    if server.defer_accept {
        setsockopt(&socket, TcpDeferAccept, &DEFER_ACCEPT_SECONDS)?;
    }
    if server.fast_open_queue > 0 {
        setsockopt(&socket, TcpFastOpen, &(server.fast_open_queue as usize))?;
    }
    socket.bind(&address.into())?;
    socket.listen(server.listen_backlog.try_into().unwrap_or(i32::MAX))?;
    Ok(Listener::Tcp(socket.into()))
}

/// Binds a unix socket, with these permissions before anybody can connect. A socket file that nobody listens on any more,
/// as a killed server leaves it, is replaced; no other file ever is.
///
/// # Errors
/// The kernel's; `AddrInUse` if there is such a file already.
pub fn bind_unix(path: &Path, mode: u32, backlog: u32) -> io::Result<std::os::unix::net::UnixListener> {
    let socket = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
    let address = socket2::SockAddr::unix(path)?;
    if let Err(error) = socket.bind(&address) {
        // Connecting to a file of another kind is refused as well.
        let is_abandoned = error.kind() == io::ErrorKind::AddrInUse
            && std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
            && std::os::unix::net::UnixStream::connect(path)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if !is_abandoned {
            return Err(error);
        }
        std::fs::remove_file(path)?;
        socket.bind(&address)?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    socket.listen(backlog.try_into().unwrap_or(i32::MAX))?;
    Ok(OwnedFd::from(socket).into())
}

fn share(listener: Listener, workers: usize) -> io::Result<Vec<Listener>> {
    let mut listeners = (1..workers).map(|_| listener.try_clone()).collect::<io::Result<Vec<_>>>()?;
    listeners.push(listener);
    Ok(listeners)
}

impl Listener {
    /// The address it is bound to, if it has one of TCP.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) => None,
        }
    }

    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(listener) => Self::Tcp(listener.try_clone()?),
            Self::Unix(listener) => Self::Unix(listener.try_clone()?),
        })
    }

    pub(super) fn into_async(self) -> io::Result<AsyncListener> {
        let (socket, is_unix) = match self {
            Self::Tcp(listener) => (OwnedFd::from(listener), false),
            Self::Unix(listener) => (OwnedFd::from(listener), true),
        };
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(AsyncListener { socket: TcpStream::from_std(socket.into())?, is_unix })
    }
}

impl AsyncListener {
    pub(super) async fn accept(&self) -> io::Result<(Socket, Client)> {
        let accept = || Ok(acceptfrom_with(&self.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?);
        let (socket, address) = self.socket.async_io(Interest::READABLE, accept).await?;
        let client = match address {
            _ if self.is_unix => Client::Unix,
            address => Client::Ip(address.ok_or(Errno::NOTCONN)?.try_into()?),
        };
        Ok((Socket::new(socket), client))
    }
}

/// The sockets that the process was started with (systemd's socket activation).
pub struct Inherited {
    sockets: ListenFd,
    names: Vec<String>,
}

impl Inherited {
    /// Takes them over from the environment.
    pub fn from_environment() -> Self {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let names = names.split(':').map(str::to_owned).collect();
        Self { sockets: ListenFd::from_env(), names }
    }

    /// The socket with this name, or with this number if no name is like it.
    fn take(&mut self, name: &str) -> io::Result<Listener> {
        let index = self.names.iter().position(|other| other == name).or_else(|| name.parse().ok());
        let index = index.filter(|&index| index < self.sockets.len()).ok_or_else(|| self.missing(name))?;
        if let Ok(Some(listener)) = self.sockets.take_tcp_listener(index) {
            return Ok(Listener::Tcp(listener));
        }
        let listener = self.sockets.take_unix_listener(index)?;
        listener.map(Listener::Unix).ok_or_else(|| self.missing(name))
    }

    fn missing(&self, name: &str) -> io::Error {
        let count = self.sockets.len();
        let names = self.names.join(", ");
        let message = format!("no inherited socket \"{name}\": the process was started with {count} ({names})");
        io::Error::new(io::ErrorKind::NotFound, message)
    }
}
