//! Finds options for people: by name, by the name of another server, or by words of the text.

use std::fmt::Write;

use super::options::foreign;
use super::options::renamed;
use super::options::{OptionContext, OptionDefinition, SECTIONS, Section, places_of};
use super::pages::{reference_entry, syntax, wrapped};
use super::suggest::nearest;

/// Results of a search; more would not fit a screen.
const RESULTS_MAX: usize = 10;

/// Scores of a word, best first: an option's own name, the name in another server, parts of names, and the text.
const SCORE_NAME: usize = 1000;
const SCORE_KNOWN_AS: usize = 800;
const SCORE_NAME_PART: usize = 300;
const SCORE_KNOWN_AS_PART: usize = 200;
const SCORE_SUMMARY: usize = 60;
const SCORE_TEXT: usize = 20;

/// Prints an option: each definition of this name, because blocks can have options of the same name.
///
/// # Errors
///
/// If there is no such option. The text tells what to do.
pub fn reference_of(name: &str) -> Result<String, String> {
    let mut page = String::new();
    let name = renamed::new_option(name).unwrap_or(name);
    for (section, option) in options().filter(|(_, option)| option.name == name) {
        let places: Vec<_> = section.places.iter().map(|place| place.describe()).collect();
        let _ = write!(page, "{}\nUse it {}.\n", reference_entry(option), one_of_places(&places));
    }
    match page.is_empty() {
        true => Err(help_for_unknown(name)),
        false => Ok(page.trim_start().to_owned()),
    }
}

fn help_for_unknown(name: &str) -> String {
    let names: Vec<_> = options().map(|(_, option)| option.name).collect();
    match nearest(name, &names) {
        Some(near) => format!("no option is called `{name}`; did you mean `{near}`?"),
        None => format!("no option is called `{name}`; run `tailcoat reference --search {name}`"),
    }
}

/// Prints the options that match the words best, the best first; `None` if none matches.
pub fn search(words: &str) -> Option<String> {
    let mut page = String::new();
    for note in foreign::notes(words.trim()) {
        let _ = writeln!(page, "`{}` of {}: {}.\n", words.trim(), note.server, note.answer);
    }
    for option in found(words).into_iter().take(RESULTS_MAX) {
        let places: Vec<_> = places_of(option.name).into_iter().map(OptionContext::describe).collect();
        let _ = write!(page, "{}\n    Use it {}.\n", syntax(option), one_of_places(&places));
        let _ = writeln!(page, "{}", wrapped(summary(option.doc), "    ", 100));
        let known = known_as_line(option);
        if !known.is_empty() {
            let _ = writeln!(page, "{}", wrapped(&known, "    ", 100));
        }
        page.push('\n');
    }
    if page.is_empty() {
        return None;
    }
    if let Some(best) = found(words).first() {
        let _ = writeln!(page, "For the whole text, run `tailcoat reference {}`.", best.name);
    }
    Some(page)
}

/// Options that match all words, the best first. If none matches all, options that match some.
pub(super) fn found(words: &str) -> Vec<&'static OptionDefinition> {
    let words: Vec<String> = words.split_whitespace().map(normalized).collect();
    let mut scored: Vec<(usize, usize, &'static OptionDefinition)> = Vec::new();
    for (_, option) in options() {
        let scores: Vec<_> = words.iter().map(|word| score(option, word)).filter(|score| *score > 0).collect();
        // Several words that name one thing together ("stats socket") count as one name.
        let whole = score(option, &words.join(" "));
        if !scores.is_empty() || whole > 0 {
            scored.push((scores.len(), scores.iter().sum::<usize>().max(whole), option));
        }
    }
    if scored.iter().any(|(matched, _, _)| *matched == words.len()) {
        scored.retain(|(matched, score, _)| *matched == words.len() || *score >= SCORE_NAME_PART);
    }
    scored.sort_by_key(|(matched, score, _)| std::cmp::Reverse((*matched, *score)));
    let mut found: Vec<&'static OptionDefinition> = Vec::new();
    for (_, _, option) in scored {
        if !found.iter().any(|other| other.name == option.name && other.doc == option.doc) {
            found.push(option);
        }
    }
    found
}

fn options() -> impl Iterator<Item = (&'static Section, &'static OptionDefinition)> {
    SECTIONS.iter().flat_map(|section| section.options.iter().map(move |option| (section, option)))
}

/// nginx writes `_`, HAProxy and this server `-`: people mix them up.
fn normalized(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

fn score(option: &OptionDefinition, word: &str) -> usize {
    if word.is_empty() {
        return 0;
    }
    let name = if option.name == word || renamed::new_option(word) == Some(option.name) {
        SCORE_NAME
    } else if option.name.contains(word) {
        SCORE_NAME_PART
    } else {
        0
    };
    let known = option.known_as.servers().into_iter().flat_map(|(_, names)| names.iter().enumerate());
    let known = known.map(|(position, known)| match normalized(known) {
        known if known == word => SCORE_KNOWN_AS - position,
        known if word.len() > 2 && known.contains(word) => SCORE_KNOWN_AS_PART,
        _ => 0,
    });
    let text = if normalized(summary(option.doc)).contains(word) {
        SCORE_SUMMARY
    } else if normalized(option.doc).contains(word) {
        SCORE_TEXT
    } else {
        0
    };
    name.max(known.max().unwrap_or_default()) + text
}

/// First sentence of a text.
fn summary(doc: &str) -> &str {
    let end = doc.match_indices(". ").map(|(end, _)| end).find(|end| !doc[..*end].ends_with("e.g"));
    end.map_or(doc, |end| &doc[..=end])
}

/// Names of the option in other servers: `nginx: a, b; Caddy: c`.
pub(super) fn known_as_line(option: &OptionDefinition) -> String {
    let servers = option.known_as.servers().into_iter().filter(|(_, names)| !names.is_empty());
    let texts: Vec<_> = servers
        .map(|(server, names)| {
            let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
            format!("{server}: {}", names.join(", "))
        })
        .collect();
    texts.join("; ")
}

fn one_of_places(places: &[&str]) -> String {
    match places {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}
