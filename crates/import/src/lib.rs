//! Translates configurations of other servers, and lists the lines that it cannot translate.
//!
//! No directive is dropped silently: each is translated, needs nothing here for a reason, or is reported.

mod kdl;
mod nginx;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use tailcoat_config::{self as config, Diagnostics};

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
    let text = kdl::write(&nodes);
    let name = "the translation";
    let text = config::format_bytes(name, text.clone().into_bytes()).unwrap_or(text);
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let diagnostics = config::check_bytes(name, text.clone().into_bytes(), &directory).diagnostics;
    Ok(Imported { text, remarks, diagnostics })
}
