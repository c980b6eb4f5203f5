//! Finds options for people: by name, by the name of another server, or by words of the text.

use std::fmt::Write;

use super::pages::{reference_entry, syntax, wrapped};
use crate::options::{OptionDefinition, SECTIONS, Section};
use crate::options::{foreign, renamed, variables};
use crate::suggest::nearest;
use crate::value::LOG_FIELDS;

/// Results of a search; more would not fit a screen.
const RESULTS_MAX: usize = 10;

/// Fields of access logs among the results of a search.
const LOG_FIELDS_SHOWN_MAX: usize = 6;

/// Notes on directives of which the searched word is only a part.
const NOTES_SHOWN_MAX: usize = 3;

/// Words that say where another word is from, and are not searched for.
const ORIGINS: [&str; 8] = ["nginx", "apache", "httpd", "caddy", "directive", "option", "equivalent", "of"];

/// Scores of a word, best first: an option's own name, the name in another server, parts of names, and the text.
const SCORE_NAME: usize = 1000;
const SCORE_KNOWN_AS: usize = 800;
/// Deduction for each name before it in its list. The lists begin with the best-known name.
const SCORE_KNOWN_AS_STEP: usize = 30;
const KNOWN_AS_STEPS_MAX: usize = 15;
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

/// Prints the options that match the words best, the best first; `None` if none matches. Directives and variables of other
/// servers come before them, because they are what the user knows.
pub fn search(words: &str) -> Option<String> {
    let words = wanted(words);
    let mut page = String::new();
    // In "redirect http to https", `http` is no directive: what the options say about all words comes first.
    let (names, plain): (Vec<_>, Vec<_>) = words.iter().cloned().partition(|word| words.len() == 1 || is_foreign(word));
    push_whole_note(&words, &mut page);
    push_notes(&names, &mut page);
    push_variables(&names, &mut page);
    let options = found(&words.join(" "));
    // The names of a protocol's own directives may only be known for `proxy_pass`.
    let (options, is_family) = match (options.is_empty() && page.is_empty(), words.as_slice()) {
        (true, [word]) => match foreign::of_proxy(word) {
            Some(name) => {
                push_notes(std::slice::from_ref(&name), &mut page);
                (found(&name), true)
            }
            None => (options, false),
        },
        _ => (options, false),
    };
    if is_family && !options.is_empty() {
        let _ = writeln!(page, "`{}` is not known, but this is the same for `proxy_pass`:\n", words[0]);
    }
    for option in options.iter().take(RESULTS_MAX) {
        push_option(option, &mut page);
    }
    push_notes(&plain, &mut page);
    push_variables(&plain, &mut page);
    push_log_fields(&words, &mut page);
    if page.is_empty() {
        push_near_notes(&words, &mut page);
    }
    if page.is_empty() {
        return None;
    }
    if let Some(best) = options.first() {
        let _ = writeln!(page, "For the whole text, run `tailcoat reference {}`.", best.name);
    }
    Some(page)
}

/// Words to search for: without signs of other languages, and without the names of servers if other words are left.
fn wanted(words: &str) -> Vec<String> {
    let words: Vec<_> =
        words.split_whitespace().map(|word| word.trim_end_matches([';', ',', '?']).to_owned()).collect();
    let is_origin = |word: &&String| ORIGINS.contains(&word.to_ascii_lowercase().as_str());
    match words.iter().all(|word| is_origin(&word)) {
        true => words,
        false => words.iter().filter(|word| !is_origin(word)).cloned().collect(),
    }
}

fn push_notes(words: &[String], page: &mut String) {
    for name in words {
        for note in foreign::notes(name) {
            let _ = writeln!(page, "`{name}` of {}: {}.\n", note.server, note.answer);
        }
    }
}

/// Prints the notes on a name that several words make together.
fn push_whole_note(words: &[String], page: &mut String) {
    if words.len() > 1 {
        push_notes(&[words.join(" ")], page);
    }
}

/// Returns `true` if the word can only be a directive or variable of another server.
fn is_foreign(word: &str) -> bool {
    word.contains('_') || word.starts_with(['$', '%', '{'])
}

fn push_near_notes(words: &[String], page: &mut String) {
    for (note, name) in words.iter().flat_map(|word| foreign::notes_with(word)).take(NOTES_SHOWN_MAX) {
        let _ = writeln!(page, "`{name}` of {}: {}.\n", note.server, note.answer);
    }
}

fn push_variables(words: &[String], page: &mut String) {
    for word in words {
        for variable in variables::named(word) {
            let _ = writeln!(page, "`{}` of {}: {}.\n", variable.name, variable.server, variable.describe());
        }
    }
}

fn push_option(option: &OptionDefinition, page: &mut String) {
    // Options of the same name in other blocks are other options.
    let is_it = |other: &OptionDefinition| other.name == option.name && other.doc == option.doc;
    let sections = SECTIONS.iter().filter(|section| section.options.iter().any(is_it));
    let places: Vec<_> = sections.flat_map(|section| section.places).map(|place| place.describe()).collect();
    let _ = write!(page, "{}\n    Use it {}.\n", syntax(option), one_of_places(&places));
    let _ = writeln!(page, "{}", wrapped(summary(option.doc), "    ", 100));
    let known = known_as_line(option);
    if !known.is_empty() {
        let _ = writeln!(page, "{}", wrapped(&known, "    ", 100));
    }
    page.push('\n');
}

/// Prints fields of access logs whose names have all words.
fn push_log_fields(words: &[String], page: &mut String) {
    let words: Vec<_> = words.iter().map(|word| normalized(word.trim_matches(['{', '}', '$']))).collect();
    let has_all = |name: &str| words.iter().all(|word| word.len() > 2 && normalized(name).contains(word));
    let fields = LOG_FIELDS.iter().filter(|(name, _)| has_all(name)).take(LOG_FIELDS_SHOWN_MAX);
    let lines: Vec<_> = fields.map(|(name, meaning)| format!("    `{{{name}}}`: {meaning}")).collect();
    if !lines.is_empty() {
        let _ = writeln!(page, "In the `format` of `access-log`:\n{}\n", lines.join("\n"));
    }
}

/// Options that match all words, the best first. If none matches all, options that match some.
pub(crate) fn found(words: &str) -> Vec<&'static OptionDefinition> {
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
        known if known == word => SCORE_KNOWN_AS - SCORE_KNOWN_AS_STEP * position.min(KNOWN_AS_STEPS_MAX),
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
pub(crate) fn known_as_line(option: &OptionDefinition) -> String {
    let servers = option.known_as.servers().into_iter().filter(|(_, names)| !names.is_empty());
    let texts: Vec<_> = servers
        .map(|(server, names)| {
            let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
            format!("{server}: {}", names.join(", "))
        })
        .collect();
    texts.join("; ")
}

pub(crate) fn one_of_places(places: &[&str]) -> String {
    match places {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} or {last}", most.join(", ")),
    }
}
