//! HTTP/1.0 and HTTP/1.1 (RFC 9112).

mod body;
mod encode;
mod framing;
mod limits;
mod rejection;
mod request_encode;
mod request_head;
mod response_head;
mod server;

pub use body::{BodyDecoder, BodyLimits, ChunkedDecoder, DecodedBody};
pub use encode::{
    CHUNK_SIZE_LINE_BYTES_MAX, DATE_BYTES, PreparedHead, write_chunk_size_line, write_fields, write_head,
    write_status_line,
};
pub(crate) use framing::expects_continue;
pub use framing::{BodyFraming, Framing, parse_content_length, request_framing};
pub use limits::HeadLimits;
pub use rejection::MessageRejection;
pub use request_encode::write_request_head;
pub use request_head::parse_request_head;
pub(crate) use request_head::{is_token_byte, parse_field_line};
pub(crate) use response_head::parse_status_line;
pub use response_head::{MalformedResponse, ResponseField, ResponseFraming, ResponseHead, parse_response_head};
pub use server::{H1Event, H1IncomingRequest, H1ServerConnection, InputLimits};
