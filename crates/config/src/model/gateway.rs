//! Scripts and applications that run by the rules of CGI: the model.

use std::path::PathBuf;
use std::time::Duration;

use super::{ClientFields, ForwardConfig, PathPattern, RootPattern};

/// Scripts or an application, and how they are run.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayConfig {
    /// Protocol to the program or server.
    pub protocol: GatewayProtocol,
    /// Upstream, if a server runs the scripts; limits of requests and responses; caching.
    pub forward: ForwardConfig,
    /// Paths of scripts.
    pub scripts: PathPattern,
    /// Directory of the scripts; `None` for an application without files.
    pub root: Option<RootPattern>,
    /// Taken from the front of a path before its script is looked for below the root; empty for nothing.
    pub strip_prefix: String,
    /// The front of paths that is SCRIPT_NAME for an application that is no file; the rest is PATH_INFO. Never ends with a
    /// slash.
    pub application: String,
    /// Scripts tried for a directory.
    pub index: Vec<String>,
    /// A path may continue after its script's name; the rest is PATH_INFO.
    pub has_path_info: bool,
    /// The script for paths that nothing else has: a path below the root.
    pub fallback: Option<String>,
    /// Path of the root as the FastCGI server sees it.
    pub server_root: Option<String>,
    /// Further variables, in order; an empty value takes one away.
    pub variables: Vec<(String, String)>,
    /// Keeps connections open for further requests.
    pub keeps_connections: bool,
    /// Local redirects of scripts that are followed for a request.
    pub local_redirects_max: u32,
    /// Bytes of standard error that are logged for a request.
    pub error_bytes_max: usize,
    /// Processes of CGI programs.
    pub programs: ProgramsConfig,
}

/// Protocol between server and scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayProtocol {
    /// A program is started for each.
    Cgi,
    /// By FastCGI.
    FastCgi,
    /// By SCGI.
    Scgi,
    /// By the uwsgi protocol.
    Uwsgi,
}

/// Processes of CGI programs.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramsConfig {
    /// The program that is run, with the script as its argument; `None` for the script itself.
    pub interpreter: Option<PathBuf>,
    /// User of the programs; `None` means the server's own.
    pub user: Option<ProgramUser>,
    /// Programs that run at a time.
    pub processes_max: usize,
    /// Requests that may wait for one to end.
    pub queue_max: usize,
    /// Maximum time in the queue.
    pub queue_timeout: Duration,
    /// Maximum run time of a program.
    pub run_time_max: Duration,
    /// Time between SIGTERM and SIGKILL.
    pub end_timeout: Duration,
    /// Maximum size of the output in bytes; 0 is no limit.
    pub output_bytes_max: u64,
}

/// A user and a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramUser {
    /// Number of the user.
    pub user_id: u32,
    /// Number of the group.
    pub group_id: u32,
}

impl GatewayConfig {
    /// Scripts at these paths with the defaults. `target` is who runs them: of [`ForwardConfig::upstream`]'s form, or empty for CGI.
    pub fn new(protocol: GatewayProtocol, scripts: PathPattern, target: impl Into<String>) -> Self {
        let forward = ForwardConfig {
            client_fields: ClientFields::None,
            upgrades: Vec::new(),
            tells_target_asked: true,
            runs_scripts: true,
            ..ForwardConfig::to(target)
        };
        let index = match protocol {
            GatewayProtocol::FastCgi => vec!["index.php".to_owned()],
            _ => Vec::new(),
        };
        Self {
            protocol,
            forward,
            scripts,
            root: None,
            strip_prefix: String::new(),
            application: String::new(),
            index,
            has_path_info: true,
            fallback: None,
            server_root: None,
            variables: Vec::new(),
            keeps_connections: false,
            local_redirects_max: 10,
            error_bytes_max: 64 << 10,
            programs: ProgramsConfig::default(),
        }
    }

    /// Returns `true` if the scripts are files on this machine.
    pub fn has_files(&self) -> bool {
        matches!(self.protocol, GatewayProtocol::Cgi | GatewayProtocol::FastCgi) && self.root.is_some()
    }

    /// Returns `true` if the gateway also handles paths without script and file.
    pub fn has_rest(&self) -> bool {
        self.has_files() && (!self.index.is_empty() || self.fallback.is_some())
    }
}

impl GatewayProtocol {
    /// Name of the option.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cgi => "cgi",
            Self::FastCgi => "fastcgi",
            Self::Scgi => "scgi",
            Self::Uwsgi => "uwsgi",
        }
    }
}

impl Default for ProgramsConfig {
    fn default() -> Self {
        Self {
            interpreter: None,
            user: None,
            processes_max: 64,
            queue_max: 1_000,
            queue_timeout: Duration::from_secs(10),
            run_time_max: Duration::from_secs(3600),
            end_timeout: Duration::from_secs(5),
            output_bytes_max: 0,
        }
    }
}
