//! HTTP/1.0 and HTTP/1.1 (RFC 9112).

mod encode;

pub use encode::{DATE_BYTES, PreparedHead, write_head};
