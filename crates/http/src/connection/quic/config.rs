//! Settings of QUIC.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use aws_lc_rs::{hkdf, hmac};
use bots::fingerprint::{HelloTransport, ja4_of_message};
use quinn_proto::congestion::{BbrConfig, ControllerFactory, CubicConfig, NewRenoConfig};
use quinn_proto::{
    ConnectionIdGenerator, EndpointConfig, IdleTimeout, ServerConfig, TransportConfig, VarInt, VarIntBoundsExceeded,
};
use serde::{Deserialize, Serialize};

use super::qlog::QlogTraces;
use super::slots::{SlotIds, TagKey};
use super::transport::SEND_WINDOW_BYTES_MAX;
use crate::config::{CongestionControl, Limits};
use crate::tls::{HelloFingerprint, ListenerTls, QuicTls};

/// Version 1 (RFC 9000), the only one.
const VERSIONS: &[u32] = &[1];

/// Requests at once that a client may begin with, at least 100 by RFC 9114, section 6.1. QUIC keeps two tables with a
/// place for each stream that may be opened. A table of 128 has room for 112. If it is full, the first stream that ends doubles
/// it. These 100 and [`UNIDIRECTIONAL_STREAMS_MAX`] leave room.
const REQUESTS_MAX_FIRST: usize = 100;

/// Unidirectional streams that a client may open. It needs three (RFC 9114, section 6.2), and may open some of unknown
/// types.
const UNIDIRECTIONAL_STREAMS_MAX: u32 = 8;

/// Windows of streams that a connection's window has room for.
const WINDOWS_A_CONNECTION: u64 = 8;

/// Packets kept for a connection attempt that waits for its turn, in bytes, for one and for all.
const WAITING_BYTES_MAX: u64 = 8 << 10;
const WAITING_TOTAL_BYTES_MAX: u64 = 1 << 20;

/// Connection attempts of an endpoint that wait for their turn.
const WAITING_MAX: usize = 512;

/// Round-trip time that is assumed until one is measured. RFC 9002, section 6.2.2, recommends 333 ms, so that a lost packet of
/// a handshake costs a second. Google's servers and Chromium assume 100 ms. On slower lines, packets of the handshake may be
/// repeated once, within the limit for addresses that are not validated.
const INITIAL_ROUND_TRIP: Duration = Duration::from_millis(100);

/// Bytes that are sent before the first acknowledgment. RFC 9002, section 7.2, recommends 10 packets. Chromium's servers and
/// quic-go (Caddy) begin with 32. They are paced, so that they do not leave as one burst.
const INITIAL_WINDOW_BYTES: u64 = 32 * 1_460;

/// Bytes of each key.
const KEY_BYTES: usize = 32;

/// Keys that all workers share: of stateless resets (RFC 9000, section 10.3) and of address validation tokens (section 8.1).
#[derive(Clone, Serialize, Deserialize)]
pub struct QuicKeys {
    reset: [u8; KEY_BYTES],
    token: [u8; KEY_BYTES],
}

/// Settings for new connections of a listener.
pub struct QuicSettings {
    /// In the form of the QUIC engine.
    pub server: Arc<ServerConfig>,
    tls: Arc<QuicTls>,
    limits: Limits,
    congestion: CongestionControl,
    traces: Arc<QlogTraces>,
}

impl QuicKeys {
    /// Makes random keys.
    ///
    /// # Errors
    /// There are no random numbers.
    pub fn generate() -> Result<Self, aws_lc_rs::error::Unspecified> {
        let mut keys = Self { reset: [0; KEY_BYTES], token: [0; KEY_BYTES] };
        aws_lc_rs::rand::fill(&mut keys.reset)?;
        aws_lc_rs::rand::fill(&mut keys.token)?;
        Ok(keys)
    }

    /// Key of the tags in connection IDs.
    pub fn tags(&self) -> TagKey {
        // Tokens of stateless resets are those of connection IDs, which are shorter than this text.
        let random = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.reset), b"tags of connection IDs");
        let word = |at| std::array::from_fn(|index| random.as_ref()[at + index]);
        TagKey::new(word(0), word(4))
    }
}

impl fmt::Debug for QuicKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Does not show the keys.
        f.write_str("QuicKeys")
    }
}

impl fmt::Debug for QuicSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QuicSettings")
    }
}

/// Settings of the endpoint in a slot. Its connection IDs have no valid tag while `is_untagged` is true.
pub(super) fn endpoint_config(keys: &QuicKeys, slot: u8, is_untagged: &Arc<AtomicBool>) -> EndpointConfig {
    let mut config = EndpointConfig::new(Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &keys.reset)));
    let (tags, is_untagged) = (keys.tags(), Arc::clone(is_untagged));
    let ids = move || Box::new(SlotIds::new(slot, tags, Arc::clone(&is_untagged))) as Box<dyn ConnectionIdGenerator>;
    config.supported_versions(VERSIONS.to_vec()).cid_generator(ids);
    config
}

impl QuicSettings {
    /// Makes the settings for a listener; `None` if its default site has no HTTP/3, or a limit is above what QUIC can
    /// express.
    pub fn new(
        keys: &QuicKeys,
        tls: Arc<ListenerTls>,
        limits: &Limits,
        congestion: CongestionControl,
        traces: &Arc<QlogTraces>,
        wants_fingerprints: bool,
    ) -> Option<Self> {
        let token_key = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&keys.token);
        let fingerprint: HelloFingerprint = |hello| ja4_of_message(hello, HelloTransport::Quic);
        let tls = QuicTls::new(tls, wants_fingerprints.then_some(fingerprint))?;
        let tls = Arc::new(tls);
        let mut server = ServerConfig::new(Arc::clone(&tls) as _, Arc::new(token_key));
        server
            .transport_config(Arc::new(transport(limits, congestion).ok()?))
            .max_incoming(WAITING_MAX)
            .incoming_buffer_size(WAITING_BYTES_MAX)
            .incoming_buffer_size_total(WAITING_TOTAL_BYTES_MAX);
        Some(Self { server: Arc::new(server), tls, limits: limits.clone(), congestion, traces: Arc::clone(traces) })
    }

    /// Settings for a connection of a client to this local address, which may select the site. They write a trace if an
    /// operator watches that client.
    pub(super) fn for_client(&self, client: IpAddr, local: Option<IpAddr>, now: Instant) -> Arc<ServerConfig> {
        let trace = self.traces.begin(client, now).zip(transport(&self.limits, self.congestion).ok());
        let tls = self.tls.at(local);
        if trace.is_none() && tls.is_none() {
            return Arc::clone(&self.server);
        }
        let mut server = ServerConfig::clone(&self.server);
        if let Some((trace, mut transport)) = trace {
            transport.qlog_stream(Some(trace));
            server.transport_config(Arc::new(transport));
        }
        if let Some(tls) = tls {
            server.crypto = Arc::new(tls);
        }
        Arc::new(server)
    }
}

/// Requests at once that a client may begin with, by the limit.
pub(crate) fn requests_max_first(concurrent_streams_max: usize) -> usize {
    concurrent_streams_max.min(REQUESTS_MAX_FIRST)
}

fn transport(limits: &Limits, congestion: CongestionControl) -> Result<TransportConfig, VarIntBoundsExceeded> {
    let mut transport = TransportConfig::default();
    let window_bytes = u64::from(limits.http2.window_bytes_max);
    // The server's own time limits come first. This one is for clients that are gone while the server works for them.
    let idle_timeout = limits.idle_timeout.max(limits.head_timeout).max(limits.write_timeout) + Duration::from_secs(1);
    transport
        .max_concurrent_bidi_streams(VarInt::from_u64(
            requests_max_first(limits.http2.concurrent_streams_max as usize) as u64,
        )?)
        .max_concurrent_uni_streams(UNIDIRECTIONAL_STREAMS_MAX.into())
        .stream_receive_window(VarInt::from_u64(window_bytes)?)
        .receive_window(VarInt::from_u64(window_bytes * WINDOWS_A_CONNECTION)?)
        .send_window(SEND_WINDOW_BYTES_MAX)
        .max_idle_timeout(Some(IdleTimeout::try_from(idle_timeout)?))
        .datagram_receive_buffer_size(None)
        .initial_rtt(INITIAL_ROUND_TRIP)
        .allow_spin(false)
        .congestion_controller_factory(controller(congestion));
    Ok(transport)
}

fn controller(congestion: CongestionControl) -> Arc<dyn ControllerFactory + Send + Sync> {
    match congestion {
        CongestionControl::Cubic => {
            let mut config = CubicConfig::default();
            config.initial_window(INITIAL_WINDOW_BYTES);
            Arc::new(config)
        }
        // Paces what it sends from the beginning, and has a window of its own.
        CongestionControl::Bbr => Arc::new(BbrConfig::default()),
        CongestionControl::NewReno => {
            let mut config = NewRenoConfig::default();
            config.initial_window(INITIAL_WINDOW_BYTES);
            Arc::new(config)
        }
    }
}
