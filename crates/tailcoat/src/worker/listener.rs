//! Listening sockets: TCP, unix and inherited ones.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use listenfd::ListenFd;
use nix::sys::socket::setsockopt;
use nix::{setsockopt_impl, sockopt_impl};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use socket2::{Domain, Protocol, SockFilter, SockRef, Socket as RawSocket, Type};
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::config::{Config, FtpConfig, Listen, ServerSettings};
use crate::connection::Socket;
use crate::log::LogClient;

/// Seconds for which the kernel keeps a connection without data from the server. The kernel converts them into
/// retransmissions of SYN-ACK. The least value lets the server's own time limits start early.
const DEFER_ACCEPT_SECONDS: usize = 1;

/// Time for which an address in use is tried again. A server that was killed or told to stop just before closes its
/// sockets a moment later: a killed process with many threads counts as ended while some of them still are.
const IN_USE_TIME: Duration = Duration::from_secs(1);

/// Interval of these tries.
const IN_USE_INTERVAL: Duration = Duration::from_millis(20);

/// Kernel buffer of a UDP socket for each direction: what all clients of a worker send while it is busy.
pub(crate) const UDP_BUFFER_BYTES: usize = 2 << 20;

/// Kernel buffer of an accepting UDP socket: some hundred first packets. A worker processes that many in less than 0.1 s,
/// even in a flood.
const ACCEPTING_BUFFER_BYTES: usize = 512 << 10;

/// BPF filter that drops segments with SYN and without ACK. Offsets count from the TCP header (socket(7),
/// `SO_ATTACH_FILTER`); byte 13 has the flags.
const SYN_FILTER: &[SockFilter] = &[
    SockFilter::new((libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16, 0, 0, 13),
    SockFilter::new((libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16, 0, 0, 0x12),
    SockFilter::new((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, 0, 1, 0x02),
    SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, 0),
    SockFilter::new((libc::BPF_RET | libc::BPF_K) as u16, 0, 0, u32::MAX),
];

sockopt_impl!(
    /// Wakes the listener on a connection's first data, not on its handshake (tcp(7)).
    TcpDeferAccept, SetOnly, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, usize
);

sockopt_impl!(
    /// Limit of connections that wait with data in their SYN; enables TCP Fast Open (tcp(7)).
    TcpFastOpen, SetOnly, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, usize
);

/// Address to listen on, and the sites that use it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ListenerPlan {
    /// Address as configured.
    pub(crate) listen: Listen,
    /// Indices of its sites in the configuration.
    pub(crate) sites: Vec<usize>,
    /// True if connections from trusted proxies begin with the PROXY protocol.
    pub(crate) is_proxied: bool,
    /// True if connections of the listener begin with TLS.
    pub(crate) has_tls: bool,
    /// True if the listener speaks HTTP/3, too.
    pub has_http3: bool,
    /// True if the listener speaks FTP, whose server sends the first bytes.
    pub(crate) is_ftp: bool,
}

/// Listeners that a configuration needs, in the order in which its sites name them.
pub(crate) fn plan(config: &Config) -> Vec<ListenerPlan> {
    let mut plans: Vec<ListenerPlan> = Vec::new();
    let mut numbers: HashMap<&Listen, usize> = HashMap::new();
    for (index, site) in config.sites.iter().enumerate() {
        for listen in &site.listen {
            let number = *numbers.entry(listen).or_insert(plans.len());
            if number == plans.len() {
                let is_proxied = site.proxied_listen.contains(listen);
                let is_implicit = |ftp: &FtpConfig| ftp.implicit_listen.contains(listen);
                let begins_with_tls = site.ftp.as_deref().is_none_or(is_implicit);
                let has_tls = site.tls_listen.contains(listen) && begins_with_tls;
                let (sites, is_ftp) = (Vec::new(), site.ftp.is_some());
                plans.push(ListenerPlan {
                    listen: listen.clone(),
                    sites,
                    is_proxied,
                    has_tls,
                    has_http3: false,
                    is_ftp,
                });
            }
            let plan = &mut plans[number];
            plan.has_http3 |= config.has_http3(index, listen);
            plan.sites.push(index);
        }
    }
    plans
}

/// Listening socket that no runtime has registered yet.
#[derive(Debug)]
pub(crate) enum Listener {
    /// TCP socket.
    Tcp(std::net::TcpListener),
    /// Unix socket.
    Unix(std::os::unix::net::UnixListener),
    /// UDP socket of HTTP/3, in a group with the others of its address.
    Udp(std::net::UdpSocket),
}

/// Listening socket that a worker's runtime polls.
pub(super) struct AsyncListener {
    /// Wrapped as a stream: that type accepts any file descriptor and leaves the accept(2) call to us. The runtime's
    /// listeners would register each accepted connection with the runtime.
    socket: TcpStream,
    is_unix: bool,
}

/// Opens the sockets of a listener: one per worker for TCP, among which the kernel distributes connections, otherwise
/// one for all. `is_alone` is false if this process has a listener that overlaps the address.
///
/// # Errors
/// The address is in use, not of this machine or not permitted, or `inherited` has no such socket.
pub(crate) fn bind(
    plan: &ListenerPlan,
    workers: usize,
    server: &ServerSettings,
    inherited: &Inherited,
    is_alone: bool,
) -> io::Result<Vec<Listener>> {
    match &plan.listen {
        Listen::Tcp(address) => match bind_tcp(*address, workers, &SocketSettings::of(server, plan.is_ftp), is_alone) {
            // `[::]` on a machine without IPv6: no sockets.
            Err(error) if is_without_ipv6(&error) && address.ip() == Ipv6Addr::UNSPECIFIED => Ok(Vec::new()),
            listeners => listeners,
        },
        Listen::Unix(path, mode) => Ok(vec![Listener::Unix(bind_unix(path, *mode, server.listen_backlog)?)]),
        Listen::Inherited(name) => Ok(vec![inherited.get(name)?]),
    }
}

fn bind_tcp(
    mut address: SocketAddr,
    workers: usize,
    settings: &SocketSettings,
    is_alone: bool,
) -> io::Result<Vec<Listener>> {
    // With `SO_REUSEPORT`, a second server of the same user could bind the same address and share its connections. So
    // the first try goes without; it also chooses the port if that is 0. It does not listen: clients that connected to it
    // would get a reset. It would find a socket of this process that overlaps, to which the kernel prefers the more exact one.
    if is_alone {
        let probe = until_free(|| bind_socket(address, settings, false))?;
        address = probe.local_addr()?.as_socket().unwrap_or(address);
    }
    // Even with one worker, because a reload may add more.
    (0..workers).map(|_| listen_tcp(address, settings, true)).collect()
}

/// Binds an address as soon as it is free, or fails after `IN_USE_TIME`.
fn until_free<T>(bind: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let deadline = Instant::now() + IN_USE_TIME;
    loop {
        match bind() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(IN_USE_INTERVAL);
            }
            result => return result,
        }
    }
}

fn is_without_ipv6(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

fn listen_tcp(address: SocketAddr, settings: &SocketSettings, shares_port: bool) -> io::Result<Listener> {
    let socket = bind_socket(address, settings, shares_port)?;
    socket.listen(settings.backlog)?;
    Ok(Listener::Tcp(socket.into()))
}

fn bind_socket(address: SocketAddr, settings: &SocketSettings, shares_port: bool) -> io::Result<RawSocket> {
    let socket = RawSocket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shares_port)?;
    if address.is_ipv6() {
        // An IPv6 socket accepts IPv6 only, whatever the system's setting, so that a site can name both addresses.
        socket.set_only_v6(true)?;
    }
    settings.set(&socket)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Options of a listening socket.
struct SocketSettings {
    no_delay: bool,
    defer_accept: bool,
    fast_open_queue: usize,
    backlog: i32,
}

impl SocketSettings {
    fn of(server: &ServerSettings, is_ftp: bool) -> Self {
        Self {
            no_delay: server.no_delay,
            // An FTP client waits for the greeting before it sends anything.
            defer_accept: server.defer_accept && !is_ftp,
            fast_open_queue: server.fast_open_queue as usize,
            backlog: backlog(server),
        }
    }

    /// Sets options that accepted connections inherit, which saves a system call for each.
    fn set(&self, socket: &RawSocket) -> io::Result<()> {
        socket.set_tcp_nodelay(self.no_delay)?;
        setsockopt(socket, TcpDeferAccept, &(if self.defer_accept { DEFER_ACCEPT_SECONDS } else { 0 }))?;
        if self.fast_open_queue > 0 {
            setsockopt(socket, TcpFastOpen, &self.fast_open_queue)?;
        }
        Ok(())
    }
}

/// Opens the UDP sockets of an address: a group with `slots` sockets that connection IDs name, then `accepting` others.
///
/// # Errors
/// The system call that failed. The present user may not bind ports below 1024.
pub(crate) fn bind_udp(
    mut address: SocketAddr,
    slots: usize,
    accepting: usize,
    is_alone: bool,
) -> io::Result<Vec<UdpSocket>> {
    // As for TCP, the first try finds another server that has the address.
    if is_alone {
        drop(until_free(|| open_udp(address, UDP_BUFFER_BYTES, false))?);
    }
    let slots = std::iter::repeat_n(UDP_BUFFER_BYTES, slots);
    let accepting = std::iter::repeat_n(ACCEPTING_BUFFER_BYTES, accepting);
    let open = |receive_bytes| {
        let socket = open_udp(address, receive_bytes, true)?;
        // The kernel may have chosen the port.
        address = socket.local_addr()?;
        Ok(socket)
    };
    slots.chain(accepting).map(open).collect()
}

fn open_udp(address: SocketAddr, receive_bytes: usize, shares_port: bool) -> io::Result<UdpSocket> {
    let socket = RawSocket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_reuse_port(shares_port)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // The kernel grants as much as net.core.rmem_max and wmem_max allow.
    socket.set_recv_buffer_size(receive_bytes)?;
    socket.set_send_buffer_size(UDP_BUFFER_BYTES)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

fn backlog(server: &ServerSettings) -> i32 {
    server.listen_backlog.try_into().unwrap_or(i32::MAX)
}

/// Binds a unix socket and sets its permissions before any client can connect. Replaces the socket file of a killed
/// server, on which no process listens, and no other file.
///
/// # Errors
/// The system call that failed; `AddrInUse` if a process listens there, `AlreadyExists` if there is another kind of
/// file.
pub(crate) fn bind_unix(path: &Path, mode: u32, backlog: u32) -> io::Result<std::os::unix::net::UnixListener> {
    until_free(|| try_bind_unix(path, mode, backlog))
}

fn try_bind_unix(path: &Path, mode: u32, backlog: u32) -> io::Result<std::os::unix::net::UnixListener> {
    let socket = RawSocket::new(Domain::UNIX, Type::STREAM, None)?;
    let address = socket2::SockAddr::unix(path)?;
    if let Err(error) = socket.bind(&address) {
        if error.kind() != io::ErrorKind::AddrInUse {
            return Err(error);
        }
        if std::fs::symlink_metadata(path).is_ok_and(|file| !file.file_type().is_socket()) {
            let message = "the path is a file that is not a socket: remove it, or choose another path";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, message));
        }
        let connected = std::os::unix::net::UnixStream::connect(path);
        if !connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            return Err(error);
        }
        std::fs::remove_file(path)?;
        socket.bind(&address)?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    socket.listen(backlog.try_into().unwrap_or(i32::MAX))?;
    Ok(OwnedFd::from(socket).into())
}

impl Listener {
    /// Listener for this descriptor.
    ///
    /// # Errors
    /// The descriptor is not a socket.
    pub(crate) fn from_descriptor(descriptor: OwnedFd) -> io::Result<Self> {
        let socket = SockRef::from(&descriptor);
        let (is_unix, is_udp) = (socket.local_addr()?.is_unix(), socket.r#type()? == Type::DGRAM);
        Ok(match (is_unix, is_udp) {
            (true, _) => Self::Unix(descriptor.into()),
            (false, true) => Self::Udp(descriptor.into()),
            (false, false) => Self::Tcp(descriptor.into()),
        })
    }

    /// File descriptor of the socket.
    pub(crate) fn into_descriptor(self) -> OwnedFd {
        match self {
            Self::Tcp(listener) => listener.into(),
            Self::Unix(listener) => listener.into(),
            Self::Udp(socket) => socket.into(),
        }
    }

    /// Local TCP address and port; `None` for unix sockets.
    pub(crate) fn tcp_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            Self::Unix(_) | Self::Udp(_) => None,
        }
    }

    /// Duplicate of the descriptor, for the same socket.
    ///
    /// # Errors
    /// Out of file descriptors.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(listener) => Self::Tcp(listener.try_clone()?),
            Self::Unix(listener) => Self::Unix(listener.try_clone()?),
            Self::Udp(socket) => Self::Udp(socket.try_clone()?),
        })
    }

    /// Opens another socket for the same address; `None` unless this is a TCP socket.
    ///
    /// # Errors
    /// The system call that failed. The process's present user may not bind ports below 1024.
    pub(crate) fn open_another(&self, server: &ServerSettings, is_ftp: bool) -> io::Result<Option<Self>> {
        let settings = SocketSettings::of(server, is_ftp);
        self.tcp_address().map(|address| listen_tcp(address, &settings, true)).transpose()
    }

    /// Applies changed options. The kernel keeps the queue.
    ///
    /// # Errors
    /// The system call that failed.
    pub(crate) fn apply(&self, server: &ServerSettings, is_ftp: bool) -> io::Result<()> {
        if let Self::Tcp(listener) = self {
            let socket = RawSocket::from(listener.try_clone()?);
            let settings = SocketSettings::of(server, is_ftp);
            settings.set(&socket)?;
            socket.listen(settings.backlog)?;
        }
        Ok(())
    }

    /// Makes the kernel drop new connection attempts, or accept them again. Without it, clients would connect during
    /// the last moments and get a reset when the socket closes. Connections that exist or are in a handshake are not
    /// affected.
    ///
    /// # Errors
    /// The system call that failed.
    pub(crate) fn ignore_new(&self, is_ignoring: bool) -> io::Result<()> {
        let Self::Tcp(listener) = self else { return Ok(()) };
        let socket = RawSocket::from(listener.try_clone()?);
        if is_ignoring {
            return socket.attach_filter(SYN_FILTER);
        }
        match socket.detach_filter() {
            // The socket had no filter.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// UDP socket of HTTP/3; otherwise returns the listener.
    pub(super) fn into_udp(self) -> Result<UdpSocket, Self> {
        match self {
            Self::Udp(socket) => Ok(socket),
            other => Err(other),
        }
    }

    pub(super) fn into_async(self) -> io::Result<AsyncListener> {
        let is_unix = matches!(self, Self::Unix(_));
        let socket = self.into_descriptor();
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(AsyncListener { socket: TcpStream::from_std(socket.into())?, is_unix })
    }
}

impl AsyncListener {
    pub(super) async fn accept(&self) -> io::Result<(Socket, LogClient)> {
        self.socket.async_io(Interest::READABLE, || self.accept_now()).await
    }

    /// Accepts a connection that is in the kernel's queue, whether the runtime knows of it or not.
    ///
    /// # Errors
    /// `WouldBlock` if the queue is empty, otherwise those of accept(2).
    pub(super) fn accept_now(&self) -> io::Result<(Socket, LogClient)> {
        let (socket, address) = acceptfrom_with(&self.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)?;
        let client = match address {
            _ if self.is_unix => LogClient::Unix,
            address => LogClient::Ip(address.ok_or(Errno::NOTCONN)?.try_into()?),
        };
        Ok((Socket::new(socket), client))
    }
}

/// Sockets that the service manager has passed to this process (systemd's socket activation). They stay open as long as
/// it runs.
pub(crate) struct Inherited {
    /// Sockets with their names, which may be empty.
    sockets: Vec<(String, Option<Listener>)>,
}

impl Inherited {
    /// Reads the sockets from the environment. Descriptors that are no listening sockets stay untouched.
    pub(crate) fn from_environment() -> Self {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':').map(str::to_owned);
        let mut descriptors = ListenFd::from_env();
        let count = descriptors.len();
        let take = |index: usize| {
            let name = names.next().unwrap_or_default();
            if let Ok(Some(listener)) = descriptors.take_tcp_listener(index) {
                return (name, Some(Listener::Tcp(listener)));
            }
            (name, descriptors.take_unix_listener(index).ok().flatten().map(Listener::Unix))
        };
        Self { sockets: (0..count).map(take).collect() }
    }

    /// Adds sockets that the old process has handed over.
    pub(crate) fn with(mut self, sockets: impl IntoIterator<Item = (String, Listener)>) -> Self {
        self.sockets.extend(sockets.into_iter().map(|(name, socket)| (name, Some(socket))));
        self
    }

    /// All sockets, by name, or by index if they have none.
    pub(crate) fn all(&self) -> impl Iterator<Item = (String, &Listener)> {
        self.sockets.iter().enumerate().filter_map(|(index, (name, socket))| {
            Some((if name.is_empty() { index.to_string() } else { name.clone() }, socket.as_ref()?))
        })
    }

    /// Socket with this name, or with this index if no name matches.
    fn get(&self, name: &str) -> io::Result<Listener> {
        let index = self.sockets.iter().position(|(other, _)| other == name).or_else(|| name.parse().ok());
        let socket = index.and_then(|index| self.sockets.get(index)).and_then(|(_, socket)| socket.as_ref());
        socket.ok_or_else(|| self.missing(name))?.try_clone()
    }

    fn missing(&self, name: &str) -> io::Error {
        let names: Vec<_> = self.all().map(|(name, _)| name).collect();
        let given = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let message = format!(
            "systemd passed no socket \"{name}\" (`FileDescriptorName=` of the socket unit sets its name); passed: {given}"
        );
        io::Error::new(io::ErrorKind::NotFound, message)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::{RouteParts, SiteConfig, Tls};

    #[test]
    fn addresses_of_a_controller_have_no_http3() {
        let site = |port: u16| {
            let listen = vec![Listen::Tcp(([0, 0, 0, 0], port).into())];
            Arc::new(SiteConfig { tls_listen: listen.clone(), listen, ..SiteConfig::default() })
        };
        let mut config = Config { sites: vec![site(443)], ..Config::default() };
        config.set_routes(&Arc::new(RouteParts { sites: vec![site(443), site(8443)], ..RouteParts::default() }));
        let plans: Vec<_> = plan(&config).iter().map(|plan| (plan.listen.clone(), plan.has_http3)).collect();
        let expect =
            [(443, true), (8443, false)].map(|(port, is_on)| (Listen::Tcp(([0, 0, 0, 0], port).into()), is_on));
        assert_eq!(plans, expect);
    }

    #[test]
    fn an_address_has_http3_if_one_of_its_sites_has_tls_13() {
        let listen = vec![Listen::Tcp(([0, 0, 0, 0], 443).into())];
        let site = |suite: &str| {
            let tls = Tls { cipher_suites: vec![suite.to_owned()], ..Tls::default() };
            Arc::new(SiteConfig { tls_listen: listen.clone(), listen: listen.clone(), tls, ..SiteConfig::default() })
        };
        let (older, newer) = (site("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"), site("TLS13_AES_128_GCM_SHA256"));
        for (sites, is_on) in [(vec![&older], false), (vec![&older, &newer], true), (vec![&newer, &older], true)] {
            let config = Config { sites: sites.into_iter().map(Arc::clone).collect(), ..Config::default() };
            assert_eq!(plan(&config).iter().map(|plan| plan.has_http3).collect::<Vec<_>>(), [is_on]);
        }
    }

    /// Closes a socket after a moment, as the kernel does for a process that was killed.
    fn close_soon<T: Send + 'static>(socket: T) {
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(socket);
        });
    }

    /// Tries until one succeeds: on a busy machine, [`close_soon`] may be late.
    fn in_some_try<T>(mut bind: impl FnMut() -> io::Result<T>) -> T {
        let began = Instant::now();
        loop {
            match bind() {
                Ok(bound) => return bound,
                Err(error) => assert!(began.elapsed() < Duration::from_secs(60), "{error}"),
            }
            std::thread::sleep(IN_USE_TIME);
        }
    }

    #[test]
    fn addresses_of_a_server_that_ends_are_bound_as_soon_as_they_are_free() {
        let settings = SocketSettings::of(&ServerSettings::default(), false);
        let listeners = in_some_try(|| {
            let held = std::net::TcpListener::bind("127.0.0.1:0")?;
            let address = held.local_addr()?;
            close_soon(held);
            bind_tcp(address, 2, &settings, true)
        });
        assert_eq!(listeners.len(), 2);
        in_some_try(|| {
            let directory = tempfile::tempdir()?;
            let path = directory.path().join("socket");
            // Its file stays, as after kill -9.
            close_soon(std::os::unix::net::UnixListener::bind(&path)?);
            bind_unix(&path, 0o600, 8)
        });
    }

    #[test]
    fn addresses_in_use_are_not_waited_for_long() {
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, began) = (held.local_addr().unwrap(), Instant::now());
        let error = bind_tcp(address, 1, &SocketSettings::of(&ServerSettings::default(), false), true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert!(began.elapsed() < 60 * IN_USE_TIME);
    }
}
