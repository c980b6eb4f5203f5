use std::path::PathBuf;

use super::access_log::AccessLog;
use super::model::{Config, Handler};
use super::module::{CompiledDirectory, Module};

/// What of the system the server takes from itself when it has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// Whether it sees only the files that the configuration names (Landlock).
    pub files: bool,
    /// Whether it can connect to other servers only if the configuration has some (Landlock).
    pub connections: bool,
    /// What becomes of system calls that it has no use for (seccomp).
    pub system_calls: SystemCalls,
    /// Further files and directories that it may read.
    pub read: Vec<PathBuf>,
    /// Those that it may change as well.
    pub write: Vec<PathBuf>,
    /// Those whose programs it may run as well.
    pub execute: Vec<PathBuf>,
}

/// What becomes of system calls that the server has no use for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SystemCalls {
    /// They fail (EPERM).
    #[default]
    Refused,
    /// They are done, and the kernel logs them.
    Logged,
    /// They are done.
    Allowed,
}

impl Confinement {
    /// Whether anything is taken.
    pub fn takes_anything(&self) -> bool {
        self.files || self.connections || self.system_calls != SystemCalls::Allowed
    }
}

impl Default for Confinement {
    fn default() -> Self {
        let (read, write, execute) = Default::default();
        Self { files: true, connections: true, system_calls: SystemCalls::Refused, read, write, execute }
    }
}

/// What a configuration needs, as far as several parts of it say so.
impl Config {
    /// Whether programs are started at all: for requests, or to change records in DNS.
    pub fn starts_programs(&self) -> bool {
        self.has_programs() || self.has_automatic_certificates() && self.automatic_certificates.dns_hook.is_some()
    }

    /// Whether there are sites that get their certificates by themselves.
    pub fn has_automatic_certificates(&self) -> bool {
        self.sites.iter().any(|site| site.tls.is_automatic)
    }

    /// The routes' WebAssembly modules.
    pub fn module_routes(&self) -> impl Iterator<Item = &Module> {
        self.sites.iter().flat_map(|site| &site.routes).filter_map(|route| match &route.handler {
            Handler::Module(module) => Some(&**module),
            _ => None,
        })
    }

    /// Whether something is kept in the state directory.
    pub fn keeps_state(&self) -> bool {
        let keeps_code = self.modules.compiled_directory == CompiledDirectory::State;
        self.has_automatic_certificates() || keeps_code && self.module_routes().next().is_some()
    }

    /// Access logs, some of them twice.
    pub fn access_logs(&self) -> impl Iterator<Item = &AccessLog> {
        self.sites.iter().filter_map(|site| site.access_log.as_ref()).chain(&self.access_log)
    }
}
