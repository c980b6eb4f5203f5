//! Settings of QUIC.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::hmac;
use bots::fingerprint::{HelloTransport, ja4_of_message};
use serde::{Deserialize, Serialize};
use tailcoat_quic::{EndpointConfig, StreamLimits, TlsServer, TransportSettings};

use super::qlog::QlogTraces;
use super::slots::TagKey;
use super::transport::SEND_WINDOW_BYTES_MAX;
use crate::config::{CongestionControl, Limits};
use crate::tls::{HelloFingerprint, ListenerTls, QuicTls};

/// Unidirectional streams that a client may open. It needs three (RFC 9114, section 6.2), and may open some of unknown
/// types.
const UNIDIRECTIONAL_STREAMS_MAX: u64 = 8;

/// Windows of streams that a connection's window has room for.
const WINDOWS_A_CONNECTION: u64 = 8;

/// Packets kept for a connection attempt that waits for its turn, in bytes, for one and for all.
const WAITING_BYTES_MAX: usize = 8 << 10;
const WAITING_TOTAL_BYTES_MAX: usize = 1 << 20;

/// Connection attempts of an endpoint that wait for their turn.
const WAITING_MAX: usize = 512;

/// Round-trip time that is assumed until one is measured. RFC 9002, section 6.2.2, recommends 333 ms, so that a lost packet of
/// a handshake costs a second. Google's servers and Chromium assume 100 ms. On slower lines, packets of the handshake may be
/// repeated once, within the limit for addresses that are not validated.
const INITIAL_ROUND_TRIP: Duration = Duration::from_millis(100);

/// Bytes that are sent before the first acknowledgment. RFC 9002, section 7.2, recommends 10 packets. Chromium's servers and
/// quic-go (Caddy) begin with 32. They are paced, so that they do not leave as one burst.
const INITIAL_WINDOW_BYTES: u64 = 32 * 1_460;

/// Initial window for BBR, which paces what it sends by its own estimate from the beginning. Chromium begins with 200 packets.
const BBR_WINDOW_BYTES: u64 = 200 * 1_200;

/// Time for which the token of a Retry packet is valid.
const RETRY_LIFETIME: Duration = Duration::from_secs(15);

/// Time for which a client may prove its address with a token of an earlier connection.
const TOKEN_LIFETIME: Duration = Duration::from_secs(86_400);

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

/// Settings of an endpoint.
pub(super) fn endpoint_config(keys: &QuicKeys) -> EndpointConfig {
    EndpointConfig {
        reset_key: keys.reset,
        token_key: keys.token,
        retry_lifetime: RETRY_LIFETIME,
        token_lifetime: TOKEN_LIFETIME,
        incoming_max: WAITING_MAX,
        incoming_bytes_max: WAITING_BYTES_MAX,
        incoming_total_bytes_max: WAITING_TOTAL_BYTES_MAX,
    }
}

impl QuicSettings {
    /// Makes the settings for a listener; `None` if its default site has no HTTP/3.
    pub fn new(
        tls: Arc<ListenerTls>,
        limits: &Limits,
        congestion: CongestionControl,
        traces: &Arc<QlogTraces>,
        wants_fingerprints: bool,
    ) -> Option<Self> {
        let fingerprint: HelloFingerprint = |hello| ja4_of_message(hello, HelloTransport::Quic);
        let tls = QuicTls::new(tls, wants_fingerprints.then_some(fingerprint))?;
        Some(Self { tls: Arc::new(tls), limits: limits.clone(), congestion, traces: Arc::clone(traces) })
    }

    /// TLS of the listener.
    pub(super) fn tls(&self) -> Arc<dyn TlsServer> {
        Arc::clone(&self.tls) as _
    }

    /// TLS for a client of this local address, which may select the site.
    pub(super) fn tls_at(&self, local: Option<IpAddr>) -> Arc<dyn TlsServer> {
        self.tls.at(local).map_or_else(|| self.tls(), |tls| Arc::new(tls) as _)
    }

    /// Settings for a new connection of a client. It writes a trace if an operator watches that client.
    pub(super) fn transport(&self, client: IpAddr, probes_mtu: bool) -> TransportSettings {
        let Limits { idle_timeout, head_timeout, write_timeout, http2, .. } = &self.limits;
        let window_bytes = u64::from(http2.window_bytes_max);
        let (congestion, initial_window_bytes) = congestion(self.congestion);
        TransportSettings {
            streams: StreamLimits {
                window_bytes,
                connection_window_bytes: window_bytes * WINDOWS_A_CONNECTION,
                bidi_max: http2.concurrent_streams_max.into(),
                uni_max: UNIDIRECTIONAL_STREAMS_MAX,
                send_window_bytes: SEND_WINDOW_BYTES_MAX,
            },
            // The server's own time limits come first. This one is for clients that are gone while the server works for them.
            idle_timeout: *idle_timeout.max(head_timeout).max(write_timeout) + Duration::from_secs(1),
            initial_round_trip: INITIAL_ROUND_TRIP,
            congestion,
            initial_window_bytes,
            probes_mtu,
            qlog: self.traces.begin(client),
        }
    }
}

/// Algorithm of congestion control, and its initial window in bytes.
fn congestion(algorithm: CongestionControl) -> (tailcoat_quic::CongestionAlgorithm, u64) {
    match algorithm {
        CongestionControl::Cubic => (tailcoat_quic::CongestionAlgorithm::Cubic, INITIAL_WINDOW_BYTES),
        CongestionControl::Bbr => (tailcoat_quic::CongestionAlgorithm::Bbr, BBR_WINDOW_BYTES),
        CongestionControl::NewReno => (tailcoat_quic::CongestionAlgorithm::NewReno, INITIAL_WINDOW_BYTES),
    }
}
