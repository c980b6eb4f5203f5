//! Opens files that a configuration names, without blocking. A FIFO, a terminal or another device in place of a
//! password file would block requests, checks and reloads.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Returns `true` if the process lacks the permission for a file.
pub(crate) fn is_denied(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Opens a regular file for reading. Other kinds of files are not opened, because opening can have effects.
///
/// # Errors
///
/// Errors of the kernel, or a file of another kind.
pub fn open_regular(path: &Path) -> io::Result<File> {
    expect_regular(&fs::metadata(path)?)?;
    // Should another kind of file have taken the name in between, O_NONBLOCK keeps us from waiting for a FIFO's writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    expect_regular(&file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file whole.
///
/// # Errors
/// As [`open_regular`], and the kernel's.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn expect_regular(metadata: &fs::Metadata) -> io::Result<()> {
    if metadata.is_dir() {
        return Err(Errno::ISDIR.into());
    }
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "this is no regular file"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType, mknodat};

    use super::*;

    #[test]
    fn only_regular_files_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), "text").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        mknodat(CWD, at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        std::os::unix::fs::symlink(at("fifo"), at("link-to-fifo")).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        let check = |path: &Path, expect: Result<&[u8], io::ErrorKind>| {
            let read = read_regular(path).map_err(|error| error.kind());
            assert_eq!(read.as_deref().map_err(|kind| *kind), expect, "{}", path.display());
        };
        check(&at("file"), Ok(b"text"));
        check(&at("link"), Ok(b"text"));
        check(&at("fifo"), Err(io::ErrorKind::InvalidInput));
        check(&at("link-to-fifo"), Err(io::ErrorKind::InvalidInput));
        check(&at("socket"), Err(io::ErrorKind::InvalidInput));
        check(Path::new("/dev/null"), Err(io::ErrorKind::InvalidInput));
        check(directory.path(), Err(io::ErrorKind::IsADirectory));
        check(&at("nothing"), Err(io::ErrorKind::NotFound));
    }
}
