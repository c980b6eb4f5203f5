//! Files in the state directory.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Creates a directory that only its owner can read, and its missing parents.
///
/// # Errors
/// Fails if the directory cannot be created, or belongs to another user.
pub fn create_private_directory(path: &Path) -> io::Result<()> {
    let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at)?;
    if fs::metadata(path).map_err(at)?.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(path, Permissions::from_mode(0o700)).map_err(at)?;
    }
    Ok(())
}

/// Permissions of certificates: copies keep them, and all programs must be able to read which CAs are trusted.
pub const PUBLIC_FILE: u32 = 0o644;

/// Writes a file that only its owner can read, atomically.
///
/// # Errors
/// Fails if the file cannot be written; the old file stays.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    write(path, text, 0o600)
}

/// Writes a world-readable file, atomically.
///
/// # Errors
/// Fails if the file cannot be written; the old file stays.
pub fn write_public(path: &Path, text: &str) -> io::Result<()> {
    write(path, text, PUBLIC_FILE)
}

fn write(path: &Path, text: &str, permissions: u32) -> io::Result<()> {
    let mut new = path.to_owned();
    new.as_mut_os_string().push(".new");
    let write_new = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(permissions).open(&new)?;
        // The umask is for files of users, and a leftover file may have other permissions.
        file.set_permissions(Permissions::from_mode(permissions))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        // Syncs the directory, too, because callers rely on the new name.
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(directory)?.sync_all()
    };
    // A half-written file could use up the last space.
    let written = write_new().inspect_err(|_| _ = fs::remove_file(&new));
    written.map_err(|error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    /// Complete content of the file in one round.
    fn content(round: usize) -> String {
        format!("{round}\n").repeat(2_000 + round % 7)
    }

    /// A process that writes all the time is killed at random (kill -9); the file it leaves is complete.
    #[test]
    fn who_is_killed_leaves_whole_files() {
        const VARIABLE: &str = "TAILCOAT_TEST_STATE_FILE";
        if let Some(path) = std::env::var_os(VARIABLE) {
            // The process that is killed.
            for round in 1.. {
                write_private(Path::new(&path), &content(round)).unwrap();
            }
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key.pem");
        let round_of = |text: &str| text.lines().next().and_then(|line| line.parse::<usize>().ok());
        for kill in 0..25 {
            let _ = fs::remove_file(&path);
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "state_files::tests::who_is_killed_leaves_whole_files"]).env(VARIABLE, &path);
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let start = Instant::now();
            // Each child is killed in a later round, however slow it is, and within that at any moment.
            while fs::read_to_string(&path).ok().and_then(|text| round_of(&text)).is_none_or(|round| round <= kill) {
                assert!(start.elapsed() < Duration::from_secs(60), "it does not write");
                std::thread::sleep(Duration::from_micros(fastrand::u64(0..2_000)));
            }
            child.kill().unwrap();
            child.wait().unwrap();
            let text = fs::read_to_string(&path).unwrap();
            let round = round_of(&text).expect("it begins with its round");
            assert!(text == content(round), "round {round} is not whole: {} bytes", text.len());
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn what_cannot_be_written_leaves_what_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        write_private(&path, "before").unwrap();
        // A directory takes the place of the new file.
        fs::create_dir(directory.path().join("file.new")).unwrap();
        let error = write_private(&path, "after").unwrap_err();
        assert!(error.to_string().contains("file"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "before");
    }
}
