//! The control socket of the process.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{JoinHandle, spawn};

use super::ServerStartError;
use crate::config::Config;
use crate::control::{Audience, ControlRequest, ControlSocket};
use crate::worker;

/// Permissions of the control socket: its user's alone.
const CONTROL_SOCKET_MODE: u32 = 0o600;

/// How long operators are waited for at the end. Not an option: a report is small, and who wants it is of this machine.
const REPORTS_LIMIT: Duration = Duration::from_secs(1);

/// The control socket, if there is one.
pub(super) struct Control {
    orders: UnboundedSender<ControlRequest>,
    current: Option<CurrentSocket>,
    /// What another process has handed over.
    handed: Option<(PathBuf, UnixListener)>,
    audience: Audience,
}

struct CurrentSocket {
    path: PathBuf,
    /// Another descriptor of the socket.
    listener: UnixListener,
    /// Whether its file is to go with it.
    removes_file: Arc<AtomicBool>,
    task: JoinHandle<io::Result<()>>,
}

/// What is to become of the control socket.
pub(super) enum NewSocket {
    Same,
    Other(Option<(PathBuf, UnixListener)>),
}

impl Control {
    /// None yet, but for what another process has handed over; and where orders come.
    pub(super) fn new(handed: Option<(PathBuf, UnixListener)>) -> (Self, UnboundedReceiver<ControlRequest>) {
        let (orders, receiver) = unbounded_channel();
        (Self { orders, current: None, handed, audience: Audience::default() }, receiver)
    }

    /// Opens the socket that a configuration wants, if it is another.
    ///
    /// # Errors
    /// It can't be opened.
    pub(super) fn prepare(&mut self, config: &Config) -> Result<NewSocket, ServerStartError> {
        let wanted = &config.server.control_socket;
        if *wanted == self.current.as_ref().map(|current| current.path.clone()) {
            return Ok(NewSocket::Same);
        }
        let Some(path) = wanted else { return Ok(NewSocket::Other(None)) };
        if let Some(handed) = self.handed.take_if(|(handed, _)| handed == path) {
            return Ok(NewSocket::Other(Some(handed)));
        }
        let listener = worker::bind_unix(path, CONTROL_SOCKET_MODE, config.server.listen_backlog)
            .map_err(ServerStartError::at(format!("cannot bind control socket {}", path.display())))?;
        Ok(NewSocket::Other(Some((path.clone(), listener))))
    }

    /// Takes it into use; one that there was is closed, and its file removed. To be called within the runtime.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(super) fn apply(&mut self, new: NewSocket) -> io::Result<()> {
        let NewSocket::Other(new) = new else { return Ok(()) };
        if let Some(before) = self.current.take() {
            before.task.abort();
        }
        if let Some((path, listener)) = new {
            let removes_file = Arc::new(AtomicBool::new(true));
            let (clone, audience) = (listener.try_clone()?, self.audience.clone());
            let socket = ControlSocket::new(clone, path.clone(), Arc::clone(&removes_file), audience);
            let task = spawn(socket.serve(self.orders.clone()));
            self.current = Some(CurrentSocket { path, listener, removes_file, task });
        }
        Ok(())
    }

    /// Gives the server orders of its own.
    pub(super) fn orders(&self) -> UnboundedSender<ControlRequest> {
        self.orders.clone()
    }

    /// What there is for another process.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(super) fn estate(&self) -> io::Result<Option<(PathBuf, OwnedFd)>> {
        let current = self.current.as_ref();
        current.map(|current| Ok((current.path.clone(), current.listener.try_clone()?.into()))).transpose()
    }

    /// Whether what another process has handed over is in use.
    pub(super) fn has_taken(&self) -> bool {
        self.handed.is_none()
    }

    /// Takes no orders any more. If another process has the socket as well, its file stays.
    pub(super) fn hand_on(&mut self, is_taken: bool) {
        if let Some(current) = self.current.take() {
            current.removes_file.store(!is_taken, Ordering::Relaxed);
            current.task.abort();
        }
    }

    /// Closes the socket, if there still is one, and waits until operators have their reports.
    pub(super) async fn end(&mut self) {
        self.hand_on(false);
        self.audience.dismiss(REPORTS_LIMIT).await;
    }
}
