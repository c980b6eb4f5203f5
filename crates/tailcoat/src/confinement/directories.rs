//! Directories that only root can create, for the server's user.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::unistd::{Gid, Uid, fchown};
use rustix::fs::{Mode, OFlags};

use crate::config::{AccessLogTarget, Config, Listen, ProgramUser, SYSTEM_STATE_DIRECTORY, is_roots_alone};

/// Mode for sockets: their own permissions decide who may connect.
const SOCKETS_MODE: u32 = 0o755;
/// Mode for logs: readable for the group.
const LOGS_MODE: u32 = 0o750;
/// Mode for state, which includes keys.
const STATE_MODE: u32 = 0o700;

/// Creates the directories of the configuration's logs and sockets and of the state, if they are missing, and gives
/// them to the user. Existing ones are left alone; otherwise a link in their place could give away its target.
///
/// # Errors
/// A directory cannot be created.
pub(super) fn make(config: &Config, user: ProgramUser) -> io::Result<()> {
    for (path, mode) in wanted(config) {
        make_one(&path, mode, user)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot make {}: {error}", path.display())))?;
    }
    Ok(())
}

fn wanted(config: &Config) -> Vec<(PathBuf, u32)> {
    let mut wanted = Vec::new();
    let mut parent = |path: &Path, mode: u32| wanted.extend(path.parent().map(|parent| (parent.to_owned(), mode)));
    config.server.control_socket.iter().for_each(|path| parent(path, SOCKETS_MODE));
    for site in &config.sites {
        for listen in &site.listen {
            if let Listen::Unix(path, _) = listen {
                parent(path, SOCKETS_MODE);
            }
        }
    }
    for log in config.access_logs() {
        if let AccessLogTarget::File(path) = &log.target {
            parent(path, LOGS_MODE);
        }
    }
    if std::env::var_os("STATE_DIRECTORY").is_none() && config.keeps_state() {
        wanted.push((SYSTEM_STATE_DIRECTORY.into(), STATE_MODE));
    }
    wanted
}

/// Creates one directory, if its parent exists and only root can write to it, so that no other user can replace it.
fn make_one(path: &Path, mode: u32, user: ProgramUser) -> io::Result<()> {
    if path.symlink_metadata().is_ok() || !path.parent().is_some_and(is_roots_alone) {
        return Ok(());
    }
    DirBuilder::new().mode(mode).create(path)?;
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode))?;
    fchown(&directory, Some(Uid::from_raw(user.user_id)), Some(Gid::from_raw(user.group_id)))?;
    Ok(())
}
