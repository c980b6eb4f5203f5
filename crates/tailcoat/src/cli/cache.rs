//! `cache`: the cache of a running server.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::control::{ServerSocket, unexpected};
use super::print;
use crate::control::{ControlOrder, ControlReport};

#[derive(Debug, Args)]
pub(super) struct CacheArgs {
    #[command(flatten)]
    server: ServerSocket,

    #[command(subcommand)]
    command: CacheCommand,
}

#[derive(Debug, Subcommand)]
enum CacheCommand {
    /// Remove responses from the cache, and print their number
    Purge(PurgeArguments),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tailcoat cache purge https://example.com/news/*
  tailcoat cache purge --tag product-42 --tag news
  tailcoat cache purge --all")]
struct PurgeArguments {
    /// URLs as clients request them; a `*` at the end matches all URLs with this prefix
    #[arg(value_name = "URL", required_unless_present_any = ["all", "tag"], value_parser = parse_url)]
    urls: Vec<String>,

    /// Remove responses whose upstream gave them this tag, in `Surrogate-Key` or `Cache-Tag`
    #[arg(long, value_name = "TAG", conflicts_with = "all", value_parser = parse_tag)]
    tag: Vec<String>,

    /// Remove all responses
    #[arg(long, conflicts_with = "urls")]
    all: bool,
}

impl CacheArgs {
    pub(super) fn run(self, of_top: Option<PathBuf>) -> ExitCode {
        let Self { server, command: CacheCommand::Purge(PurgeArguments { urls, tag, all }) } = self;
        let (prefixes, urls): (Vec<_>, Vec<_>) = urls.into_iter().partition(|url| url.ends_with('*'));
        let prefixes = prefixes.iter().map(|prefix| prefix.trim_end_matches('*').to_owned()).collect();
        server.give(of_top, &ControlOrder::PurgeCache { urls, prefixes, tags: tag, all }, |report| match report {
            ControlReport::Purged(count) => {
                let code = print(&format!("{count}\n"));
                if count == 0 && !all {
                    eprintln!("  no response that this instance stores matches; give URLs with host and port as clients send them, and end a prefix with `*`");
                }
                code
            }
            report => unexpected(&report),
        })
    }
}

fn parse_tag(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains([',', ' ', '\t']) {
        true => Err("a tag has no comma and no space".to_owned()),
        false => Ok(text.to_owned()),
    }
}

fn parse_url(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    match rest.filter(|rest| !rest.is_empty() && !rest.starts_with('/')) {
        Some(_) => Ok(text.to_owned()),
        None => Err("a URL must begin with \"http://\" or \"https://\" and a host".to_owned()),
    }
}
