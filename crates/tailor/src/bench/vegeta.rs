//! Targets of vegeta, in both of its formats: `METHOD URL` with header fields and `@FILE`, or an object of JSON a line.

use std::collections::BTreeMap;
use std::path::Path;

use base64ct::{Base64, Encoding};
use serde::Deserialize;

use crate::input::{self, FILE_BYTES_MAX};

/// Request of a list of targets.
#[derive(Debug, Default, PartialEq)]
pub(super) struct VegetaTarget {
    pub(super) method: String,
    pub(super) url: String,
    pub(super) fields: Vec<(String, String)>,
    pub(super) content: Vec<u8>,
}

#[derive(Deserialize)]
struct JsonTarget {
    method: String,
    url: String,
    #[serde(default)]
    header: BTreeMap<String, Vec<String>>,
    /// Base64.
    #[serde(default)]
    body: String,
}

/// Reads targets from a file; `-` is standard input.
pub(super) fn read(path: &Path) -> Result<Vec<VegetaTarget>, String> {
    let error = |reason: String| format!("{}: {reason}", path.display());
    let text = match path.as_os_str() == "-" {
        true => {
            let content = input::read_bounded(std::io::stdin(), FILE_BYTES_MAX).map_err(error)?;
            String::from_utf8(content).map_err(|reason| error(reason.to_string()))?
        }
        false => input::read_text(path)?,
    };
    parse(&text, |name| input::read(Path::new(name), FILE_BYTES_MAX)).map_err(error)
}

/// Parses targets. `read_file` reads the content that a target names.
fn parse(text: &str, read_file: impl Fn(&str) -> Result<Vec<u8>, String>) -> Result<Vec<VegetaTarget>, String> {
    let mut targets: Vec<VegetaTarget> = Vec::new();
    // A header field belongs to the target above it, up to the next empty line.
    let mut is_open = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let result = match line.as_bytes().first() {
            None => {
                is_open = false;
                Ok(())
            }
            Some(b'#') => Ok(()),
            Some(b'{') => parse_json(line).map(|target| {
                targets.push(target);
                is_open = false;
            }),
            Some(_) => match (parse_request(line), targets.last_mut().filter(|_| is_open)) {
                (Some(target), _) => {
                    targets.push(target);
                    is_open = true;
                    Ok(())
                }
                (None, Some(target)) => add_line(target, line, &read_file),
                (None, None) => Err(format!("`{line}` is not METHOD URL, such as GET http://127.0.0.1:8080/")),
            },
        };
        result.map_err(|error| format!("line {}: {error}", index + 1))?;
    }
    if targets.is_empty() { Err("there is no target".to_owned()) } else { Ok(targets) }
}

fn parse_json(line: &str) -> Result<VegetaTarget, String> {
    let JsonTarget { method, url, header, body } =
        serde_json::from_str(line).map_err(|error| format!("not a target: {error}"))?;
    let fields =
        header.into_iter().flat_map(|(name, values)| values.into_iter().map(move |value| (name.clone(), value)));
    let content = Base64::decode_vec(&body).map_err(|_| "the body is not base64".to_owned())?;
    Ok(VegetaTarget { method, url, fields: fields.collect(), content })
}

/// Parses `METHOD URL`.
fn parse_request(line: &str) -> Option<VegetaTarget> {
    let (method, url) = line.split_once(' ')?;
    let is_request = !method.is_empty()
        && method.bytes().all(|byte| byte.is_ascii_uppercase())
        && (url.contains("://") || url.trim_start().starts_with('/'));
    is_request.then(|| VegetaTarget {
        method: method.to_owned(),
        url: url.trim().to_owned(),
        ..VegetaTarget::default()
    })
}

/// Adds a header field, or the content of a file.
fn add_line(
    target: &mut VegetaTarget,
    line: &str,
    read_file: impl Fn(&str) -> Result<Vec<u8>, String>,
) -> Result<(), String> {
    if let Some(name) = line.strip_prefix('@') {
        target.content = read_file(name)?;
        return Ok(());
    }
    let field = super::plan::parse_field(line).ok_or_else(|| format!("`{line}` is not a field like `Name: value`"))?;
    target.fields.push(field);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_here(text: &str) -> Result<Vec<VegetaTarget>, String> {
        parse(text, |name| if name == "body.json" { Ok(b"{}".to_vec()) } else { Err(format!("{name}: none")) })
    }

    #[test]
    fn targets() {
        let target = |method: &str, url: &str, fields: &[(&str, &str)], content: &[u8]| VegetaTarget {
            method: method.into(),
            url: url.into(),
            fields: fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            content: content.to_vec(),
        };
        let text = "# two\nGET http://a/\nX-A: 1\nX-A: 2\n\nPOST http://a/b\nContent-Type: application/json\n@body.json\nHEAD http://a/c\n";
        let expect = [
            target("GET", "http://a/", &[("X-A", "1"), ("X-A", "2")], b""),
            target("POST", "http://a/b", &[("Content-Type", "application/json")], b"{}"),
            target("HEAD", "http://a/c", &[], b""),
        ];
        assert_eq!(parse_here(text).unwrap(), expect);
        let text = "{\"method\": \"PUT\", \"url\": \"http://a/\", \"body\": \"aGk=\", \"header\": {\"A\": [\"1\", \"2\"]}}\n{\"method\":\"GET\",\"url\":\"http://a/\"}\n";
        let expect =
            [target("PUT", "http://a/", &[("A", "1"), ("A", "2")], b"hi"), target("GET", "http://a/", &[], b"")];
        assert_eq!(parse_here(text).unwrap(), expect);
        for (text, expect) in [
            ("", "no target"),
            ("X-A: 1", "line 1: `X-A: 1` is not METHOD URL"),
            ("GET http://a/\n\nX-A: 1", "line 3: `X-A: 1` is not METHOD URL"),
            ("GET http://a/\nX A", "line 2: `X A` is not a field"),
            ("GET http://a/\n@none", "line 2: none: none"),
            ("{\"method\": 1}", "line 1: not a target"),
            ("{\"method\":\"GET\",\"url\":\"http://a/\",\"body\":\"*\"}", "line 1: the body is not base64"),
        ] {
            let error = parse_here(text).unwrap_err();
            assert!(error.contains(expect), "{text}: {error}");
        }
    }
}
