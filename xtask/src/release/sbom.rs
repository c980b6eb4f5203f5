//! Crates that are linked into the programs, as CycloneDX 1.5 (JSON): version, licence, source and checksum of each.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use super::{Release, read};

/// Path of the file.
pub(super) fn file(release: &Release) -> PathBuf {
    release.directory.join(format!("tailcoat-{}.cdx.json", release.version))
}

/// Writes it.
pub(super) fn write(release: &Release) -> Result<PathBuf, Box<dyn Error>> {
    let sums = checksums(&fs::read_to_string("Cargo.lock")?);
    let mut components: BTreeMap<String, Value> = BTreeMap::new();
    for line in linked(release)? {
        let Some((package, licence)) = line.split_once('|') else { continue };
        let mut words = package.split(' ');
        let (Some(name), Some(version)) = (words.next(), words.next().and_then(|word| word.strip_prefix('v'))) else {
            continue;
        };
        // Crates of this repository have no checksum: they are the release.
        if let Some(sum) = sums.get(&(name.to_owned(), version.to_owned())) {
            components.insert(format!("{name} {version}"), component(name, version, licence, sum));
        }
    }
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "tailcoat",
                "version": release.version,
                "licenses": [{ "expression": env!("CARGO_PKG_LICENSE") }],
                "properties": [{ "name": "target", "value": release.target }],
            },
        },
        "components": components.into_values().collect::<Vec<_>>(),
    });
    let file = file(release);
    fs::write(&file, serde_json::to_string_pretty(&document)? + "\n")?;
    Ok(file)
}

fn component(name: &str, version: &str, licence: &str, sum: &str) -> Value {
    json!({
        "type": "library",
        "bom-ref": format!("pkg:cargo/{name}@{version}"),
        "name": name,
        "version": version,
        "purl": format!("pkg:cargo/{name}@{version}"),
        "licenses": [{ "expression": licence.replace('/', " OR ") }],
        "hashes": [{ "alg": "SHA-256", "content": sum }],
    })
}

/// A line `name version (source)|licence` for each crate that the programs are linked with.
fn linked(release: &Release) -> Result<BTreeSet<String>, Box<dyn Error>> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args([
        "tree",
        "--locked",
        "-p",
        "tailcoat",
        "-p",
        "tailor",
        "--edges",
        "normal",
        "--target",
        &release.target,
    ]);
    let tree = read(cargo.args(["--prefix", "none", "--format", "{p}|{l}"]))?;
    Ok(tree.lines().map(|line| line.trim_end_matches(" (*)").to_owned()).collect())
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
    fn checksums_are_read() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"x\"\nchecksum = \"17\"\n\n\
                    [[package]]\nname = \"ours\"\nversion = \"0.1.0\"\n";
        let sums = checksums(lock);
        assert_eq!(sums.len(), 1);
        assert_eq!(sums[&("a".to_owned(), "1.0.0".to_owned())], "17");
    }
}
