//! The command line.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::end::ProgramEnd;

/// Benchmark and load generator for web servers
#[derive(Debug, Parser)]
#[command(
    name = "tailor",
    version,
    about,
    arg_required_else_help = true,
    after_help = "\
Examples:
  tailor http://127.0.0.1:8080/            benchmark a URL (the same as `tailor bench URL`)
  tailor bench -c 256 -t 2 -d 30s --require 'p99<5ms' http://127.0.0.1:8080/
  tailor compare --list                    list the labs that compare servers
  tailor web99 run -c 500 http://127.0.0.1:8080"
)]
struct Cli {
    #[command(subcommand)]
    command: TailorCommand,
}

#[derive(Debug, Subcommand)]
enum TailorCommand {
    /// Benchmark a server: send load, and report rate and latency
    #[command(after_help = "\
Examples:
  tailor bench -c 256 -d 30s http://127.0.0.1:8080/
  tailor bench -R 5000 -d 1m --html report.html https://example.com/
  tailor bench --profile 1k:10s,9k:2s,1k:20s --deadline 50ms https://example.com/
  tailor bench --scenario shop.kdl -c 100 -d 1m https://example.com/
  tailor bench --find 'p99<5ms,failures<0.1%' https://example.com/
  tailor bench --http2 --streams 64 --json result.json https://127.0.0.1:8443/")]
    Bench(Box<crate::bench::LoadOptions>),
    /// Compare servers under the same load in alternating rounds, or two recorded runs
    #[command(after_help = "\
Examples:
  tailor compare --list
  tailor compare keepalive-1k --rounds 5
  tailor compare keepalive-1k --servers nginx --vary sysctl:net.ipv4.tcp_congestion_control=cubic,bbr
  tailor compare keepalive-1k --servers tailcoat --kernel linux-image-6.1.deb,linux-image-6.12.deb
  tailor compare old1.json,old2.json,old3.json new1.json,new2.json,new3.json")]
    Compare(crate::lab::CompareOptions),
    /// Compare records of `bench --json`; the exit code is 1 if the new ones are worse
    #[command(after_help = "\
Examples:
  tailor diff old1.json,old2.json,old3.json new1.json,new2.json,new3.json
  tailor diff --tolerance 10% old1.json,old2.json new1.json,new2.json")]
    Diff(crate::diff::DiffOptions),
    /// Run parts of a load for `bench --agents` on another machine
    #[command(after_help = "\
Examples:
  tailor agent --new-secret agents.secret            then copy the file to all machines
  tailor agent --secret agents.secret --listen 192.0.2.1:9470
  tailor bench --agents 192.0.2.1,192.0.2.2 --secret agents.secret -c 1000 https://example.com/")]
    Agent(crate::agent::AgentOptions),
    /// Show recorded runs of the same load over time
    #[command(after_help = "\
Examples:
  tailor history runs/*.json
  tailor history --html history.html runs/*.json")]
    History(crate::history::HistoryOptions),
    /// Run servers side by side under load for hours, in pieces that continue after an interruption
    #[command(after_help = "\
Examples:
  tailor soak results                                two servers for 90 minutes; again after an interruption
  tailor soak --duration 168h --piece 10m --servers tailcoat,nginx,haproxy results")]
    Soak(crate::lab::SoakOptions),
    /// Translate a HAR file, a Lua script of wrk or a script of k6 to a scenario file for `bench --scenario`
    #[command(after_help = "\
Examples:
  tailor import -o shop.kdl recording.har
  tailor import load.js > load.kdl
  tailor import --from wrk post.lua

Parts without a translation are listed on standard error and at the start of the scenario file.")]
    Import(crate::import::ImportOptions),
    /// Send the requests of an access log to two servers, and report how their responses differ; the exit code is 1 if
    /// they do
    #[command(after_help = "\
Examples:
  tailor replay access.log http://127.0.0.1:80 http://127.0.0.1:8080
  tailor replay --host example.com -k access.log https://192.0.2.1 https://192.0.2.2
  tailor replay --speed 10 --ignore last-modified --json differences.json access.log OLD NEW

The load of a log alone, with latencies: tailor bench --replay")]
    Replay(crate::replay::ReplayOptions),
    /// Run the web99 workload: static and dynamic pages over many slow lines with a minimum rate each
    #[command(subcommand)]
    Web99(Web99Command),
    /// Create a test site, and a list of its URLs for `bench --urls`
    Site(crate::site::SiteOptions),
    /// Join control groups, bind to CPUs, and run a command
    #[command(hide = true)]
    Launch {
        #[arg(long)]
        join: Vec<std::path::PathBuf>,
        #[arg(long, value_delimiter = ',')]
        cpus: Vec<usize>,
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Run as the first process of an emulated machine
    #[command(hide = true)]
    Guest,
    /// Put a kernel parameter back when the parent process has ended
    #[command(hide = true)]
    Guard,
    /// Print completions for a shell
    Completions {
        /// Shell to print completions for
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of the program and its commands
    Man {
        /// Existing directory to write to
        #[arg(long, value_name = "DIR")]
        dir: std::path::PathBuf,
    },
    /// Print the JSON schema of a report
    Schema {
        /// Report whose schema to print
        #[arg(value_enum)]
        report: SchemaOf,
    },
}

#[derive(Debug, Subcommand)]
enum Web99Command {
    /// Write the file set, the dynamic operations in PHP and CGI, and server configurations
    Init(crate::lab::InitOptions),
    #[command(flatten)]
    Load(Box<crate::web99::Web99Action>),
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SchemaOf {
    /// `tailor bench --json`
    Bench,
    /// `tailor bench --find --json`
    Find,
    /// `tailor compare --json`
    Compare,
    /// `tailor compare --kernel --json`
    Kernels,
    /// `tailor replay --json`
    Replay,
    /// `tailor web99 run --json`
    Web99,
}

/// Inserts `bench` if the first argument is a URL, or an option with a URL after it.
fn with_command(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.collect();
    let is_url = |word: &OsString| word.to_string_lossy().contains("://");
    let is_option = |word: &OsString| word.to_string_lossy().starts_with('-');
    if arguments.get(1).is_some_and(|first| is_url(first) || is_option(first) && arguments[1..].iter().any(is_url)) {
        arguments.insert(1, "bench".into());
    }
    arguments
}

/// Runs the program with the process's arguments.
pub fn main() -> ExitCode {
    let result = match Cli::parse_from(with_command(std::env::args_os())).command {
        TailorCommand::Bench(options) if options.agents.is_empty() => crate::bench::run(&options),
        TailorCommand::Bench(options) => crate::agent::run_bench(&options),
        TailorCommand::Agent(options) => crate::agent::run(&options),
        TailorCommand::Compare(options) => crate::lab::run(&options),
        TailorCommand::Diff(options) => crate::diff::run(&options),
        TailorCommand::History(options) => crate::history::run(&options),
        TailorCommand::Soak(options) => crate::lab::run_soak(&options),
        TailorCommand::Import(options) => crate::import::run(&options),
        TailorCommand::Replay(options) => crate::replay::run(&options),
        TailorCommand::Web99(Web99Command::Init(options)) => crate::lab::init_web99(&options),
        TailorCommand::Web99(Web99Command::Load(command)) => crate::web99::run(&command),
        TailorCommand::Site(options) => crate::site::run(&options),
        TailorCommand::Launch { join, cpus, command } => Err(crate::lab::become_command(&join, &cpus, &command)),
        TailorCommand::Guest => crate::lab::become_guest().map(|()| ProgramEnd::Passed),
        TailorCommand::Guard => crate::lab::run_guard().map(|()| ProgramEnd::Passed),
        TailorCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "tailor", &mut script);
            crate::output::print(&String::from_utf8_lossy(&script)).map(|()| ProgramEnd::Passed)
        }
        TailorCommand::Man { dir } => match clap_mangen::generate_to(Cli::command(), &dir) {
            Ok(()) => Ok(ProgramEnd::Passed),
            Err(error) => Err(format!("{}: {error}", dir.display())),
        },
        TailorCommand::Schema { report } => {
            let schema = match report {
                SchemaOf::Bench => crate::report::json::schema(),
                SchemaOf::Compare => crate::lab::schema(),
                SchemaOf::Find => crate::bench::find_schema(),
                SchemaOf::Kernels => crate::lab::kernel_schema(),
                SchemaOf::Replay => crate::replay::schema(),
                SchemaOf::Web99 => crate::web99::schema(),
            };
            crate::output::print(&format!("{schema}\n")).map(|()| ProgramEnd::Passed)
        }
    };
    match result {
        Ok(end) => end.into(),
        Err(message) => {
            eprintln!("tailor: {message}");
            ProgramEnd::Impossible.into()
        }
    }
}
