//! Steps before the server starts, while this process has one thread. It switches to its user, starts the launcher, and
//! drops the permissions that the configuration does not need.

use std::path::Path;

use super::ServerStartError;
use super::handover;
use super::upgrade::ProcessLaunch;
use crate::config::{Config, ConfigOrigin, FileStates};
use crate::confinement::{self, Confined, User};
use crate::connection::{Abilities, Unavailable};
use crate::log::{ServerLog, event};
use crate::worker::Inherited;

/// Inputs that a server starts with.
pub(crate) struct Foundation {
    pub(super) inherited: Inherited,
    pub(super) launch: ProcessLaunch,
    pub(super) confined: Confined,
    /// Kernel TLS features, if the configuration enables kernel TLS.
    pub(super) kernel_tls: Option<Abilities>,
}

impl Foundation {
    /// Prepares the process for this configuration and logs each step.
    ///
    /// # Errors
    /// The step that failed. The process should end then, because earlier steps may have taken effect.
    pub(crate) fn lay(config: &Config, origin: &ConfigOrigin, log: &ServerLog) -> Result<Self, ServerStartError> {
        // Comes first, so that no program started later inherits these descriptors.
        let inherited = Inherited::from_environment();
        // Runs as the user that started the process: only root can make the kernel load its module. A confined process
        // may not connect at all.
        let kernel_tls = config.server.kernel_tls.is_wanted.then(|| find_kernel_tls(log)).flatten();
        let user = confinement::change_user(config, handover::is_expected())
            .map_err(ServerStartError::at("cannot switch user"))?;
        // Comes after the switch of users: opened as root, the descriptor would reveal physical addresses to an
        // attacker inside.
        if config.module_routes().next().is_some() {
            // Without it, modules only cost more.
            let _ = crate::modules::open_page_map();
        }
        let launch =
            ProcessLaunch::of_this_process().map_err(ServerStartError::at("cannot find the path of this program"))?;
        let sources = match origin {
            ConfigOrigin::File(path, _) => FileStates::of(path).paths().map(Path::to_owned).collect(),
            ConfigOrigin::CommandLine => Vec::new(),
        };
        let launch = match config.confinement.takes_anything() {
            true => launch.by_launcher(origin).map_err(ServerStartError::at("cannot start the launcher process"))?,
            false => launch,
        };
        let confined =
            confinement::confine(config, &sources).map_err(ServerStartError::at("cannot confine the process"))?;
        tell(&user, &confined, log);
        Ok(Self { inherited, launch, confined, kernel_tls })
    }
}

fn find_kernel_tls(log: &ServerLog) -> Option<Abilities> {
    Abilities::find().inspect_err(|unavailable| log.warn(unavailable, Unavailable::HELP)).ok()
}

fn tell(user: &User, confined: &Confined, log: &ServerLog) {
    if user.is_changed {
        log.info(event("user switched", &[("user", &user.name)]));
    }
    if user.is_root_for_want_of_another {
        log.warn(
            "kept running as root, without root's capabilities: there is no user `tailcoat`",
            "create it (`useradd --system tailcoat`) or set `user` in `server`",
        );
    }
    if user.is_another_wanted {
        log.warn(
            event("user not switched: only root can switch users", &[("user", &user.name)]),
            "start the server as root or as the user that `user` names",
        );
    }
    if let Some(shortcomings) = confined.shortcomings() {
        log.warn(shortcomings, "update the kernel, or turn these parts off in `confinement`");
    }
}
