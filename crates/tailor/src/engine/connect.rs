//! Opening sockets.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::TcpFastOpenConnect;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use socket2::SockRef;

use super::line::SimulatedLine;
use super::plan::{LoadPlan, LoadVersion, TargetAddress};

/// Segment size of slow lines: that of an Ethernet instead of the 64 KiB of the loopback interface.
const LINE_SEGMENT_BYTES: u32 = 1460;
/// Loopback addresses to connect from when ports run short: 127.0.0.1 to 127.0.0.250.
const LOOPBACK_SOURCES_MAX: usize = 250;

/// Opens sockets towards the target.
#[derive(Debug)]
pub(crate) struct Connector {
    address: TargetAddress,
    sources: Vec<IpAddr>,
    next_source: usize,
    line: Option<SimulatedLine>,
    is_udp: bool,
    has_fast_open: bool,
    /// Times no port was left at a source address.
    pub(crate) port_shortages: u64,
    /// Times no descriptor was left.
    pub(crate) descriptor_shortages: u64,
}

impl Connector {
    pub(crate) fn new(plan: &LoadPlan) -> Self {
        Self {
            address: plan.address.clone(),
            sources: plan.sources.clone(),
            next_source: 0,
            line: plan.line,
            is_udp: plan.version == LoadVersion::Http3,
            has_fast_open: plan.has_fast_open,
            port_shortages: 0,
            descriptor_shortages: 0,
        }
    }

    /// Number of source addresses that connections use.
    pub(crate) fn sources(&self) -> usize {
        self.sources.len().max(1)
    }

    /// Starts to connect. A TCP socket becomes writable when it is connected; a UDP socket has only its addresses.
    pub(crate) fn open(&mut self) -> Result<OwnedFd, Errno> {
        let mut sources_tried = 0;
        loop {
            let result = match self.address.clone() {
                TargetAddress::Tcp(address) if self.is_udp => self.open_udp(address),
                TargetAddress::Tcp(address) => self.open_tcp(address),
                TargetAddress::Unix(path) => {
                    let socket = self.socket(AddressFamily::UNIX, SocketType::STREAM)?;
                    connect(&socket, &SocketAddrUnix::new(&path)?).map(|()| socket)
                }
            };
            match result {
                // All ports of this source are taken, most of them by connections in TIME_WAIT: connect() says the
                // former, bind() the latter.
                Err(errno @ (Errno::ADDRNOTAVAIL | Errno::ADDRINUSE)) => {
                    self.port_shortages += 1;
                    sources_tried += 1;
                    // The next one in turn may have a port; a further one is taken if none has.
                    if sources_tried >= self.sources() && !self.add_loopback_source() {
                        return Err(errno);
                    }
                }
                result => return result,
            }
        }
    }

    fn open_tcp(&mut self, address: SocketAddr) -> Result<OwnedFd, Errno> {
        let socket = self.socket(family(address), SocketType::STREAM)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        if let Some(line) = self.line {
            if let Some(bytes) = line.receive_buffer_bytes() {
                sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
            }
            // Not fatal where the kernel does not take it: the line is only a little less smooth.
            let _ = SockRef::from(&socket).set_tcp_mss(LINE_SEGMENT_BYTES);
        }
        if self.has_fast_open {
            setsockopt(&socket, TcpFastOpenConnect, &true).map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
        }
        self.bind_source(&socket)?;
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
            Err(errno) => Err(errno),
        }
    }

    fn open_udp(&mut self, address: SocketAddr) -> Result<OwnedFd, Errno> {
        let socket = self.socket(family(address), SocketType::DGRAM)?;
        self.bind_source(&socket)?;
        // The kernel reports ports without a server only to connected sockets.
        connect(&socket, &address)?;
        Ok(socket)
    }

    /// Binds a socket to the next source address, if there are any.
    fn bind_source(&mut self, socket: &OwnedFd) -> Result<(), Errno> {
        if self.sources.is_empty() {
            return Ok(());
        }
        let source = self.sources[self.next_source % self.sources.len()];
        self.next_source = self.next_source.wrapping_add(1);
        bind(socket, &SocketAddr::new(source, 0))
    }

    fn socket(&mut self, family: AddressFamily, kind: SocketType) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, kind, flags, None);
        if matches!(socket, Err(Errno::MFILE | Errno::NFILE)) {
            self.descriptor_shortages += 1;
        }
        socket
    }

    /// On the loopback network every address of 127.0.0.0/8 is ours: each more gives all ports again.
    fn add_loopback_source(&mut self) -> bool {
        let is_loopback =
            matches!(&self.address, TargetAddress::Tcp(SocketAddr::V4(address)) if address.ip().is_loopback());
        if !is_loopback || self.sources.len() >= LOOPBACK_SOURCES_MAX {
            return false;
        }
        let first = if self.sources.is_empty() { 1 } else { 0 };
        for _ in 0..=first {
            self.sources.push(IpAddr::V4(Ipv4Addr::new(127, 0, 0, self.sources.len() as u8 + 1)));
        }
        // The new one is next.
        self.next_source = self.sources.len() - 1;
        true
    }
}

fn family(address: SocketAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}
