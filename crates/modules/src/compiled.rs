//! Directory of compiled modules. The server runs its files unchecked, so no other user may write there.

use std::fs::{DirBuilder, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::config::{CompiledDirectory, state_directory};

/// Directory for compiled modules, unless the configuration disables it.
pub(super) fn directory(wanted: &CompiledDirectory) -> Option<PathBuf> {
    match wanted {
        CompiledDirectory::State => Some(state_directory()?.join("modules")),
        CompiledDirectory::Off => None,
        CompiledDirectory::At(directory) => Some(directory.clone()),
    }
}

/// Creates the directory if it is missing, and checks that only our user can write to it.
///
/// # Errors
/// The defect, in words for an operator.
pub(super) fn prepare(directory: &Path) -> Result<(), String> {
    let tell = |error: io::Error| format!("{}: {error}", directory.display());
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700).create(directory).map_err(tell)?;
    let real = directory.canonicalize().map_err(tell)?;
    let us = rustix::process::geteuid().as_raw();
    for (depth, ancestor) in real.ancestors().enumerate() {
        let metadata = ancestor.symlink_metadata().map_err(tell)?;
        let problem = if depth == 0 { problem_of(&metadata, us) } else { problem_above(&metadata, us) };
        if let Some(problem) = problem {
            return Err(format!("{} {problem}", ancestor.display()));
        }
    }
    Ok(())
}

/// Defect of the directory itself.
fn problem_of(metadata: &Metadata, us: u32) -> Option<&'static str> {
    if metadata.uid() != us {
        return Some("belongs to another user");
    }
    (metadata.mode() & 0o077 != 0).then_some("is open to other users; set its permissions to 700")
}

/// Defect of a parent directory: another user could replace the directory in it.
fn problem_above(metadata: &Metadata, us: u32) -> Option<&'static str> {
    if metadata.uid() != us && metadata.uid() != 0 {
        return Some("belongs to another user");
    }
    // In a sticky directory (/tmp), no user can rename or remove another user's files.
    let is_sticky = metadata.mode() & 0o1000 != 0;
    (metadata.mode() & 0o022 != 0 && !is_sticky).then_some("is writable for other users")
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_a_directory_of_our_own() {
        let home = tempfile::tempdir().unwrap();
        let check = |above: u32, itself: Option<u32>, expect: Result<(), &str>| {
            let directory = home.path().join("state/modules");
            let _ = fs::remove_dir_all(home.path().join("state"));
            fs::create_dir(home.path().join("state")).unwrap();
            if let Some(mode) = itself {
                fs::create_dir(&directory).unwrap();
                fs::set_permissions(&directory, Permissions::from_mode(mode)).unwrap();
            }
            fs::set_permissions(home.path().join("state"), Permissions::from_mode(above)).unwrap();
            match (prepare(&directory), expect) {
                (Ok(()), Ok(())) => assert_eq!(directory.metadata().unwrap().mode() & 0o7777, 0o700),
                (Err(problem), Err(expect)) => assert!(problem.contains(expect), "{problem:?} for {expect:?}"),
                (result, expect) => panic!("{result:?}, not {expect:?}"),
            }
        };
        check(0o755, None, Ok(()));
        check(0o755, Some(0o700), Ok(()));
        check(0o755, Some(0o755), Err("set its permissions to 700"));
        check(0o755, Some(0o770), Err("set its permissions to 700"));
        check(0o777, Some(0o700), Err("is writable for other users"));
        check(0o775, Some(0o700), Err("is writable for other users"));
        check(0o1777, Some(0o700), Ok(()));
    }
}
