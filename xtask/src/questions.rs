//! Checks that the manual answers the questions of newcomers in `manual-questions.toml`. Each question names a page and
//! heading that exist. Each page is at most two clicks from the first. `packaging/manual.rs` asks the search of the book.

use std::collections::BTreeSet;
use std::path::Path;

use crate::links;

const FILE: &str = "xtask/manual-questions.toml";

/// The first page of the manual, and the list of all pages.
const FIRST_PAGE: &str = "docs/README.md";
const PAGES: &str = "docs/SUMMARY.md";

/// Number of questions that were written down before the manual was.
const QUESTIONS_MIN: usize = 40;

/// Clicks from the first page to any other.
const CLICKS_MAX: usize = 2;

/// A question of a newcomer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ManualQuestion {
    pub(crate) text: String,
    /// The page and heading that answer it, relative to `docs`.
    pub(crate) answer: String,
    /// Words that a newcomer types into the search.
    pub(crate) search: String,
}

/// Questions that the manual does not answer, and pages too far from the first, a line each.
pub(crate) fn problems(root: &Path) -> Vec<String> {
    let questions = match load(root) {
        Ok(questions) => questions,
        Err(problem) => return vec![problem],
    };
    let mut problems = Vec::new();
    if questions.len() < QUESTIONS_MIN {
        problems.push(format!("{FILE}: {} questions of {QUESTIONS_MIN}", questions.len()));
    }
    for ManualQuestion { text, answer, search } in &questions {
        if !answer.contains('#') || search.is_empty() {
            problems.push(format!("{FILE}: {text}: needs `answer = \"page.md#heading\"` and `search = \"words\"`"));
        } else if let Some(problem) = links::missing(root, FIRST_PAGE, "", answer) {
            problems.push(format!("{FILE}: {text}: {answer}: {problem}"));
        }
    }
    problems.extend(far_pages(root));
    problems.extend(foreign_links(root));
    problems
}

pub(crate) fn load(root: &Path) -> Result<Vec<ManualQuestion>, String> {
    let text = std::fs::read_to_string(root.join(FILE)).map_err(|error| format!("{FILE}: {error}"))?;
    parse(&text)
}

/// Reads tables `[[question]]` whose values are strings without escapes.
fn parse(text: &str) -> Result<Vec<ManualQuestion>, String> {
    let mut questions: Vec<ManualQuestion> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let problem = || format!("{FILE}:{}: cannot read {line:?}", index + 1);
        match line {
            "[[question]]" => questions.push(ManualQuestion::default()),
            _ if line.is_empty() || line.starts_with('#') => {}
            _ => {
                let (name, value) = line.split_once(" = ").ok_or_else(problem)?;
                let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).ok_or_else(problem)?;
                let question = questions.last_mut().ok_or_else(problem)?;
                match name {
                    "text" => question.text = value.to_owned(),
                    "answer" => question.answer = value.to_owned(),
                    "search" => question.search = value.to_owned(),
                    _ => return Err(problem()),
                }
            }
        }
    }
    Ok(questions)
}

/// Pages of the manual that take more clicks from the first page than they may.
fn far_pages(root: &Path) -> Vec<String> {
    let mut reached = BTreeSet::from([FIRST_PAGE.to_owned()]);
    for _ in 0..CLICKS_MAX {
        reached = reached.iter().flat_map(|page| linked(root, page)).chain(reached.clone()).collect();
    }
    let pages = linked(root, PAGES);
    let far = pages.iter().filter(|page| !reached.contains(*page));
    far.map(|page| format!("{page}: more than {CLICKS_MAX} clicks from {FIRST_PAGE}")).collect()
}

/// Links of the manual's pages to documents of `docs` that are no pages: the book does not have them.
fn foreign_links(root: &Path) -> Vec<String> {
    let pages = linked(root, PAGES);
    let mut problems = Vec::new();
    for page in &pages {
        let foreign =
            linked(root, page).into_iter().filter(|target| target.starts_with("docs/") && !pages.contains(target));
        problems.extend(foreign.map(|target| format!("{page}: links to {target}, which is not in {PAGES}")));
    }
    problems
}

/// Documents in Markdown that a document links to.
fn linked(root: &Path, document: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root.join(document)).unwrap_or_default();
    links::documents(document, &text).into_iter().filter(|target| target.ends_with(".md")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read() {
        let text =
            "# Comment.\n[[question]]\ntext = \"Why \"a\"?\"\nanswer = \"a.md#b\"\nsearch = \"a\"\n\n[[question]]\n";
        let first =
            ManualQuestion { text: "Why \"a\"?".to_owned(), answer: "a.md#b".to_owned(), search: "a".to_owned() };
        assert_eq!(parse(text), Ok(vec![first, ManualQuestion::default()]));
        for text in ["text = \"a\"", "[[question]]\ntext = a", "[[question]]\nanwser = \"a\""] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn pages_and_headings_are_found() {
        let root = std::env::temp_dir().join(format!("xtask-questions-{}", std::process::id()));
        for (path, text) in [
            (FIRST_PAGE, "[a](a.md)"),
            (PAGES, "[a](a.md) [b](b.md) [c](c.md) [d](d.md)"),
            ("docs/a.md", "# A\n[b](b.md#b)"),
            ("docs/b.md", "[c](c.md)"),
            ("docs/c.md", ""),
            ("docs/d.md", "[e](decisions/e.md) [f](../f.md)"),
            (
                FILE,
                "[[question]]\ntext = \"1\"\nanswer = \"a.md#a\"\nsearch = \"a\"\n[[question]]\ntext = \"2\"\n\
                 answer = \"a.md#b\"\nsearch = \"b\"\n[[question]]\ntext = \"3\"\nanswer = \"a.md#a\"\n",
            ),
        ] {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("it is below the root")).expect("a directory");
            std::fs::write(path, text).expect("a file");
        }
        let found = problems(&root);
        std::fs::remove_dir_all(&root).expect("it is ours");
        assert_eq!(found.len(), 6, "{found:?}");
        for (problem, words) in found.iter().zip([
            "3 questions",
            "2: a.md#b: there is no such heading",
            "3: needs",
            "docs/c.md",
            "docs/d.md: more",
            "docs/d.md: links to docs/decisions/e.md",
        ]) {
            assert!(problem.contains(words), "{problem} {words}");
        }
    }
}
