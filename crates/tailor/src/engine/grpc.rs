//! Responses of unary gRPC calls over HTTP/2: one message with a prefix, and the status in the trailers.

use wire::http::Fields;

use super::failure::{FailureClass, FailureReason};

/// Bytes before a message: a flag for compression, and the length.
const PREFIX_BYTES: usize = 5;

/// State of a response.
#[derive(Debug, Default)]
pub(crate) struct GrpcResponse {
    prefix: [u8; PREFIX_BYTES],
    prefix_bytes: usize,
    /// Bytes of the message that have not arrived.
    missing_bytes: u32,
    malformed: Option<&'static str>,
    /// `grpc-status`, once it has arrived.
    status: Option<u16>,
}

impl GrpcResponse {
    /// Handles content; passes on the bytes of the message.
    pub(crate) fn on_content(&mut self, mut content: &[u8], mut on_message: impl FnMut(&[u8])) {
        while !content.is_empty() && self.malformed.is_none() {
            if self.prefix_bytes < PREFIX_BYTES {
                let length = content.len().min(PREFIX_BYTES - self.prefix_bytes);
                self.prefix[self.prefix_bytes..][..length].copy_from_slice(&content[..length]);
                self.prefix_bytes += length;
                content = &content[length..];
                if self.prefix_bytes == PREFIX_BYTES {
                    let [flag, length @ ..] = self.prefix;
                    self.missing_bytes = u32::from_be_bytes(length);
                    self.malformed = (flag != 0).then_some("a compressed message, though none was accepted");
                }
                continue;
            }
            if self.missing_bytes == 0 {
                self.malformed = Some("more than one message in a unary response");
                return;
            }
            let length = content.len().min(self.missing_bytes as usize);
            on_message(&content[..length]);
            self.missing_bytes -= length as u32;
            content = &content[length..];
        }
    }

    /// Handles a head or trailers. A response without a message has its status in the head.
    pub(crate) fn on_fields(&mut self, fields: &Fields) {
        if let Some(status) = fields.get("grpc-status") {
            let number = std::str::from_utf8(status).ok().and_then(|text| text.parse().ok());
            // An unknown status counts as UNKNOWN.
            self.status = Some(number.unwrap_or(2));
        }
    }

    /// Verdict on the complete response.
    pub(crate) fn finish(&self) -> Option<(FailureClass, FailureReason)> {
        let malformed = |text| Some((FailureClass::Malformed, FailureReason::Text(text)));
        match (self.malformed, self.status) {
            (Some(reason), _) => malformed(reason),
            (None, None) => malformed("a gRPC response without grpc-status"),
            (None, Some(status @ 1..)) => Some((FailureClass::Status, FailureReason::GrpcStatus(status))),
            (None, Some(0)) => match (self.prefix_bytes, self.missing_bytes) {
                (PREFIX_BYTES, 0) => None,
                _ => malformed("a gRPC message without its end"),
            },
        }
    }
}

/// Request of a unary call: the message with its prefix.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let mut out = vec![0];
    // Messages come from the command line or from a file that fits into memory; 4 GiB do not fit into a call.
    out.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(message);
    out
}

/// Name of a status.
pub(crate) fn status_name(status: u16) -> &'static str {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    NAMES.get(usize::from(status)).copied().unwrap_or("not defined")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses() {
        for (content, status, expect) in [
            (&b"\0\0\0\0\x02ab"[..], Some("0"), Ok(&b"ab"[..])),
            (b"\0\0\0\0\0", Some("0"), Ok(b"")),
            (b"", Some("5"), Err("grpc-status 5 (NOT_FOUND)")),
            (b"\0\0\0\0\x02ab", Some("14"), Err("grpc-status 14 (UNAVAILABLE)")),
            (b"\0\0\0\0\x02ab", Some("x"), Err("grpc-status 2 (UNKNOWN)")),
            (b"\0\0\0\0\x02ab", Some("99"), Err("grpc-status 99 (not defined)")),
            (b"\0\0\0\0\x02ab", None, Err("a gRPC response without grpc-status")),
            (b"\0\0\0\0\x03ab", Some("0"), Err("a gRPC message without its end")),
            (b"", Some("0"), Err("a gRPC message without its end")),
            (b"\x01\0\0\0\x02ab", Some("0"), Err("a compressed message, though none was accepted")),
            (b"\0\0\0\0\x01ab", Some("0"), Err("more than one message in a unary response")),
        ] {
            for step in [1, 3, 100] {
                let (mut response, mut message) = (GrpcResponse::default(), Vec::new());
                for piece in content.chunks(step) {
                    response.on_content(piece, |bytes| message.extend_from_slice(bytes));
                }
                let mut fields = Fields::new();
                if let Some(status) = status {
                    fields.push("grpc-status", status);
                }
                response.on_fields(&fields);
                match (response.finish(), expect) {
                    (None, Ok(expect)) => assert_eq!(message, expect),
                    (Some((_, reason)), Err(expect)) => assert_eq!(reason.to_string(), expect, "{content:?}"),
                    (verdict, expect) => panic!("{content:?}: {verdict:?} instead of {expect:?}"),
                }
            }
        }
    }

    #[test]
    fn requests() {
        assert_eq!(framed(b"ab"), b"\0\0\0\0\x02ab");
    }
}
