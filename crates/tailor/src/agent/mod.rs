//! `tailor agent`: load from several machines. Agents run parts of a load; `tailor bench --agents` starts them together
//! and merges their histograms.

mod channel;
mod control;
mod message;
mod record;
mod serve;
mod share;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use control::run_bench;

use crate::end::ProgramEnd;

/// Default port of agents.
const PORT: u16 = 9470;

/// Options of `tailor agent`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AgentOptions {
    /// File with the secret that agents and controllers share
    #[arg(long, value_name = "FILE", required_unless_present = "new_secret")]
    pub secret: Option<PathBuf>,
    /// Write a new secret to this file, and end
    #[arg(long, value_name = "FILE", conflicts_with = "secret")]
    pub new_secret: Option<PathBuf>,
    /// Address on which the agent listens
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9470")]
    pub listen: SocketAddr,
    /// Host whose servers may be loaded; may be repeated [default: any]
    #[arg(long, value_name = "HOST")]
    pub allow: Vec<String>,
    /// Maximum number of connections of a run
    #[arg(long, value_name = "N", default_value = "20000", value_parser = crate::units::parse_count)]
    pub connections_max: u64,
    /// Maximum duration of a run
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = crate::units::parse_duration)]
    pub duration_max: Duration,
}

/// Runs an agent until a signal ends it.
///
/// # Errors
/// The agent cannot start: the message gives the reason.
pub(crate) fn run(options: &AgentOptions) -> Result<ProgramEnd, String> {
    match (&options.new_secret, &options.secret) {
        (Some(path), _) => {
            channel::write_new_secret(path)?;
            Ok(ProgramEnd::Passed)
        }
        (None, Some(path)) => serve::run(options, &channel::SharedSecret::read(path)?),
        (None, None) => Err("--secret FILE is missing; --new-secret FILE writes one".to_owned()),
    }
}
