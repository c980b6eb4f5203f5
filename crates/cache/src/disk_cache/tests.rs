use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use super::*;
use crate::object_cache::{
    ContentCoding, EncodedHead, Object, ObjectContent, ObjectOrigin, ObjectParts, ObjectStore, Representation, RootId,
    WorkerCache,
};

fn config(directory: &Path, bytes_max: u64, files_max: usize) -> DiskCacheConfig {
    DiskCacheConfig { directory: directory.to_owned(), bytes_max, files_max }
}

fn open(directory: &Path) -> Arc<DiskCache> {
    open_with(&config(directory, 1 << 30, 1_000))
}

fn open_with(config: &DiskCacheConfig) -> Arc<DiskCache> {
    let log = ServerLog::stderr(crate::config::LogLevel::Error);
    let cache = DiskCache::open(config, Arc::default(), Arc::new(Trouble::new(log, HELP))).unwrap();
    cache.search();
    cache
}

fn text(key: &[u8]) -> EntryText<'_> {
    EntryText { key, labels: b"" }
}

fn put(cache: &Arc<DiskCache>, key: &str, content: &str) {
    let name = EntryName::of(key.as_bytes());
    let text = text(key.as_bytes());
    cache.begin_write(name, text, content.len()).unwrap().write(text, b"meta", content.as_bytes());
}

fn get(cache: &DiskCache, key: &str) -> Option<String> {
    let name = EntryName::of(key.as_bytes());
    // The kernel has it in memory, or not; but it is the same.
    let content_now = cache.open_now(name, key.as_bytes()).and_then(|entry| entry.content_now());
    let entry = cache.open_entry(name, key.as_bytes());
    let read = entry.as_ref().and_then(|entry| cache.read_content(entry));
    assert!(content_now.is_none() || content_now == read, "no damaged entry is read at once");
    let (entry, content) = (entry?, read?);
    assert_eq!((entry.meta(), entry.content_bytes()), (&b"meta"[..], content.len() as u64));
    cache.on_read(&entry, None).then(|| String::from_utf8(content.to_vec()).unwrap())
}

/// All files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.flat_map(|path| if path.is_dir() && !path.is_symlink() { files(&path) } else { vec![path] });
    files.collect()
}

#[test]
fn entries_survive_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache");
    let cache = open(&path);
    put(&cache, "a", "one");
    put(&cache, "b", "two");
    put(&cache, "b", "three");
    assert_eq!((get(&cache, "a").as_deref(), get(&cache, "b").as_deref()), (Some("one"), Some("three")));
    let again = open(&path);
    assert_eq!((get(&again, "a").as_deref(), get(&again, "b").as_deref()), (Some("one"), Some("three")));
    assert_eq!(get(&again, "c"), None);
    assert_eq!(again.index().usage().0, 2);
    for file in files(&path) {
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::metadata(file.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
    }
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
}

/// A directory of others, such as `/var/cache`, is not closed for them.
#[test]
fn directories_with_other_files_are_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shared");
    std::fs::create_dir(&path).unwrap();
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::write(path.join("other"), "").unwrap();
    let error = EntryFiles::open(&path).err().map(|error| error.to_string()).unwrap();
    assert!(error.contains("not of a cache") && mode() == 0o755, "{error}");
    std::fs::remove_file(path.join("other")).unwrap();
    std::fs::create_dir_all(path.join("lost+found")).unwrap();
    std::fs::create_dir_all(path.join("0f")).unwrap();
    assert!(EntryFiles::open(&path).is_ok() && mode() == 0o700);
}

#[test]
fn a_directory_with_the_name_of_an_entry_stops_no_others() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    put(&cache, "a", "one");
    let file = files(directory.path()).pop().unwrap();
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir_all(file.join("inner")).unwrap();
    put(&cache, "a", "two");
    put(&cache, "b", "three");
    assert_eq!(get(&cache, "b").as_deref(), Some("three"));
}

#[test]
fn removed_entries_stay_removed() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    for key in ["a1", "a2", "b1"] {
        put(&cache, key, key);
    }
    let name = EntryName::of(b"b1");
    assert!(cache.remove(name));
    assert_eq!(get(&cache, "b1"), None);
    assert!(cache.remove(name), "the file is not removed yet");
    cache.remove_files(&[name]);
    let starts_with_a: EntryTest = Arc::new(|key, _| key.starts_with(b"a"));
    assert_eq!(cache.remove_matching(&starts_with_a).len(), 2);
    assert_eq!(open(directory.path()).index().usage().0, 0);
    assert!(files(directory.path()).is_empty());
}

#[test]
fn a_removal_during_the_search_is_obeyed() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    put(&cache, "a", "one");
    put(&cache, "b", "two");
    let log = ServerLog::stderr(crate::config::LogLevel::Error);
    let limits = config(directory.path(), 1 << 30, 1_000);
    let other = DiskCache::open(&limits, Arc::default(), Arc::new(Trouble::new(log, HELP))).unwrap();
    let is_a: EntryTest = Arc::new(|key, _| key == b"a");
    other.remove_matching(&is_a);
    other.search();
    assert_eq!((get(&other, "a"), get(&other, "b").as_deref()), (None, Some("two")));
    // After the search, a new entry of the same key is welcome.
    put(&other, "a", "three");
    other.search();
    assert_eq!(get(&other, "a").as_deref(), Some("three"));
}

/// A removal costs a thread's work only if it may find a file.
#[test]
fn only_files_that_may_exist_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    let name = EntryName::of(b"a");
    assert!(cache.remove(name), "a search may still find it");
    cache.index().on_searched();
    assert!(!cache.remove(name));
    let pending = cache.begin_write(name, text(b"a"), 3).unwrap();
    assert!(cache.remove(name), "being written");
    cache.remove_files(&[name]);
    drop(pending);
    assert!(!cache.remove(name));
    put(&cache, "a", "one");
    assert!(cache.remove(name));
    cache.remove_files(&[name]);
    assert!(!cache.remove(name));
    cache.is_frozen.store(true, Ordering::Relaxed);
    assert!(cache.remove(name), "another process may have written it");
}

#[test]
fn pending_writes_are_bounded_in_bytes_and_number() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    let begin = |bytes: usize| {
        let key = fastrand::u64(..).to_string();
        cache.begin_write(EntryName::of(key.as_bytes()), text(key.as_bytes()), bytes)
    };
    let small: Vec<_> = (0..300).map_while(|_| begin(1)).collect();
    assert_eq!(small.len(), 256);
    drop(small);
    assert!(begin(UNWRITTEN_BYTES_MAX as usize).is_none());
    // Keys count, too.
    let large = begin(UNWRITTEN_BYTES_MAX as usize / 2 - 100).unwrap();
    let small: Vec<_> = (0..300).map_while(|_| begin(1)).collect();
    assert_eq!(small.len(), 128);
    drop(large);
    assert!(begin(1).is_some());
}

/// Object that serves an entry from its open file.
fn holder(store: &ObjectStore, root: RootId, key: &str, entry: &DiskEntry) -> Arc<Object> {
    let (status, fields) = (wire::http::Status::OK, wire::http::Fields::new());
    let head = || EncodedHead::of_h1(status, &fields);
    let identity = Representation {
        status,
        coding: ContentCoding::Identity,
        etag: "".into(),
        head: head(),
        not_modified_head: head(),
        partial_head: head(),
        content: ObjectContent::File(Arc::clone(entry.file())),
    };
    let parts = ObjectParts { identity, codings: None, last_modified_unix_seconds: None, origin: ObjectOrigin::Server };
    store.insert(root, key.as_bytes(), parts)
}

/// Opens an entry for serving; the content was checked if the test says so.
fn hold(cache: &DiskCache, store: &Arc<ObjectStore>, root: RootId, key: &str) -> Arc<Object> {
    let entry = cache.open_entry(EntryName::of(key.as_bytes()), key.as_bytes()).unwrap();
    cache.read_content(&entry).unwrap();
    let object = holder(store, root, key, &entry);
    let holder = FileHolder { store: Arc::clone(store), root, path_bytes: key.len() };
    assert!(cache.on_read(&entry, Some(holder)));
    object
}

#[test]
fn an_evicted_entry_is_closed_and_a_used_one_stays() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open_with(&config(directory.path(), 1 << 30, 2));
    let store = ObjectStore::new(crate::config::CacheConfig::default()).unwrap();
    put(&cache, "a", "one");
    put(&cache, "b", "two");
    let (root, worker) = (store.new_root_id(), WorkerCache::new(Arc::clone(&store)));
    let (a, b) = (hold(&cache, &store, root, "a"), hold(&cache, &store, root, "b"));
    assert_eq!((a.take_visited(), b.take_visited()), (false, false));
    assert_eq!(store.usage().files, 2);
    // A hit of the object in memory, which the index does not see.
    drop(worker.get(root, b"a", 0));
    put(&cache, "c", "three");
    assert_eq!(["a", "b", "c"].map(|key| cache.has(EntryName::of(key.as_bytes()))), [true, false, true]);
    assert_eq!((store.usage().files, a.is_dead(), b.is_dead()), (1, false, true));
    put(&cache, "d", "four");
    put(&cache, "e", "five");
    assert_eq!(store.usage().files, 0, "a single use spares once");
}

/// Content is checked once for each version of a file, and a changed file is another version.
#[test]
fn content_is_checked_once_and_after_each_change() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    put(&cache, "a", "content");
    let name = EntryName::of(b"a");
    let is_checked = || cache.open_entry(name, b"a").map(|entry| entry.is_checked());
    assert_eq!(is_checked(), Some(false), "what was written is not read yet");
    // The time of the change must be old enough to tell it from another one.
    while is_checked() != Some(true) {
        get(&cache, "a");
        std::thread::yield_now();
    }
    let file = files(directory.path()).remove(0);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[0] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    assert_eq!(is_checked(), Some(false));
    assert_eq!(get(&cache, "a"), None);
    assert!(files(directory.path()).is_empty());
}

#[test]
fn a_file_that_was_cut_or_changed_is_not_the_one_that_was_opened() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    for (key, is_cut) in [("a", true), ("b", false)] {
        put(&cache, key, "content");
        let entry = cache.open_entry(EntryName::of(key.as_bytes()), key.as_bytes()).unwrap();
        assert!(entry.file().is_unchanged());
        let path = files(directory.path()).remove(0);
        // Another process replaces it: what was opened is still whole.
        std::fs::copy(&path, directory.path().join("other")).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::fs::rename(directory.path().join("other"), &path).unwrap();
        assert!(entry.file().is_unchanged());
        if is_cut {
            file.set_len(3).unwrap();
            assert!(!entry.file().is_unchanged() && cache.read_content(&entry).is_none());
        }
        cache.remove(EntryName::of(key.as_bytes()));
        cache.remove_files(&[EntryName::of(key.as_bytes())]);
    }
}

#[test]
fn entries_of_earlier_versions_are_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    put(&cache, "a", "one");
    let file = files(directory.path()).remove(0);
    for (first, damaged) in [(&b"TCcache1"[..], 0), (b"TCcache2", 0), (b"TCcache0", 1), (b"short", 1)] {
        std::fs::write(&file, [first, b" lengths and checksums, key, labels, properties, content"].concat()).unwrap();
        let cache = open(directory.path());
        assert_eq!(cache.counters.damaged.load(Ordering::Relaxed), damaged, "{first:?}");
        assert!(files(directory.path()).is_empty());
    }
}

#[test]
fn a_file_that_has_grown_is_read_with_its_own_length() {
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (open(directory.path()), open(directory.path()));
    put(&old, "a", "one");
    put(&new, "a", "a longer one");
    let entry = old.open_entry(EntryName::of(b"a"), b"a").unwrap();
    assert_eq!(entry.content_bytes(), 12, "so much memory is counted before it is read");
    assert_eq!(get(&old, "a").as_deref(), Some("a longer one"));
}

#[test]
fn texts_may_be_long() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    let key = "k".repeat(10_000);
    put(&cache, &key, "content");
    assert_eq!(get(&cache, &key).as_deref(), Some("content"));
    assert_eq!(get(&open(directory.path()), &key).as_deref(), Some("content"));
}

#[test]
fn a_write_that_was_overtaken_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    let name = EntryName::of(b"a");
    let (old, new) = (cache.begin_write(name, text(b"a"), 3).unwrap(), cache.begin_write(name, text(b"a"), 3).unwrap());
    new.write(text(b"a"), b"meta", b"new");
    old.write(text(b"a"), b"meta", b"old");
    assert_eq!(get(&cache, "a").as_deref(), Some("new"));
    let pending = cache.begin_write(name, text(b"a"), 3).unwrap();
    cache.remove(name);
    cache.remove_files(&[name]);
    pending.write(text(b"a"), b"meta", b"old");
    assert_eq!(get(&cache, "a"), None);
    assert!(files(directory.path()).is_empty());
}

#[test]
fn the_least_recently_used_are_evicted() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open_with(&config(directory.path(), 1 << 30, 3));
    for key in ["a", "b", "c"] {
        put(&cache, key, key);
    }
    get(&cache, "a");
    put(&cache, "d", "d");
    assert_eq!(["a", "b", "c", "d"].map(|key| get(&cache, key).is_some()), [true, false, true, true]);
    let by_bytes = tempfile::tempdir().unwrap();
    let cache = open_with(&config(by_bytes.path(), 10_000, 1_000));
    for key in 0..100 {
        put(&cache, &key.to_string(), &"x".repeat(1_000));
    }
    let total: u64 = files(by_bytes.path()).iter().map(|file| std::fs::metadata(file).unwrap().len()).sum();
    assert!(total <= 10_000 && total > 5_000, "{total}");
    assert_eq!(cache.index().usage().1, total);
    // One that is too large takes the place of none.
    for content_bytes in [20_000, 9_990] {
        put(&cache, "large", &"x".repeat(content_bytes));
        assert_eq!(get(&cache, "large"), None);
    }
    assert_eq!(cache.index().usage().1, total);
    assert!(get(&cache, "99").is_some());
    // Smaller limits apply after a restart, too.
    assert!(open_with(&config(by_bytes.path(), 3_000, 1_000)).index().usage().1 <= 3_000);
}

#[test]
fn a_slow_write_does_not_outlive_what_was_requested_later() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open_with(&config(directory.path(), 1 << 30, 3));
    let slow = cache.begin_write(EntryName::of(b"slow"), text(b"slow"), 4).unwrap();
    for key in ["a", "b", "c"] {
        put(&cache, key, key);
    }
    slow.write(text(b"slow"), b"meta", b"slow");
    assert_eq!(["slow", "a", "b", "c"].map(|key| get(&cache, key).is_some()), [false, true, true, true]);
}

#[test]
fn damaged_files_are_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let text = "content of some length";
    let length = {
        let cache = open(directory.path());
        put(&cache, "a", text);
        std::fs::read(&files(directory.path())[0]).unwrap().len()
    };
    // Each byte, and each length.
    for at in 0..2 * length {
        let cache = open(directory.path());
        put(&cache, "a", text);
        let file = files(directory.path()).remove(0);
        let mut bytes = std::fs::read(&file).unwrap();
        if at < length {
            bytes[at] ^= 1;
        } else {
            bytes.truncate(at - length);
        }
        std::fs::write(&file, &bytes).unwrap();
        assert_eq!(get(&cache, "a"), None, "{at}: in a running process");
        std::fs::write(&file, &bytes).unwrap();
        assert_eq!(get(&open(directory.path()), "a"), None, "{at}: after a restart");
        assert!(files(directory.path()).is_empty(), "{at}");
    }
    let cache = open(directory.path());
    put(&cache, "a", text);
    let file = files(directory.path()).remove(0);
    let longer = [std::fs::read(&file).unwrap(), b"x".to_vec()].concat();
    std::fs::write(&file, longer).unwrap();
    assert_eq!(get(&cache, "a"), None, "longer than it was");
}

#[test]
fn links_are_not_followed() {
    let directory = tempfile::tempdir().unwrap();
    let (path, other) = (directory.path().join("cache"), directory.path().join("other"));
    let cache = open(&path);
    put(&cache, "a", "one");
    let file = files(&path).remove(0);
    std::fs::rename(&file, &other).unwrap();
    symlink(&other, &file).unwrap();
    assert_eq!(get(&cache, "a"), None);
    symlink(&other, &file).unwrap();
    assert_eq!(get(&open(&path), "a"), None);
    // A directory of entries that is a link.
    let (inner, elsewhere) = (file.parent().unwrap(), directory.path().join("elsewhere"));
    let _ = std::fs::remove_file(&file);
    std::fs::remove_dir(inner).unwrap();
    std::fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, inner).unwrap();
    put(&open(&path), "a", "two");
    assert!(files(&elsewhere).is_empty());
}

#[test]
fn leftovers_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(directory.path());
    put(&cache, "a", "one");
    let inner = files(directory.path())[0].parent().unwrap().to_owned();
    for leftover in ["tmp-999999999-1", "tmp-x", "unknown"] {
        std::fs::write(inner.join(leftover), "half").unwrap();
    }
    let cache = open(directory.path());
    assert_eq!((files(directory.path()).len(), get(&cache, "a").as_deref()), (2, Some("one")));
    assert!(inner.join("unknown").exists(), "files that are not the cache's stay");
}

/// A process that writes all the time is killed at random (kill -9); all entries that it leaves are whole.
#[test]
fn a_killed_process_leaves_whole_entries() {
    const VARIABLE: &str = "TAILCOAT_TEST_DISK_CACHE";
    let content = |round: usize| format!("{round};").repeat(500 + round % 1_000);
    if let Some(path) = std::env::var_os(VARIABLE) {
        let cache = open(Path::new(&path));
        for round in 0.. {
            put(&cache, &(round % 10).to_string(), &content(round));
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let is_whole = |file: &PathBuf| !file.file_name().unwrap().to_string_lossy().starts_with("tmp-");
    let mut found = 0;
    for kill in 0..40 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "disk_cache::tests::a_killed_process_leaves_whole_entries"]);
        command.env(VARIABLE, directory.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        // The first process is killed after its first entry, however slow it is; the others at any moment.
        let has_begun = || files(directory.path()).iter().any(|file| kill > 0 || is_whole(file));
        while !has_begun() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(fastrand::u64(0..20_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        let cache = open(directory.path());
        for key in 0..10_usize {
            let Some(text) = get(&cache, &key.to_string()) else { continue };
            let round: usize = text.split(';').next().unwrap().parse().unwrap();
            assert!(text == content(round) && round % 10 == key, "{key}: {round}");
            found += 1;
        }
        assert_eq!(cache.counters.damaged.load(Ordering::Relaxed), 0, "a rename shows no half of an entry");
        assert!(files(directory.path()).len() <= 10, "no leftover stays");
    }
    assert!(found > 0);
}

#[test]
fn another_process_shares_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (open(directory.path()), open(directory.path()));
    put(&old, "a", "one");
    assert_eq!(get(&new, "a"), None, "not known yet");
    new.search();
    assert_eq!(get(&new, "a").as_deref(), Some("one"));
    put(&new, "a", "two");
    assert_eq!(get(&old, "a").as_deref(), Some("two"), "the file is whole, from either process");
    new.remove_matching(&(Arc::new(|_: &[u8], _: &[u8]| true) as EntryTest));
    assert_eq!(get(&old, "a"), None);
    old.is_frozen.store(true, Ordering::Relaxed);
    assert!(old.begin_write(EntryName::of(b"b"), text(b"b"), 1).is_none());
}
