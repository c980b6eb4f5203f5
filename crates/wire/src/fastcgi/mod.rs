//! FastCGI 1.0, the web server's side: encodes requests as records and decodes the records of a response.
//!
//! A connection carries one request at a time, with the id 1. Few applications can serve several: php-fpm and libfcgi
//! answer FCGI_GET_VALUES with FCGI_MPXS_CONNS 0. Records have no flow control either, so one slow client would block
//! all other requests of its connection, or fill memory.

mod record;
mod request;
mod response;
#[cfg(test)]
mod tests;

pub use record::CONTENT_BYTES_MAX;
pub use request::{write_begin, write_parameters, write_stdin_end, write_stdin_header};
pub use response::{DecodedFastCgi, FastCgiEnd, FastCgiPiece, MalformedRecord, ProtocolStatus, ResponseDecoder};
