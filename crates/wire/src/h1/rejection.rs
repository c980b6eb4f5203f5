use crate::http::Status;

/// Reason to reject a malformed message of the peer. The connection must close after the error response, because the
/// start of the next message is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRejection {
    /// Status of the error response.
    pub status: Status,
    /// Description for the log and the error response. The text is fixed and contains no input of the peer.
    pub reason: &'static str,
}

impl MessageRejection {
    /// The content is longer than `body_bytes_max`.
    pub const CONTENT_TOO_LARGE: Self = Self::new(Status::CONTENT_TOO_LARGE, "content too large");

    /// The request arrived in early data, and must not be repeated (RFC 8470, section 5.2).
    pub const TOO_EARLY: Self = Self::new(Status::TOO_EARLY, "unsafe method in early data");

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
