//! The control socket of the process: opens, replaces, hands over and closes it.

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

/// Permissions of the control socket: only its user may read and write.
const CONTROL_SOCKET_MODE: u32 = 0o600;

/// Time that shutdown waits for operators to read their reports. Not an option: reports are small, and their readers
/// are on this machine.
const REPORTS_LIMIT: Duration = Duration::from_secs(1);

/// The control socket, unless the configuration disables it.
pub(super) struct Control {
    orders: UnboundedSender<ControlRequest>,
    current: Option<CurrentSocket>,
    /// Socket that the old process has handed over, until a configuration uses it.
    handed_over: Option<(PathBuf, UnixListener)>,
    audience: Audience,
}

struct CurrentSocket {
    path: PathBuf,
    /// Duplicate of the descriptor that the task accepts from.
    listener: UnixListener,
    /// True if the end of the task removes the socket's file.
    removes_file: Arc<AtomicBool>,
    task: JoinHandle<io::Result<()>>,
}

/// Result of [`Control::prepare`]: keep the socket, or replace it.
pub(super) enum NewSocket {
    Same,
    Other(Option<(PathBuf, UnixListener)>),
}

impl Control {
    /// Control without an open socket, and the receiver of its orders.
    pub(super) fn new(handed_over: Option<(PathBuf, UnixListener)>) -> (Self, UnboundedReceiver<ControlRequest>) {
        let (orders, receiver) = unbounded_channel();
        (Self { orders, current: None, handed_over, audience: Audience::default() }, receiver)
    }

    /// Opens the socket of a new configuration, unless that is the present one.
    ///
    /// # Errors
    /// The socket cannot be opened.
    pub(super) fn prepare(&mut self, config: &Config) -> Result<NewSocket, ServerStartError> {
        let wanted = &config.server.control_socket;
        if *wanted == self.current.as_ref().map(|current| current.path.clone()) {
            return Ok(NewSocket::Same);
        }
        let Some(path) = wanted else { return Ok(NewSocket::Other(None)) };
        if let Some(handed_over) = self.handed_over.take_if(|(handed_over, _)| handed_over == path) {
            return Ok(NewSocket::Other(Some(handed_over)));
        }
        let listener = worker::bind_unix(path, CONTROL_SOCKET_MODE, config.server.listen_backlog)
            .map_err(ServerStartError::at(format!("cannot bind control socket {}", path.display())))?;
        Ok(NewSocket::Other(Some((path.clone(), listener))))
    }

    /// Listens on the new socket; closes the present one and removes its file. Must be called within the runtime.
    ///
    /// # Errors
    /// Out of file descriptors.
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

    /// Sender for the server's own orders.
    pub(super) fn orders(&self) -> UnboundedSender<ControlRequest> {
        self.orders.clone()
    }

    /// Path and descriptor of the socket, for the new process of an upgrade.
    ///
    /// # Errors
    /// Out of file descriptors.
    pub(super) fn offer(&self) -> io::Result<Option<(PathBuf, OwnedFd)>> {
        let current = self.current.as_ref();
        current.map(|current| Ok((current.path.clone(), current.listener.try_clone()?.into()))).transpose()
    }

    /// True if the socket that the old process handed over is in use, or there was none.
    pub(super) fn uses_handed_over(&self) -> bool {
        self.handed_over.is_none()
    }

    /// Stops taking orders. Leaves the file in place if the new process has taken the socket.
    pub(super) fn release(&mut self, is_used: bool) {
        if let Some(current) = self.current.take() {
            current.removes_file.store(!is_used, Ordering::Relaxed);
            current.task.abort();
        }
    }

    /// Closes the socket and waits until operators have read their reports.
    pub(super) async fn end(&mut self) {
        self.release(false);
        self.audience.dismiss(REPORTS_LIMIT).await;
    }
}
