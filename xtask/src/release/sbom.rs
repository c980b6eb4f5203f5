//! Crates that are linked into the programs, as CycloneDX 1.5 (JSON): version, licence, source, checksum and
//! dependencies of each.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::{Release, read};
use crate::cargo;

/// Path of the file.
pub(super) fn file(release: &Release) -> PathBuf {
    release.directory.join(format!("tailcoat-{}.cdx.json", release.version))
}

/// Writes it.
pub(super) fn write(release: &Release) -> Result<PathBuf, Box<dyn Error>> {
    let sums = checksums(&fs::read_to_string("Cargo.lock")?);
    let mut components: BTreeMap<String, Value> = BTreeMap::new();
    let own = format!("pkg:generic/tailcoat@{}", release.version);
    let mut graph = DependencyGraph::new(&own);
    for (depth, name, version, licence) in linked(release)?.lines().filter_map(parse_line) {
        // Crates of this repository have no checksum: they are the release.
        let sum = sums.get(&(name.to_owned(), version.to_owned()));
        graph.add(depth, if sum.is_some() { reference(name, version) } else { own.clone() });
        if let Some(sum) = sum {
            components.insert(format!("{name} {version}"), component(name, version, licence, sum));
        }
    }
    let depends = |(from, to): (String, BTreeSet<String>)| json!({ "ref": from, "dependsOn": to });
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "tailcoat",
                "version": release.version,
                "licenses": [{ "expression": env!("CARGO_PKG_LICENSE") }],
                "properties": [{ "name": "target", "value": release.target }],
            },
        },
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": graph.edges.into_iter().map(depends).collect::<Vec<_>>(),
    });
    let file = file(release);
    fs::write(&file, serde_json::to_string_pretty(&document)? + "\n")?;
    Ok(file)
}

/// Dependencies of each crate, by their references.
struct DependencyGraph {
    edges: BTreeMap<String, BTreeSet<String>>,
    /// Crates from the root of the tree to the last one.
    above: Vec<String>,
}

impl DependencyGraph {
    fn new(own: &str) -> Self {
        Self { edges: BTreeMap::from([(own.to_owned(), BTreeSet::new())]), above: Vec::new() }
    }

    /// Adds a crate at this depth of the tree, in the tree's order.
    fn add(&mut self, depth: usize, crate_reference: String) {
        self.above.truncate(depth);
        if let Some(parent) = self.above.last().filter(|parent| **parent != crate_reference) {
            self.edges.entry(parent.clone()).or_default().insert(crate_reference.clone());
        }
        self.edges.entry(crate_reference.clone()).or_default();
        self.above.push(crate_reference);
    }
}

/// Reference to a crate of the registry (package URL).
fn reference(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{version}")
}

fn component(name: &str, version: &str, licence: &str, sum: &str) -> Value {
    json!({
        "type": "library",
        "bom-ref": reference(name, version),
        "name": name,
        "version": version,
        "purl": reference(name, version),
        "licenses": [{ "expression": licence.replace('/', " OR ") }],
        "hashes": [{ "alg": "SHA-256", "content": sum }],
    })
}

/// Tree of the crates that the programs are linked with, a line `DEPTHname vVERSION (source)|licence` each. The
/// dependencies of a crate stand where it stands first.
fn linked(release: &Release) -> Result<String, Box<dyn Error>> {
    let tree = ["tree", "--locked", "-p", "tailcoat", "-p", "tailor", "--edges", "normal", "--target", &release.target];
    let mut cargo = cargo::command(&tree);
    read(cargo.args(["--prefix", "depth", "--format", "{p}|{l}"]))
}

/// Depth, name, version and licence in a line of the tree.
fn parse_line(line: &str) -> Option<(usize, &str, &str, &str)> {
    let (package, licence) = line.trim_end_matches(" (*)").split_once('|')?;
    let name_at = package.find(|character: char| !character.is_ascii_digit())?;
    let (depth, package) = package.split_at(name_at);
    let mut words = package.split(' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    Some((depth.parse().ok()?, name, version, licence))
}

/// SHA-256 of each crate's archive, by name and version, as Cargo.lock has them.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let mut sums = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))?;
            Some(line.trim_matches('"').to_owned())
        };
        if let (Some(name), Some(version), Some(sum)) = (value("name"), value("version"), value("checksum")) {
            sums.insert((name, version), sum);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_become_graphs() {
        let tree = "0ours v0.1.0 (/src)|MIT\n1lib v0.1.0 (/lib)|MIT\n2a v1.0.0|MIT/Apache-2.0\n3b2 v2.0.0|MIT\n1b2 v2.0.0|MIT (*)\n\n\
                    0other v0.1.0 (/other)|MIT\n1a v1.0.0|MIT/Apache-2.0 (*)\n1c v3.0.0|MIT\n";
        let mut graph = DependencyGraph::new("own");
        for (depth, name, version, _) in tree.lines().filter_map(parse_line) {
            let is_own = matches!(name, "ours" | "lib" | "other");
            graph.add(depth, if is_own { "own".to_owned() } else { reference(name, version) });
        }
        let edges: Vec<String> = graph.edges.iter().map(|(from, to)| format!("{from}: {to:?}")).collect();
        assert_eq!(
            edges,
            [
                "own: {\"pkg:cargo/a@1.0.0\", \"pkg:cargo/b2@2.0.0\", \"pkg:cargo/c@3.0.0\"}",
                "pkg:cargo/a@1.0.0: {\"pkg:cargo/b2@2.0.0\"}",
                "pkg:cargo/b2@2.0.0: {}",
                "pkg:cargo/c@3.0.0: {}",
            ]
        );
        assert_eq!(parse_line("2a v1.0.0|MIT/Apache-2.0 (*)"), Some((2, "a", "1.0.0", "MIT/Apache-2.0")));
    }

    #[test]
    fn checksums_are_read() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"x\"\nchecksum = \"17\"\n\n\
                    [[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n";
        let sums = checksums(lock);
        assert_eq!(sums.len(), 1);
        assert_eq!(sums[&("a".to_owned(), "1.0.0".to_owned())], "17");
    }
}
