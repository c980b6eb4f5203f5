use wire::h1::PreparedHead;
use wire::h2::hpack::PreparedBlock;
use wire::http::{Fields, Status};
use wire::qpack::PreparedSection;

/// Response head, encoded once for each version of HTTP.
#[derive(Clone, Debug)]
pub struct EncodedHead {
    /// Head for HTTP/1.
    pub h1: PreparedHead,
    /// Header block for HTTP/2.
    pub h2: PreparedBlock,
    /// Field section for HTTP/3.
    pub h3: PreparedSection,
    /// True if the head has Alt-Svc.
    pub has_alternative: bool,
}

impl EncodedHead {
    /// Encodes a status and header fields. Date is added when the head is sent, unless it is among the fields.
    pub fn new(status: Status, fields: &Fields) -> Self {
        Self {
            h1: PreparedHead::new(status, fields),
            h2: PreparedBlock::new(status, fields),
            h3: PreparedSection::new(status, fields),
            has_alternative: fields.has("Alt-Svc"),
        }
    }

    /// Encodes a status and header fields for HTTP/1 alone. For other versions, the head is empty and must not be sent.
    pub fn of_h1(status: Status, fields: &Fields) -> Self {
        Self { h1: PreparedHead::new(status, fields), has_alternative: fields.has("Alt-Svc"), ..Self::empty() }
    }

    /// Head that must not be sent, in place of one that is encoded later. Takes no memory of its own.
    pub fn empty() -> Self {
        Self {
            h1: PreparedHead::empty(),
            h2: PreparedBlock::empty(),
            h3: PreparedSection::empty(),
            has_alternative: false,
        }
    }

    /// Memory in use, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.h1.memory_bytes() + self.h2.memory_bytes() + self.h3.memory_bytes()
    }
}
