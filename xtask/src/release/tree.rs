//! The files of a release, as a directory that is packed.

use std::error::Error;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Release, authorities, open_directories, read, run_command};
use crate::links;

pub(super) const PROGRAMS: [&str; 2] = ["tailcoat", "tailor"];

/// Shells with completions, and where they look for those of a program below `share`.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/@"),
    ("zsh", "zsh/site-functions/_@"),
    ("fish", "fish/vendor_completions.d/@.fish"),
];

/// Texts that come along.
const TEXTS: [&str; 6] = ["README.md", "CHANGELOG.md", "SECURITY.md", "BENCHMARKS.md", "LICENSE-APACHE", "LICENSE-MIT"];

/// Directories that come along as they are in the repository, so that what the manual says of files, and its links, hold.
pub(super) const DIRECTORIES: [&str; 3] = ["docs", "examples", "packaging"];

/// Of these, what packs and is not packed.
const LEFT_OUT: &str = "packaging/debian/";

/// Links of a document in `DIRECTORIES` to files that a release does not have, a line each.
pub(crate) fn unreleased(path: &str, text: &str) -> Vec<String> {
    let is_released = |file: &str| {
        let is_below = DIRECTORIES.iter().any(|directory| file.split('/').next() == Some(directory));
        TEXTS.contains(&file) || is_below && !file.starts_with(LEFT_OUT)
    };
    if TEXTS.contains(&path) || !is_released(path) {
        return Vec::new();
    }
    let files = links::documents(path, text).into_iter().filter(|file| !is_released(file));
    files.map(|file| format!("{path}: links to {file}, which a release does not have")).collect()
}

/// A directory with `bin`, `share` and texts.
pub(super) struct Tree {
    pub(super) root: PathBuf,
}

impl Tree {
    /// Gathers what belongs to a release.
    pub(super) fn make(release: &Release) -> Result<Self, Box<dyn Error>> {
        let name = format!("tailcoat-{}-{}", release.version, release.architecture());
        let tree = Self { root: release.directory.join(name) };
        empty(&tree.root)?;
        for program in PROGRAMS {
            tree.copy(&release.programs.join(program), &format!("bin/{program}"), 0o755)?;
        }
        tree.write_pages()?;
        for text in TEXTS {
            tree.copy(Path::new(text), text, 0o644)?;
        }
        tree.copy_tracked()?;
        tree.copy(Path::new("packaging/welcome/index.html"), "share/tailcoat/welcome/index.html", 0o644)?;
        // `packaging/container/Containerfile` needs this file.
        tree.write("container/ca-certificates.crt", &authorities::pem())?;
        fs::create_dir_all(tree.root.join("container/state"))?;
        tree.check_links()?;
        open_directories(&tree.root)?;
        Ok(tree)
    }

    /// Manual pages and completions, as the programs write them.
    fn write_pages(&self) -> Result<(), Box<dyn Error>> {
        let written = self.root.join("pages");
        fs::create_dir_all(&written)?;
        for program in PROGRAMS {
            let path = self.root.join("bin").join(program);
            read(Command::new(&path).args(["man", "--dir"]).arg(&written))?;
            for (shell, place) in SHELLS {
                let text = read(Command::new(&path).args(["completions", shell]))?;
                self.write(&format!("share/{}", place.replace('@', program)), &text)?;
            }
        }
        for page in fs::read_dir(&written)? {
            let page = page?.path();
            let section = page.extension().map(|section| format!("man{}", section.display())).unwrap_or_default();
            let name = page.file_name().unwrap_or_default();
            copy(&page, &self.root.join("share/man").join(section).join(name), 0o644)?;
        }
        Ok(fs::remove_dir_all(&written)?)
    }

    /// Copies the files that git tracks in `DIRECTORIES`.
    fn copy_tracked(&self) -> Result<(), Box<dyn Error>> {
        let files = read(Command::new("git").arg("ls-files").args(DIRECTORIES))?;
        for file in files.lines().filter(|file| !file.starts_with(LEFT_OUT)) {
            let mode = fs::metadata(file)?.permissions().mode() & 0o777;
            self.copy(Path::new(file), file, if mode & 0o100 == 0 { 0o644 } else { 0o755 })?;
        }
        Ok(())
    }

    /// Links of the documents in `DIRECTORIES` hold here as well. The other texts speak of the sources.
    fn check_links(&self) -> Result<(), Box<dyn Error>> {
        let files = read(Command::new("find").args(DIRECTORIES).args(["-name", "*.md"]).current_dir(&self.root))?;
        let mut broken = Vec::new();
        for file in files.lines() {
            broken.extend(links::broken(&self.root, file, &fs::read_to_string(self.root.join(file))?));
        }
        if broken.is_empty() { Ok(()) } else { Err(broken.join("\n").into()) }
    }

    /// The tree as `NAME.tar.gz`.
    pub(super) fn pack(&self, release: &Release) -> Result<PathBuf, Box<dyn Error>> {
        pack(release, &self.root.file_name().unwrap_or_default().display().to_string())
    }

    fn write(&self, path: &str, text: &str) -> Result<(), Box<dyn Error>> {
        write(&self.root.join(path), text.as_bytes(), 0o644)
    }

    fn copy(&self, from: &Path, to: &str, mode: u32) -> Result<(), Box<dyn Error>> {
        copy(from, &self.root.join(to), mode)
    }
}

/// Packs the directory of this name among a release's files, as `NAME.tar.gz`.
pub(super) fn pack(release: &Release, name: &str) -> Result<PathBuf, Box<dyn Error>> {
    let archive = format!("{name}.tar");
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"])
        .arg(format!("--mtime=@{}", release.time))
        .args(["--file", &archive, name])
        .current_dir(&release.directory);
    run_command(&mut tar)?;
    run_command(Command::new("gzip").args(["-9nf", &archive]).current_dir(&release.directory))?;
    Ok(release.directory.join(format!("{archive}.gz")))
}

/// A directory with nothing in it.
pub(super) fn empty(directory: &Path) -> Result<(), Box<dyn Error>> {
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    Ok(fs::create_dir_all(directory)?)
}

pub(super) fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), Box<dyn Error>> {
    let content = fs::read(from).map_err(|error| format!("{}: {error}", from.display()))?;
    write(to, &content, mode)
}

pub(super) fn write(to: &Path, content: &[u8], mode: u32) -> Result<(), Box<dyn Error>> {
    if let Some(directory) = to.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(to, content).map_err(|error| format!("{}: {error}", to.display()))?;
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_out_of_a_release_are_found() {
        for (path, text, expect) in [
            (
                "docs/a.md",
                "[x](b.md#c) [x](../SECURITY.md) [x](../examples/php) [x](#d) [x](https://example.org/)",
                None,
            ),
            (
                "docs/a.md",
                "[x](../crates/b.md)",
                Some("docs/a.md: links to crates/b.md, which a release does not have"),
            ),
            (
                "docs/a.md",
                "[x](../packaging/debian/control)",
                Some("docs/a.md: links to packaging/debian/control, which a"),
            ),
            ("packaging/debian/a.md", "[x](../../crates/b.md)", None),
            ("README.md", "[x](CONTRIBUTING.md)", None),
            ("crates/b.md", "[x](c.md)", None),
        ] {
            let found = unreleased(path, text);
            assert!(found.len() <= 1, "{found:?}");
            let starts = |expect: &str| found.first().is_some_and(|found| found.starts_with(expect));
            assert!(expect.map_or(found.is_empty(), starts), "{path} {text}: {found:?}");
        }
    }
}
