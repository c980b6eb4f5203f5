//! The command line: its arguments, and the modules that run each command.

#[cfg(not(all(feature = "gateway", feature = "import", feature = "modules")))]
mod absent;
mod ban;
mod cache;
mod certificates;
mod configuration;
mod control;
mod doctor;
mod explain;
mod format;
#[cfg(feature = "gateway")]
mod gateway;
mod hash_password;
#[cfg(feature = "import")]
mod import;
#[cfg(all(feature = "gateway", feature = "import"))]
mod import_ingress;
mod local_certificate;
mod log;
#[cfg(feature = "modules")]
mod module;
mod names;
mod pages;
mod reload;
mod rollout;
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

use crate::config::{self, Config, ConfigOrigin};
use crate::log::ServerLog;
use crate::server::{Foundation, Handover, ListenAddress, Server, launcher};

/// Exit code: a command failed, or `fmt --check` found an unformatted file.
pub const EXIT_FAILURE: u8 = 1;
/// Exit code: the command line is invalid.
pub const EXIT_USAGE: u8 = 2;
/// Exit code: the configuration has errors or cannot be read.
pub const EXIT_CONFIG: u8 = 3;
/// Exit code: a translation rejects paths that it cannot translate.
pub const EXIT_REJECTED: u8 = 4;
/// Exit code: a translation has errors.
pub const EXIT_TRANSLATION: u8 = 5;

/// Examples and exit codes, for the help and the manual page.
const AFTER_HELP: &str = concat!(
    "Examples:\n",
    "  tailcoat serve                                 serve this directory\n",
    "  tailcoat check site.kdl                        find errors in a configuration\n",
    "  tailcoat run site.kdl                          run the server\n",
    "  tailcoat reload                                apply a changed configuration\n",
    "  tailcoat status --watch                        watch the running server\n",
    "  tailcoat explain https://example.com/blog/     show what happens to a request, and why\n",
    "  tailcoat import /etc/nginx/nginx.conf          translate a configuration of nginx, Caddy or Apache\n",
    "  tailcoat reference --search proxy_read_timeout find an option\n",
    "\n",
    "Exit codes:\n",
    "  0  success\n",
    "  1  the command failed, or `fmt --check` found an unformatted file\n",
    "  2  the command line is invalid\n",
    "  3  the configuration has errors or cannot be read\n",
    "  4  `import` wrote a configuration that rejects paths whose rules or handlers it could not translate\n",
    "  5  `import` wrote a configuration that has errors",
);

/// Web server, reverse proxy and load balancer
#[derive(Debug, Parser)]
#[command(
    name = "tailcoat",
    version,
    about,
    disable_version_flag = true,
    arg_required_else_help = true,
    after_help = AFTER_HELP,
    subcommand_negates_reqs = true
)]
struct CliArguments {
    /// Configuration file; without a command, run the server with it, like `run`
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Check the configuration and exit, like `check`
    #[arg(short, long)]
    test: bool,

    /// Print the version
    #[arg(short = 'v', long)]
    version: bool,

    /// Print the version and build settings
    #[arg(short = 'V')]
    build: bool,

    #[command(subcommand)]
    command: Option<CliCommand>,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Serve a directory without a configuration file
    Serve(serve::Serve),
    /// Run the server with a configuration file
    #[command(after_help = "\
Examples:
  tailcoat run
  tailcoat run site.kdl --watch")]
    Run {
        #[command(flatten)]
        file: configuration::ConfigFile,
        /// Configuration file, like `-c`
        #[arg(value_name = "FILE", conflicts_with = "config")]
        path: Option<PathBuf>,
        /// Reload when the file, or a file that it includes, changes
        #[arg(long)]
        watch: bool,
        /// User to switch to when started by root [default: `user` of the configuration]
        #[arg(long, value_name = "USER", value_parser = config::user_from_text)]
        user: Option<config::ProgramUser>,
    },
    /// Check a configuration file for all errors, and for problems that would keep the server from starting
    ///
    /// With `-` (standard input), only the text is checked, as editors need it: files and ports are not opened.
    #[command(after_help = "\
Examples:
  tailcoat check
  tailcoat check site.kdl
  tailcoat check --offline site.kdl
  tailcoat check --json -c - < site.kdl")]
    Check {
        #[command(flatten)]
        file: configuration::ConfigFile,
        /// Configuration file, like `-c`
        #[arg(value_name = "FILE", conflicts_with = "config")]
        path: Option<PathBuf>,
        /// Print the results as JSON, for editors
        #[arg(long)]
        json: bool,
        /// Do not look up names of upstreams
        #[arg(long)]
        offline: bool,
    },
    /// Format configuration files, and replace old option names; comments stay
    Fmt(format::Format),
    /// Translate a configuration of nginx, Caddy or Apache, or Ingresses, and list what is left to do
    #[cfg(feature = "import")]
    Import(import::Import),
    /// Translate an nginx configuration; this build cannot
    #[cfg(not(feature = "import"))]
    #[command(hide = true)]
    Import(absent::AbsentCommand),
    /// Run the controller for Kubernetes: Gateway API resources become routes of servers
    #[cfg(feature = "gateway")]
    Gateway(gateway::GatewayCommand),
    /// Run the controller for Kubernetes; this build cannot
    #[cfg(not(feature = "gateway"))]
    #[command(hide = true)]
    Gateway(absent::AbsentCommand),
    /// Print a configuration with all options at their defaults
    DefaultConfig,
    /// Hash a password from standard input for a file of `basic-auth`
    HashPassword(hash_password::HashPassword),
    /// Show requests, connections and memory of the running server
    Status(status::StatusArguments),
    /// List the certificates of the running server, with their ends, last errors and next tries
    Certificates(certificates::CertificatesArgs),
    /// Show the upstream servers and their health
    Upstreams(status::UpstreamsArguments),
    /// Explain what happens to a request: its site, rules, handler and options, and why
    Explain(explain::ExplainArgs),
    /// Find problems of speed and security in kernel settings, limits, permissions and the configuration
    Doctor(doctor::DoctorArguments),
    /// Apply the changed configuration to the running server; one with errors changes nothing
    Reload(reload::ReloadArgs),
    /// Replace the running server by the new binary at its path; if that does not start, nothing changes
    Upgrade(reload::Upgrade),
    /// Change settings of the running server until the next reload
    Set(set::SetArgs),
    /// Send no new requests to a server of an upstream; requests in progress continue
    Drain(set::Drain),
    /// Ban a client for some time: new connections are closed, and requests get 403
    Ban(ban::Ban),
    /// Lift a ban
    Unban(ban::Unban),
    /// List banned clients and the time left
    Bans(ban::BansArgs),
    /// Apply a configuration at all instances of a store, at some first
    Rollout(rollout::RolloutArgs),
    /// Purge responses from the cache of the running server
    Cache(cache::CacheArgs),
    /// Create, check and compile WebAssembly modules
    #[cfg(feature = "modules")]
    #[command(subcommand)]
    Module(module::ModuleCommand),
    /// Create, check and compile WebAssembly modules; this build cannot
    #[cfg(not(feature = "modules"))]
    #[command(hide = true)]
    Module(absent::AbsentCommand),
    /// Show and convert access logs
    #[command(subcommand)]
    Log(log::LogCommand),
    /// Print completions for a shell
    Completions {
        /// Shell to print completions for
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    Man {
        /// Write all manual pages into this directory: program, commands and configuration
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Start processes for a confined server; the server runs this itself
    #[command(hide = true)]
    Launcher {
        /// Configuration file
        #[arg(long)]
        config: Option<PathBuf>,
        /// Program of the server
        program: PathBuf,
        /// Arguments of the program
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Print the reference of the configuration, or find an option in it
    Reference(pages::Reference),
    /// Print a JSON schema of the configuration, for editors and for programs that write configurations
    Schema,
}

/// Runs the command of this process's command line.
pub fn main() -> ExitCode {
    run(std::env::args_os())
}

fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match CliArguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Requested help goes to standard output with exit code 0, errors to standard error with 2. A failure to
            // write either cannot be reported.
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
        _ if arguments.test => configuration::check(of_top, false, false),
        None => configuration::run(of_top, false, None),
        Some(CliCommand::Serve(serve)) => serve.run(),
        Some(CliCommand::Run { file, path, watch, user }) => {
            configuration::run(path.or(file.config).or(of_top), watch, user)
        }
        Some(CliCommand::Check { file, path, json, offline }) => {
            configuration::check(path.or(file.config).or(of_top), json, offline)
        }
        Some(CliCommand::Fmt(format)) => format.run(),
        #[cfg(feature = "import")]
        Some(CliCommand::Import(import)) => import.run(),
        #[cfg(not(feature = "import"))]
        Some(CliCommand::Import(absent)) => absent.run(config::OptionalPart::Import),
        #[cfg(feature = "gateway")]
        Some(CliCommand::Gateway(gateway)) => gateway.run(),
        #[cfg(not(feature = "gateway"))]
        Some(CliCommand::Gateway(absent)) => absent.run(config::OptionalPart::Gateway),
        Some(CliCommand::DefaultConfig) => print(&config::default_config()),
        Some(CliCommand::HashPassword(command)) => command.run(),
        Some(CliCommand::Status(arguments)) => arguments.run(of_top),
        Some(CliCommand::Certificates(arguments)) => arguments.run(of_top),
        Some(CliCommand::Upstreams(arguments)) => arguments.run(of_top),
        Some(CliCommand::Explain(command)) => command.run(of_top),
        Some(CliCommand::Doctor(arguments)) => arguments.run(of_top),
        Some(CliCommand::Reload(command)) => command.run(of_top),
        Some(CliCommand::Upgrade(command)) => command.run(of_top),
        Some(CliCommand::Set(command)) => command.run(of_top),
        Some(CliCommand::Drain(command)) => command.run(of_top),
        Some(CliCommand::Ban(command)) => command.run(of_top),
        Some(CliCommand::Unban(command)) => command.run(of_top),
        Some(CliCommand::Bans(command)) => command.run(of_top),
        Some(CliCommand::Rollout(command)) => command.run(of_top),
        Some(CliCommand::Cache(command)) => command.run(of_top),
        #[cfg(feature = "modules")]
        Some(CliCommand::Module(command)) => command.run(of_top),
        #[cfg(not(feature = "modules"))]
        Some(CliCommand::Module(absent)) => absent.run(config::OptionalPart::Modules),
        Some(CliCommand::Log(command)) => command.run(of_top),
        Some(CliCommand::Completions { shell }) => pages::completions(shell),
        Some(CliCommand::Man { dir }) => pages::man(dir),
        Some(CliCommand::Launcher { config, program, arguments }) => launcher(config.as_deref(), &program, &arguments),
        Some(CliCommand::Reference(command)) => command.run(),
        Some(CliCommand::Schema) => print(&config::schema()),
    }
}

/// Starts the server, and serves until it is stopped. `announce` tells the operator of `serve` where it serves.
fn start(
    config: Config,
    origin: ConfigOrigin,
    mut handover: Option<Handover>,
    announce: impl FnOnce(&[ListenAddress]),
) -> ExitCode {
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
        ConfigOrigin::CommandLine => announce(&server.addresses()),
        ConfigOrigin::File(..) => {
            for ListenAddress { socket, has_tls, has_http3, is_ftp } in server.addresses() {
                let manner = match (is_ftp, has_tls) {
                    (true, true) => " for FTP with TLS",
                    (true, false) => " for FTP",
                    (false, true) if has_http3 => " with TLS and HTTP/3",
                    (false, true) => " with TLS",
                    (false, false) => "",
                };
                server_log.info(format_args!("listening on {socket}{manner}"));
            }
        }
    }
    match server.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}

/// URLs under which a client on this machine finds the server. A wildcard address becomes `localhost`, shown once, with
/// a note.
fn urls(addresses: &[ListenAddress]) -> Vec<String> {
    let mut urls: Vec<String> = Vec::new();
    for ListenAddress { socket: address, has_tls, is_ftp, .. } in addresses {
        let (scheme, default_port) = match (is_ftp, has_tls) {
            (true, true) => ("ftps", 990),
            (true, false) => ("ftp", 21),
            (false, true) => ("https", 443),
            (false, false) => ("http", 80),
        };
        let is_wildcard = address.ip().is_unspecified();
        let host = if is_wildcard { "localhost".to_owned() } else { host(address) };
        let port = if address.port() == default_port { String::new() } else { format!(":{}", address.port()) };
        let note = if is_wildcard { " (on all addresses of this machine)" } else { "" };
        let url = format!("{scheme}://{host}{port}/{note}");
        if !urls.contains(&url) {
            urls.push(url);
        }
    }
    urls
}

/// IP address in URL syntax (RFC 3986, section 3.2.2).
fn host(address: &SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

fn build_text() -> String {
    let absent: Vec<&str> = config::OptionalPart::ALL
        .into_iter()
        .filter(|part| !part.is_built())
        .map(config::OptionalPart::feature)
        .collect();
    let without = if absent.is_empty() { String::new() } else { format!(", without {}", absent.join(", ")) };
    format!(
        "tailcoat {}\nbuilt for {}-{}, {}{without}\nconfiguration {}\n",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        std::env::consts::OS,
        if cfg!(debug_assertions) { "with debug assertions" } else { "optimized" },
        config::DEFAULT_PATH,
    )
}

/// Writes to standard output. A closed pipe (`| head`) is not a failure.
fn print(text: &str) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => fail(error),
        _ => ExitCode::SUCCESS,
    }
}

/// Prints an error.
fn fail(message: impl Display) -> ExitCode {
    eprintln!("tailcoat: {message}");
    ExitCode::from(EXIT_FAILURE)
}
