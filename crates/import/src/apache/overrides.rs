//! `AllowOverride`: files in the site's directories whose rules are not read, so that their directories are closed.

use std::path::{Path, PathBuf};

use super::host::is;
use super::section::{ApacheSection, Mount};
use crate::directive::Directive;
use crate::notes::Notes;
use crate::parts::SiteParts;
use crate::pattern::ForeignPattern;

/// Most entries of directories that are looked at.
const ENTRIES_MAX: usize = 20_000;

/// Most directories that are closed one by one; with more, the whole site is.
const CLOSED_MAX: usize = 50;

/// Rejects the paths of directories with a file of this name, if some section lets such files hold rules.
pub(super) fn close(
    sections: &[ApacheSection<'_>],
    blocks: &[&[Directive]],
    mounts: &[Mount],
    name: &str,
    parts: &mut SiteParts,
    notes: &mut Notes,
) {
    let inner = sections.iter().flat_map(|section| section.block);
    let allows =
        |directive: &&Directive| is(directive, "allowoverride") && !directive.first().eq_ignore_ascii_case("none");
    let Some(directive) = inner.chain(blocks.iter().flat_map(|block| block.iter())).find(allows) else { return };
    let mut found: Vec<(String, PathBuf)> = Vec::new();
    let mut is_unknown = false;
    for mount in mounts {
        let root = Path::new(&mount.directory);
        let Some(directories) = directories_with(root, name) else {
            is_unknown = true;
            continue;
        };
        for directory in directories {
            // All of them are below the root.
            let rest = directory.strip_prefix(root).unwrap_or(&directory).to_string_lossy().into_owned();
            let separator = if rest.is_empty() { "" } else { "/" };
            found.push((format!("{}{separator}{rest}/", mount.prefix), directory.join(name)));
        }
    }
    if is_unknown {
        notes.left(
            directive,
            format!("files `{name}` may hold rules, and were not looked for: import each on the server"),
        );
    }
    if found.len() > CLOSED_MAX {
        let why = format!("{} files `{name}` may hold rules, which are not read: import each", found.len());
        return parts.close(directive, &[ForeignPattern::Prefix("/".to_owned())], why, notes);
    }
    for (path, file) in found {
        let why = format!("rules of {} are not read: import that file, too", file.display());
        parts.close(directive, &[ForeignPattern::Prefix(path)], why, notes);
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
