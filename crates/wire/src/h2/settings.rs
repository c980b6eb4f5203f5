//! Settings (RFC 9113, section 6.5.2; RFC 8441, section 3; RFC 9218, section 2.1).

use super::frame::FRAME_BYTES_MAX;
use super::hpack::DEFAULT_TABLE_BYTES;
use super::window::{INITIAL_WINDOW_BYTES, WINDOW_BYTES_MAX};
use super::{ConnectionError, ErrorCode};

pub(super) mod identifier {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
    pub(crate) const ENABLE_PUSH: u16 = 2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 5;
    pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 6;
    pub(crate) const ENABLE_CONNECT_PROTOCOL: u16 = 8;
    pub(crate) const NO_RFC7540_PRIORITIES: u16 = 9;
}

/// Settings of the peer, or the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// Maximum size of the dynamic table in the peer's decoder.
    pub header_table_bytes_max: u32,
    /// Maximum number of streams that this side may have open.
    pub concurrent_streams_max: u32,
    /// Initial window for content sent on a new stream.
    pub initial_window_bytes: u32,
    /// Maximum payload of a frame.
    pub frame_bytes_max: u32,
    /// Maximum size of a header list; informational.
    pub header_list_bytes_max: u32,
    /// True if the peer supports extended CONNECT (RFC 8441).
    pub enables_connect_protocol: bool,
}

impl Default for PeerSettings {
    fn default() -> Self {
        Self {
            header_table_bytes_max: DEFAULT_TABLE_BYTES as u32,
            concurrent_streams_max: u32::MAX,
            initial_window_bytes: INITIAL_WINDOW_BYTES,
            frame_bytes_max: FRAME_BYTES_MAX as u32,
            header_list_bytes_max: u32::MAX,
            enables_connect_protocol: false,
        }
    }
}

impl PeerSettings {
    /// Applies the payload of a SETTINGS frame in order; ignores unknown settings. `is_server`: the peer is a server.
    pub(super) fn apply(&mut self, payload: &[u8], is_server: bool) -> Result<(), ConnectionError> {
        for setting in payload.chunks_exact(6) {
            let identifier = u16::from_be_bytes([setting[0], setting[1]]);
            let value = u32::from_be_bytes([setting[2], setting[3], setting[4], setting[5]]);
            self.apply_one(identifier, value, is_server)?;
        }
        Ok(())
    }

    fn apply_one(&mut self, identifier: u16, value: u32, is_server: bool) -> Result<(), ConnectionError> {
        match identifier {
            identifier::HEADER_TABLE_SIZE => self.header_table_bytes_max = value,
            identifier::ENABLE_PUSH if value > 1 || is_server && value == 1 => {
                return Err(ConnectionError::protocol("invalid SETTINGS_ENABLE_PUSH"));
            }
            identifier::MAX_CONCURRENT_STREAMS => self.concurrent_streams_max = value,
            identifier::INITIAL_WINDOW_SIZE if value > WINDOW_BYTES_MAX => {
                let reason = "invalid SETTINGS_INITIAL_WINDOW_SIZE";
                return Err(ConnectionError::new(ErrorCode::FLOW_CONTROL_ERROR, reason));
            }
            identifier::INITIAL_WINDOW_SIZE => self.initial_window_bytes = value,
            identifier::MAX_FRAME_SIZE if !(FRAME_BYTES_MAX as u32..1 << 24).contains(&value) => {
                return Err(ConnectionError::protocol("invalid SETTINGS_MAX_FRAME_SIZE"));
            }
            identifier::MAX_FRAME_SIZE => self.frame_bytes_max = value,
            identifier::MAX_HEADER_LIST_SIZE => self.header_list_bytes_max = value,
            // RFC 8441, section 3: the value is 0 or 1, and 1 must not be revoked.
            identifier::ENABLE_CONNECT_PROTOCOL if value > 1 || value == 0 && self.enables_connect_protocol => {
                return Err(ConnectionError::protocol("invalid SETTINGS_ENABLE_CONNECT_PROTOCOL"));
            }
            identifier::ENABLE_CONNECT_PROTOCOL => self.enables_connect_protocol = value == 1,
            identifier::NO_RFC7540_PRIORITIES if value > 1 => {
                return Err(ConnectionError::protocol("invalid SETTINGS_NO_RFC7540_PRIORITIES"));
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(identifier: u16, value: u32) -> Result<PeerSettings, ErrorCode> {
        let mut payload = identifier.to_be_bytes().to_vec();
        payload.extend(value.to_be_bytes());
        let mut settings = PeerSettings::default();
        settings.apply(&payload, false).map(|()| settings).map_err(|error| error.code)
    }

    #[test]
    fn settings() {
        let default = PeerSettings::default();
        for (identifier, value, expect) in [
            (identifier::HEADER_TABLE_SIZE, u32::MAX, PeerSettings { header_table_bytes_max: u32::MAX, ..default }),
            (identifier::ENABLE_PUSH, 1, default),
            (identifier::MAX_CONCURRENT_STREAMS, 0, PeerSettings { concurrent_streams_max: 0, ..default }),
            (identifier::INITIAL_WINDOW_SIZE, 0, PeerSettings { initial_window_bytes: 0, ..default }),
            (identifier::MAX_FRAME_SIZE, 0xff_ffff, PeerSettings { frame_bytes_max: 0xff_ffff, ..default }),
            (identifier::MAX_HEADER_LIST_SIZE, 7, PeerSettings { header_list_bytes_max: 7, ..default }),
            (identifier::ENABLE_CONNECT_PROTOCOL, 1, PeerSettings { enables_connect_protocol: true, ..default }),
            (identifier::NO_RFC7540_PRIORITIES, 1, default),
            (0x0a0a, u32::MAX, default),
        ] {
            assert_eq!(apply(identifier, value), Ok(expect), "{identifier} = {value}");
        }
    }

    #[test]
    fn rejected() {
        for (identifier, value, expect) in [
            (identifier::ENABLE_PUSH, 2, ErrorCode::PROTOCOL_ERROR),
            (identifier::INITIAL_WINDOW_SIZE, 1 << 31, ErrorCode::FLOW_CONTROL_ERROR),
            (identifier::MAX_FRAME_SIZE, 16_383, ErrorCode::PROTOCOL_ERROR),
            (identifier::MAX_FRAME_SIZE, 1 << 24, ErrorCode::PROTOCOL_ERROR),
            (identifier::ENABLE_CONNECT_PROTOCOL, 2, ErrorCode::PROTOCOL_ERROR),
            (identifier::NO_RFC7540_PRIORITIES, 2, ErrorCode::PROTOCOL_ERROR),
        ] {
            assert_eq!(apply(identifier, value), Err(expect), "{identifier} = {value}");
        }
        let push = [0, 2, 0, 0, 0, 1];
        assert!(PeerSettings::default().apply(&push, true).is_err(), "a server that allows being pushed to");
    }
}
