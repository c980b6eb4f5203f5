//! `cache`: the cache of a running server.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::configuration::{self, ConfigFile};
use super::{fail, print};
use crate::control::{self, Order, Report};

#[derive(Debug, Subcommand)]
pub(super) enum CacheCommand {
    /// Take upstreams' responses out of the cache, and print how many
    Purge(PurgeArguments),
}

#[derive(Debug, Args)]
pub(super) struct PurgeArguments {
    #[command(flatten)]
    file: ConfigFile,

    /// The server's control socket [default: `control-socket` of the configuration]
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    socket: Option<PathBuf>,

    /// URLs as clients ask for them; one that ends with `*` is all that begin so
    #[arg(value_name = "URL", required_unless_present = "all", value_parser = parse_url)]
    urls: Vec<String>,

    /// All that is stored
    #[arg(long, conflicts_with = "urls")]
    all: bool,
}

impl CacheCommand {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        let Self::Purge(arguments) = self;
        let PurgeArguments { file, socket, urls, all } = arguments;
        let socket = match socket.map_or_else(|| configured_socket(file.config.or(of_top)), Ok) {
            Ok(socket) => socket,
            Err(code) => return code,
        };
        let (prefixes, urls): (Vec<_>, Vec<_>) = urls.into_iter().partition(|url| url.ends_with('*'));
        let prefixes = prefixes.iter().map(|prefix| prefix.trim_end_matches('*').to_owned()).collect();
        match control::give(&socket, &Order::PurgeCache { urls, prefixes, all }) {
            Ok(Report::Purged(count)) => print(&format!("{count}\n")),
            Ok(Report::Refused(reason)) => fail(reason),
            Err(error) => fail(format_args!("{}: {error}", socket.display())),
        }
    }
}

fn parse_url(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    match rest.filter(|rest| !rest.is_empty() && !rest.starts_with('/')) {
        Some(_) => Ok(text.to_owned()),
        None => Err("a URL begins with \"http://\" and a host".to_owned()),
    }
}

fn configured_socket(file: Option<PathBuf>) -> Result<PathBuf, ExitCode> {
    let config = configuration::config(file)?;
    config.server.control_socket.ok_or_else(|| {
        let code = fail("the configuration has no `control-socket`");
        eprintln!("  write `server {{ control-socket \"/run/tailcoat/control.sock\" }}`, and start the server anew");
        code
    })
}
