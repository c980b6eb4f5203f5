//! Checks of resources that `run` will open, without creating any, beyond those of other checks. `run` itself does not
//! need them.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::Path;

use rustix::fs::{Access, access};

use super::directory::is_roots_alone;
use super::finding::{ModelFinding, ModelPart, checked_sites};
use super::{describe_io, ftp_twins};
use crate::diagnostic::Severity;
use crate::model::access_log::{AccessLog, AccessLogTarget};
use crate::model::{Config, Listen};
use crate::regular_file::is_denied;

/// Resources that a configuration is checked for.
#[derive(Clone, Copy)]
pub(crate) enum Probe<'a> {
    /// None: the configuration may be for another machine.
    Nothing,
    /// Content and passwords, which are used on this machine.
    Content,
    /// Resources that a start needs. One that may not be opened may be another user's, as whom the server will run.
    Start,
    /// Resources of `Start`, and addresses of upstreams' names.
    StartWithNames(&'a NameLookup<'a>),
    /// Resources that the user of the running server must be able to open.
    RunningUser,
}

/// Looks up names of upstreams' servers, and returns those that have no address.
pub type NameLookup<'a> = dyn Fn(Vec<String>) -> Vec<UnresolvedName> + 'a;

/// Name of a server that has no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnresolvedName {
    /// The name.
    pub name: String,
    /// Reason of the resolver.
    pub reason: String,
}

/// Notes what would keep the server from starting.
pub(crate) fn probe(config: &Config, probe: Probe<'_>, findings: &mut Vec<ModelFinding>) {
    if matches!(probe, Probe::Nothing) {
        return;
    }
    findings.iter_mut().filter(|finding| finding.is_absent).for_each(|finding| finding.severity = Severity::Error);
    if matches!(probe, Probe::Content) {
        return;
    }
    if let Probe::StartWithNames(look_up) = probe {
        check_names(config, look_up, findings);
    }
    let may_be_another_users = !matches!(probe, Probe::RunningUser);
    let mut note = |part: ModelPart, what: String, path: Option<&Path>, result: io::Result<()>| {
        let Err(error) = result else { return };
        let is_denied = is_denied(&error);
        let finding = ModelFinding::error(part, format!("{what}: {}", describe_io(&error)), "here").denied(is_denied);
        let directory =
            path.and_then(Path::parent).filter(|directory| error.kind() == ErrorKind::NotFound && !directory.exists());
        findings.push(match directory {
            _ if is_denied && may_be_another_users => ModelFinding {
                severity: Severity::Warning,
                ..finding.help("the server's user must be able to open it")
            },
            Some(directory) if config.server.user.is_some() && directory.parent().is_some_and(is_roots_alone) => {
                let directory = directory.display();
                let help =
                    format!("root creates {directory} when it starts the server as another user; otherwise create it");
                ModelFinding { severity: Severity::Warning, ..finding.help(help) }
            }
            Some(directory) => finding.help(format!("create the directory {}", directory.display())),
            None => finding,
        });
    };
    for (part, log) in access_logs(config) {
        if let AccessLogTarget::File(path) = &log.target {
            note(part, format!("the access log {}", path.display()), Some(path), can_be_opened(path));
        }
    }
    let mut seen = HashSet::new();
    let own = checked_sites(config).take(config.first_route_site());
    for site in own {
        let is_ftp = site.config.ftp.is_some();
        let part = if is_ftp { ModelPart::SiteFtp(site.index) } else { site.listen() };
        for listen in site.config.listen.iter().filter(|listen| is_ftp || seen.insert(*listen)) {
            let path = if let Listen::Unix(path, _) = listen { Some(path.as_path()) } else { None };
            note(part, listen.to_string(), path.filter(|_| !is_ftp), can_be_bound(listen));
        }
    }
}

/// Warns about servers whose names have no address now. They may get one later: the server looks them up again.
fn check_names(config: &Config, look_up: &NameLookup<'_>, findings: &mut Vec<ModelFinding>) {
    let mut names: Vec<(usize, &str)> = Vec::new();
    for (index, upstream) in config.upstreams.iter().enumerate() {
        for server in &upstream.servers {
            let is_known = |host: &str| host == "localhost" || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
            if let Some(host) = server.address.host().filter(|host| !is_known(host) && !names.contains(&(index, host)))
            {
                names.push((index, host));
            }
        }
    }
    if names.is_empty() {
        return;
    }
    let all: BTreeSet<String> = names.iter().map(|(_, name)| (*name).to_owned()).collect();
    for UnresolvedName { name, reason } in look_up(all.into_iter().collect()) {
        for (index, _) in names.iter().filter(|(_, other)| *other == name) {
            let message = format!("the name `{name}` does not resolve: {reason}");
            let finding = ModelFinding::warning(ModelPart::Upstream(*index), message, "in here");
            findings.push(
                finding.help(
                    "correct the name, or add it to DNS or /etc/hosts; requests get status 502 until it resolves",
                ),
            );
        }
    }
}

/// The access logs of all sites, and those of each.
fn access_logs(config: &Config) -> impl Iterator<Item = (ModelPart, &AccessLog)> {
    let twins = ftp_twins(config);
    let of_sites = checked_sites(config)
        .filter(move |site| !twins.contains_key(&site.index))
        .filter_map(|site| Some((ModelPart::AccessLog(Some(site.index)), site.config.access_log.as_ref()?)));
    config.access_log.iter().map(|log| (ModelPart::AccessLog(None), log)).chain(of_sites)
}

/// Checks that a file can be opened for writing, or created.
fn can_be_opened(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(status) if status.is_dir() => Err(ErrorKind::IsADirectory.into()),
        // A FIFO would wait for who reads it, or wake them.
        Ok(status) if !status.is_file() => Ok(()),
        Ok(_) => OpenOptions::new().append(true).open(path).map(|_| ()),
        Err(error) if error.kind() == ErrorKind::NotFound => can_be_made(path),
        Err(error) => Err(error),
    }
}

/// Checks that a missing file can be created.
fn can_be_made(path: &Path) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    if !fs::metadata(directory)?.is_dir() {
        return Err(ErrorKind::NotADirectory.into());
    }
    Ok(access(directory, Access::WRITE_OK | Access::EXEC_OK)?)
}

/// Checks that an address belongs to this machine, and that a socket can be created in its directory. A start checks
/// itself which ports are free and permitted.
fn can_be_bound(listen: &Listen) -> io::Result<()> {
    match listen {
        Listen::Tcp(address) => match TcpListener::bind(SocketAddr::new(address.ip(), 0)) {
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable => Err(error),
            _ => Ok(()),
        },
        Listen::Unix(path, _) => can_be_made(path),
        Listen::Inherited(_) => Ok(()),
    }
}
