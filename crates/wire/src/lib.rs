//! Sans-io protocol engines: bytes and `now` go in, actions and bytes come out.
//!
//! This crate uses no socket, file, clock, thread or runtime.
//!
//! - [`http`]: the common part of all HTTP versions (RFC 9110).
//! - [`cgi`]: CGI/1.1 (RFC 3875), SCGI and uwsgi.
//! - [`fastcgi`]: FastCGI 1.0.
//! - [`ftp`]: FTP (RFC 959), server side.
//! - [`h1`]: HTTP/1.0 and HTTP/1.1 (RFC 9112).
//! - [`h2`]: HTTP/2 (RFC 9113).
//! - [`h3`]: HTTP/3 (RFC 9114).
//! - [`proxy_protocol`]: the PROXY protocol, which passes on a client's address.
//! - [`qpack`]: QPACK (RFC 9204), the compression of HTTP/3.

pub mod cgi;
pub mod fastcgi;
mod field_section;
pub mod ftp;
pub mod h1;
pub mod h2;
pub mod h3;
pub mod http;
pub mod proxy_protocol;
pub mod qpack;

pub use field_section::priority::Priority;
pub use field_section::request_head::IncomingRequest;
