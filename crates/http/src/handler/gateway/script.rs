//! Lookup of scripts: from a path to the script that handles it.
//!
//! A path belongs to a script if the path, or a part of it up to a slash, matches the script's pattern. That part
//! must be a regular file below the root. No other file is ever passed to a script runner:
//! `/upload/picture.jpg/x.php` is the file `x.php` in a directory `picture.jpg`, or nothing; it never is
//! `picture.jpg`.

use std::cell::RefCell;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use hashbrown::HashMap;
use rustix::fs::FileType;
use wire::http::Status;

use crate::config::{GatewayConfig, PathPattern};
use crate::handler::static_file::hidden_part;
use crate::handler::static_file::roots::{OpenedRoot, SharedRoots, WorkerRoots};
use crate::handler::{FileRejection, Routed, without_prefix};
use crate::object_cache::{Blocking, DiskAccess, ObjectStore, OpenError};

/// Most parts of a path that are tried as scripts. Real scripts are never that deep. Each part costs a lookup and an
/// access check, and clients choose their number.
const PARTS_MAX: usize = 16;

/// Most lookups that a worker remembers; beyond that it clears the map.
const REMEMBERED_MAX: usize = 1024;

/// Tree of scripts, shared by all workers.
#[derive(Debug)]
pub struct ScriptTree {
    config: Arc<GatewayConfig>,
    roots: Arc<SharedRoots>,
    store: Arc<ObjectStore>,
    /// True if scripts must be executable.
    is_run_here: bool,
}

impl ScriptTree {
    /// Creates the tree of this configuration.
    pub fn new(config: &Arc<GatewayConfig>, store: &Arc<ObjectStore>) -> Arc<Self> {
        let is_run_here =
            config.protocol == crate::config::GatewayProtocol::Cgi && config.programs.interpreter.is_none();
        Arc::new(Self { config: Arc::clone(config), roots: Arc::default(), store: Arc::clone(store), is_run_here })
    }
}

/// Script or application that handles a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Part of the path that names the script (SCRIPT_NAME).
    pub name: Vec<u8>,
    /// Rest of the path (PATH_INFO); may be empty.
    pub path_info: Vec<u8>,
    /// Path of its file; empty for an application without files.
    pub file: Vec<u8>,
    /// Root above the file; empty for an application without files.
    pub root: Vec<u8>,
}

impl Script {
    /// True for an index script, or the fallback.
    pub(super) fn is_led_to(&self) -> bool {
        self.path_info.is_empty() && !self.file.is_empty()
    }

    /// Resolves a path to the application.
    pub(super) fn of_application(config: &GatewayConfig, path: &[u8]) -> Self {
        // `/app` is no prefix of `/apple`.
        let is_front = |rest: &&[u8]| rest.is_empty() || rest.starts_with(b"/");
        let (name, path_info) = match path.strip_prefix(config.application.as_bytes()).filter(is_front) {
            Some(rest) => (config.application.as_bytes(), rest),
            None => (&b""[..], path),
        };
        Self { name: name.to_vec(), path_info: path_info.to_vec(), file: Vec::new(), root: Vec::new() }
    }
}

/// Result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ScriptLookup {
    Found(Script),
    Nothing,
    /// The file is there, but must not be run.
    Rejected(ScriptRejection),
    Failed(Status),
}

/// Reason that a file is not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScriptRejection {
    /// No user may execute it.
    NotExecutable,
    /// Reason that also keeps files from being sent: permissions, a link out of the root, or no regular file.
    Forbidden,
}

impl ScriptRejection {
    /// Explanation for an operator.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::NotExecutable => "the file is not executable",
            Self::Forbidden => FileRejection::Forbidden.reason(),
        }
    }
}

/// Kind of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScriptEntry {
    Script,
    /// A file that may not be run.
    Rejected(ScriptRejection),
    Directory,
    Nothing,
}

/// Kinds of entries by path, each with the time of its lookup.
type Remembered = HashMap<Box<[u8]>, (ScriptEntry, u64)>;

/// A worker's view of a [`ScriptTree`].
pub(super) struct Scripts {
    tree: Arc<ScriptTree>,
    roots: WorkerRoots,
    /// Recent lookups, kept for `remember_ms`.
    remembered: RefCell<Remembered>,
    remember_ms: u64,
}

impl Scripts {
    pub(super) fn new(tree: &Arc<ScriptTree>) -> Self {
        let limits = tree.store.limits();
        let pattern = tree.config.root.clone();
        Self {
            tree: Arc::clone(tree),
            // Local invariant: only a configuration with a root has a tree.
            roots: WorkerRoots::new(&pattern.unwrap_or_default(), &limits),
            remembered: RefCell::default(),
            remember_ms: limits.revalidate_after.as_millis() as u64,
        }
    }

    /// True if a path may be a script's, judged by its name.
    pub(super) fn may_have(&self, config: &GatewayConfig, path: &[u8]) -> bool {
        (path.ends_with(b"/") && !config.index.is_empty()) || scripts_of(config, path).next().is_some()
    }

    /// Finds the script of a path, or the index of the directory that the path names.
    pub(super) async fn find(&self, config: &GatewayConfig, routed: &Routed<'_>) -> ScriptLookup {
        let root = match self.open_root(routed).await {
            Ok(root) => root,
            Err(lookup) => return lookup,
        };
        for end in scripts_of(config, routed.path) {
            let (name, path_info) = routed.path.split_at(end);
            match self.look_up(&root, name, routed).await {
                Ok(ScriptEntry::Script) => return ScriptLookup::Found(self.script(&root, name, path_info)),
                Ok(ScriptEntry::Rejected(rejection)) => return ScriptLookup::Rejected(rejection),
                Ok(ScriptEntry::Directory) => {}
                // Nothing exists below a missing name.
                Ok(ScriptEntry::Nothing) => break,
                Err(lookup) => return lookup,
            }
        }
        if !routed.path.ends_with(b"/") {
            return ScriptLookup::Nothing;
        }
        // Other handlers have the other indexes.
        let own = indexes(config, routed.path).filter(|name| config.scripts.matches(name));
        self.find_index(own, &root, routed).await
    }

    /// Finds the index of the directory that a path names without its slash, also if another handler has it.
    pub(super) async fn find_directory(&self, config: &GatewayConfig, routed: &Routed<'_>) -> ScriptLookup {
        if routed.path.ends_with(b"/") || config.index.is_empty() {
            return ScriptLookup::Nothing;
        }
        match self.open_root(routed).await {
            Ok(root) => self.find_index(indexes(config, &[routed.path, b"/"].concat()), &root, routed).await,
            Err(lookup) => lookup,
        }
    }

    /// Finds the first index of these names.
    async fn find_index(
        &self,
        names: impl Iterator<Item = Vec<u8>>,
        root: &Arc<OpenedRoot>,
        routed: &Routed<'_>,
    ) -> ScriptLookup {
        for name in names {
            match self.look_up(root, &name, routed).await {
                Ok(ScriptEntry::Script) => return ScriptLookup::Found(self.script(root, &name, b"")),
                Ok(ScriptEntry::Rejected(rejection)) => return ScriptLookup::Rejected(rejection),
                Ok(ScriptEntry::Directory | ScriptEntry::Nothing) => {}
                Err(lookup) => return lookup,
            }
        }
        ScriptLookup::Nothing
    }

    /// Finds the fallback script.
    pub(super) async fn find_fallback(&self, name: &str, routed: &Routed<'_>) -> ScriptLookup {
        let root = match self.open_root(routed).await {
            Ok(root) => root,
            Err(lookup) => return lookup,
        };
        match self.look_up_below(&root, &name.as_bytes()[1..], routed).await {
            Ok(ScriptEntry::Script) => {
                let path = [self.tree.config.strip_prefix.as_bytes(), name.as_bytes()].concat();
                ScriptLookup::Found(self.script(&root, &path, b""))
            }
            Ok(ScriptEntry::Rejected(rejection)) => ScriptLookup::Rejected(rejection),
            Ok(ScriptEntry::Directory | ScriptEntry::Nothing) => ScriptLookup::Nothing,
            Err(lookup) => lookup,
        }
    }

    /// True if the path itself, without its last slash, must not be opened.
    pub(super) async fn is_closed(&self, routed: &Routed<'_>) -> bool {
        let Ok(root) = self.open_root(routed).await else { return false };
        let path = routed.path.strip_suffix(b"/").unwrap_or(routed.path);
        let entry = self.look_up(&root, path, routed).await;
        entry == Ok(ScriptEntry::Rejected(ScriptRejection::Forbidden))
    }

    fn script(&self, root: &OpenedRoot, name: &[u8], path_info: &[u8]) -> Script {
        let below = without_prefix(name, &self.tree.config.strip_prefix).unwrap_or(name);
        let root = root.path.as_os_str().as_bytes();
        let root = root.strip_suffix(b"/").unwrap_or(root);
        Script { name: name.to_vec(), path_info: path_info.to_vec(), file: [root, below].concat(), root: root.to_vec() }
    }

    async fn open_root(&self, routed: &Routed<'_>) -> Result<Arc<OpenedRoot>, ScriptLookup> {
        let now_ms = routed.now.monotonic_ms;
        let (roots, store) = (&self.tree.roots, &self.tree.store);
        let root = self.roots.get(routed.host).map_err(reject)?;
        let recheck_after_ms = self.roots.recheck_after_ms();
        let current = match root.current(now_ms) {
            Some(current) => current,
            None => root.check_now(roots, store, now_ms, recheck_after_ms),
        };
        match current {
            Ok(_) => root.opened().map_err(reject),
            Err(OpenError::WouldBlock) => root.check(roots, store, now_ms, recheck_after_ms).await.map_err(reject),
            Err(error) => Err(reject(error)),
        }
    }

    /// Looks up a path.
    async fn look_up(
        &self,
        root: &Arc<OpenedRoot>,
        path: &[u8],
        routed: &Routed<'_>,
    ) -> Result<ScriptEntry, ScriptLookup> {
        let below = without_prefix(path, &self.tree.config.strip_prefix).and_then(|rest| rest.strip_prefix(b"/"));
        match below {
            Some(below) if hidden_part(path, false).is_none() => self.look_up_below(root, below, routed).await,
            _ => Ok(ScriptEntry::Nothing),
        }
    }

    async fn look_up_below(
        &self,
        root: &Arc<OpenedRoot>,
        name: &[u8],
        routed: &Routed<'_>,
    ) -> Result<ScriptEntry, ScriptLookup> {
        let now_ms = routed.now.monotonic_ms;
        let key = [root.path.as_os_str().as_bytes(), b"/", name].concat();
        if let Some((entry, since_ms)) = self.remembered.borrow().get(&key[..])
            && now_ms.saturating_sub(*since_ms) < self.remember_ms
        {
            return Ok(*entry);
        }
        let is_run_here = self.tree.is_run_here;
        let entry = match look(root, name, DiskAccess::Cached, is_run_here) {
            Err(OpenError::WouldBlock) => {
                let (root, name) = (Arc::clone(root), name.to_vec());
                let looked = Blocking::spawn(move || look(&root, &name, DiskAccess::Blocking, is_run_here)).await;
                looked.unwrap_or(Err(OpenError::Exhausted))
            }
            result => result,
        };
        let entry = entry.map_err(reject)?;
        if entry == ScriptEntry::Script {
            let mut remembered = self.remembered.borrow_mut();
            if remembered.len() >= REMEMBERED_MAX {
                remembered.clear();
            }
            remembered.insert(key.into(), (entry, now_ms));
        }
        Ok(entry)
    }
}

/// Names of the indexes of a directory.
fn indexes<'a>(config: &'a GatewayConfig, directory: &'a [u8]) -> impl Iterator<Item = Vec<u8>> {
    config.index.iter().map(move |index| [directory, index.as_bytes()].concat())
}

/// Parts of a path that match this pattern, the shortest first.
pub fn script_paths<'a>(pattern: &'a PathPattern, path: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    candidates(pattern, path).map(|end| &path[..end])
}

/// Ends of the parts of a path that match the pattern, the shortest first. No part ends with a slash.
fn candidates<'a>(pattern: &'a PathPattern, path: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    let ends = path.iter().enumerate().skip(1).filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let whole = (path.len() > 1 && !path.ends_with(b"/")).then_some(path.len());
    ends.chain(whole).filter(|end| pattern.matches(&path[..*end])).take(PARTS_MAX)
}

/// Ends of the parts of a path that may name a script.
fn scripts_of<'a>(config: &'a GatewayConfig, path: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    candidates(&config.scripts, path).filter(|end| config.has_path_info || *end == path.len())
}

/// Looks up a name below a root.
fn look(root: &OpenedRoot, name: &[u8], access: DiskAccess, is_run_here: bool) -> Result<ScriptEntry, OpenError> {
    match root.root.find(name, access) {
        Ok((_, status)) => Ok(match status.kind {
            FileType::RegularFile if is_run_here && status.permissions & 0o111 == 0 => {
                ScriptEntry::Rejected(ScriptRejection::NotExecutable)
            }
            FileType::RegularFile => ScriptEntry::Script,
            FileType::Directory => ScriptEntry::Directory,
            _ => ScriptEntry::Rejected(ScriptRejection::Forbidden),
        }),
        Err(OpenError::NotFound) => Ok(ScriptEntry::Nothing),
        Err(OpenError::Forbidden | OpenError::Directory) => Ok(ScriptEntry::Rejected(ScriptRejection::Forbidden)),
        Err(error) => Err(error),
    }
}

fn reject(error: OpenError) -> ScriptLookup {
    match error {
        OpenError::NotFound => ScriptLookup::Nothing,
        OpenError::Forbidden | OpenError::Directory => ScriptLookup::Rejected(ScriptRejection::Forbidden),
        OpenError::WouldBlock | OpenError::Exhausted => ScriptLookup::Failed(Status::SERVICE_UNAVAILABLE),
        OpenError::Failed(_) => ScriptLookup::Failed(Status::INTERNAL_SERVER_ERROR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_paths() {
        let check = |pattern: &PathPattern, path: &str, expect: &[&str]| {
            let found: Vec<_> = candidates(pattern, path.as_bytes()).map(|end| &path[..end]).collect();
            assert_eq!(found, expect, "{path}");
        };
        let php = PathPattern::Suffix(".php".into());
        check(&php, "/a.php", &["/a.php"]);
        check(&php, "/a.php/", &["/a.php"]);
        check(&php, "/a.php/b/c", &["/a.php"]);
        check(&php, "/a.php/b.php/c", &["/a.php", "/a.php/b.php"]);
        check(&php, "/upload/x.jpg/y.php", &["/upload/x.jpg/y.php"]);
        check(&php, "/a.phps", &[]);
        check(&php, "/", &[]);
        check(&php, "/a/", &[]);
        check(&php, "/A.PHP", &[]);
        let programs = PathPattern::Prefix("/cgi-bin/".into());
        check(&programs, "/cgi-bin", &[]);
        check(&programs, "/cgi-bin/", &[]);
        check(&programs, "/cgi-bin/a", &["/cgi-bin/a"]);
        check(&programs, "/cgi-bin/a/b/", &["/cgi-bin/a", "/cgi-bin/a/b"]);
        check(&programs, "/other/a", &[]);
        for pattern in [php, programs] {
            let path = ["/cgi-bin".to_owned(), "/a.php".repeat(1_000)].concat();
            let found: Vec<_> = candidates(&pattern, path.as_bytes()).collect();
            assert_eq!((found.len(), found[0]), (PARTS_MAX, "/cgi-bin/a.php".len()), "{pattern:?}");
        }
    }
}
