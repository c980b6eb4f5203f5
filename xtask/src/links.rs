//! Links of documents in Markdown: what they lead to is there, and so is its heading.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use pulldown_cmark::{Event, Parser, Tag, TagEnd};

/// Links of the document at `path` that lead nowhere below `root`, a line each. What is on other machines is not asked.
pub(crate) fn broken(root: &Path, path: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, target) in targets(text).filter(|(_, target)| !target.contains("://") && !target.starts_with("mailto:")) {
        if let Some(missing) = missing(root, path, text, &target) {
            let line = text[..at].matches('\n').count() + 1;
            problems.push(format!("{path}:{line}: {target}: {missing}"));
        }
    }
    problems
}

/// Documents on this machine that a document links to, by their paths from the root.
pub(crate) fn documents(path: &str, text: &str) -> Vec<String> {
    let files = targets(text).filter(|(_, target)| !target.contains(':'));
    files.filter_map(|(_, target)| resolve(path, target.split('#').next()?)).collect()
}

/// The reason why a link of a document leads nowhere.
pub(crate) fn missing(root: &Path, path: &str, text: &str, target: &str) -> Option<&'static str> {
    let (file, heading) = target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
    let Some(file) = resolve(path, file) else { return Some("leads out of all that there is") };
    if !root.join(&file).exists() {
        return Some("there is no such file");
    }
    let heading = heading?;
    let is_there = match file == path {
        true => headings(text).contains(heading),
        false => std::fs::read_to_string(root.join(&file)).is_ok_and(|text| headings(&text).contains(heading)),
    };
    (!is_there).then_some("there is no such heading")
}

/// Targets of links and images, each with the place where it begins.
fn targets(text: &str) -> impl Iterator<Item = (usize, String)> {
    Parser::new(text).into_offset_iter().filter_map(|(event, place)| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
            Some((place.start, dest_url.into_string()))
        }
        _ => None,
    })
}

/// A relative path, from the root, by the document that has it. An empty one is the document itself.
fn resolve(document: &str, target: &str) -> Option<String> {
    if target.is_empty() {
        return Some(document.to_owned());
    }
    let mut parts: Vec<&str> = document.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The names by which links know the headings of a document, as GitHub and mdBook make them: a further one of the same name
/// has a number after it.
fn headings(text: &str) -> BTreeSet<String> {
    let mut counts = BTreeMap::new();
    let mut names = BTreeSet::new();
    let mut heading = None;
    for event in Parser::new(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(part) | Event::Code(part) => heading.iter_mut().for_each(|heading| heading.push_str(&part)),
            Event::End(TagEnd::Heading(_)) => {
                let name = name(&heading.take().unwrap_or_default());
                let count = counts.entry(name.clone()).or_insert(0);
                names.insert(if *count == 0 { name } else { format!("{name}-{count}") });
                *count += 1;
            }
            _ => {}
        }
    }
    names
}

fn name(heading: &str) -> String {
    let letter = |letter: char| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        _ => letter.is_alphanumeric().then(|| letter.to_ascii_lowercase()),
    };
    heading.chars().filter_map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed() {
        let root = directory_with(&[("a.md", "# A `b`, c\n## Twice\n## Twice\n"), ("d/e.txt", ""), ("d/f.md", "")]);
        for (text, expect) in [
            ("[x](../a.md) [y](e.txt) [z](../d) [z](..)", None),
            ("[x](../a.md#a-b-c) [x](../a.md#twice-1)", None),
            ("# Here\n[x](#here)", None),
            ("[x](https://example.org/gone) `[x](gone)`\n```text\n[x](gone)\n```", None),
            ("[`x`](gone)", Some("d/f.md:1: gone: there is no such file")),
            ("\n[x](../a.md#twice-2)", Some("d/f.md:2: ../a.md#twice-2: there is no such heading")),
            ("[x](e.txt#here)", Some("d/f.md:1: e.txt#here: there is no such heading")),
            ("[x](../../etc)", Some("d/f.md:1: ../../etc: leads out of all that there is")),
        ] {
            assert_eq!(broken(&root, "d/f.md", text).first().map(String::as_str), expect, "{text:?}");
        }
        std::fs::remove_dir_all(root).expect("it is ours");
    }

    /// A directory with these files.
    fn directory_with(files: &[(&str, &str)]) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("xtask-links-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().expect("it is below the root")).expect("a directory");
            std::fs::write(path, text).expect("a file");
        }
        root
    }
}
