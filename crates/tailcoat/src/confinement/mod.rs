//! What the server takes from itself when it has started, so that whoever finds a hole in it has little: root's privileges
//! (`user.rs`), files and connections that the configuration does not need (`boundary.rs`), system calls that it has no use
//! for (`system_calls.rs`). What a configuration needs is in `needs.rs`.
//!
//! All of it holds for a thread and those that it starts, and can't be taken back. So the first thread does it, while there is
//! no other. Before, it starts the threads that start programs (`spawner.rs`), which have what programs need, and nothing of
//! what is the server's own.

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

use self::boundary::{Boundary, Grant, Wanted};
use self::needs::Needs;
pub use self::needs::is_shown_to_programs;
pub use self::user::{User, as_user, change_user, user_name, wanted_user};
use crate::config::{Config, Confinement, SystemCalls};
use crate::spawner::Spawner;

/// What this process has left. By default, all that it had.
#[derive(Debug, Default)]
pub struct Confined {
    server: Boundary,
    programs: Boundary,
    /// Whether code can be run that is made or loaded while the server runs.
    loads_code: bool,
    /// Threads that start programs, if the configuration has some.
    spawner: Option<Arc<Spawner>>,
    /// Whether anything is confined, so that it matters what there is.
    is_confined: bool,
    /// Which version of Landlock the kernel has, if it was wanted.
    landlock: Option<ABI>,
    /// What that one can't confine, for a person.
    not_confined: Vec<&'static str>,
    /// Whether system calls are confined, or why they are not, if that was wanted.
    system_calls: Option<Result<(), String>>,
}

/// Takes from this thread, and all that it starts from now on, what this configuration does not need. `sources` are the
/// configuration's own files.
///
/// # Errors
/// There are other threads, which would keep everything; or what the kernel has can't be had.
pub fn confine(config: &Config, sources: &[PathBuf]) -> io::Result<Confined> {
    let wanted = &config.confinement;
    let mut confined = Confined { is_confined: wanted.takes_anything(), ..Confined::default() };
    if !confined.is_confined {
        return Ok(confined);
    }
    if std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() > 1) {
        return Err(io::Error::other("there are other threads already"));
    }
    let needs = Needs::of(config, sources);
    if let Some(grants) = &needs.programs {
        confined.start_spawner(grants, wanted)?;
    }
    let of_server = Wanted {
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
    /// Starts the threads that start programs. Those have the same bounds as these threads, so that the kernel takes them for
    /// each other's equals, and would let programs read the server's memory and send it signals by these.
    fn start_spawner(&mut self, grants: &[Grant], wanted: &Confinement) -> io::Result<()> {
        // Nor has anybody else of the same user any business with a memory that keys are in.
        rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        let of_programs = Wanted {
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
            // All of them find the same.
            let _ = found.set(ruleset.restrict()?);
            // Where the kernel can't, the main thread tells.
            let _ = system_calls::confine_programs(calls);
            Ok(())
        })?);
        self.programs = boundary;
        self.has_confined(of_programs, landlock.get().copied().flatten());
        Ok(())
    }

    /// Notes what a kernel with this version of Landlock has not done of what was wanted.
    fn has_confined(&mut self, wanted: Wanted<'_>, landlock: Option<ABI>) {
        let Some(version) = landlock else { return };
        self.landlock = Some(version);
        let news = wanted.not_confined(version).into_iter().filter(|what| !self.not_confined.contains(what));
        self.not_confined.extend(news.collect::<Vec<_>>());
    }

    /// The threads that start programs, if there are to be some.
    pub fn spawner(&self) -> Option<&Arc<Spawner>> {
        self.spawner.as_ref()
    }

    /// What another configuration needs that this process has no more, for a person; empty if there is nothing.
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
            lacks.push("code that is loaded (modules, names of hosts)".to_owned());
        }
        lacks.sort();
        lacks.dedup();
        lacks
    }

    /// Whether anything is confined.
    pub fn is_confined(&self) -> bool {
        self.is_confined
    }

    /// What could not be done here that was wanted, for a person.
    pub fn shortcomings(&self) -> Option<String> {
        let mut text = String::new();
        if !self.not_confined.is_empty() {
            let how_much = if self.landlock == Some(ABI::Unsupported) { "no" } else { "an older" };
            let what = self.not_confined.join(", ");
            // Writing to a string can't fail.
            let _ = write!(text, "this kernel has {how_much} Landlock, and does not confine: {what}");
        }
        if let Some(Err(error)) = &self.system_calls {
            let separator = if text.is_empty() { "" } else { "; " };
            let _ = write!(text, "{separator}system calls are not confined: {error}");
        }
        (!text.is_empty()).then_some(text)
    }
}
