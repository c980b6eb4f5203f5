//! Records: a header of eight bytes, content, and padding (FastCGI 1.0, section 3.3).

/// Length of a record's header.
pub(super) const HEADER_BYTES: usize = 8;

/// Maximum content of a record.
pub const CONTENT_BYTES_MAX: usize = 65_535;

/// Id of the only request of a connection.
pub(super) const REQUEST_ID: u16 = 1;

const VERSION: u8 = 1;

/// Types of records (section 8).
pub(super) mod record_type {
    pub(crate) const BEGIN_REQUEST: u8 = 1;
    pub(crate) const END_REQUEST: u8 = 3;
    pub(crate) const PARAMS: u8 = 4;
    pub(crate) const STDIN: u8 = 5;
    pub(crate) const STDOUT: u8 = 6;
    pub(crate) const STDERR: u8 = 7;
}

/// The parts of a record's header that the decoder needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) version: u8,
    pub(super) record_type: u8,
    pub(super) request_id: u16,
    pub(super) content_bytes: u16,
    pub(super) padding_bytes: u8,
}

impl Header {
    /// Creates the header of a record that belongs to the connection's request, without padding.
    pub(super) fn new(record_type: u8, content_bytes: u16) -> Self {
        Self { version: VERSION, record_type, request_id: REQUEST_ID, content_bytes, padding_bytes: 0 }
    }

    pub(super) fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let ([id_high, id_low], [length_high, length_low]) =
            (self.request_id.to_be_bytes(), self.content_bytes.to_be_bytes());
        [self.version, self.record_type, id_high, id_low, length_high, length_low, self.padding_bytes, 0]
    }

    pub(super) fn from_bytes(bytes: [u8; HEADER_BYTES]) -> Self {
        let [version, record_type, id_high, id_low, length_high, length_low, padding_bytes, _] = bytes;
        Self {
            version,
            record_type,
            request_id: u16::from_be_bytes([id_high, id_low]),
            content_bytes: u16::from_be_bytes([length_high, length_low]),
            padding_bytes,
        }
    }

    /// Returns whether version and request id are the expected ones.
    pub(super) fn is_ours(self) -> bool {
        self.version == VERSION && self.request_id == REQUEST_ID
    }
}
