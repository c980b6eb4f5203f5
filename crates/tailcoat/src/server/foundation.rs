//! What is done before the server starts, while this process has one thread: it becomes its user, starts the launcher, and takes
//! from itself what the configuration does not need.

use std::path::Path;

use super::ServerStartError;
use super::upgrade::ProcessLaunch;
use crate::config::{Config, ConfigOrigin, FileStates};
use crate::confinement::{self, Confined, User};
use crate::connection::{Abilities, Unavailable};
use crate::log::{ServerLog, event};
use crate::worker::Inherited;

/// What a server begins with.
pub struct Foundation {
    pub(super) inherited: Inherited,
    pub(super) launch: ProcessLaunch,
    pub(super) confined: Confined,
    /// What the kernel can do of TLS, if it is to do any.
    pub(super) kernel_tls: Option<Abilities>,
}

impl Foundation {
    /// Lays it for this configuration. What was done is told in the log.
    ///
    /// # Errors
    /// What could not be done. Then the process should end, for it may have done other parts.
    pub fn lay(config: &Config, origin: &ConfigOrigin, log: &ServerLog) -> Result<Self, ServerStartError> {
        // First, so that nothing that is started has them as well.
        let inherited = Inherited::from_environment();
        // As who it is started: root has the kernel load its module. Later this process may connect to nothing, perhaps.
        let kernel_tls = config.server.kernel_tls.is_wanted.then(|| find_kernel_tls(log)).flatten();
        let user = confinement::change_user(config).map_err(ServerStartError::at("cannot switch user"))?;
        // Not before, as root: its descriptor would tell physical addresses to whoever breaks in.
        if config.module_routes().next().is_some() {
            crate::modules::open_page_map();
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
