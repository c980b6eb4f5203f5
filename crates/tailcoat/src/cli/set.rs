//! `set` and `drain`: what changes in a running server until its configuration is read again.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

use super::control::{ServerSocket, unexpected};
use super::print;
use crate::control::{ControlOrder, ControlReport};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tailcoat set workers 8
  tailcoat set limit idle-timeout 15s
  tailcoat set servers app http://10.0.0.11:8000 http://10.0.0.12:8000
  tailcoat set log-level debug")]
pub(super) struct SetArgs {
    #[command(flatten)]
    server: ServerSocket,

    #[command(subcommand)]
    command: SetCommand,
}

#[derive(Debug, Subcommand)]
enum SetCommand {
    /// Change the number of workers; a surplus worker ends when its connections close
    Workers {
        /// Number of workers
        #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
        count: u16,
    },
    /// Change the level of the server log
    LogLevel {
        /// Minimum severity of messages
        level: LogLevelChoice,
    },
    /// Replace the servers of an upstream; requests in progress at removed servers continue
    Servers {
        /// Name of the upstream
        upstream: String,
        /// Servers as in the configuration: `http://10.0.0.11:8000`, `"http://10.0.0.12:8000 weight=2 backup=on"`
        #[arg(required = true)]
        servers: Vec<String>,
    },
    /// Change a limit
    Limit {
        /// Option of `limits`
        name: String,
        /// Values as in the configuration: `500`, `30s`, `16KiB`, `100 20`
        #[arg(required = true)]
        values: Vec<String>,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogLevelChoice {
    Error,
    Warn,
    Info,
    Debug,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tailcoat drain app http://127.0.0.1:8001
  tailcoat drain --end app http://127.0.0.1:8001")]
pub(super) struct Drain {
    /// Name of the upstream; a single server of `forward` is its own upstream
    upstream: String,

    /// Address of the server, as in the configuration
    address: String,

    /// End the drain: send requests again
    #[arg(long)]
    end: bool,

    #[command(flatten)]
    server: ServerSocket,
}

impl SetArgs {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        let order = match self.command {
            SetCommand::Workers { count } => ControlOrder::SetWorkers { count: count.into() },
            SetCommand::LogLevel { level } => ControlOrder::SetLogLevel { level: format!("{level:?}").to_lowercase() },
            SetCommand::Servers { upstream, servers } => ControlOrder::SetServers { upstream, servers },
            SetCommand::Limit { name, values } => {
                let values = values.iter().map(|value| quoted(value));
                ControlOrder::SetLimit { option: std::iter::once(name).chain(values).collect::<Vec<_>>().join(" ") }
            }
        };
        self.server.give(of_top, &order, done)
    }
}

impl Drain {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        let Self { upstream, address, end, server } = self;
        server.give(of_top, &ControlOrder::DrainServer { upstream, server: address, is_drained: !end }, done)
    }
}

fn done(report: ControlReport) -> ExitCode {
    match report {
        ControlReport::Done(text) => print(&text),
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
