//! `operate`: a server that is reloaded and upgraded under load, often.

use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo xtask operate [--reloads N] [--upgrades N] [--sites N]";

pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> ExitCode {
    let mut counts = [
        ("--reloads", "TAILCOAT_RELOADS", 200),
        ("--upgrades", "TAILCOAT_UPGRADES", 50),
        ("--sites", "TAILCOAT_SITES", 1_000),
    ];
    while let Some(argument) = arguments.next() {
        let value = arguments.next().and_then(|value| value.parse().ok());
        match (counts.iter_mut().find(|(name, ..)| *name == argument), value) {
            (Some((_, _, count)), Some(value)) => *count = value,
            _ => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    let mut command = Command::new("cargo");
    command.args(["test", "--release", "-p", "tailcoat", "--test", "blackbox", "under_load::", "--", "--nocapture"]);
    command.args(["--test-threads", "1"]);
    command.envs(counts.map(|(_, variable, count)| (variable, count.to_string())));
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cannot start cargo: {error}");
            ExitCode::FAILURE
        }
    }
}
