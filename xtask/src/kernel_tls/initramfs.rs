//! The first files of a kernel, as an archive of cpio's format `newc` (Documentation/driver-api/early-userspace/
//! buffer-format.rst).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use cpio::newc;

const DIRECTORY: u32 = 0o040_755;
const LINK: u32 = 0o120_777;
const PROGRAM: u32 = 0o100_755;
const FILE: u32 = 0o100_644;

/// Files, each with its mode and content, by their paths from the root.
#[derive(Default)]
pub(super) struct Initramfs(BTreeMap<PathBuf, (u32, Vec<u8>)>);

impl Initramfs {
    /// Adds a directory, and those that it is in.
    pub(super) fn add_directory(&mut self, path: &Path) {
        for path in relative(path).ancestors().filter(|path| !path.as_os_str().is_empty()) {
            self.0.entry(path.to_owned()).or_insert((DIRECTORY, Vec::new()));
        }
    }

    /// Adds a file, and the directories that it is in.
    pub(super) fn add_file(&mut self, path: &Path, content: Vec<u8>, is_program: bool) {
        self.add(path, if is_program { PROGRAM } else { FILE }, content);
    }

    /// Adds a symbolic link, and the directories that it is in.
    pub(super) fn add_link(&mut self, path: &Path, to: &Path) {
        self.add(path, LINK, to.as_os_str().as_bytes().to_vec());
    }

    /// True if the path exists.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.0.contains_key(relative(path))
    }

    fn add(&mut self, path: &Path, mode: u32, content: Vec<u8>) {
        if let Some(parent) = relative(path).parent() {
            self.add_directory(parent);
        }
        self.0.insert(relative(path).to_owned(), (mode, content));
    }

    /// Writes the archive.
    ///
    /// # Errors
    /// The file's.
    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        let mut out = BufWriter::new(File::create(path)?);
        // A directory comes before what it has, as paths are sorted.
        for (number, (path, (mode, content))) in (1..).zip(&self.0) {
            let entry = newc::Builder::new(&path.to_string_lossy()).ino(number).mode(*mode);
            let mut writer = entry.write(&mut out, content.len() as u32);
            writer.write_all(content)?;
            writer.finish()?;
        }
        newc::trailer(&mut out)?;
        out.flush()
    }
}

fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_with_what_they_have() {
        let mut image = Initramfs::default();
        image.add_file(Path::new("/a/b/c"), Vec::new(), true);
        image.add_link(Path::new("a/l"), Path::new("/a"));
        let modes: Vec<_> = image.0.iter().map(|(path, (mode, _))| (path.to_str().unwrap(), *mode)).collect();
        assert_eq!(modes, [("a", DIRECTORY), ("a/b", DIRECTORY), ("a/b/c", PROGRAM), ("a/l", LINK)]);
        assert!(image.has(Path::new("/a/b/c")) && !image.has(Path::new("/b")));
    }
}
