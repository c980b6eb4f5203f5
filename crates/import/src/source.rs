//! Files of a configuration, with limits on their number and size.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::{fs, str};

use crate::ImportError;
use crate::config;

/// Maximum number of files that are read, each as often as it is included.
pub(crate) const FILES_MAX: usize = 20_000;

/// Maximum bytes of these files.
const FILE_BYTES_MAX: usize = 64 << 20;

/// Files that include files that include files … to this depth; beyond it they form a loop.
pub(crate) const INCLUDE_DEPTH_MAX: usize = 16;

/// Reader that counts files and bytes.
#[derive(Default)]
pub(crate) struct SourceReader {
    files: usize,
    bytes: usize,
}

impl SourceReader {
    /// Text of a file. Included files must be regular.
    pub(crate) fn read(&mut self, path: &Path, is_included: bool) -> Result<String, ImportError> {
        let unreadable = |error| ImportError::Unreadable { file: path.to_owned(), error };
        let room = FILE_BYTES_MAX - self.bytes;
        let mut bytes = Vec::new();
        // The operator may name a pipe; a device among the files that are included would block.
        let open = if is_included { config::open_regular(path) } else { File::open(path) };
        let file = open.map_err(unreadable)?;
        file.take(room as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        self.files += 1;
        if bytes.len() > room || self.files > FILES_MAX {
            let limit = format!("more than {FILES_MAX} files or {} MiB are included", FILE_BYTES_MAX >> 20);
            return Err(unreadable(io::Error::other(limit)));
        }
        self.bytes += bytes.len();
        let text = str::from_utf8(&bytes)
            .map_err(|_| unreadable(io::Error::new(io::ErrorKind::InvalidData, "this is not UTF-8 text")))?;
        Ok(text.to_owned())
    }
}

/// The files of a pattern, sorted by name; none if a pattern fits no file.
pub(crate) fn included(pattern: &Path) -> io::Result<Vec<PathBuf>> {
    let is_pattern = pattern.as_os_str().to_string_lossy().contains('*');
    match config::expand_include(pattern) {
        Err(error) if is_pattern && error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
        Ok(files) if is_pattern => Ok(files),
        Ok(files) => files.into_iter().map(|file| fs::metadata(&file).map(|_| file)).collect(),
    }
}
