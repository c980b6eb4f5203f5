//! Roots of file trees: they may depend on the host, and may be replaced while the server runs.

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;

use crate::config::{CacheConfig, RootPattern, RootPiece, SymlinkRule};
use crate::object_cache::{Blocking, DiskAccess, ObjectStore, OpenError, Root, RootId};

/// An opened root, with the identifier of its objects.
#[derive(Debug)]
pub(in crate::handler) struct OpenedRoot {
    pub(in crate::handler) id: RootId,
    pub(in crate::handler) root: Root,
    /// Path at which it was opened.
    pub(in crate::handler) path: PathBuf,
}

/// Roots of all workers, by path. Each is opened once, so that all workers share the objects below it.
#[derive(Debug, Default)]
pub(in crate::handler) struct SharedRoots {
    opened: Mutex<HashMap<PathBuf, Arc<OpenedRoot>>>,
}

impl SharedRoots {
    /// Opens the root at this path, or returns the known one if it is still the same directory.
    fn open(
        &self,
        path: &Path,
        symlinks: &SymlinkRule,
        store: &ObjectStore,
        access: DiskAccess,
    ) -> Result<Arc<OpenedRoot>, OpenError> {
        let result = Root::open(path, symlinks, access);
        if result.as_ref().is_err_and(|error| matches!(error, OpenError::WouldBlock | OpenError::Exhausted)) {
            return Err(result.err().unwrap_or(OpenError::WouldBlock));
        }
        let mut opened = self.lock();
        let root = match result {
            Ok(root) => root,
            Err(error) => {
                if let Some(old) = opened.remove(path) {
                    store.remove_root(old.id);
                }
                return Err(error);
            }
        };
        if let Some(current) = opened.get(path) {
            if current.root.is_same(&root) {
                return Ok(Arc::clone(current));
            }
            store.remove_root(current.id);
        }
        if opened.len() >= store.limits().roots_max {
            // Roots that no worker uses. Their objects go, too, because no request would check them again.
            opened.retain(|_, root| {
                let used = Arc::strong_count(root) > 1;
                if !used {
                    store.remove_root(root.id);
                }
                used
            });
        }
        let new = Arc::new(OpenedRoot { id: store.new_root_id(), root, path: path.into() });
        opened.insert(path.into(), Arc::clone(&new));
        Ok(new)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Arc<OpenedRoot>>> {
        // No update is left half done by a panic.
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's view of its roots.
#[derive(Debug)]
pub(in crate::handler) struct WorkerRoots {
    kind: RootsKind,
    /// Time for which a root is trusted, in milliseconds: half of the time for objects, because an object checked
    /// just before the end is served for as long again.
    recheck_after_ms: u64,
}

#[derive(Debug)]
enum RootsKind {
    One(Rc<WorkerRoot>),
    ByHost(ByHost),
}

/// Roots that depend on the host.
#[derive(Debug)]
struct ByHost {
    pattern: RootPattern,
    symlinks: Arc<SymlinkRule>,
    /// Most roots kept; with more hosts, roots without recent requests are opened again when needed.
    roots_max: usize,
    roots: RefCell<HashMap<Box<[u8]>, Rc<WorkerRoot>>>,
}

/// A root as a worker last saw it.
#[derive(Debug)]
pub(in crate::handler) struct WorkerRoot {
    path: PathBuf,
    symlinks: Arc<SymlinkRule>,
    opened: RefCell<Result<Arc<OpenedRoot>, OpenError>>,
    check_at_ms: Cell<u64>,
    used: Cell<bool>,
}

impl WorkerRoots {
    pub(in crate::handler) fn new(pattern: &RootPattern, limits: &CacheConfig) -> Self {
        let kind = match literal(pattern) {
            Some(path) => RootsKind::One(Rc::new(WorkerRoot::new(path.into(), Arc::new(pattern.symlinks.clone())))),
            None => {
                let (pattern, roots_max) = (pattern.clone(), limits.roots_max);
                let symlinks = Arc::new(pattern.symlinks.clone());
                RootsKind::ByHost(ByHost { pattern, symlinks, roots_max, roots: RefCell::default() })
            }
        };
        Self { kind, recheck_after_ms: limits.revalidate_after.as_millis() as u64 / 2 }
    }

    /// Returns the root for this host. It may have to be checked: see [`WorkerRoot::check`].
    #[inline]
    pub(in crate::handler) fn get(&self, host: &[u8]) -> Result<Rc<WorkerRoot>, OpenError> {
        match &self.kind {
            RootsKind::One(root) => Ok(Rc::clone(root)),
            RootsKind::ByHost(roots) => roots.get(host),
        }
    }

    pub(in crate::handler) fn recheck_after_ms(&self) -> u64 {
        self.recheck_after_ms
    }
}

impl WorkerRoot {
    /// Path of the root, as the configuration gives it for the host.
    pub(in crate::handler) fn path(&self) -> &Path {
        &self.path
    }

    fn new(path: PathBuf, symlinks: Arc<SymlinkRule>) -> Self {
        Self {
            path,
            symlinks,
            opened: RefCell::new(Err(OpenError::WouldBlock)),
            check_at_ms: Cell::new(0),
            used: Cell::new(true),
        }
    }

    /// Returns the root as last seen, if that was recent enough.
    #[inline]
    pub(in crate::handler) fn current(&self, now_ms: u64) -> Option<Result<RootId, OpenError>> {
        let opened = || self.opened.borrow().as_ref().map(|root| root.id).map_err(|error| *error);
        (now_ms < self.check_at_ms.get()).then(opened)
    }

    /// Identifier of the root that [`Self::opened`] returns.
    pub(in crate::handler) fn id(&self) -> Option<RootId> {
        self.opened.borrow().as_ref().ok().map(|root| root.id)
    }

    /// Opened root that [`Self::current`] refers to.
    pub(in crate::handler) fn opened(&self) -> Result<Arc<OpenedRoot>, OpenError> {
        self.opened.borrow().clone()
    }

    /// Checks whether the root is still at its path, if that needs only what the kernel has in memory.
    pub(in crate::handler) fn check_now(
        &self,
        shared: &SharedRoots,
        store: &ObjectStore,
        now_ms: u64,
        recheck_after_ms: u64,
    ) -> Result<RootId, OpenError> {
        let result = shared.open(&self.path, &self.symlinks, store, DiskAccess::Cached);
        self.note(result, now_ms, recheck_after_ms).map(|root| root.id)
    }

    /// Checks as [`Self::check_now`] does, but on the blocking pool.
    pub(in crate::handler) async fn check(
        &self,
        shared: &Arc<SharedRoots>,
        store: &Arc<ObjectStore>,
        now_ms: u64,
        recheck_after_ms: u64,
    ) -> Result<Arc<OpenedRoot>, OpenError> {
        let (path, shared, store) = (self.path.clone(), Arc::clone(shared), Arc::clone(store));
        let symlinks = Arc::clone(&self.symlinks);
        let opening = Blocking::spawn(move || shared.open(&path, &symlinks, &store, DiskAccess::Blocking));
        let result = opening.await.unwrap_or(Err(OpenError::Exhausted));
        self.note(result, now_ms, recheck_after_ms)
    }

    fn note(
        &self,
        result: Result<Arc<OpenedRoot>, OpenError>,
        now_ms: u64,
        recheck_after_ms: u64,
    ) -> Result<Arc<OpenedRoot>, OpenError> {
        match result {
            Err(OpenError::WouldBlock) => result,
            // Without a free file descriptor the check is impossible; most likely the root is unchanged.
            Err(OpenError::Exhausted) => self.opened().map_err(|_| OpenError::Exhausted),
            result => {
                *self.opened.borrow_mut() = result.clone();
                self.check_at_ms.set(now_ms + recheck_after_ms);
                result
            }
        }
    }
}

impl ByHost {
    fn get(&self, host: &[u8]) -> Result<Rc<WorkerRoot>, OpenError> {
        if let Some(root) = self.roots.borrow().get(host) {
            root.used.set(true);
            return Ok(Rc::clone(root));
        }
        let path = expand(&self.pattern, host).ok_or(OpenError::NotFound)?;
        let root = Rc::new(WorkerRoot::new(path, Arc::clone(&self.symlinks)));
        let mut roots = self.roots.borrow_mut();
        if roots.len() >= self.roots_max {
            // Drops hosts without requests since the last time, and those without a directory.
            roots.retain(|_, root| root.used.take() && root.opened.borrow().is_ok());
            if roots.len() >= self.roots_max {
                roots.clear();
            }
        }
        roots.insert(host.into(), Rc::clone(&root));
        Ok(root)
    }
}

/// Path of a pattern that does not depend on the host.
fn literal(pattern: &RootPattern) -> Option<String> {
    let pieces = pattern.pieces.iter().map(|piece| match piece {
        RootPiece::Literal(text) => Some(text.as_str()),
        RootPiece::Host | RootPiece::HostPrefix(_) => None,
    });
    pieces.collect()
}

/// Path for a host; `None` if the host can't be the name of a directory. Rejects everything that could lead
/// elsewhere: the kernel does not confine the path to the root.
fn expand(pattern: &RootPattern, host: &[u8]) -> Option<PathBuf> {
    let host = host.strip_suffix(b".").unwrap_or(host);
    let host = if pattern.strip_www { host.strip_prefix(b"www.").unwrap_or(host) } else { host };
    let host = host.strip_suffix(pattern.strip_suffix.as_bytes()).unwrap_or(host);
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'[' | b']');
    if host.is_empty() || host.starts_with(b".") || !host.iter().all(is_name) {
        return None;
    }
    let mut path = Vec::new();
    for piece in &pattern.pieces {
        match piece {
            RootPiece::Literal(text) => path.extend_from_slice(text.as_bytes()),
            RootPiece::Host => path.extend_from_slice(host),
            RootPiece::HostPrefix(length) => path.extend_from_slice(&host[..host.len().min(*length)]),
        }
    }
    Some(OsString::from_vec(path).into())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::expand;
    use crate::config::{RootPattern, RootPiece};

    #[test]
    fn hosts_become_paths() {
        let pattern = |strip_www, strip_suffix: &str| RootPattern {
            pieces: vec![
                RootPiece::Literal("/srv/".into()),
                RootPiece::HostPrefix(1),
                RootPiece::Literal("/".into()),
                RootPiece::HostPrefix(3),
                RootPiece::Literal("/".into()),
                RootPiece::Host,
            ],
            strip_www,
            strip_suffix: strip_suffix.into(),
            ..RootPattern::default()
        };
        let check = |pattern: &RootPattern, host: &str, expect: Option<&str>| {
            assert_eq!(expand(pattern, host.as_bytes()), expect.map(PathBuf::from), "{host}");
        };
        let plain = pattern(false, "");
        check(&plain, "example.com", Some("/srv/e/exa/example.com"));
        check(&plain, "www.example.com", Some("/srv/w/www/www.example.com"));
        check(&plain, "example.com.", Some("/srv/e/exa/example.com"));
        check(&plain, "ab", Some("/srv/a/ab/ab"));
        check(&plain, "127.0.0.1", Some("/srv/1/127/127.0.0.1"));
        check(&plain, "[::1]", Some("/srv/[/[::/[::1]"));
        for host in ["", ".", "..", "...", ".hidden", "../etc", "a/../b", "a/b", "a\0b", "a b", "b\u{fc}cher", "%2e"] {
            check(&plain, host, None);
        }
        let stripped = pattern(true, ".example.com");
        check(&stripped, "www.shop.example.com", Some("/srv/s/sho/shop"));
        check(&stripped, "shop.example.com", Some("/srv/s/sho/shop"));
        check(&stripped, "www.example.com", Some("/srv/e/exa/example.com"));
        check(&stripped, ".example.com", None);
        check(&stripped, "www..example.com", None);
    }
}
