//! Fixed responses and error pages: the model.

use std::path::PathBuf;

use wire::http::Status;

/// Fixed response.
#[derive(Clone, Debug, PartialEq)]
pub struct RespondConfig {
    /// Status of the response.
    pub status: Status,
    /// Body.
    pub body: String,
    /// Content type.
    pub content_type: String,
}

/// A page for an error status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorPageConfig {
    /// Lowest status.
    pub from: u16,
    /// Highest status.
    pub to: u16,
    /// A path below the site's root, or a file with an absolute path outside it.
    pub file: ErrorPageFile,
}

/// Place of an error page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorPageFile {
    /// Below the root of the site's files.
    BelowRoot(String),
    /// Anywhere in the file system.
    File(PathBuf),
}
