//! `rollout`: a configuration for all instances of a store, a few first.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::control::{ServerSocket, unexpected};
use super::{EXIT_CONFIG, fail, print};
use crate::config;
use crate::control::{ControlOrder, ControlReport};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tailcoat rollout start new.kdl
  tailcoat rollout start new.kdl --first 25% --watch 10m --errors 0.5%")]
pub(super) struct RolloutArgs {
    #[command(flatten)]
    server: ServerSocket,

    #[command(subcommand)]
    command: RolloutCommand,
}

#[derive(Debug, Subcommand)]
enum RolloutCommand {
    /// Apply a configuration at some instances, and at all if these stay healthy
    Start {
        /// Configuration file. Its `store` and `control-socket` are ignored: each instance keeps its own
        file: PathBuf,

        #[command(flatten)]
        settings: Settings,
    },
    /// Apply each instance's own file again, as a rollout
    Files {
        #[command(flatten)]
        settings: Settings,
    },
    /// Show the latest rollout and what each instance reports
    Status,
    /// End the rollout in progress: all instances return to the configuration before
    Stop,
}

#[derive(Debug, Args)]
struct Settings {
    /// Share of instances that get it first; at least one does
    #[arg(long, value_name = "SHARE", default_value = "10%", value_parser = per_mille)]
    first: u64,

    /// Time for which the first instances, and then all, must stay healthy; at least 10s, because instances report every 5s
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = watch_time)]
    watch: Duration,

    /// Share of responses with 5xx, or of upstream servers that fail, above the usual one, at which all instances return
    #[arg(long, value_name = "SHARE", default_value = "2%", value_parser = per_mille)]
    errors: u64,
}

/// Shortest time of watching: two reports of each instance.
const WATCH_MIN: Duration = Duration::from_secs(10);

fn watch_time(text: &str) -> Result<Duration, String> {
    match config::duration_from_text(text)? {
        time if time < WATCH_MIN => Err("at least 10s, because instances report their health every 5s".to_owned()),
        time => Ok(time),
    }
}

impl RolloutArgs {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        let order = match self.command {
            RolloutCommand::Start { file, settings } => match read(&file) {
                Ok(text) => settings.order(Some(text)),
                Err(code) => return code,
            },
            RolloutCommand::Files { settings } => settings.order(None),
            RolloutCommand::Status => ControlOrder::RolloutStatus,
            RolloutCommand::Stop => ControlOrder::StopRollout,
        };
        self.server.give(of_top, &order, |report| match report {
            ControlReport::Done(text) => print(&text),
            report => unexpected(&report),
        })
    }
}

impl Settings {
    fn order(self, text: Option<String>) -> ControlOrder {
        ControlOrder::StartRollout {
            text,
            first_per_mille: self.first,
            errors_per_mille_max: self.errors,
            watch_seconds: self.watch.as_secs(),
        }
    }
}

/// Text of a configuration without errors.
fn read(file: &Path) -> Result<String, ExitCode> {
    let failed = |error: &dyn std::fmt::Display| fail(format_args!("{}: {error}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| failed(&error))?;
    let checked = config::check_file_for_others(file).map_err(|error| failed(&error))?;
    if checked.config.is_none() {
        eprint!("{}", checked.diagnostics.to_text(false));
        return Err(ExitCode::from(EXIT_CONFIG));
    }
    Ok(text)
}

/// Share in per mille: `10%`, `0.5%`.
fn per_mille(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a share from 0% to 100%, such as 10% or 0.5%");
    let (whole, tenths) =
        text.strip_suffix('%').map(|number| number.split_once('.').unwrap_or((number, "0"))).ok_or_else(wrong)?;
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(tenths) || tenths.len() != 1 {
        return Err(wrong());
    }
    let number = |part: &str| part.parse::<u64>().map_err(|_| wrong());
    Some(number(whole)?.saturating_mul(10).saturating_add(number(tenths)?))
        .filter(|share| *share <= 1_000)
        .ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    #[test]
    fn shares() {
        for (text, expect) in [("10%", 100), ("0.5%", 5), ("100%", 1_000), ("0%", 0)] {
            assert_eq!(super::per_mille(text), Ok(expect), "{text}");
        }
        for text in ["", "%", "10", "101%", "-1%", "0.25%", ".5%", "5.%", "100.1%", "99999999999999999999%"] {
            assert!(super::per_mille(text).is_err(), "{text}");
        }
    }
}
