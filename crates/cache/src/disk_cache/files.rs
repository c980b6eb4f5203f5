//! Files of entries. All names are relative to open directories, and no link is followed.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, renameat, statat, unlinkat,
};
use rustix::io::Errno;

use super::entry::{EntryName, EntryParts, EntryTexts, damaged, is_earlier};
use crate::object_cache::{FileStatus, OpenFile};

/// First part of temporary names; the number of the process follows.
const TEMPORARY: &str = "tmp-";

/// Age of a temporary file after which no process writes to it any more.
const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(3_600);

/// Directory with 256 directories of entries.
pub(super) struct EntryFiles {
    path: PathBuf,
    directory: OwnedFd,
    /// Number of the next temporary file.
    next: AtomicU64,
}

/// A complete entry under a temporary name. Dropping it removes the file.
pub(super) struct TemporaryFile {
    directory: OwnedFd,
    name: String,
    entry: String,
    is_renamed: bool,
}

impl EntryFiles {
    /// Opens the directory, which is created if it is missing. Only its owner may use it. A directory with other files that
    /// others may read is an error, because it is closed for them.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at)?;
        let directory = File::open(path).map_err(at)?;
        let metadata = directory.metadata().map_err(at)?;
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(at(io::Error::new(io::ErrorKind::PermissionDenied, "the directory belongs to another user")));
        }
        if metadata.permissions().mode() & 0o077 != 0 {
            if has_other_files(&directory).map_err(at)? {
                let error =
                    "others may read the directory, and it has files that are not of a cache; name an empty one";
                return Err(at(io::Error::new(io::ErrorKind::InvalidInput, error)));
            }
            directory.set_permissions(Permissions::from_mode(0o700)).map_err(at)?;
        }
        Ok(Self { path: path.to_owned(), directory: directory.into(), next: AtomicU64::new(0) })
    }

    pub(super) fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Opens the file of an entry, and reads its texts. Waits for the disk.
    pub(super) fn open_entry(&self, name: EntryName) -> io::Result<(OpenFile, EntryTexts)> {
        let (directory, file) = name.file_names();
        let file = open_file(&self.inner(&directory)?, &file)?;
        let (texts, _) = read_texts(&file)?;
        let (file, status) = with_status(file.into())?;
        let mut file = OpenFile::of_entry(file, &status);
        file.content_bytes = texts.content_bytes;
        Ok((file, texts))
    }

    /// Opens the file of an entry, and reads its texts, if that needs only what the kernel has in memory. Otherwise, and for
    /// any error, returns `None`.
    pub(super) fn open_entry_now(&self, name: EntryName) -> Option<(OpenFile, EntryTexts)> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOATIME | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::CACHED;
        let file = openat2(&self.directory, name.path(), flags, Mode::empty(), resolve).ok()?;
        let (file, status) = with_status(file).ok()?;
        let mut file = OpenFile::of_entry(file, &status);
        let texts = EntryTexts::read(status.identity.size, |buffer, offset| match file.read_now(buffer, offset) {
            true => Ok(()),
            false => Err(io::ErrorKind::WouldBlock.into()),
        });
        let texts = texts.ok()?;
        file.content_bytes = texts.content_bytes;
        Some((file, texts))
    }

    /// Writes an entry under a temporary name.
    pub(super) fn write_temporary(&self, name: EntryName, parts: &EntryParts<'_>) -> io::Result<TemporaryFile> {
        let (directory, entry) = name.file_names();
        let directory = match self.inner(&directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                match mkdirat(&self.directory, &*directory, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => self.inner(&directory)?,
                    Err(error) => return Err(error.into()),
                }
            }
            opened => opened?,
        };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let temporary = format!("{TEMPORARY}{}-{number}-{:08x}", std::process::id(), fastrand::u32(..));
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(openat(&directory, &*temporary, flags, Mode::RUSR | Mode::WUSR)?);
        // Removes the file if the rest fails.
        let temporary = TemporaryFile { directory, name: temporary, entry, is_renamed: false };
        file.write_all(parts.content)?;
        file.write_all(&parts.end()?)?;
        Ok(temporary)
    }

    /// Removes the file of an entry.
    pub(super) fn remove(&self, name: EntryName) -> io::Result<()> {
        let (directory, file) = name.file_names();
        Ok(unlinkat(self.inner(&directory)?, &*file, AtFlags::empty())?)
    }

    /// Calls `each` with all entries and their files, and removes temporary files that no process writes.
    pub(super) fn each(&self, each: &mut dyn FnMut(EntryName, File)) -> io::Result<()> {
        for number in 0..=u8::MAX {
            let directory = format!("{number:02x}");
            let Ok(inner) = self.inner(&directory) else { continue };
            for entry in Dir::read_from(&inner)? {
                let Ok(entry) = entry else { break };
                let Ok(file_name) = entry.file_name().to_str() else { continue };
                if file_name.starts_with(TEMPORARY) {
                    remove_leftover(&inner, file_name);
                } else if let Some(name) = EntryName::of_file_names(&directory, file_name) {
                    match open_file(&inner, file_name) {
                        Ok(file) => each(name, file),
                        Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
                            // A link, which is no entry.
                            let _ = unlinkat(&inner, file_name, AtFlags::empty());
                        }
                        Err(_) => {}
                    }
                }
            }
        }
        Ok(())
    }

    fn inner(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(openat(&self.directory, name, flags, Mode::empty())?)
    }
}

/// True if a directory has more than directories of entries, and what a file system begins with.
fn has_other_files(directory: &File) -> io::Result<bool> {
    let is_own = |name: &[u8]| matches!(name, b"." | b".." | b"lost+found") || EntryName::is_directory(name);
    for entry in Dir::read_from(directory)? {
        if !is_own(entry?.file_name().to_bytes()) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl TemporaryFile {
    /// Gives the file the name of its entry, and replaces an older one.
    pub(super) fn rename(mut self) -> io::Result<()> {
        renameat(&self.directory, &*self.name, &self.directory, &*self.entry)?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if !self.is_renamed {
            // The next search removes what is left.
            let _ = unlinkat(&self.directory, &*self.name, AtFlags::empty());
        }
    }
}

/// Reads the texts of an entry's file, and its size. The content is not checked.
///
/// # Errors
/// `InvalidData` if the file is not an entry, `Unsupported` if it is one of an earlier version.
pub(super) fn read_texts(file: &File) -> io::Result<(EntryTexts, u64)> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(damaged());
    }
    let whole = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged(),
        _ => error,
    };
    let texts = EntryTexts::read(metadata.len(), |buffer, offset| file.read_exact_at(buffer, offset).map_err(whole));
    let mut first = [0; 8];
    match texts {
        Err(error)
            if error.kind() == io::ErrorKind::InvalidData
                && file.read_exact_at(&mut first, 0).is_ok()
                && is_earlier(first) =>
        {
            Err(io::ErrorKind::Unsupported.into())
        }
        texts => Ok((texts?, metadata.len())),
    }
}

fn with_status(file: OwnedFd) -> io::Result<(OwnedFd, FileStatus)> {
    let status = FileStatus::of(&file)?;
    if status.kind == FileType::RegularFile { Ok((file, status)) } else { Err(damaged()) }
}

fn open_file(directory: &impl AsFd, name: &str) -> io::Result<File> {
    // Not blocking: a pipe of this name would wait for its other end.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(openat(directory, name, flags, Mode::empty())?))
}

/// Removes a temporary file whose process has ended.
fn remove_leftover(directory: &impl AsFd, name: &str) {
    let process =
        name.strip_prefix(TEMPORARY).and_then(|rest| rest.split('-').next()).and_then(|id| id.parse::<u32>().ok());
    let is_old = || {
        let Ok(status) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { return false };
        let written = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(status.st_mtime).unwrap_or(0));
        written.elapsed().is_ok_and(|age| age > TEMPORARY_AGE_MAX)
    };
    let is_over = match process {
        // Searches begin before this process writes, or find only what it writes now.
        Some(process) if process == std::process::id() => false,
        Some(process) => {
            let path = Path::new("/proc").join(OsStr::from_bytes(process.to_string().as_bytes()));
            Path::new("/proc/self").exists() && !path.exists()
        }
        None => true,
    };
    if is_over || is_old() {
        let _ = unlinkat(directory, name, AtFlags::empty());
    }
}
