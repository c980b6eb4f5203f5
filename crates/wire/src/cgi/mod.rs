//! CGI/1.1 (RFC 3875), as its own protocol, SCGI and uwsgi carry it: heads of scripts' responses, and a request's variables
//! in each one's form.

mod scgi;
mod script_head;
mod uwsgi;
mod variable_name;

pub use scgi::write_scgi_request;
pub use script_head::{ScriptHead, parse_script_head};
pub use uwsgi::{VariablesTooLong, write_uwsgi_request};
pub use variable_name::push_variable_name;
