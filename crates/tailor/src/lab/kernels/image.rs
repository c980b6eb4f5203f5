//! First files of the machine (initramfs): tailor, the server, the site, and the libraries that programs are linked with.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cpio::newc;

use super::guest::{GuestTask, PLAN};
use crate::lab::server::ServerPlacement;
use crate::programs::installed_path;

const DIRECTORY: u32 = 0o040_755;
const OPEN_DIRECTORY: u32 = 0o041_777;
const FILE: u32 = 0o100_644;
const PROGRAM: u32 = 0o100_755;

/// Directories that the machine needs beside those of its files.
const DIRECTORIES: [&str; 6] = ["proc", "sys", "dev", "run", "var/log", "var/tmp"];
/// Programs that tailor starts there.
const PROGRAMS: [&str; 3] = ["sh", "mount", "ip"];
/// Files that programs look up themselves, if this machine has them.
const LOOKED_UP: [&str; 5] = ["/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl/openssl.cnf"];
/// Largest file that is added because a configuration or a command names it.
const NAMED_BYTES_MAX: u64 = 64 << 20;

/// Files of the machine by their paths.
pub(super) struct MachineFiles {
    files: BTreeMap<PathBuf, (u32, Vec<u8>)>,
}

impl MachineFiles {
    /// Gathers what a server with these commands needs of this machine.
    pub(super) fn gather(commands: &[Vec<String>], place: &ServerPlacement) -> Result<Self, String> {
        let mut gathered = Self { files: BTreeMap::new() };
        for name in DIRECTORIES {
            gathered.add(Path::new("/").join(name).as_path(), DIRECTORY, Vec::new());
        }
        gathered.add(Path::new("/tmp"), OPEN_DIRECTORY, Vec::new());
        gathered.add(&place.run, OPEN_DIRECTORY, Vec::new());
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        gathered.add_program(&own)?;
        // The kernel passes words that it does not know to the first process, so that this one is a script.
        let init = format!("#!/bin/sh\nPATH=/bin:/usr/bin exec {} guest\n", own.display());
        gathered.add(Path::new("/init"), PROGRAM, init.into_bytes());
        for name in PROGRAMS {
            let path = installed_path(name).ok_or_else(|| format!("--kernel needs `{name}` on this machine"))?;
            gathered.add_program(&path)?;
            gathered.add(&Path::new("/bin").join(name), PROGRAM, read(&path)?);
        }
        for words in commands {
            let name = words.first().ok_or("a command of the server is empty")?;
            let path = installed_path(name).ok_or_else(|| format!("`{name}` is not installed"))?;
            gathered.add_program(&path)?;
            let own = if name.contains('/') { path.clone() } else { Path::new("/bin").join(name) };
            gathered.add(&own, PROGRAM, read(&path)?);
            words[1..].iter().for_each(|word| gathered.add_named(word));
        }
        for directory in [&place.root, &place.run] {
            gathered.add_directory(directory)?;
        }
        for path in LOOKED_UP {
            gathered.add_named(path);
        }
        let configurations: Vec<String> = std::fs::read_dir(&place.run)
            .map_err(|error| format!("{}: {error}", place.run.display()))?
            .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok())
            .collect();
        configurations.iter().for_each(|text| gathered.add_named(text));
        Ok(gathered)
    }

    /// Writes the archive, with this task.
    pub(super) fn write(&self, task: &GuestTask, path: &Path) -> Result<(), String> {
        let error = |error: std::io::Error| format!("{}: {error}", path.display());
        let plan = serde_json::to_vec(task).map_err(|error| error.to_string())?;
        let mut out = BufWriter::new(std::fs::File::create(path).map_err(error)?);
        let own = (PathBuf::from(PLAN), (FILE, plan));
        // A directory comes before what it has, as paths are sorted.
        for (number, (path, (mode, content))) in (1..).zip(self.files.iter().chain([(&own.0, &own.1)])) {
            let name = path.strip_prefix("/").unwrap_or(path).to_string_lossy().into_owned();
            let links = if mode & 0o170_000 == 0o040_000 { 2 } else { 1 };
            let entry = newc::Builder::new(&name).ino(number).mode(*mode).nlink(links);
            let mut writer = entry.write(&mut out, content.len() as u32);
            writer.write_all(content).and_then(|()| writer.finish().map(drop)).map_err(error)?;
        }
        newc::trailer(&mut out).map_err(error)?;
        out.flush().map_err(error)
    }

    fn add(&mut self, path: &Path, mode: u32, content: Vec<u8>) {
        for parent in path.ancestors().skip(1).filter(|parent| *parent != Path::new("/")) {
            self.files.entry(parent.to_owned()).or_insert((DIRECTORY, Vec::new()));
        }
        self.files.insert(path.to_owned(), (mode, content));
    }

    /// Adds a program at its own path, with its libraries.
    fn add_program(&mut self, path: &Path) -> Result<(), String> {
        self.add(path, PROGRAM, read(path)?);
        let output = Command::new("ldd").arg(path).output().map_err(|error| format!("ldd: {error}"))?;
        // A program that is linked statically has none; ldd then fails.
        let text = String::from_utf8_lossy(&output.stdout);
        for library in text.split_whitespace().filter(|word| word.starts_with('/')).map(Path::new) {
            if !self.files.contains_key(library) {
                self.add(library, PROGRAM, read(library)?);
            }
        }
        Ok(())
    }

    /// Adds the files of this machine that a text names by absolute paths, such as a list of content types.
    fn add_named(&mut self, text: &str) {
        let ends_path = |it: char| it.is_whitespace() || "\"';,(){}=:".contains(it);
        for path in text.split(ends_path).filter(|word| word.starts_with('/')).map(Path::new) {
            let is_small = std::fs::metadata(path).is_ok_and(|it| it.is_file() && it.len() <= NAMED_BYTES_MAX);
            if is_small
                && !self.files.contains_key(path)
                && let Ok(content) = std::fs::read(path)
            {
                self.add(path, FILE, content);
            }
        }
    }

    /// Adds all files below a directory.
    fn add_directory(&mut self, directory: &Path) -> Result<(), String> {
        let error = |error: std::io::Error| format!("{}: {error}", directory.display());
        for entry in std::fs::read_dir(directory).map_err(error)? {
            let entry = entry.map_err(error)?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(error)?);
            if kind.is_dir() {
                let mode = entry.metadata().map_err(error)?.permissions().mode();
                self.add(&path, mode, Vec::new());
                self.add_directory(&path)?;
            } else if kind.is_file() {
                let content = read(&path)?;
                self.add(&path, FILE, content);
            }
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_have_the_plan_and_what_programs_need() {
        let directory = tempfile::tempdir().unwrap();
        let (run, root) = (directory.path().join("run"), directory.path().join("root"));
        let named = directory.path().join("types");
        for (path, text) in
            [(run.join("a.conf"), format!("include {};", named.display())), (root.join("d/f"), "x".into())]
        {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        std::fs::write(&named, "types").unwrap();
        let place = ServerPlacement { port: 1, backend_port: 2, tls_port: 3, root: root.clone(), run: run.clone() };
        let commands = [vec!["cat".to_owned(), "-u".to_owned()]];
        let archive = directory.path().join("archive");
        MachineFiles::gather(&commands, &place).unwrap().write(&GuestTask::Probe, &archive).unwrap();
        let mut input = std::fs::File::open(archive).unwrap();
        let mut names = Vec::new();
        loop {
            let entry = newc::Reader::new(input).unwrap();
            if entry.entry().is_trailer() {
                break;
            }
            names.push(format!("/{}", entry.entry().name()));
            input = entry.finish().unwrap();
        }
        let expect = [Path::new(PLAN), Path::new("/init"), Path::new("/bin/cat"), &named, &root.join("d/f"), &run];
        for path in expect {
            let place = names.iter().position(|name| Path::new(name) == path);
            let place = place.unwrap_or_else(|| panic!("{} is missing", path.display()));
            let parent = path.parent().filter(|parent| *parent != Path::new("/"));
            let of_parent = parent.map(|parent| names.iter().position(|name| Path::new(name) == parent).unwrap());
            assert!(of_parent.is_none_or(|of_parent| of_parent < place), "{}", path.display());
        }
        assert!(names.iter().any(|name| name.contains("libc.so")), "{names:?}");
    }
}
