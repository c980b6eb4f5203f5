//! `set` and `drain`: what changes in a running server until its configuration is read again.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

use super::control::{ServerSocket, unexpected};
use super::print;
use crate::control::{Order, Report};

#[derive(Debug, Subcommand)]
pub(super) enum SetCommand {
    /// Have so many workers; those that go end with their connections
    Workers {
        /// How many
        #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
        count: u16,
        #[command(flatten)]
        server: ServerSocket,
    },
    /// Show what is at least as severe in the server's own log
    LogLevel {
        /// The least severity
        level: Level,
        #[command(flatten)]
        server: ServerSocket,
    },
    /// Keep another limit
    Limit {
        /// An option of `limits`
        name: String,
        /// Its value, as in the configuration: `500`, `30s`, `16KiB`
        value: String,
        #[command(flatten)]
        server: ServerSocket,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Level {
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

impl SetCommand {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        let (server, order) = match self {
            Self::Workers { count, server } => (server, Order::SetWorkers { count: count.into() }),
            Self::LogLevel { level, server } => {
                (server, Order::SetLogLevel { level: format!("{level:?}").to_lowercase() })
            }
            Self::Limit { name, value, server } => {
                (server, Order::SetLimit { option: format!("{name} {}", quoted(&value)) })
            }
        };
        server.give(of_top, &order, done)
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
