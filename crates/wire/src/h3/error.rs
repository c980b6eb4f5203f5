use crate::field_section::error_codes;

/// Error code of a stream or connection (RFC 9114, section 8.1; RFC 9204, section 6; RFC 9297, section 5.2).
/// Unregistered codes are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct H3ErrorCode(pub u64);

error_codes! {
    H3ErrorCode, H3Error;
    H3_DATAGRAM_ERROR = 0x33;
    H3_NO_ERROR = 0x100;
    H3_GENERAL_PROTOCOL_ERROR = 0x101;
    H3_INTERNAL_ERROR = 0x102;
    H3_STREAM_CREATION_ERROR = 0x103;
    H3_CLOSED_CRITICAL_STREAM = 0x104;
    H3_FRAME_UNEXPECTED = 0x105;
    H3_FRAME_ERROR = 0x106;
    H3_EXCESSIVE_LOAD = 0x107;
    H3_ID_ERROR = 0x108;
    H3_SETTINGS_ERROR = 0x109;
    H3_MISSING_SETTINGS = 0x10a;
    H3_REQUEST_REJECTED = 0x10b;
    H3_REQUEST_CANCELLED = 0x10c;
    H3_REQUEST_INCOMPLETE = 0x10d;
    H3_MESSAGE_ERROR = 0x10e;
    H3_CONNECT_ERROR = 0x10f;
    H3_VERSION_FALLBACK = 0x110;
    QPACK_DECOMPRESSION_FAILED = 0x200;
    QPACK_ENCODER_STREAM_ERROR = 0x201;
    QPACK_DECODER_STREAM_ERROR = 0x202;
}

impl H3Error {
    pub(super) const fn unexpected(reason: &'static str) -> Self {
        Self::new(H3ErrorCode::H3_FRAME_UNEXPECTED, reason)
    }

    pub(super) const fn frame(reason: &'static str) -> Self {
        Self::new(H3ErrorCode::H3_FRAME_ERROR, reason)
    }

    pub(super) const fn id(reason: &'static str) -> Self {
        Self::new(H3ErrorCode::H3_ID_ERROR, reason)
    }

    pub(super) const fn too_much(reason: &'static str) -> Self {
        Self::new(H3ErrorCode::H3_EXCESSIVE_LOAD, reason)
    }
}
