//! `.htaccess` files below a site's directories: their rules become those of sections.

use std::path::{Path, PathBuf};

use super::host::is;
use super::section::Mount;
use super::syntax;
use crate::directive::Directive;
use crate::expression::ReadOnce;
use crate::notes::Notes;
use crate::parts::SiteParts;
use crate::pattern::ForeignPattern;

/// Most entries of directories that are looked at.
const ENTRIES_MAX: usize = 20_000;

/// Most files whose rules are read; with more, the whole site is closed.
const FILES_MAX: usize = 50;

/// Sections with the rules of `.htaccess` files, and paths that are rejected instead.
#[derive(Default)]
pub(super) struct Overrides {
    pub(super) sections: Vec<Directive>,
    /// Directive, paths and reason.
    closed: Vec<(Directive, ForeignPattern, String)>,
    left: Vec<(Directive, String)>,
}

impl Overrides {
    /// Rules of files with this name below the directories of a site, if some block lets such files hold rules.
    pub(super) fn of_site(blocks: &[&[Directive]], mounts: &[Mount], name: &str) -> Self {
        let mut overrides = Self::default();
        let mut all = Vec::new();
        blocks.iter().for_each(|block| allowing(block, &mut all));
        let Some(directive) = all.first().copied() else { return overrides };
        let reads_all = all.iter().all(|directive| directive.first().eq_ignore_ascii_case("all"));
        let is_below = |mount: &Mount| {
            let below = |other: &Mount| !other.is_file && Path::new(&mount.directory).starts_with(&other.directory);
            mounts.iter().any(below)
        };
        for mount in mounts.iter().filter(|mount| !mount.is_file || !is_below(mount)) {
            overrides.add(directive, mount, name, reads_all);
        }
        overrides.limited(directive, name)
    }

    /// Rules of files below the directory of a `.htaccess` file.
    pub(super) fn below(file: &Path, directory: &Path, first: Option<&Directive>) -> Self {
        let mut overrides = Self::default();
        let Some(first) = first else { return overrides };
        let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let directory_text = directory.to_string_lossy().into_owned();
        let mount = Mount { prefix: String::new(), directory: directory_text, is_file: false };
        overrides.add(first, &mount, &name, true);
        let own = directory.to_string_lossy();
        overrides.sections.retain(|section| section.first() != own);
        overrides.limited(first, &name)
    }

    fn add(&mut self, directive: &Directive, mount: &Mount, name: &str, reads_all: bool) {
        let root = Path::new(&mount.directory);
        let Some(directories) = directories_with(root, name) else {
            let why = format!("files `{name}` may hold rules, and were not looked for: import each on the server");
            self.left.push((directive.clone(), why));
            return;
        };
        for directory in directories {
            let file = directory.join(name);
            // An alias may lead to a directory of another one.
            if self.sections.iter().any(|section| Path::new(section.first()) == directory) {
                continue;
            }
            // All of them are below the root.
            let rest = directory.strip_prefix(root).unwrap_or(&directory).to_string_lossy().into_owned();
            let separator = if rest.is_empty() { "" } else { "/" };
            let pattern = ForeignPattern::Prefix(format!("{}{separator}{rest}/", mount.prefix));
            match syntax::read(&file) {
                Ok(block) if reads_all => {
                    let arguments = vec![directory.to_string_lossy().into_owned()];
                    let place = block.first().map_or_else(|| directive.place.clone(), |first| first.place.clone());
                    let name = "Directory".to_owned();
                    let expression = ReadOnce::default();
                    self.sections.push(Directive {
                        name,
                        arguments,
                        block: Some(block),
                        place,
                        had_variables: false,
                        expression,
                    });
                }
                Ok(_) => {
                    let why = format!("rules of {} hold in part: import that file, too", file.display());
                    self.closed.push((directive.clone(), pattern, why));
                }
                Err(error) => self.closed.push((directive.clone(), pattern, error.to_string())),
            }
        }
    }

    fn limited(mut self, directive: &Directive, name: &str) -> Self {
        let count = self.sections.len() + self.closed.len();
        if count > FILES_MAX {
            let why = format!("{count} files `{name}` may hold rules, which are not read: import each");
            self.sections.clear();
            self.closed = vec![(directive.clone(), ForeignPattern::Prefix("/".to_owned()), why)];
        }
        self
    }

    pub(super) fn close(&self, parts: &mut SiteParts, notes: &mut Notes) {
        self.left.iter().for_each(|(directive, why)| notes.left(directive, why.clone()));
        for (directive, pattern, why) in &self.closed {
            parts.close(directive, std::slice::from_ref(pattern), why.clone(), notes);
        }
    }
}

/// Directives that let `.htaccess` files hold rules.
fn allowing<'a>(block: &'a [Directive], all: &mut Vec<&'a Directive>) {
    for directive in block {
        if is(directive, "allowoverride") && !directive.first().eq_ignore_ascii_case("none") {
            all.push(directive);
        } else if is(directive, "directory") || is(directive, "directorymatch") {
            allowing(directive.children(), all);
        }
    }
}

/// Directories below a root, itself among them, with a file of this name. `None` if some could not be looked at.
/// Symbolic links are not followed.
fn directories_with(root: &Path, name: &str) -> Option<Vec<PathBuf>> {
    let (mut found, mut waiting, mut entries) = (Vec::new(), vec![root.to_owned()], 0);
    while let Some(directory) = waiting.pop() {
        for entry in std::fs::read_dir(&directory).ok()? {
            let entry = entry.ok()?;
            entries += 1;
            if entries > ENTRIES_MAX {
                return None;
            }
            if entry.file_name() == name {
                found.push(directory.clone());
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push(entry.path());
            }
        }
    }
    found.sort();
    Some(found)
}
