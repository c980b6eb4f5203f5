//! `set` and `drain`: what changes in a running server until its configuration is read again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

use super::control::{ServerSocket, unexpected};
use super::{fail, print};
use crate::control::{ControlOrder, ControlReport};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tailcoat set workers 8
  tailcoat set limit idle-timeout 15s
  tailcoat set servers app http://10.0.0.11:8000 http://10.0.0.12:8000
  tailcoat set certificate example.org chain.pem key.pem
  tailcoat set rate-limit 5/m --path /login --burst 10 --site example.org
  tailcoat set split canary 0.05
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
    /// Replace the certificates of a site; open connections keep theirs
    Certificate {
        /// Name of the site; `_` for a site without names
        site: String,
        /// File of the certificate and those that lead from it to a CA, as PEM
        certificate: PathBuf,
        /// File of the private key, as PEM
        key: PathBuf,
    },
    /// Change the rate of a `rate-limit`; what clients have used stays counted
    RateLimit {
        /// Requests in a time: `10/s`, `5/m`
        rate: String,
        /// Paths of the limit, if it has them in the configuration
        #[arg(long)]
        path: Option<String>,
        /// Requests that may come at once; the default is the rate's number
        #[arg(long)]
        burst: Option<u32>,
        /// Key of the limit, if it has one in the configuration
        #[arg(long)]
        key: Option<String>,
        /// Name of the site whose limit it is; without it, a limit for all sites
        #[arg(long)]
        site: Option<String>,
    },
    /// Change the share of requests that an upstream gets by `split`
    Split {
        /// Upstream of the share, as in `split`
        upstream: String,
        /// Share from 0 to 1
        share: String,
        /// Name of the site; without it, all sites
        #[arg(long)]
        site: Option<String>,
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
            SetCommand::Certificate { site, certificate, key } => {
                let (certificate, key) = match (read(&certificate), read(&key)) {
                    (Ok(certificate), Ok(key)) => (certificate, key),
                    (Err(reason), _) | (_, Err(reason)) => return fail(reason),
                };
                ControlOrder::SetCertificate { site, certificate, key }
            }
            SetCommand::Split { upstream, share, site } => ControlOrder::SetSplit { upstream, share, site },
            SetCommand::RateLimit { rate, path, burst, key, site } => {
                let mut limit = path.map(|path| quoted(&path) + " ").unwrap_or_default() + &quoted(&rate);
                limit.extend(burst.map(|burst| format!(" burst={burst}")));
                limit.extend(key.map(|key| format!(" key={}", quoted(&key))));
                ControlOrder::SetRateLimit { site, limit }
            }
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

/// Text of a file, or a message for people.
fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
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
