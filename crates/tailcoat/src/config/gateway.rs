//! What a checked configuration says of scripts and applications that are run by CGI's rules.

use std::path::PathBuf;
use std::time::Duration;

use super::model::{ClientFields, Forward, PathPattern, RootPattern};

/// Scripts or an application, and how they are run.
#[derive(Clone, Debug, PartialEq)]
pub struct Gateway {
    /// What is spoken with whoever runs them.
    pub protocol: GatewayProtocol,
    /// Who that is, if it is a server; limits of requests and answers; whether answers are cached.
    pub forward: Forward,
    /// Which paths are scripts'.
    pub scripts: PathPattern,
    /// Where the scripts are; `None` for an application that is no file.
    pub root: Option<RootPattern>,
    /// Taken from the front of a path before its script is looked for below the root; empty for nothing.
    pub strip_prefix: String,
    /// The front of paths that is SCRIPT_NAME for an application that is no file; the rest is PATH_INFO. Never ends with a
    /// slash.
    pub application: String,
    /// Scripts tried for a directory.
    pub index: Vec<String>,
    /// The script for paths that nothing else has: a path below the root.
    pub fallback: Option<String>,
    /// What the server that runs the scripts calls the root.
    pub server_root: Option<String>,
    /// Further variables, in order; an empty value takes one away.
    pub variables: Vec<(String, String)>,
    /// Whether connections are kept open for further requests.
    pub keeps_connections: bool,
    /// Local redirects of scripts that are followed for a request.
    pub local_redirects_max: u32,
    /// Bytes of standard error that are logged for a request.
    pub error_bytes_max: usize,
    /// How programs are run here.
    pub programs: Programs,
}

/// How requests get to scripts.
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

/// How programs are run.
#[derive(Clone, Debug, PartialEq)]
pub struct Programs {
    /// The program that is run, with the script as its argument; `None` for the script itself.
    pub interpreter: Option<PathBuf>,
    /// Who they run as; `None` for who the server runs as.
    pub user: Option<ProgramUser>,
    /// Programs that run at a time.
    pub processes_max: usize,
    /// Requests that may wait for one to end.
    pub queue_max: usize,
    /// How long they may wait.
    pub queue_timeout: Duration,
    /// How long a program may run.
    pub run_time_max: Duration,
    /// How long a program that has been told to end may take.
    pub end_timeout: Duration,
    /// Bytes of its answer; 0 is no limit.
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

impl Gateway {
    /// Scripts at these paths with the defaults. `target` is who runs them: of [`Forward::upstream`]'s form, or empty for CGI.
    pub fn new(protocol: GatewayProtocol, scripts: PathPattern, target: impl Into<String>) -> Self {
        let forward = Forward {
            client_fields: ClientFields::None,
            upgrades: Vec::new(),
            tells_target_asked: true,
            runs_scripts: true,
            ..Forward::to(target)
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
            fallback: None,
            server_root: None,
            variables: Vec::new(),
            keeps_connections: false,
            local_redirects_max: 10,
            error_bytes_max: 64 << 10,
            programs: Programs::default(),
        }
    }

    /// Whether the scripts are files here.
    pub fn has_files(&self) -> bool {
        matches!(self.protocol, GatewayProtocol::Cgi | GatewayProtocol::FastCgi) && self.root.is_some()
    }

    /// Whether something is to be done with paths that neither scripts nor files have.
    pub fn has_rest(&self) -> bool {
        self.has_files() && (!self.index.is_empty() || self.fallback.is_some())
    }
}

impl GatewayProtocol {
    /// What the option is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cgi => "cgi",
            Self::FastCgi => "fastcgi",
            Self::Scgi => "scgi",
            Self::Uwsgi => "uwsgi",
        }
    }
}

impl Default for Programs {
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
