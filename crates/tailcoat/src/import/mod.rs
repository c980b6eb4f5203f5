//! Configurations of other servers, translated into ours: as far as it goes, and with what is left over said line by line.
//!
//! What cannot be said here is never dropped in silence: each directive is translated, needless here for a reason, or left.

mod kdl;
mod nginx;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::config::{self, Diagnostics};

/// What came of a translation.
#[derive(Debug)]
pub struct Imported {
    /// The configuration for Tailcoat, formatted. It may have errors that only show when it is checked, such as files that are
    /// not there.
    pub text: String,
    /// What was not translated, in the order in which it stands in the files.
    pub remarks: Vec<Remark>,
    /// What a check of the text finds.
    pub diagnostics: Diagnostics,
}

/// A directive that nothing stands for in the translation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Where it stands.
    pub place: Place,
    /// The directive, without its block.
    pub directive: String,
    /// What became of it.
    pub outcome: Outcome,
}

/// Why nothing stands for a directive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It needs nothing here, and why.
    Needless(&'static str),
    /// It is left to a person, and what to know about it.
    Left(String),
    /// What it guarded or answered is refused, since it can't be said here, and why.
    Refused(String),
}

/// A line of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The file, as it was named.
    pub file: Rc<Path>,
    /// Its line, from 1.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.file.display(), self.line)
    }
}

impl fmt::Display for Remark {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, directive, outcome } = self;
        match outcome {
            Outcome::Needless(why) => write!(formatter, "{place}: {directive}: needs nothing here: {why}"),
            Outcome::Left(why) => write!(formatter, "{place}: {directive}: not translated: {why}"),
            Outcome::Refused(why) => write!(formatter, "{place}: {directive}: its paths are refused: {why}"),
        }
    }
}

/// Why a configuration could not be translated at all.
#[derive(Debug)]
pub enum ImportError {
    /// A file could not be read.
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file is not what it should be.
    Malformed {
        /// Where that was seen.
        place: Place,
        /// What is wrong.
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
