//! `set` and `drain`: what changes in a running server until its configuration is read again.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

use super::control::{ServerSocket, unexpected};
use super::print;
use crate::control::{Order, Report};

#[derive(Debug, Args)]
pub(super) struct Set {
    #[command(flatten)]
    server: ServerSocket,

    #[command(subcommand)]
    command: SetCommand,
}

#[derive(Debug, Subcommand)]
enum SetCommand {
    /// Have so many workers; those that go end with their connections
    Workers {
        /// How many
        #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
        count: u16,
    },
    /// Show what is at least as severe in the server's own log
    LogLevel {
        /// The least severity
        level: Level,
    },
    /// Keep another limit
    Limit {
        /// An option of `limits`
        name: String,
        /// Its value, or values, as in the configuration: `500`, `30s`, `16KiB`, `100 20`
        #[arg(required = true)]
        values: Vec<String>,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

#[derive(Debug, Args)]
pub(super) struct Drain {
    /// The upstream; one of a single server is called like that
    upstream: String,

    /// The server, as it is configured
    address: String,

    /// Send it requests again
    #[arg(long)]
    end: bool,

    #[command(flatten)]
    server: ServerSocket,
}

impl Set {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        let order = match self.command {
            SetCommand::Workers { count } => Order::SetWorkers { count: count.into() },
            SetCommand::LogLevel { level } => Order::SetLogLevel { level: format!("{level:?}").to_lowercase() },
            SetCommand::Limit { name, values } => {
                let values = values.iter().map(|value| quoted(value));
                Order::SetLimit { option: std::iter::once(name).chain(values).collect::<Vec<_>>().join(" ") }
            }
        };
        self.server.give(of_top, &order, done)
    }
}

impl Drain {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        let Self { upstream, address, end, server } = self;
        server.give(of_top, &Order::DrainServer { upstream, server: address, is_drained: !end }, done)
    }
}

fn done(report: Report) -> ExitCode {
    match report {
        Report::Done(text) => print(&text),
        report => unexpected(&report),
    }
}

/// A value as KDL has it.
fn quoted(value: &str) -> String {
    if value.parse::<i64>().is_ok() {
        return value.to_owned();
    }
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}
