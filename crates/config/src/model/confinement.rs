use std::path::PathBuf;

use super::access_log::AccessLog;
use super::module::{CompiledDirectory, ModuleConfig};
use super::{Config, HandlerConfig, SharedState};

/// Restrictions that the server applies to itself after it has started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// Restricts files to those that the configuration names (Landlock).
    pub files: bool,
    /// Allows TCP connections only if the configuration needs some (Landlock).
    pub connections: bool,
    /// Handling of unneeded system calls (seccomp).
    pub system_calls: SystemCalls,
    /// Further files and directories that it may read.
    pub read: Vec<PathBuf>,
    /// Files and directories that the server may also change.
    pub write: Vec<PathBuf>,
    /// Files and directories whose programs may also run.
    pub execute: Vec<PathBuf>,
}

/// Handling of system calls that the server does not need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SystemCalls {
    /// Fail with EPERM.
    #[default]
    Rejected,
    /// Succeed, and the kernel logs them.
    Logged,
    /// Succeed.
    Allowed,
}

impl Confinement {
    /// Returns `true` if there is any restriction.
    pub fn takes_anything(&self) -> bool {
        self.files || self.connections || self.system_calls != SystemCalls::Allowed
    }
}

impl Default for Confinement {
    fn default() -> Self {
        let (read, write, execute) = Default::default();
        Self { files: true, connections: true, system_calls: SystemCalls::Rejected, read, write, execute }
    }
}

/// Needs of a configuration that several of its parts decide.
impl Config {
    /// Returns `true` if programs run: for requests, or for DNS records.
    pub fn starts_programs(&self) -> bool {
        self.has_programs() || self.has_automatic_certificates() && self.automatic_certificates.dns_hook.is_some()
    }

    /// Returns `true` if there are sites with automatic certificates.
    pub fn has_automatic_certificates(&self) -> bool {
        self.sites.iter().any(|site| site.tls.is_automatic)
    }

    /// The routes' WebAssembly modules.
    pub fn module_routes(&self) -> impl Iterator<Item = &ModuleConfig> {
        self.sites.iter().flat_map(|site| &site.routes).filter_map(|route| match &route.handler {
            HandlerConfig::Module(module) => Some(&**module),
            _ => None,
        })
    }

    /// Returns `true` if the state directory is used.
    pub fn keeps_state(&self) -> bool {
        let keeps_code = self.modules.compiled_directory == CompiledDirectory::State;
        let discovers = self.upstreams.iter().any(|upstream| upstream.discovery.is_some());
        let rolls_out = self.store.as_ref().is_some_and(|store| store.has(SharedState::Rollouts));
        self.has_automatic_certificates()
            || discovers
            || rolls_out
            || keeps_code && self.module_routes().next().is_some()
    }

    /// Access logs, some of them twice.
    pub fn access_logs(&self) -> impl Iterator<Item = &AccessLog> {
        self.sites.iter().filter_map(|site| site.access_log.as_ref()).chain(&self.access_log)
    }
}
