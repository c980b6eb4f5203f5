//! HTTP/2 (RFC 9113), with HPACK (RFC 7541) and extensible priorities (RFC 9218).

pub mod hpack;
