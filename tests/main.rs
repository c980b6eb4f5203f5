//! Black-box tests of the built binary: one file per feature.

#[cfg(not(all(feature = "acme", feature = "import", feature = "modules", feature = "traces")))]
mod absent_parts;
mod access;
#[cfg(feature = "acme")]
mod acme;
mod attacks;
mod bans;
mod body_limits;
mod bot_clients;
mod bot_instances;
mod bots;
mod buffering;
mod cache_attacks;
mod cgi;
mod client_facts;
mod client_memory;
mod command_line;
mod compression;
mod confinement;
mod conformance;
mod connection_reuse;
mod control_plane;
mod cors;
mod discovery;
mod discovery_engines;
mod discovery_podman;
mod disk_cache;
mod error_pages;
mod everyday;
#[cfg(all(feature = "acme", feature = "import", feature = "modules", feature = "traces"))]
mod examples;
mod exchange;
mod exhaustion;
mod explain;
mod expressions;
mod external_auth;
mod fastcgi;
mod fastcgi_paths;
mod fleet;
mod forward;
mod forward_auth;
mod forward_fallback;
mod forward_http2;
mod forward_log;
mod forward_programs;
mod forward_rules;
mod forward_streams;
mod forward_tls;
mod ftp;
mod ftp_attacks;
mod ftp_limits;
mod ftp_tls;
mod ftp_write;
#[cfg(feature = "gateway")]
mod gateway;
#[cfg(feature = "gateway")]
mod gateway_ingress;
mod grpc;
#[cfg(feature = "valkey")]
mod hostile_store;
mod http2;
mod http2_attacks;
mod http2_judged;
mod http3;
mod http3_attacks;
mod http3_early;
mod http3_load;
#[cfg(feature = "modules")]
mod http_wasm;
#[cfg(feature = "modules")]
mod http_wasm_passing_on;
#[cfg(feature = "import")]
mod import;
mod internal_redirects;
mod kernel_tls;
mod killed;
mod lifecycle;
mod limits;
mod listing;
mod live_changes;
mod live_servers;
#[cfg(all(feature = "acme", feature = "import", feature = "modules", feature = "traces"))]
mod manual;
#[cfg(feature = "modules")]
mod module_compiling;
#[cfg(feature = "modules")]
mod module_hostile_files;
#[cfg(feature = "modules")]
mod module_isolation;
#[cfg(feature = "modules")]
mod module_operation;
#[cfg(feature = "modules")]
mod modules;
mod moving_in;
mod overload;
mod php;
mod place_attacks;
mod pods;
mod proxy_attacks;
mod proxy_protocol;
mod readme;
mod real_clients;
mod rejections;
mod reload;
mod request_limits;
mod response_cache;
mod response_rewrites;
mod retry;
mod rollout;
mod rules;
mod scgi;
#[cfg(feature = "valkey")]
mod shared_cache;
mod shared_port;
mod shares;
mod stalled_uploads;
mod static_files;
mod status;
mod sticky;
mod support;
mod tls;
mod tls_alerts;
#[cfg(feature = "traces")]
mod traces;
mod transparency;
#[cfg(feature = "modules")]
mod under_load;
mod upgrade;
mod upstream_failures;
mod versions;
mod websockets;
