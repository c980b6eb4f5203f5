//! The access log and the server's own log.
