//! Settings (RFC 9114, section 7.2.4; RFC 9204, section 5; RFC 9220, section 3; RFC 9297, section 2.1.1).

use super::frame::{kind, write_header};
use super::{H3Error, H3ErrorCode, varint};

pub(super) mod identifier {
    pub(crate) const QPACK_MAX_TABLE_CAPACITY: u64 = 1;
    pub(crate) const MAX_FIELD_SECTION_SIZE: u64 = 6;
    pub(crate) const QPACK_BLOCKED_STREAMS: u64 = 7;
    pub(crate) const ENABLE_CONNECT_PROTOCOL: u64 = 8;
    pub(crate) const H3_DATAGRAM: u64 = 0x33;
}

/// Settings in a frame, at most. A client sends about ten.
const SETTINGS_MAX: usize = 64;

/// Settings of the peer, or the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H3PeerSettings {
    /// Maximum size of the dynamic table in the peer's decoder.
    pub table_bytes_max: u64,
    /// Number of streams that may wait for the peer's decoder.
    pub blocked_streams_max: u64,
    /// Maximum size of a list of fields; informational.
    pub field_section_bytes_max: u64,
    /// True if the peer supports extended CONNECT (RFC 9220).
    pub enables_connect_protocol: bool,
    /// True if the peer supports HTTP datagrams (RFC 9297).
    pub enables_datagrams: bool,
}

impl Default for H3PeerSettings {
    fn default() -> Self {
        Self {
            table_bytes_max: 0,
            blocked_streams_max: 0,
            field_section_bytes_max: u64::MAX,
            enables_connect_protocol: false,
            enables_datagrams: false,
        }
    }
}

impl H3PeerSettings {
    /// Parses the payload of a SETTINGS frame; ignores unknown settings.
    pub(super) fn parse(payload: &[u8]) -> Result<Self, H3Error> {
        let (mut settings, mut seen, mut count, mut at) = (Self::default(), [0; SETTINGS_MAX], 0, 0);
        while at < payload.len() {
            let identifier = varint::read(payload, &mut at).ok_or(TRUNCATED)?;
            let value = varint::read(payload, &mut at).ok_or(TRUNCATED)?;
            if seen[..count].contains(&identifier) {
                return Err(invalid("setting occurs twice"));
            }
            *seen.get_mut(count).ok_or(H3Error::too_much("too many settings"))? = identifier;
            count += 1;
            settings.apply(identifier, value)?;
        }
        Ok(settings)
    }

    fn apply(&mut self, identifier: u64, value: u64) -> Result<(), H3Error> {
        match identifier {
            identifier::QPACK_MAX_TABLE_CAPACITY => self.table_bytes_max = value,
            // Section 7.2.4.1: settings of HTTP/2 that HTTP/3 lacks.
            2..=5 => return Err(invalid("setting of HTTP/2")),
            identifier::MAX_FIELD_SECTION_SIZE => self.field_section_bytes_max = value,
            identifier::QPACK_BLOCKED_STREAMS => self.blocked_streams_max = value,
            identifier::ENABLE_CONNECT_PROTOCOL | identifier::H3_DATAGRAM if value > 1 => {
                return Err(invalid("setting that is neither 0 nor 1"));
            }
            identifier::ENABLE_CONNECT_PROTOCOL => self.enables_connect_protocol = value == 1,
            identifier::H3_DATAGRAM => self.enables_datagrams = value == 1,
            _ => {}
        }
        Ok(())
    }
}

const TRUNCATED: H3Error = H3Error::frame("truncated SETTINGS");

const fn invalid(reason: &'static str) -> H3Error {
    H3Error::new(H3ErrorCode::H3_SETTINGS_ERROR, reason)
}

/// Writes a SETTINGS frame.
pub(super) fn write_settings(out: &mut Vec<u8>, settings: impl Iterator<Item = (u64, u64)>) {
    let start = out.len();
    // About five settings of at most nine bytes, so the length fits into one byte.
    write_header(out, kind::SETTINGS, 0);
    for (identifier, value) in settings {
        varint::write(out, identifier);
        varint::write(out, value);
    }
    out[start + 1] = (out.len() - start - 2) as u8;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(settings: &[(u64, u64)]) -> Result<H3PeerSettings, H3ErrorCode> {
        let mut payload = Vec::new();
        for (identifier, value) in settings {
            varint::write(&mut payload, *identifier);
            varint::write(&mut payload, *value);
        }
        H3PeerSettings::parse(&payload).map_err(|error| error.code)
    }

    #[test]
    fn settings() {
        let default = H3PeerSettings::default();
        for (settings, expect) in [
            (&[][..], default),
            (&[(1, 4096), (7, 100)], H3PeerSettings { table_bytes_max: 4096, blocked_streams_max: 100, ..default }),
            (&[(6, 7)], H3PeerSettings { field_section_bytes_max: 7, ..default }),
            (&[(8, 1)], H3PeerSettings { enables_connect_protocol: true, ..default }),
            (&[(8, 0), (0x33, 1)], H3PeerSettings { enables_datagrams: true, ..default }),
            (&[(0x21, 3), (0x40, u64::MAX >> 2), (0x2b60_3742, 1)], default),
        ] {
            assert_eq!(parse(settings), Ok(expect), "{settings:?}");
        }
    }

    #[test]
    fn rejected() {
        let many: Vec<_> = (100..100 + 65).map(|identifier| (identifier, 0)).collect();
        for (settings, expect) in [
            (&[(2, 0)][..], H3ErrorCode::H3_SETTINGS_ERROR),
            (&[(3, 0)], H3ErrorCode::H3_SETTINGS_ERROR),
            (&[(4, 0)], H3ErrorCode::H3_SETTINGS_ERROR),
            (&[(5, 0)], H3ErrorCode::H3_SETTINGS_ERROR),
            (&[(8, 2)], H3ErrorCode::H3_SETTINGS_ERROR),
            (&[(0x33, 2)], H3ErrorCode::H3_SETTINGS_ERROR),
            (&[(6, 1), (6, 1)], H3ErrorCode::H3_SETTINGS_ERROR),
            (&[(0x21, 1), (1, 1), (0x21, 2)], H3ErrorCode::H3_SETTINGS_ERROR),
            (&many, H3ErrorCode::H3_EXCESSIVE_LOAD),
        ] {
            assert_eq!(parse(settings), Err(expect), "{settings:?}");
        }
        for payload in [&[1][..], &[0x40], &[1, 0x40], &[1, 0, 7]] {
            let error = H3PeerSettings::parse(payload).map_err(|error| error.code);
            assert_eq!(error, Err(H3ErrorCode::H3_FRAME_ERROR), "{payload:?}");
        }
    }
}
