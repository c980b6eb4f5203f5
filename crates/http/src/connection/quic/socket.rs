//! UDP socket of a worker: reads and writes many datagrams in one system call.

use std::any::Any;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::task::{Context as Task, Poll};

use bytes::BytesMut;
use quinn_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, UdpSocketState};
use tailcoat_quic::{Datagram, Ecn, Transmit};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// Largest number of datagrams in one call; the kernel's limit is higher on some versions (`UDP_MAX_SEGMENTS`).
const SEGMENTS_MAX: usize = 64;

/// Largest payload of one call. More would fail with EMSGSIZE, and the whole burst would be lost.
const SEND_BYTES_MAX: usize = 65_507;

/// Bytes of each input buffer: a burst that the kernel has joined (GRO).
const BURST_BYTES: usize = 64 << 10;

/// Input buffers of a call.
const BURSTS: usize = if BATCH_SIZE < 8 { BATCH_SIZE } else { 8 };

/// UDP socket that a worker's runtime polls.
pub struct QuicSocket {
    socket: UdpSocket,
    state: UdpSocketState,
    local: SocketAddr,
    /// Dropped with the socket.
    _keeper: Option<Arc<dyn Any + Send + Sync>>,
}

/// Buffers for input; a worker needs one.
pub struct DatagramBuffers {
    bytes: Vec<u8>,
    meta: [RecvMeta; BURSTS],
}

/// Outcome of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The kernel has accepted all datagrams.
    All,
    /// The socket accepts nothing now.
    Blocked,
    /// The datagrams are lost. QUIC recovers from that.
    Failed,
}

impl Default for DatagramBuffers {
    fn default() -> Self {
        Self { bytes: vec![0; BURSTS * BURST_BYTES], meta: [RecvMeta::default(); BURSTS] }
    }
}

impl QuicSocket {
    /// Registers a socket, which keeps `keeper` until it closes. Must be called within the worker's runtime.
    ///
    /// # Errors
    /// The socket is no UDP socket, or the runtime can't register it.
    pub fn new(socket: std::net::UdpSocket, keeper: Option<Arc<dyn Any + Send + Sync>>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let state = UdpSocketState::new((&socket).into())?;
        let local = socket.local_addr()?;
        Ok(Self { socket: UdpSocket::from_std(socket)?, state, local, _keeper: keeper })
    }

    /// Local address and port.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// Number of datagrams of this size in a call.
    pub fn segments_max(&self, datagram_bytes: usize) -> usize {
        self.state.max_gso_segments().min(SEGMENTS_MAX).min(SEND_BYTES_MAX / datagram_bytes.max(1)).max(1)
    }

    /// True if the kernel or the device can't split a buffer into datagrams, so that each costs a call.
    pub fn lacks_segmentation(&self) -> bool {
        self.state.max_gso_segments() == 1
    }

    /// True if datagrams may be split on their way, so that their size must not be probed.
    pub fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }

    /// Waits until there is input.
    pub fn poll_readable(&self, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_recv_ready(task)
    }

    /// Waits until the socket accepts output.
    pub fn poll_writable(&self, task: &mut Task<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_send_ready(task)
    }

    /// Receives datagrams once, and calls `on_datagram` with each. Returns false if there were none.
    pub fn receive(&self, buffers: &mut DatagramBuffers, mut on_datagram: impl FnMut(Datagram)) -> bool {
        let DatagramBuffers { bytes, meta } = buffers;
        let mut parts = bytes.chunks_exact_mut(BURST_BYTES);
        let mut slices: [IoSliceMut<'_>; BURSTS] =
            std::array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or_default()));
        let receive = || self.state.recv((&self.socket).into(), &mut slices, meta);
        // An error is of an earlier send (ICMP), or means that there is nothing.
        let Ok(count) = self.socket.try_io(Interest::READABLE, receive) else { return false };
        for (burst, meta) in bytes.chunks_exact(BURST_BYTES).zip(&meta[..count]) {
            for payload in burst[..meta.len].chunks(meta.stride.max(1)) {
                on_datagram(Datagram {
                    remote: meta.addr,
                    local: meta.dst_ip,
                    ecn: meta.ecn.map(received_ecn),
                    // An allocation for each, because a peer can make QUIC keep a small part for long.
                    payload: BytesMut::from(payload),
                });
            }
        }
        count > 0
    }

    /// Sends datagrams in one call.
    pub fn send(&self, transmit: &Transmit, payload: &[u8]) -> Sent {
        let transmit = quinn_udp::Transmit {
            destination: transmit.remote,
            ecn: transmit.ecn.map(sent_ecn),
            contents: &payload[..transmit.bytes],
            segment_size: transmit.segment_bytes,
            // The kernel knows it, unless the socket has the wildcard address.
            src_ip: transmit.local.filter(|_| self.local.ip().is_unspecified()),
        };
        let send = || self.state.try_send((&self.socket).into(), &transmit);
        match self.socket.try_io(Interest::WRITABLE, send) {
            Ok(()) => Sent::All,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Sent::Blocked,
            Err(_) => Sent::Failed,
        }
    }
}

/// Converts the ECN mark of a datagram that was received.
fn received_ecn(ecn: EcnCodepoint) -> Ecn {
    match ecn {
        EcnCodepoint::Ect0 => Ecn::Ect0,
        EcnCodepoint::Ect1 => Ecn::Ect1,
        EcnCodepoint::Ce => Ecn::Ce,
    }
}

/// Converts the ECN mark of a datagram to be sent.
fn sent_ecn(ecn: Ecn) -> EcnCodepoint {
    match ecn {
        Ecn::Ect0 => EcnCodepoint::Ect0,
        Ecn::Ect1 => EcnCodepoint::Ect1,
        Ecn::Ce => EcnCodepoint::Ce,
    }
}

impl AsFd for QuicSocket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
