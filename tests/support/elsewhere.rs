//! Directory that confinement grants to no process by itself.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;

/// Directories that programs may write, and read, under any configuration.
const PROGRAMS_OWN: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Creates a directory outside those of programs and of the configuration. This repository may itself be in a place
/// that programs may read.
pub(crate) fn elsewhere() -> TempDir {
    let places = [env!("CARGO_TARGET_TMPDIR"), "/run", "/var/lib"];
    let is_granted = |place: &&str| PROGRAMS_OWN.iter().any(|own| Path::new(place).starts_with(own));
    let made = places.into_iter().filter(|place| !is_granted(place)).find_map(|place| tempfile::tempdir_in(place).ok());
    let directory = made.expect("a place outside of /tmp that can be written to");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    directory
}
