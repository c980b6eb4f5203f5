//! `--random LANGUAGE`: judges configurations that a grammar writes.
//!
//! Configuration number `n` depends on its seed alone, so that a finding can be repeated. Each language has a module with
//! a [`Grammar`] and the list [`GRAMMARS`] names it.

mod apache;
mod caddy;
mod nginx;
mod rules;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};

use fastrand::Rng;
use serde_json::Value;

use super::{CorpusOptions, MORE_OPEN, in_namespaces};

/// Languages in which configurations are written.
const GRAMMARS: [Grammar; 3] = [apache::GRAMMAR, caddy::GRAMMAR, nginx::GRAMMAR];

/// A language of configurations.
pub(super) struct Grammar {
    /// Name, as in `--random caddy`.
    name: &'static str,
    write: fn(Rng) -> Configuration,
}

/// A configuration that a grammar wrote.
#[derive(Debug, PartialEq, Eq)]
struct Configuration {
    /// Name of its file, by which the judge knows its server.
    name: &'static str,
    text: String,
    /// Files on the disk of the server, such as `.htaccess`: path below `/`, and text.
    files: Vec<(String, String)>,
}

/// Number and seeds of the configurations, and the folder for those with a finding.
#[derive(Debug, Clone)]
pub(super) struct RandomOptions {
    pub(super) language: Option<String>,
    pub(super) count: u64,
    /// Seed of the first configuration; the next ones follow.
    pub(super) seed: u64,
    pub(super) findings: PathBuf,
}

impl Default for RandomOptions {
    fn default() -> Self {
        Self { language: None, count: 20, seed: 1, findings: "target/import-findings".into() }
    }
}

impl Grammar {
    /// The configuration of a seed.
    fn configuration(&self, seed: u64) -> Configuration {
        (self.write)(Rng::with_seed(seed))
    }
}

/// Results by which configurations are counted. Only the first two are good.
const SAME: &str = "same";
const NOTED: &str = "differs with a note";
const UNNOTED: &str = "differs without a note";
const NO_ORIGINAL: &str = "no original";
const FAILED: &str = "failed";

/// Judges random configurations. Returns `false` if one is more open than the original.
pub(super) fn run(language: &str, options: &CorpusOptions) -> Result<bool, Box<dyn Error>> {
    let Some(grammar) = GRAMMARS.iter().find(|grammar| grammar.name == language) else {
        let names: Vec<&str> = GRAMMARS.iter().map(|grammar| grammar.name).collect();
        return Err(format!("--random has no language {language}: {}", names.join(", ")).into());
    };
    let RandomOptions { count, seed: first, findings, .. } = &options.random;
    let mut seeds: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for seed in *first..first.saturating_add(*count) {
        let directory = findings.join(format!("{language}-{seed}"));
        let file = written(&grammar.configuration(seed), &directory)?;
        let verdict = in_namespaces(&file, options);
        let result = result(&verdict);
        let details = verdict["details"].as_array().cloned().unwrap_or_default();
        let details: Vec<&str> = details.iter().filter_map(Value::as_str).collect();
        println!("{result:<22} {language} {seed}  {}", verdict["summary"].as_str().unwrap_or_default());
        let is_good = matches!(result, SAME | NOTED);
        let shown = if options.has_details || result == MORE_OPEN { usize::MAX } else { usize::from(!is_good) * 2 };
        details.iter().take(shown).for_each(|line| println!("             {line}"));
        if is_good {
            std::fs::remove_dir_all(&directory)?;
        } else {
            std::fs::write(directory.join("verdict.txt"), format!("{result}\n{}\n", details.join("\n")))?;
        }
        seeds.entry(result).or_default().push(seed);
    }
    println!("{count} configurations, from seed {first}");
    for (result, seeds) in &seeds {
        let list: Vec<String> = seeds.iter().map(u64::to_string).collect();
        let list = if matches!(*result, SAME) { String::new() } else { format!(": {}", list.join(" ")) };
        println!("{:>6} {result}{list}", seeds.len());
    }
    if seeds.keys().any(|result| !matches!(*result, SAME | NOTED)) {
        println!("findings: {}", findings.display());
    }
    Ok(!seeds.contains_key(MORE_OPEN))
}

/// Writes a configuration into a directory of its own.
fn written(configuration: &Configuration, directory: &Path) -> Result<PathBuf, Box<dyn Error>> {
    std::fs::create_dir_all(directory)?;
    let file = directory.join(configuration.name);
    std::fs::write(&file, &configuration.text)?;
    for (path, text) in &configuration.files {
        let path = directory.join(super::ROOT).join(path);
        std::fs::create_dir_all(path.parent().unwrap_or(directory))?;
        std::fs::write(path, text)?;
    }
    Ok(file)
}

/// The result of a verdict: a difference is noted if the import says that something is rejected, or not translated.
fn result(verdict: &Value) -> &'static str {
    let has_notes = verdict["notes"].as_u64().is_some_and(|notes| notes > 0);
    match verdict["verdict"].as_str() {
        Some("same") => SAME,
        Some("differs" | "refused") if has_notes => NOTED,
        Some("differs" | "refused") => UNNOTED,
        Some("no original") => NO_ORIGINAL,
        Some(MORE_OPEN) => MORE_OPEN,
        _ => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Grammar;

    /// Checks that seeds decide the text, and that all constructs occur.
    pub(super) fn check(grammar: &Grammar, constructs: &[&str]) {
        let texts: Vec<String> = (0..400).map(|seed| grammar.configuration(seed).text).collect();
        let again: Vec<String> = (0..400).map(|seed| grammar.configuration(seed).text).collect();
        assert_eq!(texts, again);
        assert!(texts.iter().collect::<BTreeSet<_>>().len() > 390);
        let absent: Vec<_> = constructs.iter().filter(|one| !texts.iter().any(|text| text.contains(**one))).collect();
        assert!(absent.is_empty(), "{absent:?}");
    }
}
