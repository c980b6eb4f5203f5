//! Files of the state directory.

use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Makes a directory that only its owner can look into, and those above it that are missing.
///
/// # Errors
/// It can't be made, or is another's.
pub fn create_private_directory(path: &Path) -> io::Result<()> {
    let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at)?;
    if fs::metadata(path).map_err(at)?.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(at)?;
    }
    Ok(())
}

/// Permissions of certificates: a copy keeps them, and all programs must be able to read who is trusted.
pub const PUBLIC_FILE: u32 = 0o644;

/// Writes a file that only its owner can read, whole or not at all.
///
/// # Errors
/// It can't be written. Then what was there is there still.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    write(path, text, 0o600)
}

/// The same for one that everybody can read.
///
/// # Errors
/// It can't be written. Then what was there is there still.
pub fn write_public(path: &Path, text: &str) -> io::Result<()> {
    write(path, text, PUBLIC_FILE)
}

fn write(path: &Path, text: &str, permissions: u32) -> io::Result<()> {
    let write_new = || {
        let mut new = path.to_owned();
        new.as_mut_os_string().push(".new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(permissions).open(&new)?;
        // The umask is for what the user makes, and one of before may have other permissions.
        file.set_permissions(Permissions::from_mode(permissions))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(new, path)
    };
    write_new().map_err(|error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}
