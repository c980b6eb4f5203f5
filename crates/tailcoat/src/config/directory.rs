//! Whose a directory is.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Whether this is a directory of root's in which nobody else can put another thing in the place of one that is root's. Only
/// there are directories made for the user whom the server becomes.
pub fn is_roots_alone(directory: &Path) -> bool {
    fs::metadata(directory).is_ok_and(|status| {
        let mode = status.mode();
        status.is_dir() && status.uid() == 0 && (mode & 0o022 == 0 || mode & 0o1000 != 0)
    })
}
