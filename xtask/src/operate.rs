//! `operate`: a server that is reloaded and upgraded under load, often.

use std::error::Error;
use std::process::Command;

const USAGE: &str = "usage: cargo xtask operate [--reloads N] [--upgrades N] [--sites N] [--profile dev|release]";

pub(crate) fn run(mut arguments: impl Iterator<Item = String>) -> Result<bool, Box<dyn Error>> {
    let mut counts = [
        ("--reloads", "TAILCOAT_RELOADS", 200),
        ("--upgrades", "TAILCOAT_UPGRADES", 50),
        ("--sites", "TAILCOAT_SITES", 1_000),
    ];
    let mut profile = "release".to_owned();
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or(USAGE)?;
        match counts.iter_mut().find(|(name, ..)| *name == argument) {
            Some((_, _, count)) => *count = value.parse().map_err(|_| USAGE)?,
            None if argument == "--profile" => profile = value,
            None => return Err(USAGE.into()),
        }
    }
    let directory = match profile.as_str() {
        "dev" => "debug",
        "release" => "release",
        _ => return Err(USAGE.into()),
    };
    // tailor is one of the clients.
    if !cargo(Command::new("cargo").args(["build", "--profile", &profile, "-p", "tailor", "--bin", "tailor"]))? {
        return Ok(false);
    }
    let tailor = std::path::absolute(format!("target/{directory}/tailor"))?;
    let tests = ["test", "--profile", &profile, "-p", "tailcoat", "--test", "blackbox", "under_load::"];
    let mut command = Command::new("cargo");
    command.args(tests).args(["--", "--nocapture", "--test-threads", "1"]);
    cargo(command.envs(counts.map(|(_, variable, count)| (variable, count.to_string()))).env("TAILCOAT_TAILOR", tailor))
}

/// True if the command succeeded. It prints its own errors.
fn cargo(command: &mut Command) -> Result<bool, Box<dyn Error>> {
    Ok(command.status().map_err(|error| format!("cannot start cargo: {error}"))?.success())
}
