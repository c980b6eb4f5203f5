//! A directory as a store, on this machine or on NFS.
//!
//! Each key is a folder with one file for each version, numbered from 1; the highest number is the value. A new version is
//! written to a file of its own and linked to its number. `link` fails if the number exists, on NFS as well (RFC 1813,
//! section 3.3.15), so that one of several writers wins, without locks. Old versions stay for a minute, so that a writer that
//! was stopped between looking and linking finds its number taken.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailcoat_config::{StoreAbilities, open_regular};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::{
    BoundedList, EngineTime, Entry, Expectation, LIST_MAX, Pending, Put, SharedStore, StoreError, StoreKey,
    StoredVersion, ValueFlaw,
};

/// Threads that may wait for the file system. NFS may hang for ever.
const THREADS_MAX: usize = 8;

/// Attempts of a change that others keep from succeeding.
const ATTEMPTS_MAX: usize = 64;

/// Time for which old versions stay, by the file system's clock.
const KEPT: Duration = Duration::from_secs(60);

/// Suffix of folders that hold versions, so that a key may also be a folder of keys.
const VERSIONS: &str = "@";

/// Suffix of files that are being written.
const TEMPORARY: &str = ".new";

/// Version of a key that is a file of another program, where a folder of versions belongs.
const NO_FOLDER: &str = "file";

/// Directory as a store.
#[derive(Debug)]
pub(super) struct DirectoryStore {
    root: Arc<Path>,
    abilities: StoreAbilities,
    threads: Arc<Semaphore>,
}

impl DirectoryStore {
    pub(super) fn new(root: PathBuf, abilities: StoreAbilities) -> Self {
        Self { root: root.into(), abilities, threads: Arc::new(Semaphore::new(THREADS_MAX)) }
    }

    /// Runs work on a thread that may wait for the file system.
    fn run<'a, T: Send + 'static>(
        &'a self,
        work: impl FnOnce(&Files) -> io::Result<T> + Send + 'static,
    ) -> Pending<'a, T> {
        let files = Files { root: Arc::clone(&self.root), value_bytes_max: self.abilities.value_bytes_max };
        let threads = Arc::clone(&self.threads);
        Box::pin(async move {
            // Local invariant: the semaphore is never closed. The permit lasts as long as the thread is in use.
            let permit = threads.acquire_owned().await;
            let done = spawn_blocking(move || {
                let _permit = permit;
                work(&files)
            });
            match done.await {
                Ok(result) => result.map_err(|error| error_of(&error)),
                Err(error) => Err(StoreError::Wrong(error.to_string())),
            }
        })
    }
}

fn error_of(error: &io::Error) -> StoreError {
    match error.kind() {
        ErrorKind::PermissionDenied => StoreError::Denied(error.to_string()),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => StoreError::Busy(error.to_string()),
        ErrorKind::FileTooLarge => StoreError::TooLarge,
        ErrorKind::TimedOut => StoreError::TimedOut,
        ErrorKind::ResourceBusy => StoreError::Busy(error.to_string()),
        ErrorKind::InvalidData => StoreError::Wrong(error.to_string()),
        _ => StoreError::Unreachable(error.to_string()),
    }
}

/// True if a file of versions is none that an instance has written.
fn is_foreign(error: &io::Error) -> bool {
    use ErrorKind::{InvalidData, InvalidInput, IsADirectory, PermissionDenied};
    matches!(error.kind(), InvalidData | InvalidInput | IsADirectory | PermissionDenied)
}

impl SharedStore for DirectoryStore {
    fn abilities(&self) -> StoreAbilities {
        self.abilities
    }

    fn get<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, Option<Entry>> {
        let key = key.clone();
        self.run(move |files| files.get(&key))
    }

    fn put<'a>(&'a self, key: &'a StoreKey, value: &'a [u8], expect: Expectation<'a>) -> Pending<'a, Put> {
        let (key, value) = (key.clone(), value.to_vec());
        let expected = match expect {
            Expectation::Any => None,
            Expectation::Absent => Some(0),
            Expectation::Version(version) if version.0 == NO_FOLDER => {
                return self.run(move |files| {
                    match fs::remove_file(files.versions_of(&key)) {
                        Ok(()) => {}
                        // Another instance was first.
                        Err(error) if error.kind() == ErrorKind::IsADirectory => return Ok(Put::Conflict),
                        Err(error) if error.kind() == ErrorKind::NotFound => {}
                        Err(error) => return Err(error),
                    }
                    files.put(&key, &value, Some(0))
                });
            }
            // No file has such a number, so that another engine's version conflicts.
            Expectation::Version(version) => Some(version.0.parse().unwrap_or(u64::MAX)),
        };
        self.run(move |files| files.put(&key, &value, expected))
    }

    fn delete<'a>(&'a self, key: &'a StoreKey) -> Pending<'a, ()> {
        let key = key.clone();
        self.run(move |files| {
            let folder = files.versions_of(&key);
            match fs::remove_dir_all(&folder) {
                Err(error) if error.kind() == ErrorKind::NotADirectory => fs::remove_file(&folder),
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        })
    }

    fn list<'a>(&'a self, folder: &'a StoreKey) -> Pending<'a, Vec<(StoreKey, Entry)>> {
        let folder = folder.clone();
        self.run(move |files| files.list(&folder))
    }

    fn time(&self) -> Pending<'_, Option<EngineTime>> {
        self.run(|files| {
            // The file system's clock, which is that of the NFS server.
            let path = files.temporary();
            let result = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
            let time = result.and_then(|mut file| {
                file.write_all(b"t")?;
                let metadata = file.metadata()?;
                let milliseconds =
                    metadata.mtime().unsigned_abs() * 1_000 + metadata.mtime_nsec().unsigned_abs() / 1_000_000;
                Ok(EngineTime { unix_ms: milliseconds, accuracy_ms: 10 })
            });
            let _ = fs::remove_file(&path);
            time.map(Some)
        })
    }
}

/// Work on files.
struct Files {
    root: Arc<Path>,
    value_bytes_max: usize,
}

impl Files {
    fn versions_of(&self, key: &StoreKey) -> PathBuf {
        self.root.join(format!("{key}{VERSIONS}"))
    }

    fn temporary(&self) -> PathBuf {
        let mut number = [0; 8];
        // Without random numbers, a file that exists is an error.
        let _ = aws_lc_rs::rand::fill(&mut number);
        self.root.join(format!("{:016x}{TEMPORARY}", u64::from_ne_bytes(number)))
    }

    /// Numbers of the versions in a folder, the highest last. Reading the folder makes NFS look at the server's state.
    fn numbers(folder: &Path) -> io::Result<Vec<u64>> {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // NFS may remember that a name was absent until the folder above is opened (close-to-open consistency).
                if let Some(parent) = folder.parent() {
                    let _ = File::open(parent);
                }
                match fs::read_dir(folder) {
                    Ok(entries) => entries,
                    Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        };
        let names = entries.map(|entry| Ok(entry?.file_name()));
        let names = names.collect::<io::Result<Vec<_>>>()?;
        // Another program may have left `007` or `+7`.
        let number = |name: &str| name.parse::<u64>().ok().filter(|number| number.to_string() == name);
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| number(name.to_str()?)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn get(&self, key: &StoreKey) -> io::Result<Option<Entry>> {
        let (folder, bytes_max) = (self.versions_of(key), key.value_bytes_max().min(self.value_bytes_max));
        for _ in 0..ATTEMPTS_MAX {
            let number = match Self::numbers(&folder) {
                Ok(mut numbers) => numbers.pop(),
                Err(error) if error.kind() == ErrorKind::NotADirectory => {
                    return Ok(Some(Entry::flawed(ValueFlaw::Foreign, StoredVersion(NO_FOLDER.to_owned()))));
                }
                Err(error) => return Err(error),
            };
            let Some(number) = number else { return Ok(None) };
            let version = StoredVersion(number.to_string());
            let path = folder.join(&version.0);
            match open_regular(&path) {
                Ok(file) if file.metadata()?.len() > bytes_max as u64 => {
                    return Ok(Some(Entry::flawed(ValueFlaw::TooLarge, version)));
                }
                Ok(file) => {
                    let mut value = Vec::new();
                    file.take(bytes_max as u64 + 1).read_to_end(&mut value)?;
                    return Ok(Some(Entry::new(value, version).within(bytes_max)));
                }
                Err(error) if error.kind() == ErrorKind::NotFound && fs::symlink_metadata(&path).is_ok() => {
                    return Ok(Some(Entry::flawed(ValueFlaw::Foreign, version)));
                }
                // A newer version has replaced it since.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                // Not a regular file, or another user's.
                Err(error) if is_foreign(&error) => return Ok(Some(Entry::flawed(ValueFlaw::Foreign, version))),
                Err(error) => return Err(error),
            }
        }
        Err(ErrorKind::ResourceBusy.into())
    }

    fn put(&self, key: &StoreKey, value: &[u8], expected: Option<u64>) -> io::Result<Put> {
        let folder = self.versions_of(key);
        match DirBuilder::new().recursive(true).mode(0o700).create(&folder) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && expected.is_some() => return Ok(Put::Conflict),
            result => result?,
        }
        let temporary = self.temporary();
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        let linked = file.write_all(value).and_then(|()| file.sync_data()).and_then(|()| {
            drop(file);
            Self::link(&folder, &temporary, expected)
        });
        // The link keeps its content.
        let _ = fs::remove_file(&temporary);
        linked
    }

    fn link(folder: &Path, temporary: &Path, expected: Option<u64>) -> io::Result<Put> {
        for _ in 0..ATTEMPTS_MAX {
            let started = Instant::now();
            let present = Self::numbers(folder)?.pop().unwrap_or(0);
            if expected.is_some_and(|expected| expected != present) {
                return Ok(Put::Conflict);
            }
            let Some(number) = present.checked_add(1) else { return Ok(Put::Conflict) };
            let path = folder.join(number.to_string());
            let is_linked = match fs::hard_link(temporary, &path) {
                Ok(()) => true,
                // NFS may repeat a request whose response was lost; the count of links tells if it succeeded.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => fs::metadata(temporary)?.nlink() == 2,
                // Another instance has deleted the key.
                Err(error) if error.kind() == ErrorKind::NotFound && expected.is_none_or(|number| number == 0) => {
                    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Put::Conflict),
                Err(error) => return Err(error),
            };
            if is_linked {
                let numbers = Self::numbers(folder)?;
                if started.elapsed() >= KEPT / 2 {
                    // This process was stopped meanwhile: others may have removed a version of the same number.
                    if numbers.last().is_some_and(|highest| *highest > number) {
                        let _ = fs::remove_file(&path);
                    }
                    return Err(ErrorKind::TimedOut.into());
                }
                Self::remove_old(folder, &path, &numbers);
                return Ok(Put::Done(StoredVersion(number.to_string())));
            }
            if expected.is_some() {
                return Ok(Put::Conflict);
            }
        }
        Err(ErrorKind::ResourceBusy.into())
    }

    /// Removes versions that are older than [`KEPT`], by the file system's clock.
    fn remove_old(folder: &Path, newest: &Path, numbers: &[u64]) {
        let Ok(now) = fs::metadata(newest).and_then(|metadata| metadata.modified()) else { return };
        for number in &numbers[..numbers.len().saturating_sub(1)] {
            let path = folder.join(number.to_string());
            let modified = fs::metadata(&path).and_then(|metadata| metadata.modified());
            match modified.ok().and_then(|modified| now.duration_since(modified).ok()) {
                Some(age) if age > KEPT => _ = fs::remove_file(&path),
                // Later ones are younger.
                _ => return,
            }
        }
    }

    fn list(&self, folder: &StoreKey) -> io::Result<Vec<(StoreKey, Entry)>> {
        let path = self.root.join(folder.as_str());
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let key =
                name.to_str().and_then(|name| name.strip_suffix(VERSIONS)).and_then(|name| folder.within(name).ok());
            names.extend(key);
            if names.len() > LIST_MAX {
                return Err(ErrorKind::FileTooLarge.into());
            }
        }
        names.sort_unstable();
        let mut list = BoundedList::new();
        for key in names {
            if list.is_full() {
                list.push_unread(key);
            } else if let Some(entry) = self.get(&key)? {
                list.push(key, entry);
            }
        }
        Ok(list.sorted())
    }
}
