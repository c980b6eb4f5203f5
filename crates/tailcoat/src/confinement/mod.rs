//! Confinement: permissions that the server drops after its start, so that an attacker who exploits it gains little.
//! These are root's privileges (`user.rs`), files and connections that the configuration does not need (`boundary.rs`),
//! and system calls without use (`system_calls.rs`). `needs.rs` finds out what a configuration needs.
//!
//! All limits apply to a thread and the threads that it starts, and are permanent. So the first thread applies them
//! while it is the only one. Before that, it starts the threads that run programs (`spawner.rs`), which have the rights
//! of programs, and none of the server's own.

mod boundary;
mod directories;
mod needs;
mod system_calls;
mod user;

use std::fmt::Write;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use landlock::ABI;
use rustix::process::DumpableBehavior;

use self::boundary::{Boundary, Grant, WantedAccess};
pub use self::needs::is_shown_to_programs;
use self::needs::{ConnectionNeeds, Needs};
pub use self::user::{User, as_user, change_user, user_name, wanted_user};
use crate::config::{Config, Confinement, SystemCalls, UpstreamConfig};
use crate::spawner::Spawner;

/// Name of a right, for messages.
const CODE: &str = "loading code (modules, DNS names of upstreams)";

/// Rights left to this process. By default, all.
#[derive(Debug, Default)]
pub struct Confined {
    server: Boundary,
    programs: Boundary,
    /// True if code can be compiled or loaded at run time.
    loads_code: bool,
    /// Threads that run programs, if the configuration has any.
    spawner: Option<Arc<Spawner>>,
    /// True if anything is confined, so that rights matter.
    is_confined: bool,
    /// Kernel's version of Landlock, if it was needed.
    landlock: Option<ABI>,
    /// Restrictions that this version does not support, for messages.
    not_confined: Vec<&'static str>,
    /// Result of the system call filter, if one is configured.
    system_calls: Option<Result<(), String>>,
}

/// Drops the rights that this configuration does not need, for this thread and all that it starts. `sources` are the
/// configuration's own files.
///
/// # Errors
/// There are other threads, which would keep all rights; or a restriction that the kernel supports fails.
pub fn confine(config: &Config, sources: &[PathBuf]) -> io::Result<Confined> {
    let wanted = &config.confinement;
    let mut confined = Confined { is_confined: wanted.takes_anything(), ..Confined::default() };
    if !confined.is_confined {
        return Ok(confined);
    }
    if std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() > 1) {
        return Err(io::Error::other("other threads run already"));
    }
    let needs = Needs::of(config, sources);
    if let Some(grants) = &needs.programs {
        confined.start_spawner(grants, wanted)?;
    }
    let of_server = WantedAccess {
        files: wanted.files.then_some(&needs.files),
        connects: needs.connects || !wanted.connections,
        chooses_ports: true,
        signals_others: true,
    };
    let (boundary, ruleset) = boundary::prepare(of_server)?;
    confined.server = boundary;
    confined.has_confined(of_server, ruleset.restrict()?);
    confined.loads_code = needs.loads_code || wanted.system_calls == SystemCalls::Allowed;
    if wanted.system_calls != SystemCalls::Allowed {
        confined.system_calls = Some(system_calls::confine_server(wanted.system_calls, needs.loads_code));
    }
    Ok(confined)
}

impl Confined {
    /// Starts the threads that run programs. They have different limits from the server's threads; otherwise the kernel
    /// would let programs read the server's memory and send it signals.
    fn start_spawner(&mut self, grants: &[Grant], wanted: &Confinement) -> io::Result<()> {
        // No other process of this user needs the memory, which contains keys.
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        let of_programs = WantedAccess {
            files: wanted.files.then_some(grants),
            connects: true,
            chooses_ports: !wanted.connections,
            signals_others: !wanted.files,
        };
        let (boundary, ruleset) = boundary::prepare(of_programs)?;
        let landlock = Arc::new(OnceLock::new());
        let (calls, found) = (wanted.system_calls, Arc::clone(&landlock));
        self.spawner = Some(Spawner::start_threads(move || {
            user::keep_for_starting_programs()?;
            // All threads find the same version.
            let _ = found.set(ruleset.restrict()?);
            // The main thread reports it if the kernel cannot.
            let _ = system_calls::confine_programs(calls);
            Ok(())
        })?);
        self.programs = boundary;
        self.has_confined(of_programs, landlock.get().copied().flatten());
        Ok(())
    }

    /// Notes restrictions that a kernel with this version of Landlock does not support.
    fn has_confined(&mut self, wanted: WantedAccess<'_>, landlock: Option<ABI>) {
        let Some(version) = landlock else { return };
        self.landlock = Some(version);
        let news = wanted.not_confined(version).into_iter().filter(|what| !self.not_confined.contains(what));
        self.not_confined.extend(news.collect::<Vec<_>>());
    }

    /// Threads that run programs, if there are any.
    pub fn spawner(&self) -> Option<&Arc<Spawner>> {
        self.spawner.as_ref()
    }

    /// Rights that another configuration needs and this process has dropped, for messages; empty if there are none.
    pub fn lacks(&self, config: &Config, sources: &[PathBuf]) -> Vec<String> {
        let mut lacks = Vec::new();
        if !self.is_confined {
            return lacks;
        }
        let needs = Needs::of(config, sources);
        lacks.extend(self.server.lacks(&needs.files, needs.connects));
        match &needs.programs {
            Some(_) if self.spawner.is_none() => lacks.push("programs".to_owned()),
            Some(grants) => lacks.extend(self.programs.lacks(grants, true)),
            None => {}
        }
        if needs.loads_code && !self.loads_code {
            lacks.push(CODE.to_owned());
        }
        lacks.sort();
        lacks.dedup();
        lacks
    }

    /// Rights that connections to an upstream need and this process has dropped, for messages. Its files were granted
    /// with the configuration.
    pub fn lacks_for_upstream(&self, upstream: &UpstreamConfig) -> Vec<String> {
        if !self.is_confined {
            return Vec::new();
        }
        let needs = ConnectionNeeds::of(upstream);
        let mut lacks = self.server.lacks(&needs.files(), needs.connects);
        if needs.looks_up && !self.loads_code {
            lacks.push(CODE.to_owned());
        }
        lacks
    }

    /// True if anything is confined.
    pub fn is_confined(&self) -> bool {
        self.is_confined
    }

    /// Restrictions that could not be applied, for a message.
    pub fn shortcomings(&self) -> Option<String> {
        let mut text = String::new();
        if !self.not_confined.is_empty() {
            let support =
                if self.landlock == Some(ABI::Unsupported) { "has no Landlock" } else { "has an old Landlock" };
            let what = self.not_confined.join(", ");
            // Writing to a string does not fail.
            let _ = write!(text, "confinement is incomplete: this kernel {support}, which leaves unconfined: {what}");
        }
        if let Some(Err(error)) = &self.system_calls {
            let separator = if text.is_empty() { "" } else { "; " };
            let _ = write!(text, "{separator}system calls are not filtered: {error}");
        }
        (!text.is_empty()).then_some(text)
    }
}
