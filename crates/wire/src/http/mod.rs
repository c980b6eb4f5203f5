//! What all versions of HTTP share (RFC 9110).

mod field_name;
mod fields;
mod method;
mod request_head;
mod status;

pub use field_name::KnownField;
pub use fields::Fields;
pub use method::Method;
pub use request_head::{FieldSpan, Request, RequestHead, Span, Version};
pub use status::Status;
