//! Files of the control plane: the last snapshot, and certificates.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use routes::{Change, Message, Snapshot, VERSION};
use sha2::{Digest, Sha256};

use crate::config::ControlPlane;
use crate::tls::{create_private_directory, write_private};

/// Directory of the last state.
#[derive(Clone, Debug)]
pub(crate) struct RouteState {
    directory: PathBuf,
}

/// Reason why the last state cannot be used.
#[derive(Debug)]
pub(crate) enum StateError {
    /// Neither the configuration nor the environment names a directory.
    NoDirectory,
    /// The directory or a file cannot be used.
    Io(PathBuf, io::Error),
    /// The file of the last state is not valid.
    Invalid(PathBuf, String),
}

/// Certificates and CAs as files, whose names are derived from their contents.
#[derive(Debug, Default)]
pub(super) struct PemFiles {
    directory: PathBuf,
    texts: BTreeMap<PathBuf, String>,
}

impl PemFiles {
    /// Path for a text, which is remembered.
    pub(super) fn add(&mut self, text: String) -> PathBuf {
        let digest = Sha256::digest(text.as_bytes());
        let name: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = self.directory.join(name).with_extension("pem");
        self.texts.insert(path.clone(), text);
        path
    }
}

impl RouteState {
    /// Opens the directory, which is created if it is missing.
    ///
    /// # Errors
    /// There is none, or it cannot be created.
    pub(crate) fn open(config: &ControlPlane) -> Result<Self, StateError> {
        let directory = config.state_directory().ok_or(StateError::NoDirectory)?;
        let state = Self { directory };
        for path in [state.directory.clone(), state.pem_directory()] {
            create_private_directory(&path).map_err(|error| StateError::Io(path, error))?;
        }
        Ok(state)
    }

    fn pem_directory(&self) -> PathBuf {
        self.directory.join("certificates")
    }

    fn snapshot_file(&self) -> PathBuf {
        self.directory.join("routes.json")
    }

    /// Collection for certificates, which [`Self::write_pem`] writes.
    pub(super) fn pem_files(&self) -> PemFiles {
        PemFiles { directory: self.pem_directory(), texts: BTreeMap::new() }
    }

    /// Writes the files that are missing.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) fn write_pem(&self, files: &PemFiles) -> Result<(), StateError> {
        let missing = files.texts.iter().filter(|(path, _)| !path.exists());
        for (path, text) in missing {
            write_private(path, text).map_err(|error| StateError::Io(path.clone(), error))?;
        }
        Ok(())
    }

    /// Removes the files of certificates that are no longer in use.
    pub(super) fn remove_other_pem(&self, files: &HashSet<PathBuf>) {
        let Ok(entries) = fs::read_dir(self.pem_directory()) else { return };
        let others = entries.filter_map(Result::ok).map(|entry| entry.path());
        let is_other = |path: &PathBuf| path.extension().is_some_and(|is| is == "pem") && !files.contains(path);
        // A file that stays takes some space, and nothing uses it.
        others.filter(is_other).for_each(|path| _ = fs::remove_file(path));
    }

    /// Reads the last snapshot, and the changes since, with its revision; `None` if there is none. A last line without its
    /// end, which a crash has cut off, is left out.
    ///
    /// # Errors
    /// The file cannot be read, or is not valid.
    pub(crate) fn load(&self) -> Result<Option<(u64, Snapshot)>, StateError> {
        let path = self.snapshot_file();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StateError::Io(path, error)),
        };
        let mut last: Option<(u64, Snapshot)> = None;
        for line in text.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n")) {
            last = match (Message::from_line(line), last) {
                (Ok(Message::Snapshot { revision, snapshot, .. }), None) => Some((revision, *snapshot)),
                (Ok(Message::Change { base, revision, change }), Some((known, mut snapshot))) if base == known => {
                    snapshot.apply(*change);
                    Some((revision, snapshot))
                }
                (Ok(_), _) => return Err(StateError::Invalid(path, "it is no snapshot with its changes".to_owned())),
                (Err(reason), _) => return Err(StateError::Invalid(path, reason)),
            };
        }
        last.map(Some).ok_or_else(|| StateError::Invalid(path, "there is no snapshot".to_owned()))
    }

    /// Writes a snapshot. Returns its bytes.
    ///
    /// # Errors
    /// The file cannot be written; the old one stays.
    pub(crate) fn store(&self, revision: u64, snapshot: Snapshot) -> Result<usize, StateError> {
        let path = self.snapshot_file();
        let message = Message::Snapshot { version: VERSION, revision, snapshot: Box::new(snapshot) };
        // Local invariant: JSON is UTF-8.
        let text = String::from_utf8(message.to_line()).unwrap_or_default();
        write_private(&path, &text).map_err(|error| StateError::Io(path, error))?;
        Ok(text.len())
    }

    /// Adds a change to the stored snapshot. Returns its bytes.
    ///
    /// # Errors
    /// The file cannot be written. It may then end with a part of the change, so that the next write must be a snapshot.
    pub(crate) fn append(&self, base: u64, revision: u64, change: Change) -> Result<usize, StateError> {
        let path = self.snapshot_file();
        let line = Message::Change { base, revision, change: Box::new(change) }.to_line();
        let append = || {
            let mut file = fs::OpenOptions::new().append(true).open(&path)?;
            file.write_all(&line)?;
            file.sync_data()
        };
        append().map_err(|error| StateError::Io(path.clone(), error))?;
        Ok(line.len())
    }
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDirectory => f.write_str("there is no state directory; set `directory` of `control-plane`"),
            Self::Io(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Invalid(path, reason) => write!(f, "{}: {reason}", path.display()),
        }
    }
}

impl std::error::Error for StateError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_state_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let state = RouteState { directory: directory.path().to_owned() };
        assert!(state.load().unwrap().is_none());
        let mut snapshot = Snapshot::default();
        snapshot.endpoints.insert("a".into(), Vec::new());
        state.store(7, snapshot.clone()).unwrap();
        assert_eq!(state.load().unwrap(), Some((7, snapshot)));
        let change =
            |name: &str| Change { endpoints: [(name.to_owned(), Some(Vec::new()))].into(), ..Change::default() };
        state.append(7, 9, change("b")).unwrap();
        state.append(9, 10, change("c")).unwrap();
        let names = |state: &RouteState| {
            let (revision, snapshot) = state.load().unwrap().unwrap();
            format!("{revision} {}", snapshot.endpoints.into_keys().collect::<String>())
        };
        assert_eq!(names(&state), "10 abc");
        // A change that a crash has cut off.
        let whole = fs::read(state.snapshot_file()).unwrap();
        fs::write(state.snapshot_file(), &whole[..whole.len() - 3]).unwrap();
        assert_eq!(names(&state), "9 ab");
        // One that does not follow what is before it.
        fs::write(state.snapshot_file(), &whole).unwrap();
        state.append(9, 11, change("d")).unwrap();
        assert!(matches!(state.load(), Err(StateError::Invalid(..))));
        for text in ["", "{\n", "\"ping\"\n", "{\"snapshot\":{\"version\":9,\"revision\":1,\"snapshot\":{}}}\n"] {
            fs::write(state.snapshot_file(), text).unwrap();
            assert!(matches!(state.load(), Err(StateError::Invalid(..))), "{text}");
        }
    }

    #[test]
    fn certificates_are_files_of_their_content() {
        let directory = tempfile::tempdir().unwrap();
        let state = RouteState { directory: directory.path().to_owned() };
        fs::create_dir(state.pem_directory()).unwrap();
        let mut files = state.pem_files();
        let (one, two) = (files.add("one".into()), files.add("two".into()));
        assert!(one != two && one == files.add("one".into()));
        state.write_pem(&files).unwrap();
        state.remove_other_pem(&HashSet::from([two.clone()]));
        assert!(!one.exists() && fs::read_to_string(two).unwrap() == "two");
    }
}
