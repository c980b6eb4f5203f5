//! `status` and `upstreams`: what there is to see of a running server.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use rustix::termios::tcgetwinsize;

use super::control::{ServerSocket, unexpected};
use super::status_text::{overview, upstreams};
use super::{fail, print};
use crate::control::{ControlOrder, ControlReport};
use crate::status::StatusReport;

/// Maximum number of open requests that a worker reports.
const REQUESTS_MAX: usize = 50;

/// Lines and columns of what is no terminal, or does not say.
const SIZE: (usize, usize) = (1_000, 200);

/// Goes to the first place and clears from there; the second clears to the end of a line.
const HOME: &str = "\x1b[H\x1b[J";

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tailcoat status
  tailcoat status --watch
  tailcoat status --json")]
pub(super) struct StatusArguments {
    #[command(flatten)]
    server: ServerSocket,

    /// Print all data as JSON
    #[arg(long)]
    json: bool,

    /// Refresh the display, with rates, until interrupted
    #[arg(short, long, conflicts_with = "json")]
    watch: bool,

    /// Refresh interval in seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", requires = "watch", value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
}

#[derive(Debug, Args)]
pub(super) struct UpstreamsArguments {
    #[command(flatten)]
    server: ServerSocket,

    /// Print all data as JSON
    #[arg(long)]
    json: bool,
}

impl StatusArguments {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        if self.watch {
            return watch(&self.server, of_top, Duration::from_secs(self.interval));
        }
        match ask(&self.server, of_top) {
            Ok(status) if self.json => print_json(&status),
            Ok(status) => print(&(overview(&status, None, SIZE).join("\n") + "\n")),
            Err(code) => code,
        }
    }
}

impl UpstreamsArguments {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        match ask(&self.server, of_top) {
            Ok(status) if self.json => print_json(&status.upstreams),
            Ok(status) => print(&upstreams(&status)),
            Err(code) => code,
        }
    }
}

fn watch(server: &ServerSocket, of_top: Option<PathBuf>, interval: Duration) -> ExitCode {
    let mut before = None;
    loop {
        let status = match ask(server, of_top.clone()) {
            Ok(status) => status,
            Err(code) => return code,
        };
        let shown = overview(&status, before.as_ref(), terminal_size()).join("\n");
        let clear = if std::io::stdout().is_terminal() { HOME } else { "" };
        let mut stdout = std::io::stdout().lock();
        if writeln!(stdout, "{clear}{shown}").and_then(|()| stdout.flush()).is_err() {
            // A reader that went away has seen what it wanted.
            return ExitCode::SUCCESS;
        }
        drop(stdout);
        // The first look has only means since the start, so that a second one soon says more.
        std::thread::sleep(if before.is_none() { interval.min(Duration::from_secs(1)) } else { interval });
        before = Some(status);
    }
}

fn ask(server: &ServerSocket, of_top: Option<PathBuf>) -> Result<StatusReport, ExitCode> {
    let mut status = None;
    let code = server.give(of_top, &ControlOrder::Status { requests_max: REQUESTS_MAX }, |report| match report {
        ControlReport::Status(report) => {
            status = Some(*report);
            ExitCode::SUCCESS
        }
        report => unexpected(&report),
    });
    status.ok_or(code)
}

fn print_json(value: &impl serde::Serialize) -> ExitCode {
    match serde_json::to_string_pretty(value) {
        Ok(text) => print(&(text + "\n")),
        Err(error) => fail(error),
    }
}

fn terminal_size() -> (usize, usize) {
    match tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_row > 1 && size.ws_col > 1 => (usize::from(size.ws_row) - 1, usize::from(size.ws_col)),
        _ => SIZE,
    }
}
