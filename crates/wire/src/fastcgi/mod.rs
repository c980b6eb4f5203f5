//! FastCGI 1.0, the side of the web server: requests as records, and records of an application's answer.
//!
//! A connection has one request at a time, with the id 1. Applications that serve several at once on a connection are
//! hardly to be found (php-fpm and libfcgi answer FCGI_GET_VALUES with FCGI_MPXS_CONNS 0), and as records have no flow
//! control of their own, one client that reads slowly would hold up all others of its connection, or fill memory.

mod record;
mod request;
mod response;
#[cfg(test)]
mod tests;

pub use record::CONTENT_BYTES_MAX;
pub use request::{push_name_value, write_begin, write_parameters, write_stdin_end, write_stdin_header};
pub use response::{Decoded, Ended, MalformedRecord, Piece, ProtocolStatus, ResponseDecoder};
