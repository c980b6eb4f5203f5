//! `ban`, `unban`, `bans`: temporary bans of clients.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::control::{ServerSocket, unexpected};
use super::print;
use crate::config;
use crate::control::{ControlOrder, ControlReport};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tailcoat ban 192.0.2.7 --for 24h
  tailcoat ban 2001:db8::/32")]
pub(super) struct Ban {
    /// Address, or network such as `192.0.2.0/24`; an IPv6 address stands for its first 64 bits unless written `ADDRESS/128`
    client: String,

    /// Duration of the ban: `30s`, `10m`, `24h`
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = config::duration_from_text)]
    time: Duration,

    #[command(flatten)]
    server: ServerSocket,
}

#[derive(Debug, Args)]
pub(super) struct Unban {
    /// Address or network, as in `ban`
    client: String,

    #[command(flatten)]
    server: ServerSocket,
}

#[derive(Debug, Args)]
pub(super) struct BansArgs {
    #[command(flatten)]
    server: ServerSocket,
}

impl Ban {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        let order = ControlOrder::Ban { client: self.client, seconds: self.time.as_secs().max(1) };
        self.server.give(of_top, &order, done)
    }
}

impl Unban {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        self.server.give(of_top, &ControlOrder::Unban { client: self.client }, done)
    }
}

impl BansArgs {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        self.server.give(of_top, &ControlOrder::ListBans, done)
    }
}

fn done(report: ControlReport) -> ExitCode {
    match report {
        ControlReport::Done(text) => print(&text),
        report => unexpected(&report),
    }
}
