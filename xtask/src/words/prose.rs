//! Prose of the repository's files: comments, Markdown outside code, and messages in Rust sources.
//!
//! Kinds of files decide, never single files. Data is no prose: conformance cases, golden files, licences, lock files.

use super::rust_source::{self, Comment};

/// Text that belongs together: a paragraph, a block of comments, a table row, a string literal.
#[derive(Debug, PartialEq)]
pub(super) struct ProsePassage {
    pub(super) kind: PassageKind,
    /// Lines with their numbers in the file. Code within text is replaced by a lone backtick.
    pub(super) lines: Vec<(usize, String)>,
    /// True where a comment begins, or the text below one of its headings, so that the first word is an opening.
    pub(super) is_opening: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PassageKind {
    /// Documentation of an item, a module or a program.
    Doc,
    /// Any other comment.
    Comment,
    Markdown,
    /// String literal of two words or more.
    Message,
}

/// A line that the check must leave alone, with the reason that stands beside it.
#[derive(Debug, PartialEq)]
pub(super) struct Excuse {
    pub(super) line: usize,
    pub(super) reason: String,
}

#[derive(Debug, Default)]
pub(super) struct Prose {
    pub(super) passages: Vec<ProsePassage>,
    pub(super) excuses: Vec<Excuse>,
    /// True after a backtick that the passage has not closed yet.
    in_code: bool,
}

/// Words that introduce an excuse in a comment.
const EXCUSE: &str = "words: allow";

/// Prose of the file at `path`. Empty for kinds of files that have none.
pub(super) fn of_file(path: &str, text: &str) -> Prose {
    let path = path.strip_suffix(".template").unwrap_or(path);
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.rsplit_once('.').map_or(name, |(_, extension)| extension) {
        "md" => of_markdown(text),
        "rs" => of_rust(text, is_test_file(path)),
        "c" | "h" | "js" | "mjs" | "css" | "go" | "php" | "kdl" | "wit" => of_slash_comments(text),
        "py" | "sh" | "toml" | "yml" | "yaml" | "conf" | "cfg" | "service" | "Containerfile" | "pl" => {
            of_hash_comments(text)
        }
        "html" => of_html(text),
        "cases" => of_cases(text),
        _ if text.starts_with("#!") => of_hash_comments(text),
        _ => Prose::default(),
    }
}

/// Comments, titles and reasons of conformance cases. All else is input and expectations.
fn of_cases(text: &str) -> Prose {
    let mut prose = Prose::default();
    let mut last_comment = None;
    for (number, line) in (1..).zip(text.lines()) {
        let title = line.strip_prefix('[').and_then(|line| line.strip_suffix(']'));
        if let Some(comment) = line.strip_prefix('#') {
            let begins = last_comment != Some(number - 1);
            last_comment = Some(number);
            prose.add_line(PassageKind::Comment, number, comment, begins, begins);
        } else if let Some(text) = title.or_else(|| line.strip_prefix("why: ")) {
            prose.add_line(PassageKind::Comment, number, text, true, false);
        }
    }
    prose
}

/// True for sources that only tests use: their string literals are input and expectations, no messages.
pub(super) fn is_test_file(path: &str) -> bool {
    let is_test_folder = |part: &str| matches!(part, "tests" | "benches" | "fuzz" | "attacks");
    path.split('/').any(is_test_folder) || path.ends_with("/tests.rs") || path.ends_with("_tests.rs")
}

impl Prose {
    /// Adds lines of comments. Lines that follow each other with the same marker are one comment, in which an empty line
    /// ends a passage.
    fn add_comments(&mut self, comments: &[Comment]) {
        let mut last = (0, "");
        let mut in_fence = false;
        let mut begins_passage = true;
        let mut is_below_heading = false;
        for comment in comments {
            let follows = last == (comment.line - 1, comment.marker) && !comment.is_trailing;
            if let Some((_, reason)) = comment.text.split_once(EXCUSE) {
                self.excuse(comment.line, reason);
                // The comment around an excuse continues after it.
                last.0 += usize::from(last.0 + 1 == comment.line);
                continue;
            }
            last = (comment.line, if comment.is_trailing { "" } else { comment.marker });
            if !follows {
                (in_fence, begins_passage, is_below_heading) = (false, true, false);
            }
            let is_fence = comment.text.trim_start().starts_with("```");
            in_fence ^= is_fence;
            // Indented lines are commands and examples.
            let is_code = is_fence || in_fence || comment.text.starts_with("    ");
            // An option of a usage text begins a passage.
            begins_passage |= comment.text.trim_start().starts_with("--");
            if is_code || comment.text.trim().is_empty() {
                begins_passage = true;
                continue;
            }
            let kind = if matches!(comment.marker, "///" | "//!") { PassageKind::Doc } else { PassageKind::Comment };
            // A heading such as `# Errors` is a passage, and the text below it begins like a comment.
            let is_heading = kind == PassageKind::Doc && comment.text.starts_with("# ");
            let is_opening = !follows || (is_below_heading && !is_heading);
            self.add_line(kind, comment.line, &comment.text, begins_passage || is_heading, is_opening);
            (begins_passage, is_below_heading) = (is_heading, is_heading);
        }
    }

    fn excuse(&mut self, line: usize, reason: &str) {
        let reason = reason.trim_end_matches("-->").trim_end_matches("*/").trim_matches([' ', ':']);
        self.excuses.push(Excuse { line, reason: reason.to_owned() });
    }

    fn add_line(&mut self, kind: PassageKind, number: usize, text: &str, begins_passage: bool, is_opening: bool) {
        self.in_code &= !begins_passage;
        let line = (number, without_code(text, &mut self.in_code));
        match self.passages.last_mut() {
            Some(passage) if !begins_passage => passage.lines.push(line),
            _ => self.passages.push(ProsePassage { kind, lines: vec![line], is_opening }),
        }
    }
}

fn of_rust(text: &str, in_tests: bool) -> Prose {
    let source = rust_source::scan(text, in_tests);
    let mut prose = Prose::default();
    prose.add_comments(&source.comments);
    for literal in &source.literals {
        if literal.text.split_whitespace().filter(|word| word.contains(char::is_alphabetic)).count() < 2 {
            continue;
        }
        let mut begins_passage = true;
        let mut continues = true;
        for (index, line) in literal.text.split('\n').enumerate() {
            // An indented line is an example and begins a passage, unless the source only breaks the line.
            begins_passage |= line.starts_with("  ") && !continues;
            continues = line.ends_with('\\');
            let line = line.trim_end_matches('\\').replace("\\n", " ").replace("\\\"", "\"");
            // An option of a usage text begins a passage.
            begins_passage |= line.trim().is_empty() || line.trim_start().starts_with("--");
            if !line.trim().is_empty() {
                prose.add_line(PassageKind::Message, literal.line + index, &line, begins_passage, false);
                begins_passage = false;
            }
        }
    }
    prose
}

/// Comments of languages that write them as C or C++ does.
fn of_slash_comments(text: &str) -> Prose {
    let mut prose = Prose::default();
    prose.add_comments(&rust_source::scan(text, true).comments);
    prose
}

/// Comments after `#`, and documentation strings of Python.
fn of_hash_comments(text: &str) -> Prose {
    let mut comments = Vec::new();
    // Quotes that end the string, whether it is documentation, and its indentation in bytes.
    let mut in_string: Option<(&str, bool, usize)> = None;
    for (index, line) in text.split('\n').enumerate() {
        let mut add = |marker: &'static str, text: &str, is_trailing: bool| {
            let text = text.strip_prefix(' ').unwrap_or(text).trim_end();
            comments.push(Comment { line: index + 1, marker, text: text.to_owned(), is_trailing });
        };
        if let Some((quotes, is_doc, indentation)) = in_string {
            let content = line.split(quotes).next().unwrap_or(line);
            if is_doc {
                let is_indented = content.get(..indentation).is_some_and(|start| start.trim().is_empty());
                add("///", &format!(" {}", if is_indented { &content[indentation..] } else { content.trim() }), false);
            }
            if content.len() < line.len() {
                in_string = None;
            }
            continue;
        }
        if let Some((quotes, at)) = ["\"\"\"", "'''"].iter().find_map(|quotes| Some((*quotes, line.find(quotes)?))) {
            let (before, content) = (&line[..at], &line[at + quotes.len()..]);
            let is_doc = before.trim().is_empty();
            if is_doc {
                add("///", content.split(quotes).next().unwrap_or(content).trim(), false);
            }
            if !content.contains(quotes) {
                in_string = Some((quotes, is_doc, at));
            }
            continue;
        }
        if let Some(at) = hash_comment(line).filter(|_| !line.starts_with("#!")) {
            let is_trailing = !line[..at].trim().is_empty();
            add("#", line[at..].trim_start_matches('#'), is_trailing);
        }
    }
    let mut prose = Prose::default();
    prose.add_comments(&comments);
    prose
}

/// Place of the `#` that begins a comment: outside quotes, at the start or after white space.
fn hash_comment(line: &str) -> Option<usize> {
    let mut quote = None;
    let mut before = ' ';
    for (at, character) in line.char_indices() {
        match character {
            '#' if quote.is_none() && before.is_whitespace() => return Some(at),
            '"' | '\'' if quote.is_none() && !before.is_alphanumeric() => quote = Some(character),
            _ if quote == Some(character) && before != '\\' => quote = None,
            _ => {}
        }
        before = character;
    }
    None
}

/// Paragraphs, headings and table rows outside blocks of code.
fn of_markdown(text: &str) -> Prose {
    let mut prose = Prose::default();
    let mut fence: Option<&str> = None;
    let mut begins_passage = true;
    let mut in_list = false;
    let mut in_html_comment = false;
    for (index, line) in text.split('\n').enumerate() {
        let content = line.trim_start();
        if let Some((_, reason)) = line.split_once(EXCUSE).filter(|_| content.starts_with("<!--")) {
            prose.excuse(index + 1, reason);
            continue;
        }
        let mark = ["```", "~~~"].into_iter().find(|mark| content.starts_with(mark));
        if fence.is_some() || mark.is_some() {
            if fence.is_none() || fence == mark {
                fence = if fence.is_none() { mark } else { None };
            }
            begins_passage = true;
            continue;
        }
        in_html_comment |= content.starts_with("<!--");
        if in_html_comment || content.is_empty() {
            in_html_comment &= !line.contains("-->");
            begins_passage = true;
            continue;
        }
        // Tags on a line of their own; figures in an `alt` are no sentence.
        if content.starts_with('<') && content.ends_with('>') {
            begins_passage = true;
            continue;
        }
        let is_item = content.starts_with(['-', '*', '+']) || content.starts_with(|first: char| first.is_ascii_digit());
        if begins_passage && line.starts_with("    ") && !in_list {
            continue;
        }
        in_list = is_item || in_list && line.starts_with(' ');
        let is_alone = content.starts_with(['|', '#']);
        prose.add_line(PassageKind::Markdown, index + 1, line, begins_passage || is_item || is_alone, false);
        begins_passage = is_alone;
    }
    prose
}

/// Text of a page, without tags, scripts and styles.
fn of_html(text: &str) -> Prose {
    let mut prose = Prose::default();
    let mut skipped_until: Option<&str> = None;
    let mut in_tag = false;
    for (index, line) in text.split('\n').enumerate() {
        let mut rest = line;
        let mut content = String::new();
        while !rest.is_empty() {
            if let Some(end) = skipped_until {
                let Some(at) = rest.find(end) else { break };
                (rest, skipped_until) = (&rest[at + end.len()..], None);
            } else if in_tag {
                let Some(at) = rest.find('>') else { break };
                (rest, in_tag) = (&rest[at + 1..], false);
            } else {
                let at = rest.find('<').unwrap_or(rest.len());
                content.push_str(&rest[..at]);
                rest = &rest[at..];
                in_tag = !rest.is_empty();
                let elements = [("<script", "</script>"), ("<style", "</style>"), ("<!--", "-->")];
                let element = elements.into_iter().find(|(start, _)| rest.starts_with(start));
                if let Some((_, end)) = element {
                    (skipped_until, in_tag) = (Some(end), false);
                }
            }
        }
        if !content.trim().is_empty() {
            prose.add_line(PassageKind::Markdown, index + 1, &content, true, false);
        }
    }
    prose
}

/// The line with code between backticks, targets of links and addresses replaced by a backtick each. Code may span lines.
fn without_code(line: &str, in_code: &mut bool) -> String {
    let mut text = String::new();
    for (index, part) in line.split('`').enumerate() {
        *in_code ^= index > 0;
        text.push_str(if *in_code { " ` " } else { part });
    }
    let mut result = String::new();
    let mut rest = text.as_str();
    while let Some(at) = ["](", "://"].into_iter().filter_map(|mark| rest.find(mark)).min() {
        result.push_str(&rest[..at]);
        result.push('`');
        let target = &rest[at..];
        let end = if target.starts_with("](") { target.find(')') } else { target.find(char::is_whitespace) };
        rest = &target[end.unwrap_or(target.len())..];
    }
    result + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passages as `kind/first line/text`, with `!` where a comment begins.
    fn passages(path: &str, text: &str) -> Vec<String> {
        let passages = of_file(path, text).passages;
        let words =
            |passage: &ProsePassage| passage.lines.iter().map(|(_, line)| line.trim()).collect::<Vec<_>>().join(" ");
        let show = |passage: &ProsePassage| {
            let mark = if passage.is_opening { "!" } else { "" };
            format!("{:?}{mark}/{}/{}", passage.kind, passage.lines[0].0, words(passage))
        };
        passages.iter().map(show).collect()
    }

    #[test]
    fn prose_by_kind_of_file() {
        for (path, text, expect) in [
            (
                "a.rs",
                "/// One\n/// two.\n///\n/// Three.\n/// ```\n/// code\n/// ```\n",
                "Doc!/1/One two. Doc/4/Three.",
            ),
            (
                "a.rs",
                "/// One.\n/// # Errors\n/// Two\n/// three.\n///\n/// Four.\n",
                "Doc!/1/One. Doc/2/# Errors Doc!/3/Two three. Doc/6/Four.",
            ),
            ("a.rs", "//! # One\n//!\n//! Two.\n", "Doc!/1/# One Doc!/3/Two."),
            ("a.rs", "// One:\n//     nobody\n// Two.\n", "Comment!/1/One: Comment/3/Two."),
            ("a.rs", "// One.\na(); // Two.\n// Three.\n", "Comment!/1/One. Comment!/2/Two. Comment!/3/Three."),
            ("a.rs", "a(\"cannot open\\n\\\n  it\"); b(\"word\");\n", "Message/1/cannot open it"),
            ("a.rs", "a(\"One:\n  do it\n  or not\");\n", "Message/1/One: Message/2/do it Message/3/or not"),
            ("tests/a.rs", "a(\"cannot open it\"); // Why.\n", "Comment!/1/Why."),
            ("a.kdl", "// One.\nroot \"a // b\"\n/* Two. */\n", "Comment!/1/One. Comment!/3/Two."),
            ("a.toml", "# One.\na = \"b # c\" # Two.\n", "Comment!/1/One. Comment!/2/Two."),
            ("a.py", "#!/usr/bin/python3\n\"\"\"One\ntwo.\"\"\"\nx = \"\"\"\nnot\n\"\"\"\n", "Doc!/2/One two."),
            ("a.py", "def f():\n    \"\"\"One.\n\n        command\n\n    Two.\"\"\"\n", "Doc!/2/One. Doc/6/Two."),
            (
                "a.c",
                "/* One.\n *   --a N  Two\n *   --b    three */\n",
                "Comment!/1/One. Comment/2/--a N  Two Comment/3/--b    three",
            ),
            ("a.py.template", "# One.\n", "Comment!/1/One."),
            (
                "a.md",
                "# T\nOne\ntwo.\n\n```\ncode\n```\n- a\n  b\n- c\n",
                "Markdown/1/# T Markdown/2/One two. Markdown/8/- a b Markdown/10/- c",
            ),
            (
                "a.md",
                "One.\n\n    code\n\n| a | b |\n| c | d |\n",
                "Markdown/1/One. Markdown/5/| a | b | Markdown/6/| c | d |",
            ),
            ("a.md", "One\n<img alt=\"Two\">\nThree\n", "Markdown/1/One Markdown/3/Three"),
            ("a.html", "<p class=x>One</p>\n<style>\np {}\n</style>\n", "Markdown/1/One"),
            (
                "a.cases",
                "# One\n# two.\n\n[a # title]\nwhy: a reason\neach size: # | x\n> GET\n",
                "Comment!/1/One two. Comment/4/a # title Comment/5/a reason",
            ),
            ("LICENSE-MIT", "nobody\n", ""),
        ] {
            assert_eq!(passages(path, text).join(" "), expect, "{path}: {text:?}");
        }
    }

    #[test]
    fn code_and_addresses_are_no_words() {
        for (line, open, expect) in [
            ("a `b c` d [e](f.md) g", false, "a  `  d [e`) g"),
            ("see https://a.example/who, or", false, "see https` or"),
            ("c` d", true, " `  d"),
        ] {
            assert_eq!(without_code(line, &mut { open }), expect);
        }
    }

    #[test]
    fn excuses_stand_within_comments() {
        let prose = of_file("a.rs", "/// One\n// words: allow the name of a user\n/// two.\n");
        assert_eq!(prose.excuses, [Excuse { line: 2, reason: "the name of a user".into() }]);
        assert_eq!((prose.passages.len(), prose.passages[0].lines.len()), (1, 2));
        let prose = of_file("a.md", "<!-- words: allow: quoted -->\nnobody\n");
        assert_eq!(prose.excuses, [Excuse { line: 1, reason: "quoted".into() }]);
    }
}
