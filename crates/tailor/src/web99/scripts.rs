//! Reference implementation of the dynamic operations.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Name, text and file mode of each: a script for php-fpm, and an executable CGI program.
const SCRIPTS: [(&str, &str, u32); 2] = [
    ("web99.php", include_str!("scripts/web99.php"), 0o644),
    ("cgi-bin/web99.pl", include_str!("scripts/web99.pl"), 0o755),
];

/// Writes the dynamic operations below `root`.
///
/// # Errors
/// A file could not be written.
pub(super) fn write(root: &Path) -> Result<(), String> {
    for (name, text, mode) in SCRIPTS {
        let path = root.join(name);
        let error = |error: std::io::Error| format!("{}: {error}", path.display());
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(error)?;
        }
        std::fs::write(&path, text).map_err(error)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).map_err(error)?;
    }
    Ok(())
}
