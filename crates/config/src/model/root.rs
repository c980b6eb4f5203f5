//! Directories of files.

use std::path::PathBuf;

/// Directory of a request's files: a path whose pieces may depend on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RootPattern {
    /// The pieces, joined without a separator.
    pub pieces: Vec<RootPiece>,
    /// Removes a leading `www.` from the host.
    pub strip_www: bool,
    /// Dropped from the end of the host (TUX's `strip_host_tail`).
    pub strip_suffix: String,
    /// Links that lead out of the directory and are followed.
    pub symlinks: SymlinkRule,
}

impl RootPattern {
    /// True unless the path is empty.
    pub fn is_given(&self) -> bool {
        self.pieces.iter().any(|piece| !matches!(piece, RootPiece::Literal(text) if text.is_empty()))
    }
}

/// Symbolic links that lead out of a root and are followed. Those that stay below it always are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum SymlinkRule {
    /// None.
    #[default]
    Inside,
    /// Links that have the owner of what they lead to.
    Owner,
    /// Links that lead below one of these directories.
    Below(Vec<PathBuf>),
    /// All.
    All,
}

/// A piece of a [`RootPattern`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum RootPiece {
    /// As written.
    Literal(String),
    /// `{host}`: the whole host name.
    Host,
    /// `{host:N}`: its first N bytes (TUX's hashed directories: s, so, som).
    HostPrefix(usize),
}
