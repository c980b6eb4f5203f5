//! The command line: what it may say, and who does it.

mod configuration;
mod serve;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{self, Config, Origin};
use crate::log::ServerLog;
use crate::server::Server;

/// Exit code: something failed while running, or `fmt --check` found a file that isn't formatted.
pub const EXIT_FAILURE: u8 = 1;
/// Exit code: the command line can't be understood.
pub const EXIT_USAGE: u8 = 2;
/// Exit code: the configuration has errors or can't be read.
pub const EXIT_CONFIG: u8 = 3;

/// Exit codes, for the help and the manual page.
const EXIT_CODES: &str = "\
Exit codes:
  0  all went well
  1  something failed while running, or `fmt --check` found a file that isn't formatted
  2  the command line can't be understood
  3  the configuration has errors or can't be read";

/// A web server built for speed.
#[derive(Debug, Parser)]
#[command(
    name = "tailcoat",
    version,
    about,
    disable_version_flag = true,
    arg_required_else_help = true,
    after_help = EXIT_CODES,
    subcommand_negates_reqs = true
)]
struct Arguments {
    /// Configuration file; without a command, the server runs with it, as `run` does
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Check the configuration and exit, as `check` does
    #[arg(short, long)]
    test: bool,

    /// Print the version
    #[arg(short = 'v', long)]
    version: bool,

    /// Print the version and how this program was built
    #[arg(short = 'V')]
    build: bool,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a directory, without a configuration file
    Serve(serve::Serve),
    /// Run the server with a configuration file
    Run {
        #[command(flatten)]
        file: configuration::ConfigFile,
    },
    /// Check a configuration file: all errors in one go
    Check {
        #[command(flatten)]
        file: configuration::ConfigFile,
        /// Print what was found as JSON, for editors
        #[arg(long)]
        json: bool,
    },
}

/// Does what the command line of this process says.
pub fn main() -> ExitCode {
    run(std::env::args_os())
}

fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help that was asked for goes to standard output with 0, errors to standard error with 2. If even that
            // can't be written, nobody is there to be told.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 });
        }
    };
    if arguments.build {
        return print(&build_text());
    }
    if arguments.version {
        return print(&format!("tailcoat {}\n", env!("CARGO_PKG_VERSION")));
    }
    let of_top = arguments.config;
    match arguments.command {
        _ if arguments.test => configuration::check(of_top, false),
        None => configuration::run(of_top),
        Some(Command::Serve(serve)) => serve.run(),
        Some(Command::Run { file }) => configuration::run(file.config.or(of_top)),
        Some(Command::Check { file, json }) => configuration::check(file.config.or(of_top), json),
    }
}

/// Starts the server, and serves until it is ended.
fn start(config: Config, origin: Origin) -> ExitCode {
    let server_log = ServerLog::stderr(config.server.log_level);
    let server = match Server::start(config, server_log.clone()) {
        Ok(server) => server,
        Err(error) => return fail(error),
    };
    for address in &server.addresses {
        match origin {
            Origin::CommandLine => eprintln!("Serving at http://{address}/"),
            Origin::File(_) => server_log.info(format_args!("listening on {address}")),
        }
    }
    match server.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

fn build_text() -> String {
    format!(
        "tailcoat {}\nbuilt for {}-{}, {}\nconfiguration {}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        std::env::consts::OS,
        if cfg!(debug_assertions) { "with debug assertions" } else { "optimized" },
        config::DEFAULT_PATH,
    )
}

/// Writes to standard output. A reader that went away (`| head`) is no failure.
fn print(text: &str) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => fail(error),
        _ => ExitCode::SUCCESS,
    }
}

/// Says what failed.
fn fail(message: impl Display) -> ExitCode {
    eprintln!("tailcoat: {message}");
    ExitCode::from(EXIT_FAILURE)
}
