//! Buffering of messages between clients and upstreams.

use std::path::PathBuf;

use super::upstream::UpstreamConfig;
use super::{BodyBytesMax, Config, ForwardConfig, HandlerConfig};

/// Bytes in the file of a message by default.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Buffering of messages in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffering {
    /// On where the upstream works on few requests at once: it runs scripts, or has a connection limit.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// Buffering of a handler's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferingConfig {
    /// True if requests are received whole before they are forwarded.
    pub requests: Buffering,
    /// True if responses are read ahead of slow clients.
    pub responses: Buffering,
    /// Bytes of a message in memory.
    pub memory_bytes_max: usize,
    /// Bytes of a message in a file; `None` is 1 GiB, or the longest content that a request may have.
    pub file_bytes_max: Option<u64>,
}

/// Limits of all buffers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferLimits {
    /// Bytes in memory; `None` is 128 MiB, but no more than an eighth of the memory there is.
    pub memory_bytes_max: Option<u64>,
    /// Bytes in files; `None` is half of what the file system has free at the start.
    pub file_bytes_max: Option<u64>,
    /// Bytes in files of one client; `None` is a quarter of `file_bytes_max`.
    pub file_bytes_per_client_max: Option<u64>,
}

impl Buffering {
    /// Value of the word in the configuration.
    pub(crate) fn from_name(name: &str) -> Self {
        match name {
            "on" => Self::On,
            "off" => Self::Off,
            _ => Self::Auto,
        }
    }

    /// True if messages are buffered. `is_limited`: the upstream works on few requests at a time.
    pub fn is_on(self, is_limited: bool) -> bool {
        self == Self::On || self == Self::Auto && is_limited
    }
}

impl Default for BufferingConfig {
    fn default() -> Self {
        Self { requests: Buffering::Auto, responses: Buffering::Auto, memory_bytes_max: 64 << 10, file_bytes_max: None }
    }
}

impl ForwardConfig {
    /// Bytes of a message that are buffered in a file at most.
    pub fn buffer_file_bytes_max(&self) -> u64 {
        let of_request = match self.body_bytes_max {
            BodyBytesMax::Bytes(bytes) => bytes,
            BodyBytesMax::Inherited | BodyBytesMax::Auto => 0,
        };
        self.buffers.file_bytes_max.unwrap_or(of_request.max(FILE_BYTES_MAX))
    }

    /// True if something is written to files. `upstream` is who answers, unless programs do.
    fn may_use_files(&self, upstream: Option<&UpstreamConfig>) -> bool {
        let is_limited = self.runs_scripts || upstream.is_some_and(UpstreamConfig::limits_connections);
        let BufferingConfig { requests, responses, .. } = *self.buffers;
        (requests.is_on(is_limited) || responses.is_on(is_limited)) && self.buffer_file_bytes_max() > 0
    }
}

impl UpstreamConfig {
    /// Connections in use at once to each server, where no option says how many.
    pub const CONNECTIONS_MAX: u32 = 10_000;

    /// True if the configuration says how many connections its servers may have: few, most likely.
    pub fn limits_connections(&self) -> bool {
        (1..Self::CONNECTIONS_MAX).contains(&self.connections_max)
    }
}

impl Config {
    /// Directory for buffer files, if there can be any.
    pub fn used_buffer_directory(&self) -> Option<PathBuf> {
        let uses_files = |forward: &ForwardConfig| {
            let mut upstreams = self.upstreams.iter();
            forward
                .may_use_files(upstreams.find(|upstream| upstream.name == forward.upstream).map(|upstream| &**upstream))
        };
        let mut handlers = self.sites.iter().flat_map(|site| &site.routes).map(|route| &route.handler);
        let is_used = handlers.any(|handler| match handler {
            HandlerConfig::Forward(forward) => uses_files(forward),
            HandlerConfig::Gateway(gateway, _) => uses_files(&gateway.forward),
            _ => false,
        });
        // A controller may send routes that use files later.
        let is_used = is_used || self.server.control_plane.is_some();
        is_used.then(|| self.buffer_directory())
    }

    /// Directory for buffer files: from the configuration, otherwise from the environment. Not `/tmp`, which is often
    /// in memory.
    pub fn buffer_directory(&self) -> PathBuf {
        let of_environment = || std::env::var_os("TMPDIR").filter(|path| !path.is_empty()).map(PathBuf::from);
        self.server.buffer_directory.clone().or_else(of_environment).unwrap_or_else(|| "/var/tmp".into())
    }
}
