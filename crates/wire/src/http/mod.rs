//! Common part of all HTTP versions (RFC 9110).

pub mod caching;
pub mod conditional;
pub mod date;
pub mod forwarding;
pub mod negotiation;
pub mod path;
pub mod range;
pub mod readings;
pub mod trace_context;

mod cookies;
mod decimal;
mod field_name;
mod fields;
mod host;
mod html;
mod list;
mod method;
mod request_head;
pub(crate) mod scan;
mod status;
mod target;

pub use cookies::{cookie, cookie_may_have_name, cookies, query_may_have};
pub use decimal::push_decimal;
pub use field_name::KnownField;
pub use fields::Fields;
pub use host::{HOST_BYTES_MAX, Host, InvalidHost};
pub use html::escape_html;
pub use method::Method;
pub use negotiation::ContentCoding;
pub use request_head::{FieldSpan, Request, RequestHead, Span, Version};
pub use status::Status;
pub use target::{InvalidTarget, RequestTarget, TargetForm};
