//! `ban`, `unban`, `bans`: clients that a running server is to keep out for some time.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::control::{ServerSocket, unexpected};
use super::print;
use crate::config;
use crate::control::{Order, Report};

#[derive(Debug, Args)]
pub(super) struct Ban {
    /// An address, or a network such as `192.0.2.0/24`; of an address of IPv6 its first 64 bits count, unless it is `ADDRESS/128`
    client: String,

    /// For how long
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = config::duration_from_text)]
    time: Duration,

    #[command(flatten)]
    server: ServerSocket,
}

#[derive(Debug, Args)]
pub(super) struct Unban {
    /// An address or a network, as it was banned
    client: String,

    #[command(flatten)]
    server: ServerSocket,
}

#[derive(Debug, Args)]
pub(super) struct Bans {
    #[command(flatten)]
    server: ServerSocket,
}

impl Ban {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        let order = Order::Ban { client: self.client, seconds: self.time.as_secs().max(1) };
        self.server.give(of_top, &order, done)
    }
}

impl Unban {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        self.server.give(of_top, &Order::Unban { client: self.client }, done)
    }
}

impl Bans {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        self.server.give(of_top, &Order::ListBans, done)
    }
}

fn done(report: Report) -> ExitCode {
    match report {
        Report::Done(text) => print(&text),
        report => unexpected(&report),
    }
}
