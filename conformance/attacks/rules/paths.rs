//! Other spellings of a path, from a grammar of what servers are known to read alike.

use fastrand::Rng;

use crate::raw::pick;

/// Text that is put after a path, or after a segment.
const ENDS: [&str; 44] = [
    "/",
    "//",
    "/.",
    "/..",
    "/./",
    "/x",
    "/x/",
    "/x.css",
    "/index.php",
    "/x/..",
    "/x/../",
    "//x",
    "/%2e",
    "/..;/",
    "/.;/",
    ";",
    ";x",
    ";x=y",
    ";x/",
    ";/",
    "%3b",
    "%3bx",
    "%20",
    "%20/",
    "%09",
    "%0a",
    "%0d%0a",
    "%0ax",
    "%00",
    "%00.css",
    ".",
    "..",
    "...",
    "%2e",
    "::$DATA",
    ":$i30:$INDEX_ALLOCATION",
    "%3f",
    "%3fx.css",
    "%23",
    "%23x",
    "?",
    "?x=/y.css",
    "%5c",
    "%5cx",
];

/// More of them, rarely right.
const RARE_ENDS: [&str; 24] = [
    "\\",
    "%2f",
    "%2fx",
    "%2F..%2F",
    "~",
    "~1",
    "%7f",
    "%85",
    "%a0",
    "%c2%a0",
    "%c2%85",
    "%e2%80%8b",
    "%ef%bb%bf",
    "%c0%af",
    "%c0%ae",
    "%252f",
    "%25",
    "%u002f",
    "*",
    "'",
    "\"",
    "|",
    "^",
    ".html",
];

/// Text that is put before a path.
const STARTS: [&str; 30] = [
    "/",
    "//",
    "/.",
    "/./",
    "/x/..",
    "/x/../",
    "/%2e",
    "/x/%2e%2e",
    "/x%2f..",
    "/x%2f%2e%2e",
    "/x/.%2e",
    "/;x",
    "/;/",
    "/.;x",
    "/x/..;x",
    "/public/..",
    "/public/%2e%2e",
    "/public%2f..",
    "/public/..%2f..",
    "/public/x/../..",
    "http://h",
    "http://other",
    "https://h/x/..",
    "\\",
    "/\\",
    "/%5c",
    "/x\\..",
    "/x%5c..",
    "//h",
    "/%20",
];

/// Texts that stand for a slash.
const SLASHES: [&str; 16] = [
    "//",
    "/./",
    "/x/../",
    "%2f",
    "%2F",
    "\\",
    "%5c",
    "%5C",
    ";/",
    "/;/",
    ";x=y/",
    "/%2e/",
    "/x/%2e%2e/",
    "%2f%2f",
    "///",
    "%252f",
];

/// A spelling of a path, by up to four changes.
pub(super) fn mutate(path: &str, random: &mut Rng) -> Vec<u8> {
    let mut path = path.as_bytes().to_vec();
    for _ in 0..random.usize(1..=4) {
        change(&mut path, random);
    }
    // The request line has to stay one.
    path.retain(|byte| !matches!(byte, b' ' | b'\r' | b'\n'));
    path
}

fn change(path: &mut Vec<u8>, random: &mut Rng) {
    let at = random.usize(..path.len().max(1)).min(path.len().saturating_sub(1));
    match random.u8(0..16) {
        0..=2 => path.extend(pick(random, &ENDS).bytes()),
        3 => path.extend(pick(random, &RARE_ENDS).bytes()),
        4 | 5 => drop(path.splice(0..0, pick(random, &STARTS).bytes())),
        6 | 7 => encode(path, at, random.bool(), random.u8(0..6) == 0),
        8 => (0..path.len())
            .filter(|at| at % random.usize(1..5) == 0)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .for_each(|at| encode(path, at, random.bool(), false)),
        9 => path[at..].iter_mut().take(random.usize(1..8)).for_each(|byte| *byte = swap_case(*byte)),
        10 => *path = path.to_ascii_uppercase(),
        11 | 12 => {
            let slashes: Vec<usize> = (1..path.len()).filter(|&at| path[at] == b'/').collect();
            if let Some(&at) = random.choice(&slashes) {
                path.splice(at..=at, pick(random, &SLASHES).bytes());
            }
        }
        13 => {
            // At the end of a segment.
            let ends: Vec<usize> = (1..path.len()).filter(|&at| path[at] == b'/').collect();
            if let Some(&at) = random.choice(&ends) {
                let end = pick(random, &ENDS).trim_end_matches('/');
                path.splice(at..at, end.bytes());
            }
        }
        14 => path.insert(at, pick(random, b"\t\0\x0b\x7f\x80\xa0\xff;.%:~+&=@!,'()*$\\")),
        _ => drop(path.splice(at..at, pick(random, &RARE_ENDS).bytes())),
    }
}

fn encode(path: &mut Vec<u8>, at: usize, is_upper: bool, is_twice: bool) {
    let Some(&byte) = path.get(at) else { return };
    // One that is encoded already is left alone.
    if byte == b'%' {
        return;
    }
    let code = if is_upper { format!("%{byte:02X}") } else { format!("%{byte:02x}") };
    let code = if is_twice { code.replace('%', "%25") } else { code };
    path.splice(at..=at, code.bytes());
}

fn swap_case(byte: u8) -> u8 {
    if byte.is_ascii_alphabetic() { byte ^ 0x20 } else { byte }
}
