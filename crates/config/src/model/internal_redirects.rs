//! Internal redirects of upstreams: the model.

use std::path::PathBuf;

use super::PathPattern;

/// Paths of the site that responses may redirect to without the client's knowledge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InternalRedirects {
    /// Paths that `X-Accel-Redirect` may name.
    pub accel: Vec<PathPattern>,
    /// Directories whose files `X-Sendfile` may name.
    pub sendfile: Vec<SendfileDirectory>,
}

/// Directory whose files an upstream may name, and the path of the site that has these files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendfileDirectory {
    /// Absolute path in the file system, without a slash at the end.
    pub directory: PathBuf,
    /// Path of the site, without a slash at the end.
    pub path: String,
}
