//! Ownership of directories.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Returns `true` if only root can replace entries of root in this directory. The server creates directories for its
/// later user only there.
pub fn is_roots_alone(directory: &Path) -> bool {
    fs::metadata(directory).is_ok_and(|status| {
        let mode = status.mode();
        status.is_dir() && status.uid() == 0 && (mode & 0o022 == 0 || mode & 0o1000 != 0)
    })
}
