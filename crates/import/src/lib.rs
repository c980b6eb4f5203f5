//! Translates configurations of other servers, and lists the lines that it cannot translate.
//!
//! No directive is dropped silently: each is translated, needs nothing here for a reason, or is reported.

mod apache;
mod caddy;
mod directive;
mod expression;
mod kdl;
mod look_ahead;
mod nginx;
mod notes;
mod parts;
mod pattern;
mod source;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tailcoat_config::{self as config, Diagnostics};

use self::kdl::KdlNode;

/// Result of a translation.
#[derive(Debug)]
pub struct Imported {
    /// The configuration for Tailcoat, formatted. It may have errors that only show when it is checked, such as files that are
    /// not there.
    pub text: String,
    /// Directives that were not translated, in the order of the files.
    pub remarks: Vec<Remark>,
    /// Findings of a check of the text.
    pub diagnostics: Diagnostics,
    /// Files and users that are absent on this machine, a message each.
    pub absent: Vec<String>,
    /// Files that the configuration needs, such as passwords that stood in the other one.
    pub files: Vec<NewFile>,
}

/// A file that the configuration needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewFile {
    /// Name, relative to the configuration.
    pub name: String,
    /// Content of the file.
    pub content: String,
}

/// Directive without a counterpart in the translation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Place of the directive.
    pub place: FileLine,
    /// The directive, without its block.
    pub directive: String,
    /// Result for the directive.
    pub outcome: ImportOutcome,
}

/// Reason why a directive was not translated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImportOutcome {
    /// Nothing is needed here, for this reason.
    Needless(&'static str),
    /// The user must translate it, with this hint.
    Left(String),
    /// Paths are rejected, because the rule or handler cannot be translated, for this reason.
    Rejected(String),
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileLine {
    /// The file, as it was named.
    pub file: Rc<Path>,
    /// Line number, from 1.
    pub line: usize,
}

impl fmt::Display for FileLine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.file.display(), self.line)
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, directive, outcome } = self;
        match outcome {
            ImportOutcome::Needless(why) => write!(formatter, "{place}: {directive}: needs nothing here: {why}"),
            ImportOutcome::Left(why) => write!(formatter, "{place}: {directive}: not translated: {why}"),
            ImportOutcome::Rejected(why) => write!(formatter, "{place}: {directive}: its paths are rejected: {why}"),
        }
    }
}

/// Reason why a configuration could not be translated at all.
#[derive(Debug)]
pub enum ImportError {
    /// A file could not be read.
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Error of the system.
        error: io::Error,
    },
    /// The file is not what it should be.
    Malformed {
        /// Place of the error.
        place: FileLine,
        /// Error message.
        message: String,
    },
}

impl fmt::Display for ImportError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { file, error } => write!(formatter, "{}: {error}", file.display()),
            Self::Malformed { place, message } => write!(formatter, "{place}: {message}"),
        }
    }
}

impl std::error::Error for ImportError {}

/// Translates a configuration of nginx, with all that it includes.
///
/// # Errors
///
/// If a file can't be read, or is no configuration of nginx.
pub fn from_nginx(path: &Path) -> Result<Imported, ImportError> {
    let (nodes, remarks) = nginx::translate(path)?;
    Ok(checked(path, &nodes, remarks, Vec::new()))
}

/// Translates a Caddyfile, with all that it imports.
///
/// # Errors
///
/// If a file can't be read, or is no Caddyfile.
pub fn from_caddy(path: &Path) -> Result<Imported, ImportError> {
    let (nodes, remarks, files) = caddy::translate(path)?;
    Ok(checked(path, &nodes, remarks, files))
}

/// Translates an Apache configuration, with all that it includes, or a `.htaccess` file.
///
/// # Errors
///
/// If a file can't be read, or is no Apache configuration.
pub fn from_apache(path: &Path) -> Result<Imported, ImportError> {
    let (nodes, remarks) = apache::translate(path)?;
    Ok(checked(path, &nodes, remarks, Vec::new()))
}

/// Translates a configuration of the server that it is for.
///
/// # Errors
///
/// If a file can't be read, or is no configuration of these servers.
pub fn from_file(path: &Path) -> Result<Imported, ImportError> {
    let unreadable = |error| ImportError::Unreadable { file: path.to_owned(), error };
    // A pipe can be read once, and is nginx's.
    let is_file = std::fs::metadata(path).map_err(unreadable)?.is_file();
    let text = if is_file { std::fs::read(path).map_err(unreadable)? } else { Vec::new() };
    match recognise(path, &String::from_utf8_lossy(&text)) {
        Some(ForeignServer::Caddy) => from_caddy(path),
        Some(ForeignServer::Apache) => from_apache(path),
        Some(ForeignServer::Nginx) | None => from_nginx(path),
    }
}

/// Server whose configuration can be translated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForeignServer {
    /// nginx
    Nginx,
    /// Caddy
    Caddy,
    /// Apache
    Apache,
}

impl fmt::Display for ForeignServer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Nginx => "nginx",
            Self::Caddy => "Caddy",
            Self::Apache => "Apache",
        })
    }
}

/// Server that a configuration is for, by its name and its lines; `None` if it looks like none of theirs.
pub fn recognise(path: &Path, text: &str) -> Option<ForeignServer> {
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().to_ascii_lowercase());
    if name.starts_with("caddyfile") || name.ends_with(".caddyfile") || name.ends_with(".caddy") {
        return Some(ForeignServer::Caddy);
    }
    if name.starts_with(".ht") || matches!(name.as_str(), "httpd.conf" | "apache2.conf") {
        return Some(ForeignServer::Apache);
    }
    if name == "nginx.conf" {
        return Some(ForeignServer::Nginx);
    }
    let lines = || text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    if lines().any(|line| line.starts_with('<') && line.ends_with('>')) || lines().any(is_of_apache) {
        return Some(ForeignServer::Apache);
    }
    let is_of_nginx = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        line.ends_with(';')
            || matches!(words.as_slice(), ["http" | "events" | "server", "{"] | ["upstream" | "location", .., "{"])
    };
    if lines().any(is_of_nginx) {
        return Some(ForeignServer::Nginx);
    }
    let is_of_caddy = |line: &str| {
        let word = line.split_whitespace().next().unwrap_or_default();
        matches!(
            word,
            "reverse_proxy"
                | "file_server"
                | "php_fastcgi"
                | "encode"
                | "handle"
                | "handle_path"
                | "basic_auth"
                | "redir"
                | "import"
        ) || (line == "respond" || line.starts_with("respond ")) && !line.contains(" \"")
    };
    let opens = |line: &str| line.ends_with('{') && !line.contains('"');
    (lines().any(is_of_caddy) && (lines().any(opens) || lines().count() > 1)).then_some(ForeignServer::Caddy)
}

/// Returns `true` for a line that only Apache's configurations have.
fn is_of_apache(line: &str) -> bool {
    let word = line.split_whitespace().next().unwrap_or_default();
    let words = [
        "RewriteEngine",
        "RewriteRule",
        "DocumentRoot",
        "ServerName",
        "LoadModule",
        "ProxyPass",
        "AllowOverride",
        "DirectoryIndex",
        "ErrorDocument",
        "AuthType",
        "AddType",
        "ServerRoot",
        "Redirect",
        "RedirectMatch",
        "RedirectPermanent",
    ];
    words.iter().any(|known| word.eq_ignore_ascii_case(known)) && !line.ends_with([';', '{'])
}

/// Writes the configuration, and checks it.
fn checked(path: &Path, nodes: &[KdlNode], remarks: Vec<Remark>, files: Vec<NewFile>) -> Imported {
    let text = kdl::write(nodes);
    let name = "the translation";
    let text = config::format_bytes(name, text.clone().into_bytes()).unwrap_or(text);
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let mut diagnostics = config::check_bytes(name, text.clone().into_bytes(), &directory).diagnostics;
    // Files of the import are written with the configuration.
    diagnostics.take(|one| {
        let is_of = |new: &NewFile| one.message.contains(&*directory.join(&new.name).to_string_lossy());
        is_absent(one) && files.iter().any(is_of)
    });
    // A configuration may be translated on another machine than the server's.
    let absent = diagnostics.take_errors(is_absent).into_iter().map(|one| one.message).collect();
    Imported { text, remarks, diagnostics, absent, files }
}

/// Returns `true` for an error about a file or user that this machine lacks.
fn is_absent(error: &config::Diagnostic) -> bool {
    let said = |text: &str| error.message.contains(text);
    said("there is no such file")
        || said("No such file")
        || said("there is no user")
        || said("there is no such program")
}
