//! CGI/1.1 (RFC 3875) over three transports: CGI itself, SCGI and uwsgi. Parses the heads of scripts' responses and
//! encodes the variables of a request.

mod scgi;
mod script_head;
mod uwsgi;
mod variable_name;

pub use scgi::write_scgi_request;
pub use script_head::{ScriptHead, parse_script_head};
pub use uwsgi::{VariablesTooLong, write_uwsgi_request};
pub use variable_name::push_variable_name;
