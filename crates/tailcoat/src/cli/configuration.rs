//! Commands about a configuration file.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use rustix::process::geteuid;

use super::{EXIT_CONFIG, fail, names, print, start};
use crate::config::{self, CheckedConfig, ConfigOrigin, Diagnostics, FileStates, ProgramUser};
use crate::confinement;
use crate::server::Handover;

#[derive(Debug, Args)]
pub(super) struct ConfigFile {
    /// Configuration file; `-` is standard input [default: /etc/tailcoat/tailcoat.kdl]
    #[arg(short, long, value_name = "FILE", global = true)]
    pub(super) config: Option<PathBuf>,
}

/// `run`: the server with a configuration file. One with an error never starts.
pub(super) fn run(file: Option<PathBuf>, is_watched: bool, user: Option<ProgramUser>) -> ExitCode {
    let file = file.unwrap_or_else(|| config::DEFAULT_PATH.into());
    // First, for it comes on standard input.
    let handover = match Handover::from_environment() {
        Ok(handover) => handover,
        Err(error) => return fail(format_args!("cannot take over: {error}")),
    };
    let reject = |reason: &str| handover.iter().for_each(|handover| handover.fail(reason));
    let watched = is_watched.then(|| FileStates::of(&file));
    let checked = match load(&file, config::check_file) {
        Ok(checked) => checked,
        Err(code) => {
            reject("its configuration can't be read");
            return code;
        }
    };
    print_findings(&checked.diagnostics);
    match checked.config {
        Some(mut config) => {
            config.server.user = user.or(config.server.user);
            start(config, ConfigOrigin::File(file, watched), handover, |_| {})
        }
        None => {
            reject(&format!("its configuration has errors\n{}", checked.diagnostics.to_text(false)));
            ExitCode::from(EXIT_CONFIG)
        }
    }
}

/// `check`: all that is wrong with a configuration file.
pub(super) fn check(file: Option<PathBuf>, json: bool, is_offline: bool) -> ExitCode {
    let file = file.unwrap_or_else(|| config::DEFAULT_PATH.into());
    let check = |file: &Path| match is_offline {
        true => config::check_file_to_run(file),
        false => config::check_file_with_names(file, &names::look_up),
    };
    let mut checked = match load(&file, check) {
        Ok(checked) => checked,
        Err(code) => return code,
    };
    look_as_its_user(&file, &mut checked);
    if json {
        let printed = print(&format!("{}\n", checked.diagnostics.to_json()));
        return if checked.config.is_some() { printed } else { ExitCode::from(EXIT_CONFIG) };
    }
    print_findings(&checked.diagnostics);
    eprintln!("tailcoat: {}", summary(&file, &checked));
    if checked.config.is_some() { ExitCode::SUCCESS } else { ExitCode::from(EXIT_CONFIG) }
}

/// Adds what the user whom the server becomes may not open, if root may.
fn look_as_its_user(file: &Path, checked: &mut CheckedConfig) {
    let Some(config) = checked.config.as_ref().filter(|_| geteuid().is_root() && file != Path::new("-")) else {
        return;
    };
    let Ok(Some(user)) = confinement::wanted_user(config.server.user) else { return };
    if user.user_id == 0 {
        return;
    }
    let name = confinement::user_name(user);
    match confinement::as_user(user, || config::check_file_as_its_user(file)) {
        Ok(Ok(seen)) => checked.diagnostics.add_denied(&seen.diagnostics, &name),
        Ok(Err(error)) => {
            eprintln!(
                "tailcoat: {}: {error} for `{name}`, as whom the server runs: it can't be reloaded",
                file.display()
            );
        }
        // A container may not let even root become another.
        Err(_) => {}
    }
    if checked.diagnostics.has_error() {
        checked.config = None;
    }
}

/// Reads a configuration with the places of its options; prints what is wrong with it.
pub(super) fn load_explained(file: &Path) -> Result<(Option<config::Config>, config::ConfigPlaces), ExitCode> {
    let mut places = config::ConfigPlaces::default();
    let checked = load(file, |file| {
        let (checked, found) = config::explain_file(file)?;
        places = found;
        Ok(checked)
    })?;
    if checked.config.is_none() {
        print_findings(&checked.diagnostics);
    }
    Ok((checked.config, places))
}

/// Reads a file and checks it, or standard input; says so if it can't be read.
fn load(file: &Path, check: impl FnOnce(&Path) -> io::Result<CheckedConfig>) -> Result<CheckedConfig, ExitCode> {
    let read = if file == Path::new("-") {
        std::env::current_dir().and_then(|directory| config::check_stream("<stdin>", io::stdin().lock(), &directory))
    } else {
        check(file)
    };
    // Only a file with errors can be another server's.
    if let Ok(CheckedConfig { config: None, .. }) = &read
        && let Some(server) = foreign_server(file)
    {
        let file = file.display();
        eprintln!("tailcoat: {file} is a configuration of {server}");
        eprintln!("  translate it with `tailcoat import {file} -o tailcoat.kdl`");
        return Err(ExitCode::from(EXIT_CONFIG));
    }
    read.map_err(|error| {
        eprintln!("tailcoat: {}: {error}", file.display());
        if error.kind() == io::ErrorKind::NotFound && file == Path::new(config::DEFAULT_PATH) {
            eprintln!("  `tailcoat default-config` prints one to begin with; `tailcoat serve` needs none");
        }
        ExitCode::from(EXIT_CONFIG)
    })
}

/// Server whose configuration a file is, if it is not ours.
#[cfg(feature = "import")]
fn foreign_server(file: &Path) -> Option<crate::import::ForeignServer> {
    let is_file = std::fs::metadata(file).is_ok_and(|data| data.is_file() && data.len() < 16 << 20);
    if !is_file || file.extension().is_some_and(|extension| extension == "kdl") {
        return None;
    }
    crate::import::recognise(file, &std::fs::read_to_string(file).ok()?)
}

#[cfg(not(feature = "import"))]
fn foreign_server(_file: &Path) -> Option<&'static str> {
    None
}

/// Reads a configuration that has no errors; says so if there are some.
#[cfg(feature = "modules")]
pub(super) fn load_valid(file: &Path) -> Result<config::Config, ExitCode> {
    let checked = load(file, config::check_file)?;
    print_findings(&checked.diagnostics);
    checked.config.ok_or(ExitCode::from(EXIT_CONFIG))
}

/// Tells a person what was found.
pub(super) fn print_findings(diagnostics: &Diagnostics) {
    // Boxes and colours need a terminal, and no NO_COLOR (https://no-color.org).
    let fancy = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    eprint!("{}", diagnostics.to_text(fancy));
}

fn summary(file: &Path, checked: &CheckedConfig) -> String {
    let count = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let (errors, warnings) = (checked.diagnostics.error_count(), checked.diagnostics.warning_count());
    let file = file.display();
    match (errors, warnings) {
        (0, 0) => format!("{file} is valid"),
        (0, warnings) => format!("{file} is valid, with {}", count(warnings, "warning")),
        (errors, 0) => format!("{file} has {}", count(errors, "error")),
        (errors, warnings) => format!("{file} has {} and {}", count(errors, "error"), count(warnings, "warning")),
    }
}
