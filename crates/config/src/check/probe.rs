//! Checks of resources that `run` will open, without creating any, beyond those of other checks. `run` itself does not
//! need them.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Access, access};

use super::describe_io;
use super::directory::is_roots_alone;
use crate::diagnostic::{ConfigSource, Diagnostics, Severity};
use crate::model::Listen;
use crate::model::access_log::{AccessLog, AccessLogTarget};
use crate::read::draft::ConfigDraft;
use crate::read::{ConfigFinding, ConfigReader};
use crate::regular_file::is_denied;

/// Notes what would keep the server from starting. What may not be opened may be another user's, as whom the server will run.
pub(crate) fn probe(draft: &ConfigDraft, diagnostics: &mut Diagnostics) {
    look(draft, Severity::Warning, diagnostics);
}

/// Checks what the user of the running server can open.
pub(crate) fn probe_as_its_user(draft: &ConfigDraft, diagnostics: &mut Diagnostics) {
    look(draft, Severity::Error, diagnostics);
}

/// Notes what can't be opened: as an error, or as this if it may not be.
fn look(draft: &ConfigDraft, denied: Severity, diagnostics: &mut Diagnostics) {
    let mut note =
        |source: &Arc<ConfigSource>, span: &Range<usize>, what: String, path: Option<&Path>, result: io::Result<()>| {
            let Err(error) = result else { return };
            let finding = ConfigFinding::new(span.clone(), format!("{what}: {}", describe_io(&error)), "here")
                .denied(is_denied(&error));
            let mut reader = ConfigReader { source: Arc::clone(source), diagnostics };
            let directory = path
                .and_then(Path::parent)
                .filter(|directory| error.kind() == ErrorKind::NotFound && !directory.exists());
            match directory {
                _ if finding.is_denied && denied == Severity::Warning => {
                    reader.warning(finding.help("the server's user must be able to open it".to_owned()));
                }
                Some(directory) if draft.server.user.is_some() && directory.parent().is_some_and(is_roots_alone) => {
                    let directory = directory.display();
                    let help = format!(
                        "root creates {directory} when it starts the server as another user; otherwise create it"
                    );
                    reader.warning(finding.help(help));
                }
                Some(directory) => reader.error(finding.help(format!("create the directory {}", directory.display()))),
                None => reader.error(finding),
            }
        };
    for (source, span, log) in draft.access_logs() {
        if let AccessLogTarget::File(path) = &log.target {
            note(source, span, format!("the access log {}", path.display()), Some(path), can_be_opened(path));
        }
    }
    let mut seen = HashSet::new();
    for site in &draft.sites {
        for listen in site.site.listen.iter().filter(|listen| seen.insert(*listen)) {
            let path = if let Listen::Unix(path, _) = listen { Some(path.as_path()) } else { None };
            note(&site.source, &site.listen_span, listen.to_string(), path, can_be_bound(listen));
        }
        let Some((ftp, _, span)) = &site.ftp else { continue };
        for listen in &ftp.listen {
            note(&site.source, span, listen.to_string(), None, can_be_bound(listen));
        }
    }
}

impl ConfigDraft {
    /// The access logs of all sites, and those of each.
    fn access_logs(&self) -> impl Iterator<Item = (&Arc<ConfigSource>, &Range<usize>, &AccessLog)> {
        let of_sites = self
            .sites
            .iter()
            .filter_map(|site| Some((&site.source, site.access_log_span.as_ref()?, site.site.access_log.as_ref()?)));
        self.access_log_place
            .iter()
            .filter_map(|(source, span, log)| Some((source, span, log.as_ref()?)))
            .chain(of_sites)
    }
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
