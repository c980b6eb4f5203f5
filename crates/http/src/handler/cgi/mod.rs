//! CGI programs (CGI/1.1, RFC 3875): limits on running programs, starting them, their input and output, and their end.
//!
//! [`SharedPrograms`] counts running programs; [`Programs::start`] returns a [`CgiProcess`], which is read and written
//! like a connection. Each process is reaped, however its request ends, and none outlives its time limit.

mod error_lines;
mod places;
mod process;
mod reaper;

use std::ffi::OsStr;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Task, Poll};

use wire::http::{Fields, Status};

pub use self::error_lines::ErrorLines;
use self::places::Places;
pub(in crate::handler) use self::places::RunningPlace;
pub use self::process::CgiProcess;
use crate::config;
use crate::fair_queue::{FairQueue, QueueOwner};
use crate::metrics::ProgramMetrics;
use crate::spawner::{SpawnOrder, Spawner};

/// A program to start.
pub struct ProgramLaunch {
    /// Path of the script's file.
    pub file: Vec<u8>,
    /// Complete environment of the program.
    pub variables: Fields,
    /// True if the program gets content on standard input.
    pub has_content: bool,
    /// Destination of its error output.
    pub errors: ErrorLines,
}

/// Programs of a handler, shared by all workers.
#[derive(Debug)]
pub struct SharedPrograms {
    config: config::ProgramsConfig,
    spawner: Arc<Spawner>,
    places: Places,
    /// Requests that wait for a place.
    queue: FairQueue,
    metrics: Arc<ProgramMetrics>,
}

/// A worker's view of [`SharedPrograms`].
#[derive(Clone)]
pub struct Programs {
    shared: Arc<SharedPrograms>,
    name: Rc<str>,
}

/// A program being started.
pub struct Starting(Pin<Box<dyn Future<Output = Result<CgiProcess, ProgramStartError>>>>);

/// Reason that a program was not started.
#[derive(Debug)]
pub enum ProgramStartError {
    /// All places are taken, and the queue is full or the request waited too long.
    Busy,
    /// The system rejects it.
    Failed(io::Error),
}

impl SharedPrograms {
    /// Creates the programs of this configuration. `spawner` starts them and `metrics` counts them.
    pub fn new(config: &config::ProgramsConfig, spawner: Arc<Spawner>, metrics: Arc<ProgramMetrics>) -> Arc<Self> {
        let (places, queue) = (Places::new(config.processes_max), FairQueue::default());
        Arc::new(Self { config: config.clone(), spawner, places, queue, metrics })
    }
}

impl QueueOwner for SharedPrograms {
    fn queue(&self) -> &FairQueue {
        &self.queue
    }
}

impl Programs {
    /// Creates a worker's view.
    pub fn new(shared: Arc<SharedPrograms>) -> Self {
        Self { shared, name: "cgi".into() }
    }

    /// Name for logs.
    pub fn name(&self) -> &Rc<str> {
        &self.name
    }

    /// Starts a program for a client once there is a place; a client of `None` speaks for many. `launch` must be
    /// `Some`; an exchange passes it once.
    pub fn start(&self, launch: Option<Box<ProgramLaunch>>, client: Option<u64>) -> Starting {
        let shared = Arc::clone(&self.shared);
        Starting(Box::pin(async move {
            let Some(launch) = launch else { return Err(ProgramStartError::Busy) };
            let ProgramLaunch { file, variables, has_content, errors } = *launch;
            let place = shared.place(client).await?;
            let order = order(&shared.config, &file, &variables, has_content);
            let started = shared.spawner.start(order).await.map_err(ProgramStartError::Failed)?;
            let name = String::from_utf8_lossy(&file).into();
            // Local invariant: the child is taken once.
            let Some(child) = started.into_child() else { return Err(ProgramStartError::Busy) };
            shared.metrics.started.add(1);
            CgiProcess::new(child, name, errors, &shared.config, place).map_err(ProgramStartError::Failed)
        }))
    }
}

/// Builds the command: a process group of its own, the script's directory, and these variables as the only
/// environment.
fn order(config: &config::ProgramsConfig, file: &[u8], variables: &Fields, has_content: bool) -> SpawnOrder {
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
    SpawnOrder::new(command, config.user)
}

impl Starting {
    /// Polls for the started program.
    pub fn poll_start(&mut self, task: &mut Task<'_>) -> Poll<Result<CgiProcess, ProgramStartError>> {
        self.0.as_mut().poll(task)
    }
}

impl ProgramStartError {
    /// Status of the response to the client.
    pub fn status(&self) -> Status {
        match self {
            Self::Busy => Status::SERVICE_UNAVAILABLE,
            Self::Failed(error) => match error.kind() {
                io::ErrorKind::PermissionDenied => Status::FORBIDDEN,
                // No process or file descriptor is free; a retry may succeed.
                io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => Status::SERVICE_UNAVAILABLE,
                _ => Status::INTERNAL_SERVER_ERROR,
            },
        }
    }
}

impl fmt::Display for ProgramStartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("all programs are busy (`processes-max`)"),
            Self::Failed(error) => write!(f, "cannot start the program: {error}"),
        }
    }
}
