use std::path::PathBuf;
use std::time::Duration;

use super::compression::CompressionSettings;
use super::{BodyBytesMax, ClientFields, HostPattern};

/// Settings that all WebAssembly modules share.
#[derive(Clone, Debug, PartialEq)]
pub struct ModulesConfig {
    /// Instances of all modules at a time.
    pub instances_max: u32,
    /// Memory of all instances together, in bytes.
    pub memory_bytes_max: u64,
    /// Threads for modules that compute for long; `None` is one a core that the process may use.
    pub threads: Option<usize>,
    /// Directory of compiled code.
    pub compiled_directory: CompiledDirectory,
    /// Interval at which module files are checked.
    pub check_interval: Duration,
    /// Maximum time that a start waits for modules to compile.
    pub compile_wait: Duration,
}

/// Directory of compiled code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CompiledDirectory {
    /// Below the state directory, if there is one.
    #[default]
    State,
    /// Nowhere: each start compiles.
    Off,
    /// Here.
    At(PathBuf),
}

/// Requests that a WebAssembly module answers.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleConfig {
    /// The component.
    pub file: PathBuf,
    /// Header fields about the client for the module.
    pub client_fields: ClientFields,
    /// Bytes of a request's content.
    pub body_bytes_max: BodyBytesMax,
    /// State of an instance between two requests.
    pub reset: Reset,
    /// Configuration text that an http-wasm module can read.
    pub settings: String,
    /// Compression of responses.
    pub compression: CompressionSettings,
    /// True if its directories may be on a slow disk.
    pub waits_for_disk: bool,
    /// Permissions of the module.
    pub grants: Grants,
    /// Limits of an instance.
    pub limits: ModuleLimits,
}

/// State of an instance between two requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reset {
    /// The next request has a fresh one.
    #[default]
    Fresh,
    /// Restores its memory to the state after start.
    Memory,
    /// Nothing.
    None,
}

impl Reset {
    /// Names that a configuration may have.
    pub const NAMES: [&str; 3] = ["fresh", "memory", "none"];

    /// From one of these names.
    pub fn from_name(name: &str) -> Self {
        match name {
            "memory" => Self::Memory,
            "none" => Self::None,
            _ => Self::Fresh,
        }
    }
}

/// Permissions of a module in addition to requests. None by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grants {
    /// Environment variables.
    pub environment: Vec<(String, String)>,
    /// Directories.
    pub directories: Vec<GrantedDirectory>,
    /// Hosts that it may send requests to.
    pub hosts: Vec<OutgoingHost>,
    /// Gives it a key-value store of its own, in memory.
    pub key_value: bool,
}

/// A directory that a module may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedDirectory {
    /// Name inside the module.
    pub name: String,
    /// Directory on this machine.
    pub directory: PathBuf,
    /// Lets the module change its content.
    pub is_writable: bool,
}

/// Hosts that a module may send requests to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingHost {
    /// By name or address.
    pub host: HostPattern,
    /// At this port; `None` is that of the scheme.
    pub port: Option<u16>,
}

impl OutgoingHost {
    /// Returns `true` if the module may send requests to this host, in lower case, and port, with a scheme of this
    /// default port.
    pub fn allows(&self, host: &str, port: u16, default_port: u16) -> bool {
        let fits = match &self.host {
            HostPattern::Exact(exact) => exact == host,
            HostPattern::Suffix(suffix) => host.len() > suffix.len() && host.ends_with(suffix.as_str()),
            // The reader of the option rejects it: a host of any owner could begin so.
            HostPattern::Prefix(_) => false,
        };
        fits && self.port.unwrap_or(default_port) == port
    }
}

/// Limits of an instance of a module.
#[derive(Clone, Debug, PartialEq)]
pub struct ModuleLimits {
    /// Instances at a time, each of which answers one request.
    pub instances_max: usize,
    /// Instances that each worker keeps for requests to come, if they are reset and not fresh.
    pub idle_instances_max: usize,
    /// Maximum time that a request waits for an instance.
    pub queue_timeout: Duration,
    /// Memory of an instance, in bytes.
    pub memory_bytes_max: usize,
    /// Elements of an instance's tables.
    pub table_elements_max: usize,
    /// Maximum CPU time of a request.
    pub processor_time_max: Duration,
    /// Maximum time to the head of the response.
    pub first_byte_timeout: Duration,
    /// Maximum pause in a body, and maximum run time after the response.
    pub between_bytes_timeout: Duration,
    /// Bytes of a response's content.
    pub response_bytes_max: u64,
    /// Bytes of content of a request, and of a response, that are kept in memory for an http-wasm module.
    pub buffered_bytes_max: usize,
    /// Bytes that it may write to the log for a request.
    pub log_bytes_max: usize,
    /// Things of the host that it may hold at a time: streams, files, sets of fields, requests.
    pub handles_max: usize,
    /// Bytes of its key-value store.
    pub key_value_bytes_max: usize,
}

impl Default for ModulesConfig {
    fn default() -> Self {
        Self {
            instances_max: 1_000,
            memory_bytes_max: 4 << 30,
            threads: None,
            compiled_directory: CompiledDirectory::State,
            check_interval: Duration::from_secs(1),
            compile_wait: Duration::from_secs(1),
        }
    }
}

impl ModuleConfig {
    /// A module in this file, with the defaults.
    pub fn at(file: PathBuf) -> Self {
        Self {
            file,
            client_fields: ClientFields::XForwarded,
            body_bytes_max: BodyBytesMax::Inherited,
            reset: Reset::default(),
            settings: String::new(),
            compression: CompressionSettings::default(),
            waits_for_disk: true,
            grants: Grants::default(),
            limits: ModuleLimits::default(),
        }
    }
}

impl Default for ModuleLimits {
    fn default() -> Self {
        Self {
            instances_max: 1_000,
            idle_instances_max: 16,
            queue_timeout: Duration::from_secs(1),
            memory_bytes_max: 128 << 20,
            table_elements_max: 100_000,
            processor_time_max: Duration::from_secs(5),
            first_byte_timeout: Duration::from_secs(30),
            between_bytes_timeout: Duration::from_secs(30),
            response_bytes_max: 1 << 30,
            buffered_bytes_max: 4 << 20,
            log_bytes_max: 16 << 10,
            handles_max: 1_000,
            key_value_bytes_max: 16 << 20,
        }
    }
}
