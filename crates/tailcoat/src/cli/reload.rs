//! `reload` and `upgrade`: another configuration, or another binary, for the running server.

use std::io::{IsTerminal, stderr};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::control::{ServerSocket, unexpected};
use super::{EXIT_CONFIG, print};
use crate::control::{ControlOrder, ControlReport};

#[derive(Debug, Args)]
pub(super) struct ReloadArgs {
    #[command(flatten)]
    server: ServerSocket,
}

#[derive(Debug, Args)]
pub(super) struct Upgrade {
    #[command(flatten)]
    server: ServerSocket,
}

impl Upgrade {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        self.server.give(of_top, &ControlOrder::Upgrade, |report| match report {
            ControlReport::Done(text) => print(&text),
            report => unexpected(&report),
        })
    }
}

impl ReloadArgs {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        let is_fancy = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        self.server.give(of_top, &ControlOrder::Reload { is_fancy }, |report| match report {
            ControlReport::Done(found) => {
                // First what has changed, then what was found.
                let (applied, found) = match found.split_once('\n') {
                    Some((applied, found)) if applied.starts_with("applied: ") => (format!("{applied}\n"), found),
                    _ => (String::new(), found.as_str()),
                };
                eprint!("{found}");
                print(&applied)
            }
            ControlReport::Invalid(found) => {
                eprint!("{found}");
                eprintln!("tailcoat: the configuration has errors; the running configuration stays in use");
                ExitCode::from(EXIT_CONFIG)
            }
            report => unexpected(&report),
        })
    }
}
