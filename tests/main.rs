//! Black-box tests of the built binary: one file a feature.

mod access;
mod attacks;
mod body_limits;
mod cache_attacks;
mod command_line;
mod conformance;
mod error_pages;
mod exchange;
mod forward;
mod forward_fallback;
mod forward_streams;
mod lifecycle;
mod limits;
mod listing;
mod proxy_protocol;
mod readme;
mod real_clients;
mod request_limits;
mod response_cache;
mod rules;
mod static_files;
mod support;
mod tls;
mod transparency;
mod upstream_failures;
mod websockets;
