//! QUIC of a thread: one endpoint for all of its connections. Each connection has a UDP socket of its own, like those of
//! different users.

use std::fmt;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::hmac;
use bytes::BytesMut;
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, ConnectionEvent, ConnectionHandle, DatagramEvent, EcnCodepoint, Endpoint, EndpointConfig,
    EndpointEvent, IdleTimeout, Transmit, TransportConfig, VarInt,
};
use quinn_udp::{BATCH_SIZE, RecvMeta, UdpSocketState};
use rustix::io::Errno;

use super::plan::{LoadPlan, LoadVersion, TargetAddress};

/// Version 1 (RFC 9000), the only one.
const VERSIONS: &[u32] = &[1];
/// Initial window of a stream, as large as in browsers (Chromium).
const STREAM_WINDOW_BYTES: u32 = 6 << 20;
/// Window of a connection, as large as in browsers (Chromium).
const CONNECTION_WINDOW_BYTES: u32 = 15 << 20;
/// Unidirectional streams that the server may open. It needs three (RFC 9114, section 6.2).
const UNIDIRECTIONAL_STREAMS_MAX: u32 = 100;
/// Time without packets after which a connection ends, if requests have no longer time limit. As in browsers (Chromium).
const IDLE_TIMEOUT_MIN: Duration = Duration::from_secs(30);
/// Receive buffer of a socket, if the system permits it (`net.core.rmem_max`). As in browsers (Chromium).
const RECEIVE_BUFFER_BYTES: usize = 1 << 20;

/// Maximum number of datagrams in one call; the kernel's limit is higher on some versions (`UDP_MAX_SEGMENTS`).
const SEGMENTS_MAX: usize = 64;
/// Maximum payload of one call. More would fail with EMSGSIZE, and the whole burst would be lost.
const SEND_BYTES_MAX: usize = 65_507;
/// Size of each input buffer: a burst that the kernel has joined (GRO).
const BURST_BYTES: usize = 64 << 10;
/// Input buffers of a call.
const BURSTS: usize = if BATCH_SIZE < 8 { BATCH_SIZE } else { 8 };

/// Endpoint of a thread, with the buffers that its connections share.
pub(crate) struct QuicClient {
    endpoint: Endpoint,
    config: ClientConfig,
    server_name: String,
    remote: std::net::SocketAddr,
    input: Vec<u8>,
    meta: [RecvMeta; BURSTS],
    /// Buffer for a burst to send.
    pub(crate) output: Vec<u8>,
}

/// UDP socket of a connection.
pub(crate) struct ClientDatagramSocket {
    socket: OwnedFd,
    state: UdpSocketState,
}

/// Result of a call that receives.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceivedBatch {
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
    /// True if the socket was emptied.
    pub(crate) is_last: bool,
}

/// Result of a call that sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentBurst {
    /// The kernel has accepted all datagrams.
    All,
    /// The socket accepts nothing now.
    Blocked,
    /// The datagrams are lost. QUIC recovers from that.
    Failed,
}

impl fmt::Debug for QuicClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuicClient").field("remote", &self.remote).finish_non_exhaustive()
    }
}

impl fmt::Debug for ClientDatagramSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.socket.fmt(f)
    }
}

impl QuicClient {
    /// Creates the endpoint of a thread; `None` if the plan does not use HTTP/3.
    pub(crate) fn new(plan: &LoadPlan) -> Option<Self> {
        let (LoadVersion::Http3, TargetAddress::Tcp(remote), Some((tls, name))) =
            (plan.version, &plan.address, &plan.tls)
        else {
            return None;
        };
        // Fails only without AES-128-GCM, which the provider of cryptography has.
        let crypto = QuicClientConfig::try_from(Arc::clone(tls)).ok()?;
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::new(transport(plan.time_out)));
        let reset_key: [u8; 32] = std::array::from_fn(|_| fastrand::u8(..));
        let key = hmac::Key::new(hmac::HMAC_SHA256, &reset_key);
        let mut endpoint = EndpointConfig::new(Arc::new(key));
        endpoint.supported_versions(VERSIONS.to_vec());
        Some(Self {
            endpoint: Endpoint::new(Arc::new(endpoint), None, true, None),
            config,
            server_name: name.to_str().into_owned(),
            remote: *remote,
            input: vec![0; BURSTS * BURST_BYTES],
            meta: [RecvMeta::default(); BURSTS],
            output: Vec::new(),
        })
    }

    /// Starts a connection.
    pub(crate) fn connect(&mut self, now: Instant) -> Result<(ConnectionHandle, quinn_proto::Connection), String> {
        let connected = self.endpoint.connect(now, self.config.clone(), self.remote, &self.server_name);
        connected.map_err(|error| error.to_string())
    }

    /// Receives datagrams once, and calls `on_event` with each that belongs to the connection.
    pub(crate) fn receive(
        &mut self,
        socket: &ClientDatagramSocket,
        handle: ConnectionHandle,
        now: Instant,
        mut on_event: impl FnMut(ConnectionEvent),
    ) -> Result<ReceivedBatch, Errno> {
        let mut parts = self.input.chunks_exact_mut(BURST_BYTES);
        let mut slices: [IoSliceMut<'_>; BURSTS] =
            std::array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or_default()));
        let received = socket.state.recv((&socket.socket).into(), &mut slices, &mut self.meta);
        let count = received.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let mut batch = ReceivedBatch { is_last: count < BURSTS, ..ReceivedBatch::default() };
        for (burst, meta) in self.input.chunks_exact(BURST_BYTES).zip(&self.meta[..count]) {
            let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
            for payload in burst[..meta.len].chunks(meta.stride.max(1)) {
                batch.datagrams += 1;
                batch.bytes += payload.len() as u64;
                // An allocation of its own, because QUIC may keep a small part of it for long.
                let payload = BytesMut::from(payload);
                let event = self.endpoint.handle(now, meta.addr, meta.dst_ip, ecn, payload, &mut self.output);
                // Other events are replies to packets of connections that are over, which need none.
                if let Some(DatagramEvent::ConnectionEvent(owner, event)) = event
                    && owner == handle
                {
                    on_event(event);
                }
            }
        }
        Ok(batch)
    }

    /// Passes an event of a connection to the endpoint, and returns the reply.
    pub(crate) fn handle_event(&mut self, handle: ConnectionHandle, event: EndpointEvent) -> Option<ConnectionEvent> {
        self.endpoint.handle_event(handle, event)
    }
}

impl ClientDatagramSocket {
    /// Prepares a connected UDP socket.
    ///
    /// # Errors
    /// The system lacks an option that QUIC needs.
    pub(crate) fn new(socket: OwnedFd) -> Result<Self, Errno> {
        let state = UdpSocketState::new((&socket).into());
        let state = state.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        // With a smaller buffer, bursts of the server may be lost; the run shows that.
        let _ = state.set_recv_buffer_size((&socket).into(), RECEIVE_BUFFER_BYTES);
        Ok(Self { socket, state })
    }

    /// Number of datagrams of this size in a call.
    pub(crate) fn segments_max(&self, datagram_bytes: usize) -> usize {
        self.state.max_gso_segments().min(segments_max(datagram_bytes))
    }

    /// Sends datagrams in one call.
    pub(crate) fn send(&self, transmit: &Transmit, payload: &[u8]) -> SentBurst {
        let transmit = quinn_udp::Transmit {
            destination: transmit.destination,
            ecn: transmit.ecn.and_then(|ecn| quinn_udp::EcnCodepoint::from_bits(ecn as u8)),
            contents: &payload[..transmit.size],
            segment_size: transmit.segment_size,
            // The socket is connected, so the kernel knows it.
            src_ip: None,
        };
        match self.state.try_send((&self.socket).into(), &transmit) {
            Ok(()) => SentBurst::All,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => SentBurst::Blocked,
            Err(_) => SentBurst::Failed,
        }
    }
}

impl AsFd for ClientDatagramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Number of datagrams of this size in a call that the kernel accepts.
fn segments_max(datagram_bytes: usize) -> usize {
    SEGMENTS_MAX.min(SEND_BYTES_MAX / datagram_bytes.max(1)).max(1)
}

/// Round-trip time that is assumed until one is measured: that of Chromium.
const INITIAL_ROUND_TRIP: Duration = Duration::from_millis(100);

fn transport(time_out: Duration) -> TransportConfig {
    let mut transport = TransportConfig::default();
    // Beyond what QUIC can express a connection has no idle timeout.
    let idle_timeout = IdleTimeout::try_from(time_out.max(IDLE_TIMEOUT_MIN)).ok();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .max_concurrent_uni_streams(UNIDIRECTIONAL_STREAMS_MAX.into())
        .stream_receive_window(STREAM_WINDOW_BYTES.into())
        .receive_window(CONNECTION_WINDOW_BYTES.into())
        .max_idle_timeout(idle_timeout)
        .initial_rtt(INITIAL_ROUND_TRIP)
        .datagram_receive_buffer_size(None);
    transport
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_fit_into_a_call() {
        for (datagram_bytes, expect) in [(0, 64), (1200, 54), (1452, 45), (100, 64), (65_507, 1), (100_000, 1)] {
            assert_eq!(segments_max(datagram_bytes), expect, "{datagram_bytes}");
            assert!(datagram_bytes > SEND_BYTES_MAX || datagram_bytes * expect <= SEND_BYTES_MAX);
        }
    }
}
