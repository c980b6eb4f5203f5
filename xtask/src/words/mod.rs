//! `cargo xtask words`: the rules of docs/style.md that a program can check.

mod names;
mod phrases;
mod prose;
mod rust_source;
mod titles;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::Path;

use self::names::Declaration;
use self::phrases::{Banned, ProseToken};
use self::prose::{Excuse, PassageKind};
use crate::tidy;

/// Longest sentence, in words.
const SENTENCE_WORDS_MAX: usize = 25;

/// Folders of the workspace's members, in which a type name means one thing.
const MEMBERS: [&str; 3] = ["crates/", "conformance/", "xtask/"];

/// Marks that may stand between a full stop and the next sentence.
const CLOSERS: [&str; 3] = ["*", "\"", "\\"];

/// Checks by name, in the order of a summary.
const RULES: [&str; 6] = ["phrase", "opening", "sentence", "type", "title", "excuse"];

/// One place where the text breaks a rule.
struct Finding {
    /// Path of the file, or hash of the commit.
    path: String,
    /// Line in the file; 0 for a commit.
    line: usize,
    rule: &'static str,
    message: String,
}

impl Finding {
    fn show(&self) -> String {
        let Self { path, line, rule, message } = self;
        if *line == 0 { format!("{path}: {rule}: {message}") } else { format!("{path}:{line}: {rule}: {message}") }
    }
}

struct WordsOptions {
    /// Counts by area and rule instead of findings.
    is_summary: bool,
    /// Rules whose findings count; all if empty.
    rules: Vec<String>,
    /// Base of the branch whose commits are checked.
    base: Option<String>,
    /// Files and folders whose findings count; all if empty.
    paths: Vec<String>,
}

/// Prints findings. True if there are none.
pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<bool, Box<dyn Error>> {
    let options = parse(arguments)?;
    let findings = check_with(Path::new("."), options.base.as_deref())?;
    let counts = |finding: &Finding| {
        let is_below = |path: &String| finding.path.strip_prefix(path.as_str()).is_some_and(is_path_end);
        (options.rules.is_empty() || options.rules.iter().any(|rule| rule == finding.rule))
            && (options.paths.is_empty() || options.paths.iter().any(is_below))
    };
    let findings: Vec<Finding> = findings.into_iter().filter(counts).collect();
    if options.is_summary {
        print!("{}", summary(&findings));
    } else {
        findings.iter().for_each(|finding| println!("{}", finding.show()));
        println!("{} findings", findings.len());
    }
    Ok(findings.is_empty())
}

fn is_path_end(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with('/')
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<WordsOptions, String> {
    let mut options = WordsOptions { is_summary: false, rules: Vec::new(), base: None, paths: Vec::new() };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--summary" => options.is_summary = true,
            "--rule" => {
                let rule = arguments.next().filter(|rule| RULES.contains(&rule.as_str()));
                options.rules.push(rule.ok_or_else(|| format!("--rule must be one of {}", RULES.join(", ")))?);
            }
            "--base" => options.base = Some(arguments.next().ok_or("--base needs a commit")?),
            option if option.starts_with('-') => return Err(format!("there is no option {option}")),
            "." | "./" => {}
            path => options.paths.push(path.trim_start_matches("./").trim_end_matches('/').to_owned()),
        }
    }
    Ok(options)
}

fn check_with(root: &Path, base: Option<&str>) -> Result<Vec<Finding>, String> {
    let banned = Banned::load()?;
    let files = tidy::load(root)?;
    let mut findings: Vec<Finding> = Vec::new();
    let mut excuses: BTreeMap<&str, Vec<Excuse>> = BTreeMap::new();
    for file in &files {
        let prose = prose::of_file(&file.path, &file.text);
        for passage in &prose.passages {
            let tokens = phrases::tokens(&passage.lines);
            for (line, rule, message) in faults(&banned, &tokens, passage.kind, passage.is_opening) {
                findings.push(Finding { path: file.path.clone(), line, rule, message });
            }
        }
        excuses.insert(&file.path, prose.excuses);
    }
    findings.extend(repeated_types(&files));
    let findings = excuse(findings, &excuses);
    let titles = titles::of_branch(root, base)?.into_iter().flat_map(|title| {
        let tokens = phrases::tokens(&[(0, title.text.clone())]);
        let mut messages = titles::faults(&title.text);
        messages.extend(banned.hits(&tokens).iter().map(replace));
        let path = format!("commit {} \"{}\"", title.commit, title.text);
        messages.into_iter().map(move |message| Finding { path: path.clone(), line: 0, rule: "title", message })
    });
    Ok(findings.into_iter().chain(titles).collect())
}

fn replace(hit: &phrases::Hit<'_>) -> String {
    format!("\"{}\"; write {}", hit.found, hit.replacement)
}

/// Faults of one passage: line, rule and message.
fn faults(
    banned: &Banned,
    tokens: &[ProseToken],
    kind: PassageKind,
    is_opening: bool,
) -> Vec<(usize, &'static str, String)> {
    let mut faults: Vec<_> = banned.hits(tokens).iter().map(|hit| (hit.line, "phrase", replace(hit))).collect();
    if is_opening && let Some(hit) = banned.opening(tokens, kind == PassageKind::Doc) {
        faults.push((hit.line, "opening", replace(&hit)));
    }
    for (line, words) in sentences(tokens).filter(|(_, words)| *words > SENTENCE_WORDS_MAX) {
        faults.push((line, "sentence", format!("{words} words; write at most {SENTENCE_WORDS_MAX}")));
    }
    faults
}

/// The line in which each sentence begins, and how many words it has. A colon, a semicolon, a bracket and a table's bar
/// end one, too.
fn sentences(tokens: &[ProseToken]) -> impl Iterator<Item = (usize, usize)> {
    let mut sentences = Vec::new();
    let mut words = 0;
    let mut first_line = 0;
    for (index, token) in tokens.iter().enumerate() {
        if token.is_word() {
            first_line = if words == 0 { token.line } else { first_line };
            words += 1;
        }
        let is_last = tokens.get(index + 1).is_none_or(|next| next.is_spaced || CLOSERS.contains(&next.text.as_str()));
        let ends = match token.text.as_str() {
            "." | "?" | "!" | ":" | ";" => is_last,
            "|" | "(" | ")" => true,
            _ => false,
        };
        if (ends || index + 1 == tokens.len()) && words > 0 {
            sentences.push((first_line, std::mem::take(&mut words)));
        }
    }
    sentences.into_iter()
}

/// True for stand-ins of parts that a build leaves out; they have the names of the parts.
fn is_stand_in(path: &str) -> bool {
    path.contains("/absent/") || path.ends_with("/absent.rs")
}

/// Types of the same name that other files can use. Each is found at its own line.
fn repeated_types(files: &[tidy::TidyFile]) -> Vec<Finding> {
    let is_source = |file: &&tidy::TidyFile| {
        let is_member = MEMBERS.iter().any(|member| file.path.starts_with(member));
        is_member && file.path.ends_with(".rs") && !prose::is_test_file(&file.path) && !is_stand_in(&file.path)
    };
    let declared: Vec<(&str, Vec<Declaration>)> =
        files.iter().filter(is_source).map(|file| (file.path.as_str(), names::declarations(&file.text))).collect();
    let all = declared.iter().flat_map(|(path, each)| each.iter().map(move |declaration| (*path, declaration)));
    let mut findings = Vec::new();
    for (name, places) in names::repeated(all) {
        for (path, line) in &places {
            let others = places.iter().filter(|place| *place != &(*path, *line));
            let others: Vec<String> = others.map(|(path, line)| format!("{path}:{line}")).collect();
            let message = format!("`{name}` is also the name of {}; write a name that says which", others.join(", "));
            findings.push(Finding { path: (*path).to_owned(), line: *line, rule: "type", message });
        }
    }
    findings
}

/// Leaves out findings on a line with an excuse or on the line after one. An excuse without a reason, and one without a
/// finding, is a finding itself.
fn excuse(findings: Vec<Finding>, excuses: &BTreeMap<&str, Vec<Excuse>>) -> Vec<Finding> {
    let mut used: BTreeSet<(&str, usize)> = BTreeSet::new();
    let mut left = Vec::new();
    for finding in findings {
        let near = |excuse: &&Excuse| excuse.line == finding.line || excuse.line + 1 == finding.line;
        let of_file = excuses.get_key_value(finding.path.as_str());
        match of_file.and_then(|(path, all)| Some((*path, all.iter().find(near)?.line))) {
            Some(place) => drop(used.insert(place)),
            None => left.push(finding),
        }
    }
    for (path, excuse) in excuses.iter().flat_map(|(path, all)| all.iter().map(move |excuse| (*path, excuse))) {
        let message = if excuse.reason.is_empty() {
            "no reason; write it after `words: allow`"
        } else if !used.contains(&(path, excuse.line)) {
            "nothing is wrong here; remove `words: allow`"
        } else {
            continue;
        };
        left.push(Finding { path: path.to_owned(), line: excuse.line, rule: "excuse", message: message.to_owned() });
    }
    left.sort_by(|one, other| (&one.path, one.line).cmp(&(&other.path, other.line)));
    left
}

/// The part of the repository a path belongs to: a room of a crate, a folder, or a file at the top.
fn area(path: &str) -> String {
    if path.starts_with("commit ") {
        return "commits".to_owned();
    }
    let mut parts = path.split('/');
    let first = parts.next().unwrap_or_default();
    if first != "crates" {
        return first.to_owned();
    }
    let name = parts.next().unwrap_or_default();
    match (parts.next(), parts.next()) {
        (Some("src"), Some(room)) => format!("{name}/{}", room.trim_end_matches(".rs")),
        (Some(folder), _) => format!("{name} {folder}"),
        (None, _) => name.to_owned(),
    }
}

/// A table of counts: a row for each area, a column for each rule, and the most frequent messages of phrases and openings.
fn summary(findings: &[Finding]) -> String {
    let mut counts: BTreeMap<String, BTreeMap<&str, usize>> = BTreeMap::new();
    let mut messages: BTreeMap<&str, usize> = BTreeMap::new();
    for finding in findings {
        for area in [area(&finding.path), "~all".to_owned()] {
            *counts.entry(area).or_default().entry(finding.rule).or_default() += 1;
        }
        if matches!(finding.rule, "phrase" | "opening" | "excuse") {
            *messages.entry(&finding.message).or_default() += 1;
        }
    }
    let mut lines = vec![format!("{:28}{}", "", RULES.map(|rule| format!("{rule:>10}")).concat())];
    for (area, counts) in &counts {
        let cell = |rule: &str| counts.get(rule).map_or("         -".to_owned(), |count| format!("{count:>10}"));
        lines.push(format!("{:28}{}", area.trim_start_matches('~'), RULES.map(cell).concat()));
    }
    let mut messages: Vec<_> = messages.into_iter().collect();
    messages.sort_by_key(|(message, count)| (usize::MAX - count, *message));
    lines.push(String::new());
    lines.extend(messages.into_iter().map(|(message, count)| format!("{count:>6}  {message}")));
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(path: &str, line: usize, rule: &'static str) -> Finding {
        Finding { path: path.to_owned(), line, rule, message: "m".to_owned() }
    }

    #[test]
    fn a_finding_names_the_place_and_the_replacement() {
        let banned = Banned::load().expect("lists");
        let prose = prose::of_file("a.rs", "/// What nobody has.\n// A comment.\nfn a() {}\n");
        let passage = &prose.passages[0];
        let found = faults(&banned, &phrases::tokens(&passage.lines), passage.kind, passage.is_opening);
        let rules: Vec<_> =
            found.iter().map(|(line, rule, message)| (*line, *rule, message.contains("write"))).collect();
        assert_eq!(rules, [(1, "phrase", true), (1, "opening", true)]);
        assert_eq!(finding("a.rs", 3, "type").show(), "a.rs:3: type: m");
        assert_eq!(finding("commit 1f \"a\"", 0, "title").show(), "commit 1f \"a\": title: m");
    }

    #[test]
    fn lengths_of_sentences() {
        let lines =
            [(1, "One two. Three `a.b` 1.5".to_owned()), (2, "four; five (six) **seven.** \"Eight.\" nine".to_owned())];
        let found: Vec<_> = sentences(&phrases::tokens(&lines)).collect();
        assert_eq!(found, [(1, 2), (1, 8), (2, 1), (2, 1), (2, 1), (2, 1), (2, 1)]);
    }

    #[test]
    fn excuses_need_a_reason_and_a_finding() {
        let excuse_at = |line, reason: &str| Excuse { line, reason: reason.to_owned() };
        let excuses = BTreeMap::from([
            ("a.rs", vec![excuse_at(1, "a name"), excuse_at(5, ""), excuse_at(9, "a name")]),
            ("b.rs", Vec::new()),
        ]);
        let findings = [("a.rs", 2), ("a.rs", 5), ("a.rs", 7), ("b.rs", 2)];
        let findings = findings.map(|(path, line)| finding(path, line, "phrase")).into();
        let left: Vec<_> = excuse(findings, &excuses)
            .iter()
            .map(|finding| (finding.path.clone(), finding.line, finding.rule))
            .collect();
        let expect = [("a.rs", 5, "excuse"), ("a.rs", 7, "phrase"), ("a.rs", 9, "excuse"), ("b.rs", 2, "phrase")];
        assert_eq!(left, expect.map(|(path, line, rule)| (path.to_owned(), line, rule)));
    }

    #[test]
    fn counts_by_area() {
        for (path, expect) in [
            ("README.md", "README.md"),
            ("docs/style.md", "docs"),
            ("crates/wire/src/h2/mod.rs", "wire/h2"),
            ("crates/tailcoat/src/server.rs", "tailcoat/server"),
            ("crates/wire/tests/a.rs", "wire tests"),
            ("commit 1f \"a\"", "commits"),
        ] {
            assert_eq!(area(path), expect, "{path}");
        }
        let text = summary(&[finding("docs/a.md", 1, "phrase"), finding("docs/b.md", 1, "sentence")]);
        let row = text.lines().find(|line| line.starts_with("docs")).expect("row");
        assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["docs", "1", "-", "1", "-", "-", "-"]);
        assert!(text.contains("     1  m\n"));
    }

    #[test]
    fn arguments() {
        let parse = |text: &str| parse(text.split_whitespace().map(str::to_owned));
        let options = parse("--summary --rule type . ./docs/ README.md --base a").expect("options");
        assert!(options.is_summary);
        assert_eq!((options.rules, options.base), (vec!["type".to_owned()], Some("a".to_owned())));
        assert_eq!(options.paths, ["docs", "README.md"]);
        assert_eq!(
            parse("--rule none").err().as_deref(),
            Some("--rule must be one of phrase, opening, sentence, type, title, excuse")
        );
        assert_eq!(parse("--all").err().as_deref(), Some("there is no option --all"));
    }
}
