//! Common parts of commands to the running server: finding its control socket, and handling reports.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::configuration::{self, ConfigFile};
use super::fail;
use crate::config;
use crate::control::{self, ControlOrder, ControlReport};

/// Server that gets a command.
#[derive(Debug, Args)]
pub(super) struct ServerSocket {
    #[command(flatten)]
    file: ConfigFile,

    /// Control socket of the server [default: `control-socket` of the configuration]
    #[arg(long, value_name = "FILE", conflicts_with = "config", global = true)]
    socket: Option<PathBuf>,
}

impl ServerSocket {
    /// Sends an order. `each` gets each report except rejections, which are printed here, and returns the result of the
    /// command.
    pub(super) fn give(
        &self,
        of_top: Option<PathBuf>,
        order: &ControlOrder,
        mut each: impl FnMut(ControlReport) -> ExitCode,
    ) -> ExitCode {
        let socket = match self.find(of_top) {
            Ok(socket) => socket,
            Err(code) => return code,
        };
        let mut code = ExitCode::SUCCESS;
        let given = control::give(&socket, order, |report| {
            code = match report {
                ControlReport::Rejected(reason) => fail(reason),
                report => each(report),
            };
            Ok(())
        });
        given.map_or_else(|error| not_given(&socket, &error), |()| code)
    }

    /// True if a control socket was given.
    pub(super) fn names_socket(&self) -> bool {
        self.socket.is_some()
    }

    /// Configuration file of the server.
    pub(super) fn file(&self, of_top: Option<PathBuf>) -> PathBuf {
        self.file.config.clone().or(of_top).unwrap_or_else(|| config::DEFAULT_PATH.into())
    }

    /// Control socket of the server.
    ///
    /// # Errors
    ///
    /// If it is unknown. The error has been printed.
    pub(super) fn find(&self, of_top: Option<PathBuf>) -> Result<PathBuf, ExitCode> {
        if let Some(socket) = &self.socket {
            return Ok(socket.clone());
        }
        let file = self.file(of_top);
        // The file may have errors: the server that runs is to tell about them.
        match config::control_socket(&file) {
            Ok(Some(socket)) => Ok(socket),
            Ok(None) => Err(without_socket(&file)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let code = fail(format_args!("{} does not exist", file.display()));
                eprintln!("  give the server's configuration file with -c, or its control socket with --socket");
                Err(code)
            }
            // A configuration with such errors names no socket, so its errors are printed here.
            Err(_) => Err(configuration::check(Some(file), false, true)),
        }
    }
}

/// Prints why no server has accepted an order.
pub(super) fn not_given(socket: &Path, error: &io::Error) -> ExitCode {
    let socket = socket.display();
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            fail(format_args!("no server listens on {socket}; check that it runs"))
        }
        ErrorKind::PermissionDenied => {
            fail(format_args!("{socket}: permission denied; run the command as root or as the server's user"))
        }
        _ => fail(format_args!("{socket}: {error}")),
    }
}

fn without_socket(file: &Path) -> ExitCode {
    let code = fail(format_args!("{} has no `control-socket`", file.display()));
    eprintln!("  add `server {{ control-socket \"/run/tailcoat/control.sock\" }}` and restart the server");
    eprintln!("  or give the socket of the running server with --socket");
    code
}

/// Says that a server of another version has reported what this command knows nothing of.
pub(super) fn unexpected(report: &ControlReport) -> ExitCode {
    fail(format_args!("the server sent a reply that this version of tailcoat does not understand: {report:?}"))
}
