//! Sans-io protocol engines: bytes and `now` go in, actions and bytes come out.
//!
//! Nothing here knows a socket, a file, a clock, a thread or a runtime.
//!
//! - [`http`]: what all versions of HTTP share (RFC 9110).
//! - [`cgi`]: CGI/1.1 (RFC 3875), SCGI and uwsgi.
//! - [`fastcgi`]: FastCGI 1.0.
//! - [`h1`]: HTTP/1.0 and HTTP/1.1 (RFC 9112).
//! - [`h2`]: HTTP/2 (RFC 9113).
//! - [`proxy_protocol`]: whose connection a proxy passes on.

pub mod cgi;
pub mod fastcgi;
pub mod h1;
pub mod h2;
pub mod http;
pub mod proxy_protocol;
