//! Threads that start programs.
//!
//! Whoever starts a program stands still until it runs: half a millisecond and more that no worker has. It also passes on
//! its core and its priority, which are the main thread's here, and not a pinned worker's. Without `user`, the standard library starts programs
//! by posix_spawn, which copies nothing of the server's memory; with it, by fork.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use tokio::sync::oneshot;
use wire::http::Fields;

use crate::config;

/// Threads that start programs. Starting is the kernel's work, and more of them would take processors from the programs.
const THREADS_MAX: usize = 4;

/// Descriptors that a program may have unless it asks for more: what programs expect that use select, or close all there
/// could be.
const DESCRIPTORS_SOFT_MAX: u64 = 1024;

/// Starts programs, one after the other on each of its threads.
#[derive(Debug)]
pub struct Spawner {
    jobs: Sender<Job>,
}

/// What is to be started.
pub(super) struct Order {
    command: Command,
}

struct Job {
    order: Order,
    reply: oneshot::Sender<io::Result<Started>>,
}

/// A program that has been started, until somebody takes care of it; dropped before, it is killed.
pub(super) struct Started(Option<Child>);

impl Started {
    /// The program, for somebody who waits for it.
    pub(super) fn into_child(mut self) -> Option<Child> {
        self.0.take()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Spawner {
    /// Starts the threads. They pass on to programs what the calling thread has: cores, priority, signals that are blocked.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start_threads() -> io::Result<Arc<Self>> {
        let (jobs, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let count = std::thread::available_parallelism().map_or(1, usize::from).clamp(1, THREADS_MAX);
        for _ in 0..count {
            let receiver = Arc::clone(&receiver);
            std::thread::Builder::new().name("spawner".into()).spawn(move || work(&receiver))?;
        }
        Ok(Arc::new(Self { jobs }))
    }

    /// Starts a program.
    ///
    /// # Errors
    /// Those of [`Command::spawn`].
    pub(super) async fn start(&self, order: Order) -> io::Result<Started> {
        let (reply, started) = oneshot::channel();
        let lost = |_| io::Error::other("the thread that starts programs has ended");
        self.jobs.send(Job { order, reply }).map_err(|_| io::Error::other("no thread starts programs"))?;
        started.await.map_err(lost)?
    }
}

impl Order {
    /// A program in a process group of its own, in its own directory, with these variables and nothing else of ours.
    pub(super) fn new(config: &config::Programs, file: &[u8], variables: &Fields, has_content: bool) -> Self {
        let file = Path::new(OsStr::from_bytes(file));
        let mut command = match &config.interpreter {
            Some(interpreter) => {
                let mut command = Command::new(interpreter);
                command.arg(file);
                command
            }
            None => Command::new(file),
        };
        command.env_clear();
        command.envs(variables.iter().map(|(name, value)| (OsStr::from_bytes(name), OsStr::from_bytes(value))));
        // RFC 3875, section 7.2.
        command.current_dir(file.parent().unwrap_or(Path::new("/")));
        command.stdin(if has_content { Stdio::piped() } else { Stdio::null() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        if let Some(user) = config.user {
            command.uid(user.user_id).gid(user.group_id);
        }
        Self { command }
    }
}

fn work(jobs: &Mutex<Receiver<Job>>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        // Who could send one has gone.
        let Ok(Job { mut order, reply }) = job else { return };
        if reply.is_closed() {
            continue;
        }
        let started = order.command.spawn().map(|child| {
            limit_descriptors(&child);
            Started(Some(child))
        });
        // If nobody waits for it any more, it is killed.
        let _ = reply.send(started);
    }
}

/// Gives a program the limit of descriptors that is usual: ours was raised as far as it goes.
fn limit_descriptors(child: &Child) {
    let limit = getrlimit(Resource::Nofile);
    let soft = limit.current.map_or(DESCRIPTORS_SOFT_MAX, |current| current.min(DESCRIPTORS_SOFT_MAX));
    if let Some(pid) = Pid::from_raw(child.id() as i32) {
        // It may have ended already.
        let _ = prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(soft), maximum: limit.maximum });
    }
}
