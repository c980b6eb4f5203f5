//! Paths that a front controller has in ours alone.

use super::{CorpusAnswer, CorpusRequest, is_same_script};
use crate::import_corpus::Original;

/// Directories of the grid without `index.html`, each with a file.
const WITHOUT_INDEX: [(&str, &str); 3] = [("/admin/", "d.txt"), ("/config/", "config.php"), ("/uploads/", "e.php")];

/// Returns `true` if a front controller answers for a path below a file, or for a directory without an index. Both servers
/// must have it for missing paths. Deliberate, and documented.
pub(super) fn is_left_to_fallback<'a>(
    request: &CorpusRequest,
    expected: &CorpusAnswer,
    found: &CorpusAnswer,
    of_path: &dyn Fn(&str) -> Option<(&'a CorpusAnswer, &'a CorpusAnswer)>,
) -> bool {
    let path = request.path.as_str();
    let has_file = |path: &str| of_path(path).is_some_and(|(expected, _)| (200..300).contains(&expected.status));
    let is_directory =
        |(directory, file): &(&str, &str)| path.ends_with(directory) && has_file(&format!("{path}{file}"));
    let is_meant = match expected.status {
        404 => path.match_indices('/').skip(1).any(|(end, _)| has_file(&path[..end])),
        403 => WITHOUT_INDEX.iter().any(is_directory),
        _ => false,
    };
    let is_same = |one: &CorpusAnswer, other: &CorpusAnswer| one.body == other.body || is_same_script(one, other);
    let is_fallback =
        |(expected, other): (&CorpusAnswer, &CorpusAnswer)| is_same(expected, other) && is_same(found, other);
    // The file itself is no secret, either.
    let is_own_file = || {
        path.match_indices('/').skip(1).any(|(end, _)| {
            of_path(&path[..end]).is_some_and(|(expected, _)| expected.status == 200 && expected.body == found.body)
        })
    };
    // That of a directory has an own path, too.
    let is_of_script = || of_path("/index.php").is_some_and(|(expected, _)| is_same_script(expected, found));
    let is_other = || expected.status == 404 && (is_own_file() || is_of_script());
    let is_open = || of_path("/missing").is_some_and(is_fallback) || is_other();
    request.kind == Original::Apache && is_meant && is_open()
}
