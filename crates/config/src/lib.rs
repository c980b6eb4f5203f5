//! The configuration: text in, a checked and immutable [`Config`] out.
//!
//! [`text`] makes a tree of a text in KDL. [`read`] compares each node with the tables in [`options`], has [`value`] read its
//! values, and puts the parts of the [`model`] together. [`mod@check`] checks the whole. Each step notes errors in
//! [`Diagnostics`] and continues, so that one run finds all of them. [`mod@manual`] writes pages from the same tables.
//! [`Config::validate`] runs the same checks on a configuration that no text says.

mod check;
mod diagnostic;
mod manual;
mod model;
mod options;
mod parts;
mod places;
mod read;
mod regular_file;
mod suggest;
#[cfg(test)]
mod tests;
mod text;
mod value;

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use check::directory::is_roots_alone;
pub use check::probe::{NameLookup, UnresolvedName};
pub use diagnostic::{ConfigSource, Diagnostic, Diagnostics, Severity, printable};
pub use manual::{default_config, manual, reference, reference_of, schema, search};
pub use model::*;
pub use options::foreign::needless_in_nginx;
pub use options::variables::of_nginx as nginx_variable;
pub use parts::OptionalPart;
pub use places::{ConfigPlaces, OptionPlace};
pub use read::reuse::expand as expand_include;
pub use regular_file::{open_regular, read_regular};
pub use text::TEXT_BYTES_MAX;
pub use text::files::{FileState, FileStates};
pub use text::syntax::NESTING_MAX;
pub use value::{LOG_FIELDS, SYSLOG_FACILITIES};
pub use value::{format_duration, format_size, is_own_request_field};

use check::probe::Probe;
use diagnostic::ConfigFinding;
use read::draft::ConfigDraft;
use rustix::process::geteuid;

/// Default path of the configuration.
pub const DEFAULT_PATH: &str = "/etc/tailcoat/tailcoat.kdl";

/// State directory of a server that root started and that has switched to another user.
pub const SYSTEM_STATE_DIRECTORY: &str = "/var/lib/tailcoat";

/// Directory of the files of a pod's service account in Kubernetes.
pub const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Directory for state that outlives the process: `STATE_DIRECTORY` of systemd, otherwise as in the XDG base directory
/// specification. A server that root started and that has switched to another user cannot use root's home. `None` if
/// the environment names no directory.
pub fn state_directory() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let own = |home: PathBuf, below: &str| match home.metadata() {
        Ok(metadata) if !geteuid().is_root() && metadata.uid() != geteuid().as_raw() => SYSTEM_STATE_DIRECTORY.into(),
        _ => home.join(below),
    };
    variable("STATE_DIRECTORY")
        .or_else(|| variable("XDG_STATE_HOME").map(|home| own(home, "tailcoat")))
        .or_else(|| variable("HOME").map(|home| own(home, ".local/state/tailcoat")))
}

/// Source of a configuration, which a reload reads again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigOrigin {
    /// A file, with the states of its files before they were read if changes trigger a reload. `-` is standard input,
    /// which cannot be read again.
    File(PathBuf, Option<FileStates>),
    /// The command line of `serve`.
    CommandLine,
}

/// Result of checking a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckedConfig {
    /// The configuration; `None` if there was an error.
    pub config: Option<Config>,
    /// Findings. A valid configuration can have warnings.
    pub diagnostics: Diagnostics,
}

/// Reads and checks a configuration file and those it includes.
///
/// # Errors
///
/// If the file can't be read. All else is in the diagnostics.
pub fn check_file(path: &Path) -> io::Result<CheckedConfig> {
    check_with(path, Probe::Content)
}

/// Reads and checks a configuration file for other machines: content and passwords that this one lacks are warnings.
///
/// # Errors
///
/// If the file can't be read. All else is in the diagnostics.
pub fn check_file_for_others(path: &Path) -> io::Result<CheckedConfig> {
    check_with(path, Probe::Nothing)
}

/// The control socket that a configuration file names, whatever else is wrong with it.
///
/// # Errors
///
/// If the file can't be read, or not be understood so far.
pub fn control_socket(path: &Path) -> io::Result<Option<PathBuf>> {
    Ok(draft_without_sites(path)?.server.control_socket)
}

/// Everything in a file except its sites, of which there may be thousands, and the files it includes.
fn draft_without_sites(path: &Path) -> io::Result<ConfigDraft> {
    let bytes = text::read_bytes(path)?;
    let full = std::path::absolute(path)?;
    let directory = full.parent().unwrap_or(Path::new("/"));
    let mut diagnostics = Diagnostics::default();
    let source = text::to_source(&path.display().to_string(), bytes, directory, &mut diagnostics);
    let source = text::without_sites(&source);
    let Some(document) = text::parse_document(&source, &mut diagnostics) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "this is no KDL (`tailcoat check` says more)"));
    };
    let mut draft = ConfigDraft::without_sites();
    draft.read(&source, &document, &mut diagnostics);
    Ok(draft)
}

/// Reads and checks a configuration from a stream, such as standard input; messages call it `name`, and relative paths
/// start from `directory`, which is absolute.
///
/// # Errors
///
/// If the stream can't be read. All else is in the diagnostics.
pub fn check_stream(name: &str, stream: impl io::Read, directory: &Path) -> io::Result<CheckedConfig> {
    Ok(check_bytes(name, text::read_bytes_from(stream)?, directory))
}

/// Checks a configuration like [`check_file`], and also the resources that a start needs, as far as possible without creating
/// any.
///
/// # Errors
///
/// If the file can't be read. All else is in the diagnostics.
pub fn check_file_to_run(path: &Path) -> io::Result<CheckedConfig> {
    check_with(path, Probe::Start)
}

/// Checks a configuration like [`check_file_to_run`], and looks up names of upstreams' servers.
///
/// # Errors
///
/// If the file cannot be read. All other problems are in the diagnostics.
pub fn check_file_with_names(path: &Path, look_up: &NameLookup<'_>) -> io::Result<CheckedConfig> {
    check_with(path, Probe::StartWithNames(look_up))
}

/// Checks a configuration file like [`check_file`], as the user of the running server: files that this user may not
/// open are errors.
///
/// # Errors
///
/// If the file cannot be read. All other problems are in the diagnostics.
pub fn check_file_as_its_user(path: &Path) -> io::Result<CheckedConfig> {
    check_with(path, Probe::RunningUser)
}

/// Reads and checks a configuration like [`check_file`], and keeps the places of its options.
///
/// # Errors
///
/// If the file cannot be read. All other problems are in the diagnostics.
pub fn explain_file(path: &Path) -> io::Result<(CheckedConfig, ConfigPlaces)> {
    let bytes = text::read_bytes(path)?;
    let full = std::path::absolute(path)?;
    Ok(explain_bytes(&path.display().to_string(), bytes, full.parent().unwrap_or(Path::new("/"))))
}

/// Checks a configuration like [`check_bytes`], and keeps the places of its options.
pub fn explain_bytes(name: &str, bytes: Vec<u8>, directory: &Path) -> (CheckedConfig, ConfigPlaces) {
    let mut diagnostics = Diagnostics::default();
    diagnostics.places = Some(ConfigPlaces::default());
    let config = check_noting(name, bytes, directory, Probe::Nothing, &mut diagnostics);
    let places = diagnostics.places.take().unwrap_or_default();
    (CheckedConfig { config, diagnostics }, places)
}

fn check_with(path: &Path, probe: Probe<'_>) -> io::Result<CheckedConfig> {
    let bytes = text::read_bytes(path)?;
    let full = std::path::absolute(path)?;
    let directory = full.parent().unwrap_or(Path::new("/"));
    Ok(check(&path.display().to_string(), bytes, directory, probe))
}

/// Checks a configuration; messages call it `name`, and relative paths start from `directory`, which is absolute.
pub fn check_bytes(name: &str, bytes: Vec<u8>, directory: &Path) -> CheckedConfig {
    check(name, bytes, directory, Probe::Nothing)
}

fn check(name: &str, bytes: Vec<u8>, directory: &Path, probe: Probe<'_>) -> CheckedConfig {
    let mut diagnostics = Diagnostics::default();
    let config = check_noting(name, bytes, directory, probe, &mut diagnostics);
    CheckedConfig { config, diagnostics }
}

fn check_noting(
    name: &str,
    bytes: Vec<u8>,
    directory: &Path,
    probe: Probe<'_>,
    diagnostics: &mut Diagnostics,
) -> Option<Config> {
    let source = text::to_source(name, bytes, directory, diagnostics);
    let config = if diagnostics.has_error() { None } else { check_source(&source, probe, diagnostics) };
    diagnostics.sort();
    config.filter(|_| !diagnostics.has_error())
}

/// Reads an address to listen on, as in the option `listen`; relative paths of unix sockets start from `directory`.
///
/// # Errors
///
/// A message for people if the text is invalid.
pub fn listen_from_text(text: &str, directory: &Path) -> Result<Vec<Listen>, String> {
    value::parse_listen(text, directory).map_err(|wrong| wrong.to_string())
}

/// Reads the address of a server, as in the option `forward`.
///
/// # Errors
///
/// A message for people if the text is invalid.
pub fn server_address_from_text(text: &str, directory: &Path) -> Result<UpstreamServerAddress, String> {
    value::parse_server_address(text, directory).map_err(|wrong| wrong.to_string())
}

/// Reads servers of an upstream, each as in the option `server`, without quotes: `http://10.0.0.1:8080 weight=2`.
///
/// # Errors
///
/// A message for people if a text is invalid.
pub fn servers_from_texts(texts: &[String]) -> Result<Vec<UpstreamServer>, String> {
    let mut block = String::from("upstream \"servers\" {\n");
    for text in texts {
        let (address, properties) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        let is_plain = |character: char| character.is_ascii_alphanumeric() || " =-".contains(character);
        if address.contains(['"', '\\']) || address.contains(char::is_control) || !properties.chars().all(is_plain) {
            return Err(format!("invalid server `{text}`; write it as `http://10.0.0.1:8080 weight=2`"));
        }
        block.push_str(&format!("server \"{address}\" {properties}\n"));
    }
    block.push_str("}\n");
    let draft = draft_of("servers", block, ConfigDraft::default())?;
    Ok(draft.upstreams.into_iter().flat_map(|draft| draft.upstream.servers).collect())
}

/// Reads a rate limit of all its values, as in the option `rate-limit`: `"/login" "5/m" burst=10`.
///
/// # Errors
///
/// A message for people if the text is invalid.
pub fn rate_limit_from_text(text: &str) -> Result<RateLimit, String> {
    let draft = draft_of("rate-limit", format!("rate-limit {text}\n"), ConfigDraft::default())?;
    let mut limits = draft.rules.rules.rate_limits.into_iter();
    match (limits.next(), limits.next()) {
        (Some(RateLimit { when: Some(when), .. }), None) if when.references().next().is_some() => Err(format!(
            "`{when}` uses a map or secret, which only a configuration file has; write the limit into that file"
        )),
        (Some(limit), None) => Ok(limit),
        _ => Err(format!("invalid rate limit `{text}`; write it as `\"/login\" \"5/m\" burst=10`")),
    }
}

/// Adds the options of a text, named in messages by `name`, to a draft.
fn draft_of(name: &str, text: String, mut draft: ConfigDraft) -> Result<ConfigDraft, String> {
    let mut diagnostics = Diagnostics::default();
    let source = text::to_source(name, text.into_bytes(), Path::new("/"), &mut diagnostics);
    if let Some(document) = text::parse_document(&source, &mut diagnostics) {
        draft.read(&source, &document, &mut diagnostics);
    }
    if diagnostics.has_error() { Err(text_of(&diagnostics)) } else { Ok(draft) }
}

fn text_of(diagnostics: &Diagnostics) -> String {
    diagnostics.to_text(false).trim_end().to_owned()
}

/// Reads a network, or an address: of an IPv6 address, the first 64 bits count, because the client chooses the rest.
///
/// # Errors
///
/// A message for people if the text is invalid.
pub fn network_from_text(text: &str) -> Result<Network, String> {
    let whole = value::parse_network(text).map_err(|wrong| wrong.to_string())?;
    let is_address_of_v6 = whole.first().is_ipv6() && !text.contains('/');
    // Local invariant: addresses of IPv6 have 128 bits.
    Ok(if is_address_of_v6 { Network::new(whole.first(), 64).unwrap_or(whole) } else { whole })
}

/// Reads a time, as in the configuration: from a second to a year.
///
/// # Errors
///
/// A message for people if the text is invalid.
pub fn duration_from_text(text: &str) -> Result<Duration, String> {
    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    value::parse_time(text, Duration::from_secs(1), YEAR).map_err(|wrong| wrong.to_string())
}

/// Reads a user, as in the option `user` of `server`.
///
/// # Errors
///
/// A message for people if the text is invalid.
pub fn user_from_text(text: &str) -> Result<ProgramUser, String> {
    value::parse_user(text).map_err(|wrong| wrong.to_string())
}

/// Limits changed by a text as in the block `limits`.
///
/// # Errors
///
/// A message for people if the text is invalid.
pub fn limits_from_text(limits: &Limits, text: &str) -> Result<Limits, String> {
    let mut draft = ConfigDraft::default();
    draft.limits = limits.clone();
    let draft = draft_of("limits", format!("limits {{\n{text}\n}}\n"), draft)?;
    draft.into_limits().map_err(|fault| text_of(&fault))
}

/// Reads the format of an access log, as in the option `access-log`.
///
/// # Errors
///
/// A message for people if the text is invalid.
pub fn log_format_from_text(text: &str) -> Result<AccessLogFormat, String> {
    value::parse_log_format(text).map_err(|wrong| wrong.to_string())
}

/// The canonical form of a configuration, with its comments. It need not be valid but as KDL.
///
/// # Errors
///
/// Diagnostics of a text that is not valid KDL.
pub fn format_bytes(name: &str, bytes: Vec<u8>) -> Result<String, Diagnostics> {
    let mut diagnostics = Diagnostics::default();
    let source = text::to_source(name, bytes, Path::new("/"), &mut diagnostics);
    if !diagnostics.has_error() && text::parse_document(&source, &mut diagnostics).is_some() && !diagnostics.has_error()
    {
        if let Some(formatted) = text::format::format(&options::renamed::with_new_names(&source.text)) {
            return Ok(formatted);
        }
        let message = "this file cannot be formatted without changing its meaning";
        diagnostics.error(&source, ConfigFinding::new(0..0, message, ""));
    }
    diagnostics.sort();
    Err(diagnostics)
}

fn check_source(source: &Arc<ConfigSource>, probe: Probe<'_>, diagnostics: &mut Diagnostics) -> Option<Config> {
    let document = text::parse_document(source, diagnostics)?;
    let mut draft = ConfigDraft::default();
    draft.read(source, &document, diagnostics);
    draft.expressions.bind(diagnostics);
    draft.complete();
    let (config, map) = draft.into_config(source, diagnostics.has_error());
    let mut findings = check::check(&config, &map.soundness());
    check::probe::probe(&config, probe, &mut findings);
    map.note(findings, diagnostics);
    if let Some(places) = &mut diagnostics.places {
        places.complete(&config, &map);
    }
    Some(config)
}
