//! Alternative readings of a path, by servers that parse paths differently.
//!
//! A guard (an access rule, a limit, a password) that checks one spelling of a path protects nothing if the upstream
//! maps another spelling to the same resource. This module is the only place that knows those spellings. No server may
//! have a given reading; guards use readings only to restrict access.

/// Alternative reading of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Path in the form of [`normalise`](super::path::normalise).
    pub path: Vec<u8>,
    /// True if the server sees the same segments in another spelling: parameters removed, or a backslash as a slash.
    /// Otherwise the server looks for a different file than the whole path names.
    pub is_spelling: bool,
}

/// Maximum number of segments that are treated as programs. Clients choose how many there are, and each is matched
/// against all guards. Few programs lie below that many directories with a dot in their names.
const PROGRAMS_MAX: usize = 16;

/// Extensions of precompressed files, which servers keep beside their originals.
const PRECOMPRESSED_EXTENSIONS: [&[u8]; 3] = [b".br", b".gz", b".zst"];

/// Returns the path of the file whose precompressed form this path may name.
pub fn original_of_precompressed(path: &[u8]) -> Option<&[u8]> {
    let original = PRECOMPRESSED_EXTENSIONS.iter().find_map(|extension| path.strip_suffix(*extension))?;
    (!original.ends_with(b"/")).then_some(original)
}

/// Returns the alternative readings of a normal path, without the path itself. Most paths have none, and then nothing
/// is allocated.
pub fn readings(path: &[u8]) -> Vec<Reading> {
    let mut found = Vec::new();
    if !path.starts_with(b"/") || is_plain(path) {
        return found;
    }
    let mut push = |read: &[u8], is_spelling: bool| {
        if read != path && found.iter().all(|known: &Reading| known.path != read) {
            found.push(Reading { path: read.to_vec(), is_spelling });
        }
    };
    let spelling = read_otherwise(path);
    let cut = without_query(path);
    let file = as_file_system(path);
    // All at once, because a path may combine what each server removes.
    let all = as_file_system(&without_query(spelling.as_deref().unwrap_or(path)));
    spelling.iter().for_each(|read| push(read, true));
    for read in [&cut, &file, &all] {
        push(read, false);
    }
    for whole in [path, &all] {
        programs(whole).for_each(|end| push(&whole[..end], false));
    }
    for whole in spelling.iter().chain([&cut, &file, &all]).map(Vec::as_slice).chain([path]) {
        if let Some(file @ [_, ..]) = whole.strip_suffix(b"/") {
            push(file, false);
        }
    }
    found
}

/// Returns `true` if the path has no other reading. This fast test may return `false` for such a path.
fn is_plain(path: &[u8]) -> bool {
    let (mut has_dot, mut segment_start) = (false, 1);
    for (at, &byte) in path.iter().enumerate().skip(1) {
        match byte {
            b'/' if has_dot || at + 1 == path.len() || is_program_directory(&path[segment_start..at]) => return false,
            b'/' => segment_start = at + 1,
            b'.' => has_dot = true,
            b';' | b'\\' | b'?' | b'#' | b':' => return false,
            _ if is_trimmed(byte) || begins_wide_space(byte) => return false,
            _ => {}
        }
    }
    !path.ends_with(b".")
}

/// Returns the reading of servers that remove path parameters, treat a backslash as a slash, or match with expressions
/// that end before a line feed. `None` if it is the same.
fn read_otherwise(path: &[u8]) -> Option<Vec<u8>> {
    let line = match path.strip_suffix(b"\n") {
        Some(line) => line,
        None => memchr::memchr2(b';', b'\\', path).map(|_| path)?,
    };
    Some(joined(bare_segments(line)))
}

/// Returns the reading of servers that decode a path before they cut off query and fragment, or end it at a line feed.
fn without_query(path: &[u8]) -> Vec<u8> {
    match memchr::memchr3(b'?', b'#', b'\n', path) {
        Some(end) => joined(path[..end].split(|&byte| byte == b'/').skip(1)),
        None => path.to_vec(),
    }
}

/// Returns the reading of servers on Windows or NTFS, and of those that trim white space.
fn as_file_system(path: &[u8]) -> Vec<u8> {
    let segments = path.split(|&byte| matches!(byte, b'/' | b'\\')).skip(1);
    joined(segments.map(|segment| {
        // `name:stream:$TYPE`. Elsewhere a colon is part of the name.
        let is_stream = memchr::memmem::find(segment, b":$").is_some();
        let name = if is_stream { segment.split(|&byte| byte == b':').next().unwrap_or_default() } else { segment };
        trimmed(name)
    }))
}

/// Removes what Windows and frameworks remove from the end of a name. A name of only dots and white space keeps its
/// dots.
fn trimmed(name: &[u8]) -> &[u8] {
    match trimmed_end(name, |byte| byte == b'.' || is_trimmed(byte)) {
        [] => trimmed_end(name, is_trimmed),
        name => name,
    }
}

fn trimmed_end(mut name: &[u8], is_dropped: fn(u8) -> bool) -> &[u8] {
    loop {
        name = match name {
            [before @ .., first, second, third] if is_wide_space([*first, *second, *third]) => before,
            [before @ .., last] if is_dropped(*last) => before,
            _ => return name,
        };
    }
}

/// White space of three bytes in UTF-8, also of old versions of Unicode: U+1680, U+180E, U+2000 to U+200B, U+2028, U+2029, U+202F, U+205F, U+2060, U+3000, U+FEFF.
fn is_wide_space(character: [u8; 3]) -> bool {
    matches!(
        character,
        [0xe1, 0x9a, 0x80]
            | [0xe1, 0xa0, 0x8e]
            | [0xe2, 0x80, 0x80..=0x8b | 0xa8 | 0xa9 | 0xaf]
            | [0xe2, 0x81, 0x9f | 0xa0]
            | [0xe3, 0x80, 0x80]
            | [0xef, 0xbb, 0xbf]
    )
}

fn begins_wide_space(byte: u8) -> bool {
    matches!(byte, 0xe1..=0xe3 | 0xef)
}

/// White space and control characters that `trim()` removes in some language: those of ASCII, and U+0085 and U+00A0 in
/// Latin-1 or, after 0xC2, in UTF-8.
fn is_trimmed(byte: u8) -> bool {
    byte <= b' ' || matches!(byte, 0x7f | 0x85 | 0xa0 | 0xc2)
}

/// Returns the ends of segments that may be programs with PATH_INFO after them: names with any extension, and names in
/// directories of programs.
fn programs(path: &[u8]) -> impl Iterator<Item = usize> {
    let mut directory: &[u8] = b"";
    let mut start = 1;
    let ends = memchr::memchr_iter(b'/', path).skip(1).filter(move |&end| {
        let name = &path[start..end];
        // Leading dots only hide a file.
        let bare = &name[name.iter().take_while(|&&byte| byte == b'.').count()..];
        let is_program = is_program_directory(directory) || memchr::memchr(b'.', bare).is_some();
        (directory, start) = (name, end + 1);
        is_program
    });
    ends.take(PROGRAMS_MAX)
}

/// Returns whether servers usually execute the files in a directory of this name, even without extension.
fn is_program_directory(name: &[u8]) -> bool {
    const NAMES: [&[u8]; 8] =
        [b"cgi-bin", b"fcgi-bin", b"scgi-bin", b"cgi", b"cgi-sys", b"cgi-local", b"cgi-win", b"servlet"];
    NAMES.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Joins segments to a normal path.
fn joined<'s>(segments: impl Iterator<Item = &'s [u8]>) -> Vec<u8> {
    let mut path = vec![b'/'];
    let mut is_directory = true;
    for segment in segments {
        is_directory = matches!(segment, b"" | b"." | b"..");
        match segment {
            b"" | b"." => {}
            b".." => {
                let parent = path[..path.len() - 1].iter().rposition(|&byte| byte == b'/');
                path.truncate(parent.map_or(1, |at| at + 1));
            }
            name => {
                path.extend_from_slice(name);
                path.push(b'/');
            }
        }
    }
    if !is_directory {
        path.pop();
    }
    path
}

/// Returns whether some server resolves dot segments in a normal path: it has `/..;a/`, `\..\` or `/.. /`.
pub fn has_hidden_dot_segments(path: &[u8]) -> bool {
    let is_dots = |segment: &[u8]| matches!(trimmed(segment), b"." | b"..");
    memchr::memmem::find(path, b"/.").or_else(|| memchr::memchr(b'\\', path)).is_some()
        && bare_segments(path).any(is_dots)
}

/// Returns the segments of a path for servers that remove parameters and treat a backslash as a slash.
fn bare_segments(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let segments = path.strip_prefix(b"/").unwrap_or(path).split(|&byte| matches!(byte, b'/' | b'\\'));
    segments.map(|segment| &segment[..memchr::memchr(b';', segment).unwrap_or(segment.len())])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::path::normalise;
    use super::{has_hidden_dot_segments, readings};

    #[test]
    fn readings_of_other_servers() {
        let check = |path: &str, expect: &[&str]| {
            let found: Vec<_> = readings(path.as_bytes()).into_iter().map(|reading| reading.path).collect();
            let found: Vec<_> = found.iter().map(|path| String::from_utf8_lossy(path)).collect();
            assert_eq!(found, expect, "{path:?}");
        };
        for plain in ["/", "/a/b", "/a/b.html", "/a/.../b", "/.well-known/x", "*", "/a:b/c", "/é", "/あ", "/\u{fffd}"]
        {
            check(plain, &[]);
        }
        // Path parameters, backslashes, line feeds.
        check("/a;b", &["/a"]);
        check("/a;b/c;d=e", &["/a/c"]);
        check("/;a/b", &["/b"]);
        check("/a/..;x=y/..;/b", &["/b"]);
        check("/a\\b", &["/a/b"]);
        check("/a\n", &["/a"]);
        check("/a\nb", &["/a"]);
        check("/a\\b.pdf\nx", &["/a/b.pdf\nx", "/a\\b.pdf", "/a/b.pdf"]);
        check("/a;b/", &["/a/", "/a", "/a;b"]);
        // A decoded `?`.
        check("/a?b", &["/a"]);
        check("/a.php?b/c", &["/a.php", "/a.php?b"]);
        check("/a/..?b", &["/"]);
        // Windows and trimming frameworks.
        check("/a.", &["/a"]);
        check("/a. . /b", &["/a/b", "/a. . "]);
        check("/a::$DATA", &["/a"]);
        check("/a:$i30:$INDEX_ALLOCATION/b", &["/a/b"]);
        check("/a\t", &["/a"]);
        check("/a\u{a0}", &["/a"]);
        check("/a\u{feff}", &["/a"]);
        check("/a\u{180e}", &["/a"]);
        check("/a\u{2005} /b\u{3000}", &["/a/b"]);
        // Programs and what follows them.
        check("/a.php/b/c", &["/a.php"]);
        check("/a.php/", &["/a.php"]);
        check("/a.php/b.cgi/", &["/a.php", "/a.php/b.cgi"]);
        check("/a.php;x/y", &["/a.php/y", "/a.php;x", "/a.php"]);
        check(
            "/a.php. ;x\\y/?z",
            &["/a.php. /y/?z", "/a.php. ;x\\y/", "/a.php. ;x/y/?z", "/a.php/y/", "/a.php. ;x\\y", "/a.php", "/a.php/y"],
        );
        check("/cgi-bin/a/b/c", &["/cgi-bin/a"]);
        check("/CGI-bin/a", &[]);
        // Trailing slashes.
        check("/a/", &["/a"]);
        let path = ["/a.b".repeat(1_000), "/".to_owned()].concat();
        assert_eq!(readings(path.as_bytes()).len(), super::PROGRAMS_MAX + 1);
    }

    #[test]
    fn hidden_dot_segments() {
        let check = |path: &str, expect: bool| assert_eq!(has_hidden_dot_segments(path.as_bytes()), expect, "{path:?}");
        for path in [
            "/a/..;/b",
            "/a/b/.;/c",
            "/a/..;",
            "/a\\..\\b",
            "/a/..\\b",
            "/a/.. /b",
            "/a/..\t",
            "/..\u{a0}/x",
            "/..\u{200b}/x",
        ] {
            check(path, true);
        }
        for path in ["/a/b", "/a/...", "/a/...;", "/a;b", "/a\\b", "/.a/b.c", "/a/..b/c", "*", "/a/. . /b"] {
            check(path, false);
        }
    }

    /// Pieces for paths that servers read differently.
    const PIECES: [&str; 16] =
        ["/", "\\", ".", "..", ";", "a", "b.php", "cgi-bin", " ", "\n", "?", ":", "::$DATA", "\u{a0}", "X", "é"];

    fn is_normal(path: &[u8]) -> bool {
        // A percent sign would be decoded again.
        let mut buffer = Vec::new();
        !path.contains(&b'%') && normalise(path, &mut buffer) == Ok(path)
    }

    fn paths() -> impl Strategy<Value = Vec<u8>> {
        let pieces = proptest::collection::vec(proptest::sample::select(&PIECES[..]), 0..10);
        let paths = pieces.prop_map(|pieces| format!("/{}", pieces.concat()).into_bytes());
        paths.prop_filter("not in normal form", |path| is_normal(path))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn readings_are_normal_distinct_and_few(path in paths()) {
            let found = readings(&path);
            for (at, reading) in found.iter().enumerate() {
                let read = &reading.path;
                prop_assert!(is_normal(read) && *read != path, "{:?}", String::from_utf8_lossy(read));
                prop_assert!(found[..at].iter().all(|other| other.path != *read));
            }
            prop_assert!(found.len() <= 3 * super::PROGRAMS_MAX);
        }
    }
}
