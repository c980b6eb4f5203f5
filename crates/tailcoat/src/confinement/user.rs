//! User of the server: a process started by root switches to another user, and keeps only the privileges that it needs.

use std::ffi::CString;
use std::io;

use nix::unistd::{Gid, Uid, getgrouplist, initgroups, setgroups, setresgid, setresuid};
use rustix::process::geteuid;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, configure_capability_in_ambient_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use super::directories;
use crate::config::{Config, ProgramUser};

/// User if the configuration names none.
const DEFAULT_USER: &str = "tailcoat";

/// Capabilities to switch users, to end processes of other users, and to set their limits.
const TO_CHANGE_USERS: CapabilitySet =
    CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::KILL).union(CapabilitySet::SYS_RESOURCE);

/// User of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Name or number.
    pub name: String,
    /// True if the process was root before.
    pub is_changed: bool,
    /// True if the process stays root because no other user is configured or exists.
    pub is_root_for_want_of_another: bool,
    /// True if the configuration names another user, but the process was not started by root.
    pub is_another_wanted: bool,
}

/// Switches to the configured user if root started this process. In any case keeps only the privileges that the
/// configuration needs; programs started later cannot gain others. With `is_upgrade`, a process that may not switch keeps
/// its user.
///
/// # Errors
/// There is another thread, which would stay root; or the system call fails.
pub fn change_user(config: &Config, is_upgrade: bool) -> io::Result<User> {
    let wanted = wanted_user(config.server.user)?;
    let is_root = geteuid().is_root();
    // The process before has dropped this right, and its user stays.
    let needed = CapabilitySet::SETUID.union(CapabilitySet::SETGID);
    let may_change = !is_upgrade || capabilities(None)?.permitted.contains(needed);
    let target = wanted.filter(|user| is_root && user.user_id != 0 && may_change);
    if let Some(user) = target {
        directories::make(config, user)?;
        become_user(user)?;
    }
    keep_privileges(needed_privileges(config))?;
    Ok(User {
        name: name_of(geteuid().as_raw()),
        is_changed: target.is_some(),
        is_root_for_want_of_another: is_root && wanted.is_none(),
        is_another_wanted: config.server.user.is_some_and(|user| user.user_id != geteuid().as_raw()),
    })
}

/// User for a process started by root: the configured one, or `tailcoat` if it exists.
///
/// # Errors
/// The user database cannot be read.
pub fn wanted_user(configured: Option<ProgramUser>) -> io::Result<Option<ProgramUser>> {
    if configured.is_some() {
        return Ok(configured);
    }
    let user = nix::unistd::User::from_name(DEFAULT_USER)?;
    Ok(user.map(|user| ProgramUser { user_id: user.uid.as_raw(), group_id: user.gid.as_raw() }))
}

/// Runs `work` as another user, on a thread of its own, with only that user's rights.
///
/// # Errors
/// Only root can switch users.
pub fn as_user<T: Send>(user: ProgramUser, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let there = || {
        let (uid, gid) = (rustix::fs::Uid::from_raw(user.user_id), rustix::fs::Gid::from_raw(user.group_id));
        let groups = groups_of(user)?.into_iter().map(|group| rustix::fs::Gid::from_raw(group.as_raw()));
        // Affects this thread only, unlike the function of the C library.
        set_thread_groups(&groups.collect::<Vec<_>>())?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        Ok(work())
    };
    let ended = std::thread::scope(|scope| scope.spawn(there).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Name of a user, or its number.
pub fn user_name(user: ProgramUser) -> String {
    name_of(user.user_id)
}

/// Groups of a user; only its own group if the user has no name.
fn groups_of(user: ProgramUser) -> io::Result<Vec<Gid>> {
    let gid = Gid::from_raw(user.group_id);
    Ok(match c_name_of(user)? {
        Some(name) => getgrouplist(&name, gid)?,
        None => vec![gid],
    })
}

fn c_name_of(user: ProgramUser) -> io::Result<Option<CString>> {
    let known = nix::unistd::User::from_uid(Uid::from_raw(user.user_id))?;
    Ok(known.and_then(|known| CString::new(known.name).ok()))
}

/// Makes programs that this thread starts begin without privileges. The thread keeps those that it needs to start them
/// as other users.
///
/// # Errors
/// Errors of the kernel.
pub(super) fn keep_for_starting_programs() -> io::Result<()> {
    // Old kernels have no ambient capabilities.
    let _ = clear_ambient_capability_set();
    let kept = capabilities(None)?.permitted & TO_CHANGE_USERS;
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() })?;
    Ok(())
}

fn name_of(user_id: u32) -> String {
    let known = nix::unistd::User::from_uid(Uid::from_raw(user_id)).ok().flatten();
    known.map_or_else(|| user_id.to_string(), |user| user.name)
}

fn become_user(user: ProgramUser) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user.user_id), Gid::from_raw(user.group_id));
    match c_name_of(user)? {
        Some(name) => initgroups(&name, gid)?,
        None => setgroups(&[gid])?,
    }
    setresgid(gid, gid, gid)?;
    // The kept ones are chosen below; without this, all would be lost.
    set_keep_capabilities(true)?;
    setresuid(uid, uid, uid)?;
    set_keep_capabilities(false)?;
    Ok(())
}

/// Capabilities for ports below 1024, because a reload may add listeners; and for programs that run as other users.
fn needed_privileges(config: &Config) -> CapabilitySet {
    let mut needed = CapabilitySet::NET_BIND_SERVICE;
    if config.gateways().any(|gateway| gateway.programs.user.is_some()) {
        needed |= TO_CHANGE_USERS;
    }
    needed
}

/// Drops all privileges except these, permanently. A program that replaces this one (upgrade) has them, too.
fn keep_privileges(needed: CapabilitySet) -> io::Result<()> {
    let permitted = capabilities(None)?.permitted;
    let kept = permitted & needed;
    // A process that switches users may have them, but does not use them.
    set_capabilities(None, CapabilitySets { effective: permitted, permitted, inheritable: kept })?;
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if !kept.contains(capability) {
            // Needs a privilege itself, and fails for capabilities that this kernel does not know.
            let _ = remove_capability_from_bounding_set(capability);
        }
    }
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: kept })?;
    // Old kernels have no ambient capabilities.
    let _ = clear_ambient_capability_set();
    for capability in kept.iter() {
        configure_capability_in_ambient_set(capability, true)?;
    }
    set_no_new_privs(true)?;
    Ok(())
}
