//! Unnamed files, and the operations on them, which run on threads that may wait for a disk.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// Result of writing.
#[derive(Debug)]
pub(super) struct Written {
    /// File that was written, unless it could not be created.
    pub(super) file: Option<Arc<File>>,
    /// Bytes written, or the pieces that were not, with the error.
    pub(super) result: Result<u64, (VecDeque<Vec<u8>>, io::Error)>,
}

/// Writes pieces at this offset of a file; creates the file in `directory` if there is none.
pub(super) fn write(file: Option<Arc<File>>, directory: &Path, offset: u64, pieces: VecDeque<Vec<u8>>) -> Written {
    let file = match file.map_or_else(|| open(directory).map(Arc::new), Ok) {
        Ok(file) => file,
        Err(error) => return Written { file: None, result: Err((pieces, error)) },
    };
    let mut at = offset;
    for piece in &pieces {
        if let Err(error) = file.write_all_at(piece, at) {
            return Written { file: Some(file), result: Err((pieces, error)) };
        }
        at += piece.len() as u64;
    }
    Written { file: Some(file), result: Ok(at - offset) }
}

/// Reads bytes that were written before.
pub(super) fn read(file: &File, offset: u64, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset)?;
    Ok(bytes)
}

/// Creates a file without a name: only this process can reach it, and closing it deletes it.
fn open(directory: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    let without_name = options.clone().custom_flags(libc::O_TMPFILE).open(directory);
    match without_name.as_ref().map_err(io::Error::raw_os_error) {
        // Some file systems do not support unnamed files (open(2)).
        Err(Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) => {}
        _ => return without_name,
    }
    let path = directory.join(format!(".tailcoat-{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..)));
    let file = options.create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}
