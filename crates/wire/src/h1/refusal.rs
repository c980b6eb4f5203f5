use crate::http::Status;

/// Why a message is refused: a fault of the peer's. The connection is closed after the answer, since where the next
/// message would begin is no longer certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status to answer with.
    pub status: Status,
    /// What is wrong, for the log and the answer; a fixed text, with nothing of the peer's in it.
    pub reason: &'static str,
}

impl Refusal {
    /// The content is longer than `body_bytes_max`.
    pub const CONTENT_TOO_LARGE: Self = Self::new(Status::CONTENT_TOO_LARGE, "content too large");

    /// The trailer section is longer than its limit.
    pub(crate) const TRAILER_TOO_LARGE: Self =
        Self::new(Status::REQUEST_HEADER_FIELDS_TOO_LARGE, "trailer section too large");
    pub(crate) const fn new(status: Status, reason: &'static str) -> Self {
        Self { status, reason }
    }

    pub(crate) const fn bad_request(reason: &'static str) -> Self {
        Self::new(Status::BAD_REQUEST, reason)
    }
}
