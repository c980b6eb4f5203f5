//! Paths of the session's virtual tree.

use super::line::has_line_end;

/// Resolves a path against the working directory, both without regard to links. The result begins with a slash, has no
/// empty or dot segments, and ends with a slash only if it is the root. `..` in the root is the root, so no path leads
/// out of it.
pub fn resolve(directory: &[u8], path: &[u8]) -> Vec<u8> {
    let mut resolved = if path.starts_with(b"/") { Vec::new() } else { directory.to_vec() };
    if resolved == b"/" {
        resolved.clear();
    }
    for segment in path.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => resolved.truncate(resolved.iter().rposition(|byte| *byte == b'/').unwrap_or(0)),
            segment => {
                resolved.push(b'/');
                resolved.extend_from_slice(segment);
            }
        }
    }
    if resolved.is_empty() {
        resolved.push(b'/');
    }
    resolved
}

/// True if a file of this name can be listed. A name with LF would forge lines, and no command can name it.
pub fn is_representable(name: &[u8]) -> bool {
    !has_line_end(name) && !name.contains(&b'\r') && !name.is_empty()
}
