use wire::h1::PreparedHead;
use wire::h2::hpack::PreparedBlock;
use wire::http::{Fields, Status};

/// A response's head, encoded once for each version of HTTP.
#[derive(Clone, Debug)]
pub struct EncodedHead {
    /// For HTTP/1.
    pub h1: PreparedHead,
    /// For HTTP/2.
    pub h2: PreparedBlock,
}

impl EncodedHead {
    /// Encodes a status and fields. Date is put in when the head is sent, if it is not among the fields.
    pub fn new(status: Status, fields: &Fields) -> Self {
        Self { h1: PreparedHead::new(status, fields), h2: PreparedBlock::new(status, fields) }
    }

    /// Bytes of memory it takes.
    pub fn memory_bytes(&self) -> usize {
        self.h1.memory_bytes() + self.h2.memory_bytes()
    }
}
