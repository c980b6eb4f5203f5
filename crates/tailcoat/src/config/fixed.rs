//! What a checked configuration says of fixed responses and pages for errors.

use std::path::PathBuf;

use wire::http::Status;

/// A fixed answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Respond {
    /// Its status.
    pub status: Status,
    /// Its content.
    pub body: String,
    /// Its content type.
    pub content_type: String,
}

/// A page for an error status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorPage {
    /// Lowest status.
    pub from: u16,
    /// Highest status.
    pub to: u16,
    /// A path below the site's root, or a file with an absolute path outside it.
    pub file: ErrorPageFile,
}

/// Where an error page is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorPageFile {
    /// Below the root of the site's files.
    BelowRoot(String),
    /// Anywhere in the file system.
    File(PathBuf),
}
