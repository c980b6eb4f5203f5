//! Whether the files of a configuration have changed since they were read.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::draft_without_sites;

/// The files of a configuration, those that it includes, and the directories in which it looks for them, each as it was at
/// some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStates(Vec<(PathBuf, Option<FileState>)>);

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileState {
    device: u64,
    inode: u64,
    bytes: u64,
    /// When it was changed: seconds, and nanoseconds of them.
    modified: (i64, i64),
}

impl FileStates {
    /// Those of the configuration in this file as they are now, whatever is wrong with it. What is read afterwards is no
    /// older.
    pub fn of(path: &Path) -> Self {
        let included = draft_without_sites(path).map(|draft| draft.included).unwrap_or_default();
        Self::at([path.to_owned()].into_iter().chain(included))
    }

    /// Where they are.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(|(path, _)| path.as_path())
    }

    /// The same files as they are now.
    pub fn look_again(&self) -> Self {
        Self::at(self.0.iter().map(|(path, _)| path.clone()))
    }

    fn at(paths: impl Iterator<Item = PathBuf>) -> Self {
        Self(paths.map(|path| (FileState::of(&path), path)).map(|(state, path)| (path, state)).collect())
    }
}

impl FileState {
    /// That of a file now; `None` if it can't be told: there is none, for one.
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
