//! The command line.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::{CommandFactory, Parser, Subcommand};

/// Measures web servers as their users meet them.
#[derive(Debug, Parser)]
#[command(
    name = "tailor",
    version,
    about,
    arg_required_else_help = true,
    after_help = "`tailor URL` is `tailor bench URL`."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Loads a server and reports what it did.
    Bench(Box<crate::bench::Options>),
    /// Compares servers under the same load, in alternating rounds; or two recorded runs.
    Compare(crate::lab::Options),
    /// The web99 workload: static and dynamic pages over many slow lines, each of which must get its due.
    #[command(subcommand)]
    Web99(Web99Command),
    /// Makes a site to try things out with, and a list of its URLs for `bench --urls`.
    Site(crate::site::Options),
    /// Joins control groups, takes processors, and becomes a command.
    #[command(hide = true)]
    Launch {
        #[arg(long)]
        join: Vec<std::path::PathBuf>,
        #[arg(long, value_delimiter = ',')]
        cpus: Vec<usize>,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Prints completions for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Writes the manual pages, of the program and of its commands.
    Man {
        /// The directory, which is there.
        #[arg(long, value_name = "DIR")]
        dir: std::path::PathBuf,
    },
    /// Prints the JSON schema of a report.
    Schema {
        /// Of which report.
        #[arg(value_enum)]
        report: SchemaOf,
    },
}

#[derive(Debug, Subcommand)]
enum Web99Command {
    /// Writes the file set, the dynamic operations in PHP and as CGI, and configs of servers for them.
    Init(crate::lab::InitOptions),
    #[command(flatten)]
    Load(Box<crate::web99::Command>),
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SchemaOf {
    /// `tailor bench --json`
    Bench,
    /// `tailor compare --json`
    Compare,
    /// `tailor web99 run --json`
    Web99,
}

/// How the program can end: the exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// 0: done, and all requirements hold.
    Passed,
    /// 1: done, but a requirement does not hold.
    Failed,
    /// 2: could not be done.
    Impossible,
    /// 130: broken off; whatever was measured, nothing passed.
    Interrupted,
}

impl From<End> for ExitCode {
    fn from(end: End) -> Self {
        Self::from(match end {
            End::Passed => 0,
            End::Failed => 1,
            End::Impossible => 2,
            End::Interrupted => 130,
        })
    }
}

/// A mark that is set when the program is told to end (SIGINT, SIGTERM).
pub(crate) fn stop_on_signals() -> Result<Arc<AtomicBool>, String> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(|error| format!("signals: {error}"))?;
    }
    Ok(stop)
}

/// The arguments, with `bench` before a URL that stands first.
fn with_command(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.collect();
    if arguments.get(1).is_some_and(|first| first.to_string_lossy().contains("://")) {
        arguments.insert(1, "bench".into());
    }
    arguments
}

/// Runs the program with the process's arguments.
pub fn main() -> ExitCode {
    let result = match Cli::parse_from(with_command(std::env::args_os())).command {
        Command::Bench(options) => crate::bench::run(&options),
        Command::Compare(options) => crate::lab::run(&options),
        Command::Web99(Web99Command::Init(options)) => crate::lab::init_web99(&options),
        Command::Web99(Web99Command::Load(command)) => crate::web99::run(&command),
        Command::Site(options) => crate::site::run(&options),
        Command::Launch { join, cpus, command } => Err(crate::lab::become_command(&join, &cpus, &command)),
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "tailor", &mut std::io::stdout());
            Ok(End::Passed)
        }
        Command::Man { dir } => match clap_mangen::generate_to(Cli::command(), &dir) {
            Ok(()) => Ok(End::Passed),
            Err(error) => Err(format!("{}: {error}", dir.display())),
        },
        Command::Schema { report: SchemaOf::Compare } => {
            println!("{}", crate::lab::schema());
            Ok(End::Passed)
        }
        Command::Schema { report: SchemaOf::Web99 } => {
            println!("{}", crate::web99::schema());
            Ok(End::Passed)
        }
        Command::Schema { report: SchemaOf::Bench } => {
            println!("{}", crate::report::json::schema());
            Ok(End::Passed)
        }
    };
    match result {
        Ok(end) => end.into(),
        Err(message) => {
            eprintln!("tailor: {message}");
            End::Impossible.into()
        }
    }
}
