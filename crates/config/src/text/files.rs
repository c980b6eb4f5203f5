//! Detects changes in the files of a configuration.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::draft_without_sites;

/// The files of a configuration, those that it includes, and the directories in which it looks for them, each as it was at
/// some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStates(Vec<(PathBuf, Option<FileState>)>);

/// State of a file: different states mean a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileState {
    device: u64,
    inode: u64,
    bytes: u64,
    /// When it was changed: seconds, and nanoseconds of them.
    modified: (i64, i64),
}

impl FileStates {
    /// States of the files of the configuration in this file, as they are now, even if it has errors. Whatever is read
    /// afterwards is no older.
    pub fn of(path: &Path) -> Self {
        let included = draft_without_sites(path).map(|draft| draft.included).unwrap_or_default();
        Self::at([path.to_owned()].into_iter().chain(included))
    }

    /// Paths of the files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|(path, _)| path.as_path())
    }

    /// States of these files as they are now.
    pub fn look_again(&self) -> Self {
        Self::at(self.0.iter().map(|(path, _)| path.clone()))
    }

    fn at(paths: impl Iterator<Item = PathBuf>) -> Self {
        Self(paths.map(|path| (FileState::of(&path), path)).map(|(state, path)| (path, state)).collect())
    }
}

impl FileState {
    /// State of a file now; `None` if it cannot be read, for example because it does not exist.
    pub fn of(path: &Path) -> Option<Self> {
        let file = std::fs::metadata(path).ok()?;
        Some(Self {
            device: file.dev(),
            inode: file.ino(),
            bytes: file.size(),
            modified: (file.mtime(), file.mtime_nsec()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_belongs_to_a_configuration_is_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir(at("sites")).unwrap();
        std::fs::write(at("main.kdl"), "include \"sites/*.kdl\"\ninclude \"more.kdl\"\n").unwrap();
        std::fs::write(at("more.kdl"), "nonsense {").unwrap();
        for (changed, content) in [
            ("main.kdl", "include \"sites/*.kdl\"\ninclude \"more.kdl\"\n// changed\n"),
            ("more.kdl", "site {"),
            ("sites/new.kdl", "site {"),
            ("sites/new.kdl", "site { }"),
        ] {
            let before = FileStates::of(&at("main.kdl"));
            assert_eq!(before.look_again(), before, "before {changed}");
            std::fs::write(at(changed), content).unwrap();
            assert_ne!(before.look_again(), before, "{changed}");
        }
        let before = FileStates::of(&at("main.kdl"));
        std::fs::remove_file(at("sites/new.kdl")).unwrap();
        assert_ne!(before.look_again(), before, "removed");
        std::fs::write(at("beside.kdl"), "site {").unwrap();
        assert_eq!(before.look_again(), before.look_again(), "not of it");
    }
}
