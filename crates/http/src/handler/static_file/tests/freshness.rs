//! Files that change, and limits.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::FileFixture;
use crate::config::RootPiece;
use crate::handler::Now;
use crate::handler::static_file::load::FoundFile;

/// Longest wait for an event; only a failure takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_better_index_is_seen() {
    let mut site = FileFixture::new(|files, limits| {
        files.index = vec!["index.html".into(), "index.htm".into()];
        limits.watch = false;
    });
    site.write("a/index.htm", "second");
    site.settle();
    site.get("/a/").expect(200, "second");
    site.write("a/index.html", "first");
    site.settle();
    site.later_ms += 1000;
    site.get("/a/").expect(200, "first");
    fs::remove_file(site.path("a/index.html")).unwrap();
    site.settle();
    site.later_ms += 1000;
    site.get("/a/").expect(200, "second");
}

#[test]
fn a_release_is_switched() {
    let mut site = FileFixture::new(|files, _| files.root.pieces = vec![RootPiece::Literal("current".into())]);
    site.write("releases/1/index.html", "one");
    site.write("releases/2/index.html", "two");
    symlink("releases/1", site.path("current")).unwrap();
    site.settle();
    site.get("/").expect(200, "one");
    symlink("releases/2", site.path("next")).unwrap();
    fs::rename(site.path("next"), site.path("current")).unwrap();
    site.later_ms += 1000;
    site.get("/").expect(200, "two");
    assert_eq!(site.cache.store().usage().objects, 1, "the old release's objects are gone");
    fs::remove_file(site.path("current")).unwrap();
    site.later_ms += 1000;
    site.get("/").expect(404, "");
    symlink("releases/1", site.path("current")).unwrap();
    site.later_ms += 1000;
    site.get("/").expect(200, "one");
}

#[test]
fn changes_are_seen_where_no_watch_is_left() {
    let mut site = FileFixture::new(|_, limits| limits.watches_max = 1);
    for name in ["a/file", "b/file", "c/file"] {
        site.write(name, "first");
    }
    site.settle();
    let get = |site: &FileFixture, content: &str| {
        ["a", "b", "c"].map(|directory| site.get(&format!("/{directory}/file")).expect(200, content))
    };
    get(&site, "first");
    for name in ["a/file", "b/file", "c/file"] {
        fs::write(site.path(name), "again").unwrap();
    }
    site.later_ms += 1000;
    get(&site, "again");
}

#[test]
fn changes_are_seen() {
    for watch in [false, true] {
        for object_bytes_max in [3, 1000] {
            // With a watch, time must not make changes visible.
            let revalidate_after = Duration::from_secs(if watch { 3600 } else { 1 });
            let mut site = FileFixture::new(|_, limits| {
                limits.watch = watch;
                limits.object_bytes_max = object_bytes_max;
                limits.revalidate_after = revalidate_after;
            });
            site.write("d/file", "first");
            site.write("e/file", "other");
            site.settle();
            site.get("/d/file").expect(200, "first");
            let path = site.path("d/file");
            type Change<'a> = (&'a str, &'a dyn Fn(), u16, &'a str);
            let changes: [Change<'_>; 8] = [
                ("rewritten in place", &|| fs::write(&path, "again").unwrap(), 200, "again"),
                (
                    "truncated",
                    &|| fs::File::options().write(true).open(&path).unwrap().set_len(4).unwrap(),
                    200,
                    "agai",
                ),
                (
                    "appended",
                    &|| {
                        use std::io::Write;
                        fs::File::options().append(true).open(&path).unwrap().write_all(b"nst").unwrap();
                    },
                    200,
                    "agai\
                     nst",
                ),
                (
                    "replaced",
                    &|| {
                        fs::write(path.with_extension("new"), "replaced").unwrap();
                        fs::rename(path.with_extension("new"), &path).unwrap();
                    },
                    200,
                    "replaced",
                ),
                ("deleted", &|| fs::remove_file(&path).unwrap(), 404, ""),
                ("back", &|| fs::write(&path, "back").unwrap(), 200, "back"),
                (
                    "the directory swapped",
                    &|| {
                        let directory = path.parent().unwrap();
                        fs::rename(directory, directory.with_file_name("old")).unwrap();
                        fs::rename(directory.with_file_name("e"), directory).unwrap();
                    },
                    200,
                    "other",
                ),
                (
                    "a link elsewhere",
                    &|| {
                        fs::remove_file(&path).unwrap();
                        symlink("../old/file", &path).unwrap();
                    },
                    200,
                    "back",
                ),
            ];
            for (what, change, status, body) in changes {
                change();
                let is_watched = watch && what != "the directory swapped";
                if !is_watched {
                    site.later_ms += revalidate_after.as_millis() as u64;
                }
                let began = Instant::now();
                loop {
                    site.settle();
                    let got = site.get("/d/file");
                    let found = (got.status, String::from_utf8_lossy(&got.body).into_owned());
                    // The thread that handles the watch's event may wait for its turn.
                    if found == (status, body.to_owned()) || !is_watched || began.elapsed() > PATIENCE {
                        assert_eq!(found, (status, body.to_owned()), "{what}");
                        break;
                    }
                }
                site.settle();
            }
        }
    }
}

#[test]
fn a_path_without_a_file_is_remembered() {
    // So long that only an event, or the time that the test adds, can make a file visible.
    const REVALIDATE_AFTER: Duration = Duration::from_secs(3600);
    for watch in [false, true] {
        let mut site = FileFixture::new(|_, limits| {
            limits.watch = watch;
            limits.revalidate_after = REVALIDATE_AFTER;
        });
        site.write("d/file", "content");
        site.settle();
        let check = |site: &FileFixture, path: &str, status: u16| assert_eq!(site.get(path).status, status, "{path}");
        for path in ["/new", "/d/new", "/new-directory/a/b"] {
            check(&site, path, 404);
            site.settle();
            check(&site, path, 404);
        }
        assert_eq!(site.cache.absent_paths(), 3);
        check(&site, "/new-directory/c", 404);
        assert_eq!(site.cache.absent_paths(), 3, "a missing directory stands for all paths below it");
        for path in ["new", "d/new", "new-directory/a/b"] {
            site.write(path, "new");
        }
        if !watch {
            check(&site, "/new", 404);
        }
        site.settle();
        if !watch {
            site.later_ms += REVALIDATE_AFTER.as_millis() as u64;
        }
        for path in ["/new", "/d/new", "/new-directory/a/b"] {
            let began = Instant::now();
            while watch && site.get(path).status == 404 && began.elapsed() < PATIENCE {
                site.settle();
            }
            site.get(path).expect(200, "new");
        }
    }
}

#[test]
fn a_path_without_a_file_leads_to_the_fallback() {
    let site = FileFixture::new(|files, limits| {
        files.fallback = Some("/app.html".into());
        limits.revalidate_after = Duration::from_secs(3600);
    });
    site.write("app.html", "app");
    site.settle();
    for _ in 0..3 {
        site.get("/route/1").expect(200, "app");
    }
    assert_eq!(site.cache.absent_paths(), 1);
    assert!(!site.get("/route/2").waited);
}

#[test]
fn paths_through_links_are_not_remembered_as_absent() {
    let site = FileFixture::new(|_, _| ());
    site.write("b/file", "content");
    symlink("b/later", site.path("link")).unwrap();
    symlink("b", site.path("directory")).unwrap();
    site.settle();
    for path in ["/link", "/directory/later"] {
        site.get(path).expect(404, "");
    }
    assert_eq!(site.cache.absent_paths(), 0);
    site.write("b/later", "there");
    site.settle();
    for path in ["/link", "/directory/later"] {
        site.get(path).expect(200, "there");
    }
}

#[test]
fn random_paths_do_not_fill_the_memory() {
    let site = FileFixture::new(|_, _| ());
    site.write("file", "content");
    site.settle();
    for number in 0..10_000 {
        site.get(&format!("/random-{number}")).expect(404, "");
        if number % 500 == 0 {
            site.get("/asked-often").expect(404, "");
        }
    }
    let known = site.cache.absent_paths();
    assert!((1024..=2048).contains(&known), "{known}");
    site.cache.clear();
    assert_eq!(site.cache.absent_paths(), 0);
}

#[test]
fn limits_are_kept_and_memory_given_back() {
    let site = FileFixture::new(|_, limits| {
        limits.memory_bytes_max = 100_000;
        limits.object_bytes_max = 2000;
        limits.files_max = 5;
    });
    for index in 0..200 {
        site.write(&format!("small-{index}"), vec![b'a'; 1000]);
        site.write(&format!("large-{index}"), vec![b'b'; 3000]);
    }
    site.settle();
    for round in 0..3 {
        for index in 0..200 {
            site.get(&format!("/small-{index}")).expect(200, vec![b'a'; 1000]);
            site.get(&format!("/large-{index}")).expect(200, vec![b'b'; 3000]);
            site.get("/small-0").expect(200, vec![b'a'; 1000]);
            let usage = site.cache.store().usage();
            assert!(usage.memory_bytes <= 100_000 && usage.files <= 5, "{usage:?}");
        }
        site.cache.tick();
        assert_eq!(site.cache.len(), site.cache.store().usage().objects, "round {round}");
    }
    assert!(site.cache.store().usage().evictions > 300);
}

#[test]
fn large_files_leave_memory_to_others() {
    let site = FileFixture::new(|_, limits| {
        limits.object_bytes_max = 10;
        limits.memory_bytes_max = 32 * 4 * 100;
    });
    for name in ["one", "two"] {
        site.write(name, vec![b'a'; 100]);
    }
    site.settle();
    for path in ["/one", "/two", "/two"] {
        site.get(path).expect(200, vec![b'a'; 100]);
    }
    let store = site.cache.store();
    let held: Vec<_> = (0..32).map_while(|_| store.file_memory().reserve(100)).collect();
    site.cache.tick();
    assert_eq!((held.len(), store.usage().files), (32, 2), "all have found room");
    assert!(store.file_memory().reserve(100).is_none());
    site.cache.tick();
    site.cache.tick();
    assert_eq!((store.usage().files, store.usage().evictions), (1, 1));
    assert!(store.peek(site.root_id(), b"/two").is_some(), "it was used again");
}

#[test]
fn one_load_for_many_requests() {
    let site = FileFixture::new(|_, _| ());
    site.write("file", "content");
    // Unsettled: each request must wait, and all for the same load.
    let tree = &site.handler.inner.tree;
    let root = site.runtime.block_on(site.handler.inner.open_root(b"", Now::read())).unwrap();
    site.runtime.block_on(async {
        let load = || {
            let (tree, root) = (Arc::clone(tree), Arc::clone(&root));
            tokio::spawn(async move { tree.obtain(&root, b"/file", Now::read()).await })
        };
        let loads: Vec<_> = (0..50).map(|_| load()).collect();
        let mut found = Vec::new();
        for load in loads {
            match load.await.unwrap().unwrap() {
                FoundFile::Object(object) => found.push(object),
                other => panic!("{other:?}"),
            }
        }
        assert!(found.iter().all(|object| Arc::ptr_eq(object, &found[0])));
    });
}

/// A file is written and read all the time. No client may get a mixture of two versions, or one replaced more than a
/// second ago. `write` stores a version; each is one letter many times.
#[track_caller]
fn check_storm(pause: Duration, least_successes: usize, write: impl Fn(&Path, u8) + Sync) {
    for object_bytes_max in [1000, 1_000_000] {
        let site = FileFixture::new(|_, limits| limits.object_bytes_max = object_bytes_max);
        let path = site.path("file.png");
        write(&path, 0);
        let (ended, began) = (AtomicBool::new(false), Instant::now());
        let mut successes = 0;
        thread::scope(|scope| {
            scope.spawn(|| {
                for version in (0..=255).cycle().take_while(|_| !ended.load(Ordering::Relaxed)) {
                    write(&path, version);
                    thread::sleep(pause);
                }
            });
            // A busy machine may take longer for so many.
            let is_enough = |successes| began.elapsed() >= Duration::from_millis(1500) && successes >= least_successes;
            while !is_enough(successes) && began.elapsed() < PATIENCE {
                let got = site.get("/file.png");
                if got.broken_off || got.status == 503 {
                    continue;
                }
                assert_eq!(got.status, 200);
                let whole = got.body.iter().all(|byte| *byte == got.body[0]);
                let lengths = |version: u8| [FIXED_LENGTH, version_bytes(version).len()];
                // A file that is rewritten is really empty for a moment.
                let complete = got.body.first().is_none_or(|version| lengths(*version).contains(&got.body.len()));
                assert!(whole && complete, "a mixture of {} bytes", got.body.len());
                successes += 1;
            }
            ended.store(true, Ordering::Relaxed);
        });
        assert!(successes >= least_successes, "{successes} of {object_bytes_max}");
    }
}

const FIXED_LENGTH: usize = 50_000;

fn version_bytes(version: u8) -> Vec<u8> {
    vec![version; 40_000 + usize::from(version) * 7]
}

#[test]
fn rewrite_storm() {
    check_storm(Duration::from_millis(15), 10, |path, version| fs::write(path, version_bytes(version)).unwrap());
}

#[test]
fn rewrite_storm_without_pause() {
    check_storm(Duration::ZERO, 0, |path, version| fs::write(path, version_bytes(version)).unwrap());
}

#[test]
fn overwrite_storm() {
    check_storm(Duration::from_millis(15), 10, |path, version| {
        let file = fs::File::options().write(true).create(true).truncate(false).open(path).unwrap();
        file.write_all_at(&[version; FIXED_LENGTH], 0).unwrap();
    });
}

#[test]
fn rename_storm() {
    check_storm(Duration::from_millis(1), 10, |path, version| {
        fs::write(path.with_extension("new"), version_bytes(version)).unwrap();
        fs::rename(path.with_extension("new"), path).unwrap();
    });
}
