//! Transport parameters (RFC 9000, section 18).

use crate::codec::{Reader, VARINT_MAX, varint_bytes, write_varint};
use crate::error::TransportError;
use crate::frame::STREAMS_MAX;
use crate::id::{ConnectionId, ResetToken};

/// Identifiers of transport parameters.
mod key {
    pub(super) const ORIGINAL_DESTINATION_CONNECTION_ID: u64 = 0x00;
    pub(super) const MAX_IDLE_TIMEOUT: u64 = 0x01;
    pub(super) const STATELESS_RESET_TOKEN: u64 = 0x02;
    pub(super) const MAX_UDP_PAYLOAD_SIZE: u64 = 0x03;
    pub(super) const INITIAL_MAX_DATA: u64 = 0x04;
    pub(super) const INITIAL_MAX_STREAM_DATA_BIDI_LOCAL: u64 = 0x05;
    pub(super) const INITIAL_MAX_STREAM_DATA_BIDI_REMOTE: u64 = 0x06;
    pub(super) const INITIAL_MAX_STREAM_DATA_UNI: u64 = 0x07;
    pub(super) const INITIAL_MAX_STREAMS_BIDI: u64 = 0x08;
    pub(super) const INITIAL_MAX_STREAMS_UNI: u64 = 0x09;
    pub(super) const ACK_DELAY_EXPONENT: u64 = 0x0a;
    pub(super) const MAX_ACK_DELAY: u64 = 0x0b;
    pub(super) const DISABLE_ACTIVE_MIGRATION: u64 = 0x0c;
    pub(super) const PREFERRED_ADDRESS: u64 = 0x0d;
    pub(super) const ACTIVE_CONNECTION_ID_LIMIT: u64 = 0x0e;
    pub(super) const INITIAL_SOURCE_CONNECTION_ID: u64 = 0x0f;
    pub(super) const RETRY_SOURCE_CONNECTION_ID: u64 = 0x10;
    /// RFC 9287.
    pub(super) const GREASE_QUIC_BIT: u64 = 0x2ab2;
}

/// Smallest value that a peer may give for the size of datagrams.
const UDP_PAYLOAD_BYTES_MIN: u64 = 1200;

/// Largest payload of a UDP datagram over IPv4 and IPv6, and the default.
const UDP_PAYLOAD_BYTES_MAX: u16 = 65_527;

const ACK_DELAY_EXPONENT_DEFAULT: u8 = 3;

const ACK_DELAY_EXPONENT_MAX: u64 = 20;

const MAX_ACK_DELAY_MS_DEFAULT: u64 = 25;

/// Delays must be below it.
const MAX_ACK_DELAY_MS_END: u64 = 1 << 14;

/// Smallest valid value, and the default.
const ACTIVE_CONNECTION_ID_LIMIT_MIN: u64 = 2;

/// Transport parameters of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PeerParameters {
    /// Idle timeout in milliseconds; 0 if the client has none.
    pub max_idle_timeout_ms: u64,
    /// Largest payload of UDP datagrams that the client receives.
    pub max_udp_payload_bytes: u16,
    /// Bytes that the server may send on all streams at first.
    pub initial_max_data: u64,
    /// Bytes that the server may send at first on each bidirectional stream that the client opens.
    pub initial_max_stream_data_bidi_local: u64,
    /// Bytes that the server may send at first on each bidirectional stream that the server opens.
    pub initial_max_stream_data_bidi_remote: u64,
    /// Bytes that the server may send at first on each unidirectional stream.
    pub initial_max_stream_data_uni: u64,
    /// Bidirectional streams that the server may open at first.
    pub initial_max_streams_bidi: u64,
    /// Unidirectional streams that the server may open at first.
    pub initial_max_streams_uni: u64,
    /// Exponent of delays in the client's ACK frames; at most 20.
    pub ack_delay_exponent: u8,
    /// Longest delay of the client's acknowledgements, in milliseconds; below 2^14.
    pub max_ack_delay_ms: u64,
    /// True if the server must not use another path.
    pub disable_active_migration: bool,
    /// Connection IDs of the server that the client keeps; at least 2.
    pub active_connection_id_limit: u64,
    /// Source ID of the client's first Initial packet. The connection must compare it; its absence is an error (RFC 9000,
    /// section 7.3).
    pub initial_source_connection_id: Option<ConnectionId>,
    /// True if the client accepts packets without the fixed bit (RFC 9287).
    pub grease_quic_bit: bool,
}

impl Default for PeerParameters {
    fn default() -> Self {
        Self {
            max_idle_timeout_ms: 0,
            max_udp_payload_bytes: UDP_PAYLOAD_BYTES_MAX,
            initial_max_data: 0,
            initial_max_stream_data_bidi_local: 0,
            initial_max_stream_data_bidi_remote: 0,
            initial_max_stream_data_uni: 0,
            initial_max_streams_bidi: 0,
            initial_max_streams_uni: 0,
            ack_delay_exponent: ACK_DELAY_EXPONENT_DEFAULT,
            max_ack_delay_ms: MAX_ACK_DELAY_MS_DEFAULT,
            disable_active_migration: false,
            active_connection_id_limit: ACTIVE_CONNECTION_ID_LIMIT_MIN,
            initial_source_connection_id: None,
            grease_quic_bit: false,
        }
    }
}

impl PeerParameters {
    /// Reads the parameters of a client. Unknown ones are ignored.
    ///
    /// # Errors
    /// Duplicates of known parameters, parameters of servers, and bad values are a TRANSPORT_PARAMETER_ERROR.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, TransportError> {
        let mut parameters = Self::default();
        let mut reader = Reader::new(bytes);
        // A bit for each known parameter.
        let mut seen = 0_u32;
        while !reader.is_empty() {
            let truncated = || TransportError::transport_parameter("transport parameters are truncated");
            let key = reader.varint().ok_or_else(truncated)?;
            let value = reader.prefixed().ok_or_else(truncated)?;
            let bit = match key {
                0..=key::RETRY_SOURCE_CONNECTION_ID => 1 << key,
                key::GREASE_QUIC_BIT => 1 << 31,
                _ => continue,
            };
            if seen & bit != 0 {
                return Err(invalid("duplicate", key));
            }
            seen |= bit;
            parameters.set(key, value).map_err(|cause| invalid(cause, key))?;
        }
        Ok(parameters)
    }

    fn set(&mut self, key: u64, value: &[u8]) -> Result<(), &'static str> {
        match key {
            key::MAX_IDLE_TIMEOUT => self.max_idle_timeout_ms = integer(value, 0, VARINT_MAX)?,
            key::MAX_UDP_PAYLOAD_SIZE => {
                // Larger values are valid, but have no meaning.
                let bytes = integer(value, UDP_PAYLOAD_BYTES_MIN, VARINT_MAX)?;
                self.max_udp_payload_bytes = bytes.min(UDP_PAYLOAD_BYTES_MAX.into()) as u16;
            }
            key::INITIAL_MAX_DATA => self.initial_max_data = integer(value, 0, VARINT_MAX)?,
            key::INITIAL_MAX_STREAM_DATA_BIDI_LOCAL => {
                self.initial_max_stream_data_bidi_local = integer(value, 0, VARINT_MAX)?;
            }
            key::INITIAL_MAX_STREAM_DATA_BIDI_REMOTE => {
                self.initial_max_stream_data_bidi_remote = integer(value, 0, VARINT_MAX)?;
            }
            key::INITIAL_MAX_STREAM_DATA_UNI => self.initial_max_stream_data_uni = integer(value, 0, VARINT_MAX)?,
            key::INITIAL_MAX_STREAMS_BIDI => self.initial_max_streams_bidi = integer(value, 0, STREAMS_MAX)?,
            key::INITIAL_MAX_STREAMS_UNI => self.initial_max_streams_uni = integer(value, 0, STREAMS_MAX)?,
            key::ACK_DELAY_EXPONENT => self.ack_delay_exponent = integer(value, 0, ACK_DELAY_EXPONENT_MAX)? as u8,
            key::MAX_ACK_DELAY => self.max_ack_delay_ms = integer(value, 0, MAX_ACK_DELAY_MS_END - 1)?,
            key::DISABLE_ACTIVE_MIGRATION => self.disable_active_migration = flag(value)?,
            key::ACTIVE_CONNECTION_ID_LIMIT => {
                self.active_connection_id_limit = integer(value, ACTIVE_CONNECTION_ID_LIMIT_MIN, VARINT_MAX)?;
            }
            key::INITIAL_SOURCE_CONNECTION_ID => {
                self.initial_source_connection_id = Some(ConnectionId::new(value).ok_or("invalid value of")?);
            }
            key::GREASE_QUIC_BIT => self.grease_quic_bit = flag(value)?,
            key::ORIGINAL_DESTINATION_CONNECTION_ID
            | key::STATELESS_RESET_TOKEN
            | key::PREFERRED_ADDRESS
            | key::RETRY_SOURCE_CONNECTION_ID => return Err("client must not send"),
            _ => {}
        }
        Ok(())
    }
}

#[cold]
fn invalid(cause: &str, key: u64) -> TransportError {
    TransportError::transport_parameter(format!("{cause} transport parameter 0x{key:x}"))
}

/// Reads a value that is an integer within limits.
fn integer(value: &[u8], min: u64, max: u64) -> Result<u64, &'static str> {
    let mut reader = Reader::new(value);
    match reader.varint() {
        Some(integer) if reader.is_empty() && (min..=max).contains(&integer) => Ok(integer),
        _ => Err("invalid value of"),
    }
}

/// Reads a parameter that has no value, and means true.
fn flag(value: &[u8]) -> Result<bool, &'static str> {
    if value.is_empty() { Ok(true) } else { Err("invalid value of") }
}

/// Transport parameters of the server.
#[derive(Clone, Debug)]
pub(crate) struct OwnParameters {
    /// Idle timeout in milliseconds; 0 for none.
    pub max_idle_timeout_ms: u64,
    /// Largest payload of UDP datagrams that the server receives; at least 1200.
    pub max_udp_payload_bytes: u16,
    /// Bytes that the client may send on all streams at first.
    pub initial_max_data: u64,
    /// Bytes that the client may send at first on each bidirectional stream that the server opens.
    pub initial_max_stream_data_bidi_local: u64,
    /// Bytes that the client may send at first on each bidirectional stream that the client opens.
    pub initial_max_stream_data_bidi_remote: u64,
    /// Bytes that the client may send at first on each unidirectional stream.
    pub initial_max_stream_data_uni: u64,
    /// Bidirectional streams that the client may open at first; cut to 2^60.
    pub initial_max_streams_bidi: u64,
    /// Unidirectional streams that the client may open at first; cut to 2^60.
    pub initial_max_streams_uni: u64,
    /// Exponent of delays in the server's ACK frames.
    pub ack_delay_exponent: u8,
    /// Longest delay of the server's acknowledgements, in milliseconds.
    pub max_ack_delay_ms: u64,
    /// True if the client must not use another path.
    pub disable_active_migration: bool,
    /// Connection IDs of the client that the server keeps.
    pub active_connection_id_limit: u64,
    /// Reset token of the first connection ID.
    pub stateless_reset_token: Option<ResetToken>,
    /// Destination ID of the client's very first Initial packet, before a Retry.
    pub original_destination_connection_id: ConnectionId,
    /// Source ID of the Retry packet, if there was one.
    pub retry_source_connection_id: Option<ConnectionId>,
    /// Source ID of the server's Initial packets.
    pub initial_source_connection_id: ConnectionId,
}

impl Default for OwnParameters {
    fn default() -> Self {
        Self {
            max_idle_timeout_ms: 0,
            max_udp_payload_bytes: UDP_PAYLOAD_BYTES_MAX,
            initial_max_data: 0,
            initial_max_stream_data_bidi_local: 0,
            initial_max_stream_data_bidi_remote: 0,
            initial_max_stream_data_uni: 0,
            initial_max_streams_bidi: 0,
            initial_max_streams_uni: 0,
            ack_delay_exponent: ACK_DELAY_EXPONENT_DEFAULT,
            max_ack_delay_ms: MAX_ACK_DELAY_MS_DEFAULT,
            disable_active_migration: false,
            active_connection_id_limit: ACTIVE_CONNECTION_ID_LIMIT_MIN,
            stateless_reset_token: None,
            original_destination_connection_id: ConnectionId::EMPTY,
            retry_source_connection_id: None,
            initial_source_connection_id: ConnectionId::EMPTY,
        }
    }
}

/// Values of a parameter that the server sends.
enum Value<'a> {
    Integer(u64),
    Bytes(&'a [u8]),
}

impl OwnParameters {
    /// Writes the parameters in an order that `random` gives, with a reserved one (RFC 9000, section 18.1). Both keep clients from
    /// relying on a form. Parameters with their default values are left out. The parameter `grease_quic_bit` (RFC 9287) is always
    /// there, because [`read_header`](crate::packet::read_header) ignores the bit.
    pub(crate) fn write(&self, out: &mut Vec<u8>, random: [u8; 16]) {
        let reserved = 31 * u64::from(u16::from_be_bytes([random[0], random[1]])) + 27;
        let reserved_bytes = &random[8..8 + usize::from(random[2] & 0x07)];
        let integer = |value: u64, default: u64| (value != default).then_some(Value::Integer(value));
        let is_set = |flag: bool| flag.then_some(Value::Bytes(&[]));
        let mut parameters = [
            (key::MAX_IDLE_TIMEOUT, integer(self.max_idle_timeout_ms, 0)),
            (key::MAX_UDP_PAYLOAD_SIZE, integer(self.max_udp_payload_bytes.into(), UDP_PAYLOAD_BYTES_MAX.into())),
            (key::INITIAL_MAX_DATA, integer(self.initial_max_data, 0)),
            (key::INITIAL_MAX_STREAM_DATA_BIDI_LOCAL, integer(self.initial_max_stream_data_bidi_local, 0)),
            (key::INITIAL_MAX_STREAM_DATA_BIDI_REMOTE, integer(self.initial_max_stream_data_bidi_remote, 0)),
            (key::INITIAL_MAX_STREAM_DATA_UNI, integer(self.initial_max_stream_data_uni, 0)),
            (key::INITIAL_MAX_STREAMS_BIDI, integer(self.initial_max_streams_bidi.min(STREAMS_MAX), 0)),
            (key::INITIAL_MAX_STREAMS_UNI, integer(self.initial_max_streams_uni.min(STREAMS_MAX), 0)),
            (key::ACK_DELAY_EXPONENT, integer(self.ack_delay_exponent.into(), ACK_DELAY_EXPONENT_DEFAULT.into())),
            (key::MAX_ACK_DELAY, integer(self.max_ack_delay_ms, MAX_ACK_DELAY_MS_DEFAULT)),
            (key::DISABLE_ACTIVE_MIGRATION, is_set(self.disable_active_migration)),
            (key::ACTIVE_CONNECTION_ID_LIMIT, integer(self.active_connection_id_limit, ACTIVE_CONNECTION_ID_LIMIT_MIN)),
            (key::STATELESS_RESET_TOKEN, self.stateless_reset_token.as_ref().map(|token| Value::Bytes(&token.0))),
            (key::ORIGINAL_DESTINATION_CONNECTION_ID, Some(Value::Bytes(&self.original_destination_connection_id))),
            (key::RETRY_SOURCE_CONNECTION_ID, self.retry_source_connection_id.as_ref().map(|id| Value::Bytes(id))),
            (key::INITIAL_SOURCE_CONNECTION_ID, Some(Value::Bytes(&self.initial_source_connection_id))),
            (key::GREASE_QUIC_BIT, is_set(true)),
            (reserved, Some(Value::Bytes(reserved_bytes))),
        ];
        shuffle(&mut parameters, u128::from_be_bytes(random));
        for (key, value) in parameters {
            let Some(value) = value else { continue };
            write_varint(out, key);
            match value {
                Value::Integer(integer) => {
                    write_varint(out, varint_bytes(integer) as u64);
                    write_varint(out, integer);
                }
                Value::Bytes(bytes) => {
                    write_varint(out, bytes.len() as u64);
                    out.extend_from_slice(bytes);
                }
            }
        }
    }
}

/// Shuffles items: each digit of `random`, in a base that shrinks, takes the next one.
fn shuffle<T>(items: &mut [T], mut random: u128) {
    for count in (2..=items.len()).rev() {
        let base = count as u128;
        items.swap(count - 1, (random % base) as usize);
        random /= base;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quinn_proto::Side;
    use quinn_proto::transport_parameters::TransportParameters;

    use super::*;

    fn parameter(key: u64, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_varint(&mut out, key);
        write_varint(&mut out, value.len() as u64);
        out.extend_from_slice(value);
        out
    }

    fn integer_parameter(key: u64, value: u64) -> Vec<u8> {
        let mut text = Vec::new();
        write_varint(&mut text, value);
        parameter(key, &text)
    }

    fn own() -> OwnParameters {
        OwnParameters {
            max_idle_timeout_ms: 30_000,
            max_udp_payload_bytes: 1472,
            initial_max_data: 1 << 20,
            initial_max_stream_data_bidi_local: 1 << 16,
            initial_max_stream_data_bidi_remote: 1 << 17,
            initial_max_stream_data_uni: 1 << 18,
            initial_max_streams_bidi: 128,
            initial_max_streams_uni: u64::MAX,
            active_connection_id_limit: 5,
            stateless_reset_token: Some(ResetToken([7; 16])),
            original_destination_connection_id: ConnectionId::new(&[1; 8]).unwrap(),
            retry_source_connection_id: ConnectionId::new(&[2; 9]),
            initial_source_connection_id: ConnectionId::new(&[3; 10]).unwrap(),
            ..OwnParameters::default()
        }
    }

    #[test]
    fn parameters_of_the_rfc_are_read() {
        // The client's ones of RFC 9001, appendix A.2.
        let mut bytes = vec![0x04, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        bytes.extend_from_slice(&[0x05, 0x04, 0x80, 0x00, 0xff, 0xff, 0x07, 0x04, 0x80, 0x00, 0xff, 0xff]);
        bytes.extend_from_slice(&[0x08, 0x01, 0x10, 0x01, 0x04, 0x80, 0x00, 0x75, 0x30, 0x09, 0x01, 0x10]);
        bytes.extend_from_slice(&[0x0f, 0x08, 0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08]);
        bytes.extend_from_slice(&[0x06, 0x04, 0x80, 0x00, 0xff, 0xff]);
        let parameters = PeerParameters::read(&bytes).unwrap();
        let expected = PeerParameters {
            max_idle_timeout_ms: 30_000,
            initial_max_data: VARINT_MAX,
            initial_max_stream_data_bidi_local: 65_535,
            initial_max_stream_data_bidi_remote: 65_535,
            initial_max_stream_data_uni: 65_535,
            initial_max_streams_bidi: 16,
            initial_max_streams_uni: 16,
            initial_source_connection_id: ConnectionId::new(&[0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08]),
            ..PeerParameters::default()
        };
        assert_eq!(parameters, expected);
        for end in 1..bytes.len() {
            // A cut between two parameters is not an error.
            let _ = PeerParameters::read(&bytes[..end]);
        }
    }

    #[test]
    fn bad_parameters_are_errors() {
        let scid = parameter(key::INITIAL_SOURCE_CONNECTION_ID, &[1]);
        for bad in [
            parameter(key::ORIGINAL_DESTINATION_CONNECTION_ID, &[1; 8]),
            parameter(key::STATELESS_RESET_TOKEN, &[1; 16]),
            parameter(key::PREFERRED_ADDRESS, &[1; 50]),
            parameter(key::RETRY_SOURCE_CONNECTION_ID, &[1; 8]),
            parameter(key::INITIAL_SOURCE_CONNECTION_ID, &[1; 8]),
            parameter(key::INITIAL_MAX_DATA, &[]),
            parameter(key::INITIAL_MAX_DATA, &[0x40]),
            parameter(key::INITIAL_MAX_DATA, &[0x01, 0x01]),
            parameter(key::DISABLE_ACTIVE_MIGRATION, &[0]),
            parameter(key::GREASE_QUIC_BIT, &[0]),
            integer_parameter(key::MAX_UDP_PAYLOAD_SIZE, 1199),
            integer_parameter(key::INITIAL_MAX_STREAMS_BIDI, STREAMS_MAX + 1),
            integer_parameter(key::INITIAL_MAX_STREAMS_UNI, STREAMS_MAX + 1),
            integer_parameter(key::ACK_DELAY_EXPONENT, 21),
            integer_parameter(key::MAX_ACK_DELAY, 1 << 14),
            integer_parameter(key::ACTIVE_CONNECTION_ID_LIMIT, 1),
            vec![0x04],
            vec![0x04, 0x02, 0x40],
            [integer_parameter(key::MAX_ACK_DELAY, 1), integer_parameter(key::MAX_ACK_DELAY, 1)].concat(),
            [parameter(key::GREASE_QUIC_BIT, &[]), parameter(key::GREASE_QUIC_BIT, &[])].concat(),
        ] {
            let error = PeerParameters::read(&[scid.clone(), bad.clone()].concat()).unwrap_err();
            assert_eq!(error.code, TransportError::TRANSPORT_PARAMETER_ERROR, "{bad:?}");
        }
        let long = parameter(key::INITIAL_SOURCE_CONNECTION_ID, &[1; 21]);
        assert!(PeerParameters::read(&long).is_err());
    }

    #[test]
    fn limits_and_unknown_parameters_are_accepted() {
        let bytes = [
            integer_parameter(key::MAX_UDP_PAYLOAD_SIZE, VARINT_MAX),
            integer_parameter(key::INITIAL_MAX_STREAMS_BIDI, STREAMS_MAX),
            integer_parameter(key::ACK_DELAY_EXPONENT, 20),
            integer_parameter(key::MAX_ACK_DELAY, (1 << 14) - 1),
            integer_parameter(key::ACTIVE_CONNECTION_ID_LIMIT, 2),
            parameter(key::DISABLE_ACTIVE_MIGRATION, &[]),
            parameter(key::GREASE_QUIC_BIT, &[]),
            parameter(key::INITIAL_SOURCE_CONNECTION_ID, &[]),
            parameter(27, &[1, 2, 3]),
            parameter(VARINT_MAX, &[]),
        ]
        .concat();
        let parameters = PeerParameters::read(&bytes).unwrap();
        assert_eq!(parameters.max_udp_payload_bytes, 65_527);
        assert_eq!(parameters.initial_max_streams_bidi, STREAMS_MAX);
        assert_eq!((parameters.ack_delay_exponent, parameters.max_ack_delay_ms), (20, 16_383));
        assert!(parameters.disable_active_migration && parameters.grease_quic_bit);
        assert_eq!(parameters.initial_source_connection_id, Some(ConnectionId::EMPTY));
        assert_eq!(PeerParameters::read(&[]).unwrap(), PeerParameters::default());
    }

    proptest! {
        #[test]
        fn own_parameters_are_valid_for_another_engine(random: [u8; 16]) {
            let mut out = Vec::new();
            own().write(&mut out, random);
            let parameters = TransportParameters::read(Side::Client, &mut out.as_slice());
            prop_assert!(parameters.is_ok());
            // All values are there, in any order.
            for part in [
                integer_parameter(key::MAX_IDLE_TIMEOUT, 30_000),
                integer_parameter(key::MAX_UDP_PAYLOAD_SIZE, 1472),
                integer_parameter(key::INITIAL_MAX_DATA, 1 << 20),
                integer_parameter(key::INITIAL_MAX_STREAM_DATA_BIDI_LOCAL, 1 << 16),
                integer_parameter(key::INITIAL_MAX_STREAM_DATA_BIDI_REMOTE, 1 << 17),
                integer_parameter(key::INITIAL_MAX_STREAM_DATA_UNI, 1 << 18),
                integer_parameter(key::INITIAL_MAX_STREAMS_BIDI, 128),
                integer_parameter(key::INITIAL_MAX_STREAMS_UNI, STREAMS_MAX),
                integer_parameter(key::ACTIVE_CONNECTION_ID_LIMIT, 5),
                parameter(key::STATELESS_RESET_TOKEN, &[7; 16]),
                parameter(key::ORIGINAL_DESTINATION_CONNECTION_ID, &[1; 8]),
                parameter(key::RETRY_SOURCE_CONNECTION_ID, &[2; 9]),
                parameter(key::INITIAL_SOURCE_CONNECTION_ID, &[3; 10]),
                parameter(key::GREASE_QUIC_BIT, &[]),
            ] {
                prop_assert!(out.windows(part.len()).any(|window| window == part));
            }
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let _ = PeerParameters::read(&bytes);
        }
    }

    #[test]
    fn orders_differ() {
        let write = |random| {
            let mut out = Vec::new();
            own().write(&mut out, random);
            out
        };
        assert_eq!(write([1; 16]), write([1; 16]));
        assert_ne!(write([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]), write([0; 16]));
    }
}
