//! Threads that start programs. In a confined server, no other thread may (`confinement/`).
//!
//! A thread that starts a program blocks until the program runs. That takes half a millisecond or more, too long for a
//! worker. The program inherits the thread's CPU affinity and priority: here those of the main thread, not of a pinned
//! worker. It also inherits the thread's confinement, which here permits what programs need, and nothing that only the
//! server needs. The standard library uses posix_spawn, which copies none of the server's memory; to switch the user,
//! it needs fork.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Gid, Pid, Resource, Rlimit, getgroups, getrlimit, prlimit};
use rustix::thread::set_thread_groups;
use tokio::sync::oneshot;

use tailcoat_config::ProgramUser;

/// Upper bound of the number of threads. The kernel does the work of starting; more threads would take CPU time from
/// the programs.
const THREADS_MAX: usize = 4;

/// Limit of file descriptors of a program, unless it raises it. Programs that use select, or close all possible
/// descriptors, expect a low one.
const DESCRIPTORS_SOFT_MAX: u64 = 1024;

/// Starts programs, one at a time on each of its threads.
#[derive(Debug)]
pub struct Spawner {
    jobs: Sender<SpawnJob>,
}

/// Program to start.
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

/// Started program. Dropping this kills it.
#[derive(Debug)]
pub struct StartedProgram(Option<Child>);

impl StartedProgram {
    /// The program, unless it was taken out.
    pub fn child(&mut self) -> Option<&mut Child> {
        self.0.as_mut()
    }

    /// Takes the program out; the caller must wait for it.
    pub fn into_child(mut self) -> Option<Child> {
        self.0.take()
    }
}

impl Drop for StartedProgram {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // The program may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Spawner {
    /// Starts the threads; each calls `prepare` first. Programs inherit the calling thread's CPU affinity, priority and
    /// blocked signals, and the effects of `prepare`.
    ///
    /// # Errors
    /// The system has no thread left, or `prepare` failed.
    pub fn start_threads(prepare: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> io::Result<Arc<Self>> {
        let (jobs, receiver) = channel();
        let (receiver, prepare) = (Arc::new(Mutex::new(receiver)), Arc::new(prepare));
        let count = std::thread::available_parallelism().map_or(1, usize::from).clamp(1, THREADS_MAX);
        let (ready, prepared) = channel();
        for _ in 0..count {
            let (receiver, prepare, ready) = (Arc::clone(&receiver), Arc::clone(&prepare), ready.clone());
            std::thread::Builder::new().name("spawner".into()).spawn(move || {
                // The caller waits for all threads.
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
    /// The errors of [`Command::spawn`].
    pub async fn start(&self, order: SpawnOrder) -> io::Result<StartedProgram> {
        let (reply, started) = oneshot::channel();
        let lost = |_| io::Error::other("the thread that runs programs ended");
        self.jobs.send(SpawnJob { order, reply }).map_err(|_| io::Error::other("no thread to run programs"))?;
        let mut started = started.await.map_err(lost)??;
        // Done here, because the spawner's threads may not: programs, which share their confinement, must not change
        // the limits of other processes.
        started.child().inspect(|child| limit_descriptors(child));
        Ok(started)
    }
}

impl SpawnOrder {
    /// Order for a program that runs as the server's user or as `user`.
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
        // The standard library drops supplementary groups in the child only if this process is root.
        let groups = getgroups()?;
        set_thread_groups(&[])?;
        let spawned = self.command.spawn();
        restore_groups(&groups);
        spawned
    }
}

/// Restores this thread's supplementary groups after it has dropped them.
fn restore_groups(groups: &[Gid]) {
    if set_thread_groups(groups).is_err() {
        debug_assert!(false, "who may take groups from itself may give them back");
    }
}

fn work(jobs: &Mutex<Receiver<SpawnJob>>) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        // All senders are dropped; no more jobs can arrive.
        let Ok(SpawnJob { mut order, reply }) = job else { return };
        if reply.is_closed() {
            continue;
        }
        let started = order.spawn().map(|child| StartedProgram(Some(child)));
        // If the caller has gone, this drops the program, which kills it.
        let _ = reply.send(started);
    }
}

/// Gives a program the usual soft limit of file descriptors, because the server has raised its own.
fn limit_descriptors(child: &Child) {
    let limit = getrlimit(Resource::Nofile);
    let soft = limit.current.map_or(DESCRIPTORS_SOFT_MAX, |current| current.min(DESCRIPTORS_SOFT_MAX));
    if let Some(pid) = Pid::from_raw(child.id() as i32) {
        // The program may have ended already.
        let _ = prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(soft), maximum: limit.maximum });
    }
}
