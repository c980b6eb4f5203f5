//! Symbolic links that lead out of a root, where the configuration allows them.
//!
//! Each step is made from an open directory, and each check looks at an open file: exchanging a name or a link during
//! the lookup leads to another lookup's result, but never to a file that the rule does not allow.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use super::root::{OpenError, descriptor_path, open_retrying, path_of};
use crate::config::SymlinkRule;

/// Links that a lookup follows, as in the kernel (path_resolution(7)).
const LINKS_MAX: u32 = 40;

/// Steps of a lookup: links may have long targets.
const STEPS_MAX: u32 = 4_096;

/// Step of a lookup.
enum LinkStep {
    /// Enter this name of the current directory.
    Name(Vec<u8>),
    /// The link of this owner has been followed: what it leads to must have the same owner.
    OwnedBy(u32),
}

/// Opens a name below `directory` that leads out of it, if the rule allows that.
pub(super) fn open_outside(
    directory: &OwnedFd,
    name: &[u8],
    flags: OFlags,
    rule: &SymlinkRule,
) -> Result<OwnedFd, OpenError> {
    match rule {
        SymlinkRule::Inside => Err(OpenError::Forbidden),
        SymlinkRule::All => Ok(open_retrying(directory, name, flags, ResolveFlags::NO_MAGICLINKS)?),
        SymlinkRule::Below(allowed) => open_below(directory, name, flags, allowed),
        SymlinkRule::Owner => open_by_owner(directory, name, flags),
    }
}

/// Opens a name whose target is below one of these directories. The kernel confines the second lookup to it.
fn open_below(directory: &OwnedFd, name: &[u8], flags: OFlags, allowed: &[PathBuf]) -> Result<OwnedFd, OpenError> {
    let found = open_retrying(directory, name, OFlags::PATH | OFlags::CLOEXEC, ResolveFlags::NO_MAGICLINKS)?;
    let target = path_of(&found)?;
    for place in allowed {
        let flags_of_place = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(place) = rustix::fs::open(place, flags_of_place, Mode::empty()) else { continue };
        let place_path = path_of(&place)?;
        let Some(rest) = target.strip_prefix(place_path.as_slice()) else { continue };
        let inside = match rest {
            b"" => b".".as_slice(),
            rest if place_path == b"/" => rest,
            rest => match rest.strip_prefix(b"/") {
                Some(inside) => inside,
                // `/srv/other` is not below `/srv/oth`.
                None => continue,
            },
        };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        return Ok(open_retrying(&place, inside, flags, resolve)?);
    }
    Err(OpenError::Forbidden)
}

/// Opens a name whose links have the owners of what they lead to.
fn open_by_owner(directory: &OwnedFd, name: &[u8], flags: OFlags) -> Result<OwnedFd, OpenError> {
    let mut steps: VecDeque<LinkStep> = VecDeque::new();
    push_names(name, &mut steps);
    let mut current = open_step(directory, b".")?;
    let (mut links, mut taken) = (0, 0);
    while let Some(step) = steps.pop_front() {
        taken += 1;
        if taken > STEPS_MAX {
            return Err(OpenError::Forbidden);
        }
        let name = match step {
            LinkStep::Name(name) => name,
            LinkStep::OwnedBy(owner) if status_of(&current)?.1 == owner => continue,
            LinkStep::OwnedBy(_) => return Err(OpenError::Forbidden),
        };
        let next = open_step(&current, &name)?;
        let (kind, owner) = status_of(&next)?;
        if kind != FileType::Symlink {
            current = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(OpenError::Forbidden);
        }
        // Links of the kernel, such as those in /proc, have no text that leads to their targets.
        let target = rustix::fs::readlinkat(&next, c"", Vec::new())?.into_bytes();
        steps.push_front(LinkStep::OwnedBy(owner));
        push_names(&target, &mut steps);
        if target.starts_with(b"/") {
            current = rustix::fs::openat(CWD, c"/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        }
    }
    if flags.contains(OFlags::PATH) {
        return Ok(current);
    }
    // The file that was checked is opened, whatever its name leads to now.
    Ok(rustix::fs::open(descriptor_path(&current), flags, Mode::empty())?)
}

/// Puts the names of a path before the other steps.
fn push_names(path: &[u8], steps: &mut VecDeque<LinkStep>) {
    for name in path.split(|byte| *byte == b'/').rev().filter(|name| !name.is_empty()) {
        steps.push_front(LinkStep::Name(name.to_vec()));
    }
    if path.ends_with(b"/") {
        // A slash at the end means a directory: `.` can be entered in no file.
        let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).count();
        steps.insert(names, LinkStep::Name(b".".to_vec()));
    }
}

/// Opens one name without following it if it is a link.
fn open_step(directory: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty())
}

/// Type and owner of an open file.
fn status_of(fd: &OwnedFd) -> Result<(FileType, u32), Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW;
    let status = rustix::fs::statx(fd, c"", flags, StatxFlags::TYPE | StatxFlags::UID)?;
    Ok((FileType::from_raw_mode(u32::from(status.stx_mode)), status.stx_uid))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, lchown, symlink};
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::super::{DiskAccess, Root};
    use super::*;

    struct Tree {
        outer: tempfile::TempDir,
    }

    impl Tree {
        fn new() -> Self {
            let outer = tempfile::tempdir().unwrap();
            for directory in ["root/sub", "shared/deep", "shared-not", "secret"] {
                std::fs::create_dir_all(outer.path().join(directory)).unwrap();
            }
            for file in ["root/file", "shared/file", "shared/deep/file", "shared-not/file", "secret/file"] {
                std::fs::write(outer.path().join(file), file).unwrap();
            }
            let at = |name: &str| outer.path().join(name);
            symlink(at("shared/file"), at("root/to-shared")).unwrap();
            symlink("../../shared/deep", at("root/sub/to-deep")).unwrap();
            symlink(at("secret/file"), at("root/to-secret")).unwrap();
            symlink(at("shared-not/file"), at("root/to-other")).unwrap();
            symlink("sub/to-deep/file", at("root/twice")).unwrap();
            symlink("circle", at("root/circle")).unwrap();
            symlink("/proc/self/root", at("root/magic")).unwrap();
            Self { outer }
        }

        fn at(&self, name: &str) -> PathBuf {
            self.outer.path().join(name)
        }

        fn root(&self, rule: SymlinkRule) -> Root {
            Root::open(&self.at("root"), &rule, DiskAccess::Blocking).unwrap()
        }
    }

    fn read(root: &Root, name: &str) -> Result<String, OpenError> {
        let (fd, _) = root.open_file(name.as_bytes(), DiskAccess::Blocking)?;
        Ok(std::io::read_to_string(std::fs::File::from(fd)).unwrap())
    }

    #[test]
    fn rules() {
        let tree = Tree::new();
        let below = SymlinkRule::Below(vec![tree.at("nothing"), tree.at("shared")]);
        let cases = [
            ("to-shared", [false, true, true, true]),
            ("sub/to-deep/file", [false, true, true, true]),
            ("twice", [false, true, true, true]),
            ("to-secret", [false, true, false, true]),
            // A directory whose name only begins the same.
            ("to-other", [false, true, false, true]),
            ("circle", [false; 4]),
            ("file", [true; 4]),
        ];
        for (index, rule) in [SymlinkRule::Inside, SymlinkRule::Owner, below, SymlinkRule::All].into_iter().enumerate()
        {
            let root = tree.root(rule.clone());
            for (name, expect) in cases {
                assert_eq!(read(&root, name).is_ok(), expect[index], "{rule:?} {name}");
            }
            // Links of the kernel are not followed; by `Owner`, only their text counts.
            let is_followed = root.find(b"magic/etc", DiskAccess::Blocking).is_ok();
            assert!(!is_followed || rule == SymlinkRule::Owner, "{rule:?}");
            assert_eq!(root.find(b"file/", DiskAccess::Blocking).err(), Some(OpenError::NotFound), "{rule:?}");
            assert!(root.find(b"to-shared/", DiskAccess::Blocking).is_err(), "{rule:?}");
        }
    }

    #[test]
    fn links_of_another_owner() {
        let tree = Tree::new();
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let root = tree.root(SymlinkRule::Owner);
        lchown(tree.at("root/to-secret"), Some(1), Some(1)).unwrap();
        assert_eq!(read(&root, "to-secret").err(), Some(OpenError::Forbidden));
        chown(tree.at("secret/file"), Some(1), Some(1)).unwrap();
        assert!(read(&root, "to-secret").is_ok());
        // The inner link of two belongs to another.
        lchown(tree.at("root/sub/to-deep"), Some(1), Some(1)).unwrap();
        assert_eq!(read(&root, "twice").err(), Some(OpenError::Forbidden));
    }

    /// Exchanges a file and a link while it is looked up. Content of the wrong owner or place must never come out.
    #[test]
    fn racing_swaps() {
        let tree = Tree::new();
        let is_root = rustix::process::geteuid().is_root();
        let rules = [
            Some(SymlinkRule::Below(vec![tree.at("shared")])),
            is_root.then_some(SymlinkRule::Owner),
            Some(SymlinkRule::Inside),
        ];
        std::fs::write(tree.at("secret/file"), "wrong").unwrap();
        if is_root {
            // A link may lead to a directory of its owner, and then to all files of that directory.
            chown(tree.at("secret"), Some(1), Some(1)).unwrap();
            chown(tree.at("secret/file"), Some(1), Some(1)).unwrap();
        }
        let swap = |from: &Path, to: &Path| {
            rustix::fs::renameat_with(CWD, from, CWD, to, rustix::fs::RenameFlags::EXCHANGE).unwrap();
        };
        symlink(tree.at("secret"), tree.at("other-directory")).unwrap();
        symlink(tree.at("secret/file"), tree.at("other-link")).unwrap();
        for rule in rules.into_iter().flatten() {
            let root = tree.root(rule.clone());
            let (is_over, mut wrong) = (AtomicBool::new(false), None);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        swap(&tree.at("root/sub"), &tree.at("other-directory"));
                        swap(&tree.at("root/to-shared"), &tree.at("other-link"));
                        // A file that is moved below `shared` may be read from then on.
                        if !matches!(rule, SymlinkRule::Below(_)) {
                            swap(&tree.at("shared/deep"), &tree.at("secret"));
                        }
                    }
                });
                for _ in 0..200 {
                    for name in ["to-shared", "sub/to-deep/file", "sub/file", "twice"] {
                        if read(&root, name).is_ok_and(|content| content == "wrong") {
                            wrong = Some(name);
                        }
                    }
                }
                is_over.store(true, Ordering::Relaxed);
            });
            assert_eq!(wrong, None, "{rule:?}");
        }
    }
}
