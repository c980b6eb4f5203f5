//! Threads that start programs. No other thread of a server that is confined can (`confinement/`).
//!
//! Whoever starts a program stands still until it runs: half a millisecond and more that no worker has. It also passes on
//! what it has itself: its core and its priority, which are the main thread's here, and not a pinned worker's; and what it may
//! do, which is what programs need, and nothing of what is the server's own. Without another user, the standard library starts
//! programs by posix_spawn, which copies nothing of the server's memory; with one, by fork.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Gid, Pid, Resource, Rlimit, getgroups, getrlimit, prlimit};
use rustix::thread::set_thread_groups;
use tokio::sync::oneshot;

use crate::config::ProgramUser;

/// Threads that start programs. Starting is the kernel's work, and more of them would take processors from the programs.
const THREADS_MAX: usize = 4;

/// Descriptors that a program may have unless it asks for more: what programs expect that use select, or close all there
/// could be.
const DESCRIPTORS_SOFT_MAX: u64 = 1024;

/// Starts programs, one after the other on each of its threads.
#[derive(Debug)]
pub struct Spawner {
    jobs: Sender<SpawnJob>,
}

/// What is to be started.
#[derive(Debug)]
pub struct SpawnOrder {
    command: Command,
    user: Option<ProgramUser>,
}

#[derive(Debug)]
struct SpawnJob {
    order: SpawnOrder,
    reply: oneshot::Sender<io::Result<StartedProgram>>,
}

/// A program that has been started, until somebody takes care of it; dropped before, it is killed.
#[derive(Debug)]
pub struct StartedProgram(Option<Child>);

impl StartedProgram {
    /// The program, which there is until it is taken.
    pub fn child(&mut self) -> Option<&mut Child> {
        self.0.as_mut()
    }

    /// The program, for somebody who waits for it.
    pub fn into_child(mut self) -> Option<Child> {
        self.0.take()
    }
}

impl Drop for StartedProgram {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Spawner {
    /// Starts the threads. They pass on to programs what the calling thread has (cores, priority, signals that are blocked),
    /// and what becomes of them by `prepare`, which each of them does first.
    ///
    /// # Errors
    /// The system has no thread left, or one can't be prepared.
    pub fn start_threads(prepare: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> io::Result<Arc<Self>> {
        let (jobs, receiver) = channel();
        let (receiver, prepare) = (Arc::new(Mutex::new(receiver)), Arc::new(prepare));
        let count = std::thread::available_parallelism().map_or(1, usize::from).clamp(1, THREADS_MAX);
        let (ready, prepared) = channel();
        for _ in 0..count {
            let (receiver, prepare, ready) = (Arc::clone(&receiver), Arc::clone(&prepare), ready.clone());
            std::thread::Builder::new().name("spawner".into()).spawn(move || {
                // Who started it waits for all.
                let _ = ready.send(prepare());
                work(&receiver);
            })?;
        }
        drop(ready);
        prepared.iter().take(count).collect::<io::Result<()>>()?;
        Ok(Arc::new(Self { jobs }))
    }

    /// Starts a program.
    ///
    /// # Errors
    /// Those of [`Command::spawn`].
    pub async fn start(&self, order: SpawnOrder) -> io::Result<StartedProgram> {
        let (reply, started) = oneshot::channel();
        let lost = |_| io::Error::other("the thread that runs programs ended");
        self.jobs.send(SpawnJob { order, reply }).map_err(|_| io::Error::other("no thread to run programs"))?;
        let mut started = started.await.map_err(lost)??;
        // The threads that start programs can't: programs must not set the limits of others, and have their bounds.
        started.child().inspect(|child| limit_descriptors(child));
        Ok(started)
    }
}

impl SpawnOrder {
    /// A program, as the server's user or as another.
    pub fn new(mut command: Command, user: Option<ProgramUser>) -> Self {
        if let Some(user) = user {
            command.uid(user.user_id).gid(user.group_id);
        }
        Self { command, user }
    }

    fn spawn(&mut self) -> io::Result<Child> {
        if self.user.is_none() {
            return self.command.spawn();
        }
        // The standard library takes further groups from a child only if this process is root.
        let groups = getgroups()?;
        set_thread_groups(&[])?;
        let spawned = self.command.spawn();
        restore_groups(&groups);
        spawned
    }
}

/// Gives this thread its groups again, which it could take from itself.
fn restore_groups(groups: &[Gid]) {
    if set_thread_groups(groups).is_err() {
        debug_assert!(false, "who may take groups from itself may give them back");
    }
}

fn work(jobs: &Mutex<Receiver<SpawnJob>>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        // Who could send one has gone.
        let Ok(SpawnJob { mut order, reply }) = job else { return };
        if reply.is_closed() {
            continue;
        }
        let started = order.spawn().map(|child| StartedProgram(Some(child)));
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
