//! Titles of a branch's commits: `area: verb object`.

use std::path::Path;
use std::process::Command;

/// Longest title, in characters.
const TITLE_MAX: usize = 72;

/// Base of a branch if none is named, the first of these that exists.
const BASES: [&str; 2] = ["origin/main", "main"];

/// Verbs in the imperative that end like other forms.
const IMPERATIVES: [&str; 11] =
    ["bring", "embed", "exceed", "feed", "need", "ping", "proceed", "seed", "shed", "speed", "spring"];

/// A commit of the branch.
pub(super) struct Title {
    /// Abbreviated hash.
    pub(super) commit: String,
    pub(super) text: String,
}

/// Titles of the commits in `root` that `base` has not, merges left out. Empty without git or without a base.
pub(super) fn of_branch(root: &Path, base: Option<&str>) -> Result<Vec<Title>, String> {
    let exists = |base: &&str| git(root, &["rev-parse", "--verify", "--quiet", base]).is_ok();
    let Some(base) = base.or_else(|| BASES.into_iter().find(exists)) else { return Ok(Vec::new()) };
    let log = git(root, &["log", "--no-merges", "--format=%h %s", &format!("{base}..HEAD")])?;
    let titles = log.lines().filter_map(|line| line.split_once(' '));
    Ok(titles.map(|(commit, text)| Title { commit: commit.to_owned(), text: text.to_owned() }).collect())
}

fn git(root: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git").args(arguments).current_dir(root).output();
    let output = output.map_err(|error| format!("cannot start git: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("git {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// Faults of a title's form.
pub(super) fn faults(title: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let length = title.chars().count();
    if length > TITLE_MAX {
        faults.push(format!("{length} characters; at most {TITLE_MAX}"));
    }
    let is_area = |area: &str| !area.is_empty() && !area.starts_with(' ') && !area.contains(char::is_uppercase);
    match title.split_once(": ").filter(|(area, _)| is_area(area)) {
        None => faults.push("no area; write `area: verb object`".to_owned()),
        Some((_, object)) => {
            let verb = object.split(' ').next().unwrap_or_default();
            let is_other_form = (verb.ends_with("ing") || verb.ends_with("ed")) && !IMPERATIVES.contains(&verb);
            if verb.starts_with(char::is_uppercase) || is_other_form {
                faults.push(format!("begins with \"{verb}\"; write a verb in the imperative, in lower case"));
            }
        }
    }
    if title.ends_with('.') {
        faults.push("ends with a full stop; leave it out".to_owned());
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn form_of_titles() {
        let long = format!("h2: {}", "a".repeat(69));
        for (title, expect) in [
            ("h2: reject a frame", ""),
            ("docs, tests: feed caches", ""),
            ("Reject a frame", "no area; write `area: verb object`"),
            ("H2: reject", "no area; write `area: verb object`"),
            ("h2: Reject", "begins with \"Reject\"; write a verb in the imperative, in lower case"),
            ("h2: rejected frames", "begins with \"rejected\"; write a verb in the imperative, in lower case"),
            ("h2: reject.", "ends with a full stop; leave it out"),
            (&long, "73 characters; at most 72"),
        ] {
            assert_eq!(faults(title).join(", "), expect, "{title}");
        }
    }

    #[test]
    fn commits_that_the_base_has_not() {
        let directory = std::env::temp_dir().join(format!("xtask-titles-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("directory");
        let run = |arguments: &[&str]| git(&directory, arguments).expect("git");
        run(&["init", "-q", "-b", "main"]);
        let commit = ["-c", "user.name=a", "-c", "user.email=a@b.example", "commit", "-q", "--allow-empty", "-m"];
        run(&[&commit[..], &["old title"]].concat());
        run(&["checkout", "-q", "-b", "branch"]);
        run(&[&commit[..], &["a: add b"]].concat());
        let titles = of_branch(&directory, None);
        let unknown = of_branch(&directory, Some("none"));
        std::fs::remove_dir_all(&directory).expect("remove");
        let texts: Vec<_> = titles.expect("titles").into_iter().map(|title| title.text).collect();
        assert_eq!(texts, ["a: add b"]);
        assert!(unknown.is_err_and(|message| message.contains("none..HEAD")));
    }
}
