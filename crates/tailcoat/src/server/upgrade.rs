//! Upgrade: starts the new binary beside this process and hands it the listeners. When the new process serves, this one
//! completes its open requests and ends. If any step before that fails, this process keeps serving.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::Server;
use super::handover::{HandoverOffer, HandoverReply, HandoverSender, UsedSockets, ban_lists};
use super::launcher::{self, Launcher};
use super::reload::{ReloadRequester, ReloadStep, wait_for_all};
use crate::config::ConfigOrigin;
use crate::control::ControlReport;
use crate::log::event;
use crate::worker::WorkerPhase;

/// Reason for rejected orders after an upgrade.
pub(super) const ANOTHER_SERVES: &str = "a new process serves now: run the command again";

/// Time that an upgrade waits for workers to stop accepting. It does not wait longer for a busy worker: all listeners
/// are handed over by then.
const STOP_TIME: Duration = Duration::from_secs(1);

/// Time until a new process that has closed the handover is killed.
const END_TIME: Duration = Duration::from_secs(1);

/// Program and arguments that the next process is started with.
#[derive(Clone, Debug)]
pub(super) struct ProcessLaunch {
    program: PathBuf,
    arguments: Vec<OsString>,
    /// Starts the process where confinement forbids it to this one.
    launcher: Option<Arc<Launcher>>,
}

/// Process that was started for an upgrade.
enum StartedProcess {
    /// Child of this process.
    Child(Child),
    /// Child of the launcher, with its process id.
    Launched(Arc<Launcher>, u32),
}

/// New process that serves, with the sockets that it uses.
pub(super) struct HandedOver {
    sender: HandoverSender,
    child: StartedProcess,
    used: UsedSockets,
}

impl ProcessLaunch {
    /// Program, arguments and directory of this process. An upgrade may find another program at the same path; that is
    /// its purpose.
    ///
    /// # Errors
    /// Neither the command line nor the kernel tells the program's path, or the process has no working directory.
    pub(super) fn of_this_process() -> io::Result<Self> {
        let mut arguments = std::env::args_os();
        let directory = std::env::current_dir()?;
        let called = arguments.next().map(PathBuf::from);
        let program = called.and_then(|called| find(&called, &directory)).map_or_else(std::env::current_exe, Ok)?;
        Ok(Self { program, arguments: arguments.collect(), launcher: None })
    }

    /// Starts a launcher that starts the next process instead of this one.
    ///
    /// # Errors
    /// The launcher cannot be started.
    pub(super) fn by_launcher(self, origin: &ConfigOrigin) -> io::Result<Self> {
        let launcher = Launcher::start(&self.program, &self.arguments, origin)?;
        Ok(Self { launcher: Some(Arc::new(launcher)), ..self })
    }

    /// Launcher, unless this process starts the next one itself.
    pub(super) fn launcher(&self) -> Option<&Arc<Launcher>> {
        self.launcher.as_ref()
    }

    /// Ends the launcher; no process can be started after this.
    pub(super) fn end(&mut self) {
        self.launcher = None;
    }

    fn start(&self, input: OwnedFd) -> io::Result<StartedProcess> {
        match &self.launcher {
            Some(launcher) => Ok(StartedProcess::Launched(Arc::clone(launcher), launcher.launch(&input)?)),
            None => launcher::start(&self.program, &self.arguments, input).map(StartedProcess::Child),
        }
    }
}

impl StartedProcess {
    fn id(&self) -> u32 {
        match self {
            Self::Child(child) => child.id(),
            Self::Launched(_, id) => *id,
        }
    }

    /// Waits for the process, and kills it after `patience`. Returns its status if it has ended by itself.
    fn end(&mut self, patience: Duration) -> Option<String> {
        match self {
            Self::Child(child) => launcher::end(child, patience),
            Self::Launched(launcher, _) => launcher.end(patience),
        }
    }
}

/// Path of the program that was called by this name. Symbolic links stay unresolved: they may point to a new version
/// later.
fn find(called: &Path, directory: &Path) -> Option<PathBuf> {
    if called.components().count() > 1 {
        return Some(directory.join(called));
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|place| directory.join(place).join(called)).find(|program| program.is_file())
}

impl Server {
    /// Starts the new process and offers it the listeners, the control socket, ticket keys and bans.
    pub(super) fn begin_upgrade(&mut self) -> impl Future<Output = ReloadStep> + use<> {
        // The new process may take the bank of a process that has ended, and reads the others.
        self.listeners.read_left(false);
        let left = self.workers.share_out(&self.listeners);
        let limit = self.assembly.parts.config.server.upgrade_timeout;
        let launch = self.launch.clone();
        let offer = self.offer();
        async move {
            if let Ok(mut left) = left {
                // A worker that is busy for longer would stop before it reads again.
                let _ = timeout(STOP_TIME, wait_for_all(&mut left)).await;
            }
            let handed_over = spawn_blocking(move || {
                let (offer, descriptors) = offer.map_err(|error| error.to_string())?;
                hand_over(&launch, &offer, &descriptors, limit)
            });
            ReloadStep::HandedOver(handed_over.await.unwrap_or_else(|error| Err(error.to_string())).map(Box::new))
        }
    }

    fn offer(&self) -> io::Result<(HandoverOffer, Vec<OwnedFd>)> {
        let (listeners, mut descriptors) = self.listeners.offer()?;
        let control = self.control.offer()?.map(|(path, descriptor)| {
            descriptors.push(descriptor);
            path
        });
        let bans = ban_lists(&self.lasting.bans).into_iter().next().unwrap_or_default();
        let (datagrams, lives) = self.listeners.offer_datagrams(&mut descriptors)?;
        let (ticket_keys, quic_keys) = (self.lasting.tickets.keys(), Some((*self.lasting.quic_keys).clone()));
        let challenge_secret = Some(self.lasting.challenge_secret.clone());
        let offer =
            HandoverOffer { listeners, control, ticket_keys, bans, datagrams, quic_keys, challenge_secret, lives };
        Ok((offer, descriptors))
    }

    /// Stops accepting, so that the new process is the server; completes the open requests.
    pub(super) fn on_handed_over(&mut self, handed_over: HandedOver, askers: Vec<ReloadRequester>) {
        let HandedOver { sender, child, used } = handed_over;
        let log = &self.lasting.server_log;
        self.listeners.release(&used.listeners, log);
        let mut stopped = self.workers.stop_listening();
        self.workers.set_phase(|phase| if phase == WorkerPhase::Serving { WorkerPhase::Leaving(None) } else { phase });
        self.control.release(used.control);
        self.keepers.end_certificates();
        let _ = sd_notify::notify(&[NotifyState::MainPid(child.id())]);
        // If the new process has ended, its service manager must notice: it was the server for a moment.
        let _ = sender.leave(&ban_lists(&self.lasting.bans));
        log.info(event("a new process serves now; this one ends after its open requests", &[("pid", &child.id())]));
        let text = format!("process {} serves now\n", child.id());
        // Reports only after the workers have stopped: clients that connect then reach the new process.
        self.runtime.spawn(async move {
            let _ = timeout(STOP_TIME, wait_for_all(&mut stopped)).await;
            for ReloadRequester { reply, .. } in askers {
                reply.report(ControlReport::Done(text.clone()));
            }
        });
        self.successor = Some(child.id());
        // Ends the launcher, so that this process or the system's reaper of orphans becomes the new process's parent.
        drop(child);
        self.launch.end();
        self.reject_all(ANOTHER_SERVES);
        // Log tails continue at the new process as well.
        self.has_successor.send_replace(true);
        // The new process has the directory from now on.
        self.lasting.disk.freeze();
    }
}

/// Starts the new process and waits until it serves.
fn hand_over(
    launch: &ProcessLaunch,
    offer: &HandoverOffer,
    descriptors: &[OwnedFd],
    limit: Duration,
) -> Result<HandedOver, String> {
    let program = launch.program.display();
    let (sender, input) = HandoverSender::pair().map_err(|error| error.to_string())?;
    let mut child = launch.start(input).map_err(|error| format!("cannot start {program}: {error}"))?;
    match sender.offer(offer, descriptors, limit) {
        Ok(HandoverReply::Ready(used)) => Ok(HandedOver { sender, child, used }),
        Ok(HandoverReply::Failed(reason)) => {
            child.end(END_TIME);
            Err(format!("the new process did not start: {reason}"))
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
            child.end(Duration::ZERO);
            Err(format!("the new process was not ready within {} s and was killed", limit.as_secs_f64()))
        }
        Err(_) => Err(match child.end(END_TIME) {
            Some(status) => format!("the new process ended before it was ready: {status}"),
            None => "the new process rejected the handover and was killed".to_owned(),
        }),
    }
}
