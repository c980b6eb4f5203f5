//! The command line: what it may say, and who does it.

mod ban;
mod cache;
mod configuration;
mod control;
mod doctor;
mod format;
mod hash_password;
mod import;
mod local_certificate;
mod log;
mod module;
mod pages;
mod reload;
mod serve;
mod set;
mod status;
mod status_text;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::config::{self, Config, Origin};
use crate::log::ServerLog;
use crate::server::{Foundation, Handover, Server, ServerAddress, launcher};

/// Exit code: something failed while running, or `fmt --check` found a file that isn't formatted.
pub const EXIT_FAILURE: u8 = 1;
/// Exit code: the command line can't be understood.
pub const EXIT_USAGE: u8 = 2;
/// Exit code: the configuration has errors or can't be read.
pub const EXIT_CONFIG: u8 = 3;
/// Exit code: a translation refuses what it can't say.
pub const EXIT_REFUSED: u8 = 4;
/// Exit code: a translation has errors.
pub const EXIT_TRANSLATION: u8 = 5;

/// Exit codes, for the help and the manual page.
const EXIT_CODES: &str = "\
Exit codes:
  0  all went well
  1  something failed while running, or `fmt --check` found a file that isn't formatted
  2  the command line can't be understood
  3  the configuration has errors or can't be read
  4  `import` wrote a configuration that refuses paths, since what guarded or answered them can't be said here
  5  `import` wrote a configuration that has errors";

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
        /// Reload when the file, or one that it includes, has changed
        #[arg(long)]
        watch: bool,
        /// The user to become, if this is root, instead of that in the file
        #[arg(long, value_name = "USER", value_parser = config::user_from_text)]
        user: Option<config::ProgramUser>,
    },
    /// Check a configuration file: all errors in one go, and what would keep the server from starting
    ///
    /// Standard input is checked for errors alone, as editors want it: what the server would open is not looked at.
    Check {
        #[command(flatten)]
        file: configuration::ConfigFile,
        /// Print what was found as JSON, for editors
        #[arg(long)]
        json: bool,
    },
    /// Format configuration files; comments stay
    Fmt(format::Format),
    /// Translate the configuration of another server, and tell what is left to do
    Import(import::Import),
    /// Print a configuration of all options at their defaults, with what each does
    DefaultConfig,
    /// Hash a password, read from standard input, for a file of `basic-auth`
    HashPassword(hash_password::HashPassword),
    /// Show what there is to see of a running server
    Status(status::StatusArguments),
    /// Show the servers that requests are forwarded to, and how they are
    Upstreams(status::UpstreamsArguments),
    /// Look for what costs speed or safety: in the kernel's settings, limits, permissions and the configuration
    Doctor(doctor::DoctorArguments),
    /// Have the running server read its configuration again; one with errors changes nothing
    Reload(reload::Reload),
    /// Have the binary that is in the place of the running server's take over; if it does not start, nothing changes
    Upgrade(reload::Upgrade),
    /// Change the running server until its configuration is read again
    Set(set::Set),
    /// Send a server of an upstream no more requests; what it has under way goes on
    Drain(set::Drain),
    /// Keep a client out of the running server for some time: it gets no connection, and 403 for what it asks
    Ban(ban::Ban),
    /// Keep a client out no more
    Unban(ban::Unban),
    /// Show who is kept out, and for how long yet
    Bans(ban::Bans),
    /// Work with the cache of a running server
    Cache(cache::Cache),
    /// Begin, check and compile WebAssembly modules
    #[command(subcommand)]
    Module(module::ModuleCommand),
    /// Work with access logs
    #[command(subcommand)]
    Log(log::LogCommand),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man {
        /// Write all pages into this directory: of the program, of its commands and of the configuration
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Start servers for one that can't; it begins this itself
    #[command(hide = true)]
    Launcher {
        /// Configuration file
        #[arg(long)]
        config: Option<PathBuf>,
        /// The server's program
        program: PathBuf,
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Print the reference of the configuration, in Markdown
    Reference,
    /// Print a JSON schema of the configuration as data, for programs that write configurations or offer its options in
    /// an editor; the server itself reads KDL
    Schema,
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
        None => configuration::run(of_top, false, None),
        Some(Command::Serve(serve)) => serve.run(),
        Some(Command::Run { file, watch, user }) => configuration::run(file.config.or(of_top), watch, user),
        Some(Command::Check { file, json }) => configuration::check(file.config.or(of_top), json),
        Some(Command::Fmt(format)) => format.run(),
        Some(Command::Import(import)) => import.run(),
        Some(Command::DefaultConfig) => print(&config::default_config()),
        Some(Command::HashPassword(command)) => command.run(),
        Some(Command::Status(arguments)) => arguments.run(of_top),
        Some(Command::Upstreams(arguments)) => arguments.run(of_top),
        Some(Command::Doctor(arguments)) => arguments.run(of_top),
        Some(Command::Reload(command)) => command.run(of_top),
        Some(Command::Upgrade(command)) => command.run(of_top),
        Some(Command::Set(command)) => command.run(of_top),
        Some(Command::Drain(command)) => command.run(of_top),
        Some(Command::Ban(command)) => command.run(of_top),
        Some(Command::Unban(command)) => command.run(of_top),
        Some(Command::Bans(command)) => command.run(of_top),
        Some(Command::Cache(command)) => command.run(of_top),
        Some(Command::Module(command)) => command.run(of_top),
        Some(Command::Log(command)) => command.run(of_top),
        Some(Command::Completions { shell }) => pages::completions(shell),
        Some(Command::Man { dir }) => pages::man(dir),
        Some(Command::Launcher { config, program, arguments }) => launcher(config.as_deref(), &program, &arguments),
        Some(Command::Reference) => print(&config::reference()),
        Some(Command::Schema) => print(&config::schema()),
    }
}

/// Starts the server, and serves until it is ended.
fn start(config: Config, origin: Origin, mut handover: Option<Handover>) -> ExitCode {
    let server_log = ServerLog::stderr(config.server.log_level);
    let server = Foundation::lay(&config, &origin, &server_log)
        .and_then(|foundation| Server::start(config, origin.clone(), server_log.clone(), &mut handover, foundation));
    let server = match server {
        Ok(server) => server,
        Err(error) => {
            handover.iter().for_each(|handover| handover.fail(&error.to_string()));
            let code = fail(&error);
            if let Some(help) = error.help() {
                eprintln!("  {help}");
            }
            return code;
        }
    };
    match origin {
        Origin::CommandLine => urls(&server.addresses()).iter().for_each(|url| eprintln!("Serving at {url}")),
        Origin::File(..) => {
            for ServerAddress { socket, has_tls } in server.addresses() {
                let tls = if has_tls { " with TLS" } else { "" };
                server_log.info(format_args!("listening on {socket}{tls}"));
            }
        }
    }
    match server.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

/// Where a browser on this machine finds the server. All addresses of a family are `localhost`, which is shown once.
fn urls(addresses: &[ServerAddress]) -> Vec<String> {
    let mut urls: Vec<String> = Vec::new();
    for ServerAddress { socket: address, has_tls } in addresses {
        let (scheme, default_port) = if *has_tls { ("https", 443) } else { ("http", 80) };
        let host = if address.ip().is_unspecified() { "localhost".to_owned() } else { host(address) };
        let port = if address.port() == default_port { String::new() } else { format!(":{}", address.port()) };
        let url = format!("{scheme}://{host}{port}/");
        if !urls.contains(&url) {
            urls.push(url);
        }
    }
    urls
}

/// The IP address as a URL has it (RFC 3986, section 3.2.2).
fn host(address: &SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
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
