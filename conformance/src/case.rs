//! Case files: text to cases, with their families expanded.

use std::fmt;
use std::path::Path;

use crate::expect::Expect;
use crate::text::{Variables, escape, unescape};

/// One input and what a server must make of it.
#[derive(Clone, Debug)]
pub struct Case {
    /// File stem, name, and the values of a family: `chunks/size-not-hex b=\x00`.
    pub name: String,
    /// The sections that the expectation is argued from: `9112 6.1`.
    pub rfc: String,
    /// The public corpora that test the same.
    pub source: String,
    /// The bytes to send.
    pub input: Vec<u8>,
    /// Outcomes that the RFC allows.
    pub expect: Expect,
    /// Outcomes that Tailcoat chose, where the RFC allows several.
    pub tailcoat: Option<Expect>,
}

/// A fault in a case file, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// File and line.
    pub place: String,
    /// Description of the fault.
    pub message: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.place, self.message)
    }
}

impl std::error::Error for ParseError {}

/// All cases of the `.cases` files in a folder, by file name.
pub fn load(folder: &Path) -> Result<Vec<Case>, ParseError> {
    let at = |path: &Path, message: String| ParseError { place: path.display().to_string(), message };
    let entries = std::fs::read_dir(folder).map_err(|error| at(folder, error.to_string()))?;
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "cases"));
    paths.sort();
    let mut cases = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).map_err(|error| at(&path, error.to_string()))?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        cases.extend(parse(&stem, &text)?);
    }
    Ok(cases)
}

/// The cases of one file. Keys before the first case are defaults for all.
pub fn parse(stem: &str, text: &str) -> Result<Vec<Case>, ParseError> {
    let mut cases = Vec::new();
    let mut defaults = CaseDraft::default();
    let mut current: Option<CaseDraft> = None;
    for (index, line) in text.lines().enumerate() {
        let at = |message: String| ParseError { place: format!("{stem}.cases:{}", index + 1), message };
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        if line.ends_with([' ', '\t']) {
            return Err(at("white space at the end of the line: write \\s or \\t".into()));
        }
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            if let Some(draft) = current.take() {
                draft.finish(stem, &mut cases)?;
            }
            current = Some(CaseDraft { name: name.into(), line: index + 1, ..defaults.clone() });
        } else {
            current.as_mut().unwrap_or(&mut defaults).read_line(line).map_err(at)?;
        }
    }
    if let Some(draft) = current {
        draft.finish(stem, &mut cases)?;
    }
    Ok(cases)
}

/// A case as written, before its family is expanded.
#[derive(Clone, Debug, Default)]
struct CaseDraft {
    name: String,
    line: usize,
    rfc: String,
    source: String,
    expect: Option<Expect>,
    tailcoat: Option<Expect>,
    /// `let` lines (one value) and `each` lines (one or more): name and values, as written.
    variables: Vec<(String, Vec<String>)>,
    /// Pieces of the input, and whether CRLF follows.
    input: Vec<(String, bool)>,
}

impl CaseDraft {
    fn read_line(&mut self, line: &str) -> Result<(), String> {
        if let Some(text) = line.strip_prefix('>') {
            self.input.push((text.strip_prefix(' ').unwrap_or(text).into(), true));
            return Ok(());
        }
        if let Some(text) = line.strip_prefix("~ ") {
            self.input.push((text.into(), false));
            return Ok(());
        }
        let (key, value) = line.split_once(": ").ok_or("neither `[name]`, `key: value`, `> line` nor `~ bytes`")?;
        match key {
            "rfc" => self.rfc = value.into(),
            "from" => self.source = value.into(),
            "expect" => {
                self.expect = Some(Expect::parse(value)?);
                self.tailcoat = None;
            }
            "tailcoat" => self.tailcoat = Some(Expect::parse(value)?),
            "why" => {}
            _ => {
                if let Some(name) = key.strip_prefix("let ") {
                    self.variables.push((name.into(), vec![value.into()]));
                } else if let Some(name) = key.strip_prefix("each ") {
                    self.variables.push((name.into(), read_values(value)));
                } else {
                    return Err(format!("unknown key {key}"));
                }
            }
        }
        Ok(())
    }

    /// Adds the case, or each of its family.
    fn finish(self, stem: &str, cases: &mut Vec<Case>) -> Result<(), ParseError> {
        let at = |message: String| ParseError { place: format!("{stem}.cases:{}", self.line), message };
        let expect = self.expect.clone().ok_or_else(|| at("no `expect`".into()))?;
        if self.rfc.is_empty() || self.source.is_empty() {
            return Err(at("no `rfc` or no `from`".into()));
        }
        let members: usize = self.variables.iter().map(|(_, values)| values.len()).product();
        for member in 0..members {
            let mut variables = Variables::new();
            let mut name = format!("{stem}/{}", self.name);
            let mut index = member;
            for (variable, values) in &self.variables {
                let value = unescape(&values[index % values.len()], &variables).map_err(at)?;
                index /= values.len();
                if values.len() > 1 {
                    name.push_str(&format!(" {variable}={}", escape(&value)));
                }
                variables.insert(variable.clone(), value);
            }
            let mut input = Vec::new();
            for (text, line_end) in &self.input {
                input.extend(unescape(text, &variables).map_err(at)?);
                if *line_end {
                    input.extend(b"\r\n");
                }
            }
            cases.push(Case {
                name,
                rfc: self.rfc.clone(),
                source: self.source.clone(),
                input,
                expect: expect.clone(),
                tailcoat: self.tailcoat.clone(),
            });
        }
        Ok(())
    }
}

/// The values of an `each` line: separated by ` | `; `\x00..\x1f` is each byte of that range.
fn read_values(text: &str) -> Vec<String> {
    let byte = |escape: &str| u8::from_str_radix(escape.strip_prefix("\\x")?, 16).ok();
    let mut values = Vec::new();
    for item in text.split(" | ") {
        match item.split_once("..").map(|(first, last)| (byte(first), byte(last))) {
            Some((Some(first), Some(last))) => values.extend((first..=last).map(|byte| format!("\\x{byte:02x}"))),
            _ => values.push(item.into()),
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{load, parse};

    #[test]
    fn a_family_is_expanded() {
        let text = "rfc: 9112 5\nfrom: ours\nexpect: 2xx\n\n[one]\neach b: \\x00..\\x02 | ab\neach c: x | y\nlet body: {b}!\n\
                    > A{b}{c}\n>\n~ {body}{#body}\n[two]\nexpect: 400 close\ntailcoat: 431 close\n~ x\n";
        let cases = parse("file", text).expect("a valid file");
        assert_eq!(cases.len(), 9);
        assert_eq!(cases[0].name, "file/one b=\\x00 c=x");
        assert_eq!(cases[0].input, b"A\0x\r\n\r\n\0!2");
        assert_eq!(cases[7].name, "file/one b=ab c=y");
        assert_eq!(cases[7].input, b"Aaby\r\n\r\nab!3");
        assert_eq!(cases[8].input, b"x");
        assert!(cases[8].tailcoat.is_some());
    }

    #[test]
    fn the_collection_is_well_formed() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("http1");
        let cases = load(&folder).expect("well-formed files");
        assert!(cases.len() > 1_600);
        let mut names: Vec<_> = cases.iter().map(|case| &case.name).collect();
        names.sort();
        for pair in names.windows(2) {
            assert_ne!(pair[0], pair[1], "two cases of one name");
        }
        for case in &cases {
            assert!(case.rfc.starts_with(|digit: char| digit.is_ascii_digit()), "{}: {}", case.name, case.rfc);
        }
    }

    #[test]
    fn mistakes_have_a_place() {
        for (text, place) in [
            ("[a]\n~ x\n", "file.cases:1"),
            ("rfc: 1\nfrom: b\nexpect: 2xx\nwhat: c\n", "file.cases:4"),
            ("rfc: 1\nfrom: b\nexpect: 2xx\n[a]\n> x \n", "file.cases:5"),
            ("expect: 9\n", "file.cases:1"),
        ] {
            assert_eq!(parse("file", text).expect_err("a mistake").place, place, "{text}");
        }
    }
}
