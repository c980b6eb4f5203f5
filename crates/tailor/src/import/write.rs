//! Writer of scenario files, and the encoding of texts in them.

use std::fmt::Write;

use super::{Imported, ImportedCapture, ImportedRequest, ImportedStep};

/// Formats a scenario file.
pub(super) fn to_kdl(imported: &Imported, source: &str) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write_file(&mut out, imported, source);
    out
}

fn write_file(out: &mut String, imported: &Imported, source: &str) -> std::fmt::Result {
    let one_line = |text: &str| text.replace(|character: char| character.is_control(), " ");
    let server = imported.server.as_deref().unwrap_or("http://SERVER");
    let words = [&imported.arguments[..], &[server.to_owned()]].concat();
    writeln!(out, "// Imported from {}. Run it with:", one_line(source))?;
    writeln!(out, "// tailor bench --scenario FILE {}", one_line(&crate::output::shell_words(&words)))?;
    for part in &imported.untranslated {
        let line = part.line.map_or(String::new(), |line| format!(" line {line}:"));
        writeln!(out, "// not translated:{line} {}", one_line(&part.text))?;
    }
    for scenario in &imported.scenarios {
        writeln!(out, "scenario {} {{", quote(&scenario.name))?;
        for step in &scenario.steps {
            match step {
                ImportedStep::Think(min, max) if min == max => writeln!(out, "    think \"{}\"", seconds(*min))?,
                ImportedStep::Think(min, max) => {
                    writeln!(out, "    think \"{}\" \"{}\"", seconds(*min), seconds(*max))?
                }
                ImportedStep::Request(request) => write_request(out, request)?,
            }
        }
        writeln!(out, "}}")?;
    }
    Ok(())
}

fn write_request(out: &mut String, request: &ImportedRequest) -> std::fmt::Result {
    let mut lines = Vec::new();
    for (name, value) in &request.fields {
        lines.push(format!("header {} {}", quote(name), quote(value)));
    }
    if let Some(body) = &request.body {
        lines.push(format!("body {}", quote(body)));
    }
    let statuses: Vec<String> = request.statuses.iter().map(u16::to_string).collect();
    let mut expect = String::new();
    if !statuses.is_empty() {
        write!(expect, " status=\"{}\"", statuses.join(","))?;
    }
    if let Some(length) = request.length {
        write!(expect, " length={length}")?;
    }
    if let Some(header) = &request.header {
        write!(expect, " header={}", quote(header))?;
    }
    if !expect.is_empty() {
        lines.push(format!("expect{expect}"));
    }
    lines.extend(request.contains.iter().map(|text| format!("expect contains={}", quote(text))));
    for (name, capture) in &request.captures {
        lines.push(match capture {
            ImportedCapture::Json(pointer) => format!("capture {} json={}", quote(name), quote(pointer)),
            ImportedCapture::Header(field) => format!("capture {} header={}", quote(name), quote(field)),
        });
    }
    write!(out, "    {} {}", request.method.to_ascii_lowercase(), quote(&request.target))?;
    match lines.as_slice() {
        [] => writeln!(out),
        lines => writeln!(out, " {{\n        {}\n    }}", lines.join("\n        ")),
    }
}

fn seconds(seconds: f64) -> String {
    // Milliseconds are the precision of a user.
    format!("{}s", (seconds * 1000.0).round() / 1000.0)
}

/// Quotes a text for KDL.
fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            character if character.is_control() || ('\u{2028}'..='\u{2069}').contains(&character) => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(character));
            }
            character => out.push(character),
        }
    }
    out + "\""
}

/// Writes a text so that a template takes it literally.
pub(super) fn literal(text: &str) -> String {
    text.replace("${", "$${")
}

/// Converts the literal texts of a template with `text`, and the names of its variables with `variable`.
pub(super) fn map_template(
    template: &str,
    text: impl Fn(&str, &mut String),
    variable: impl Fn(&str, &mut String),
) -> String {
    let (mut out, mut rest) = (String::new(), template);
    while let Some((before, after)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            text(&format!("{before}${{"), &mut out);
            rest = after;
            continue;
        }
        text(before, &mut out);
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        variable(name, &mut out);
        rest = after;
    }
    text(rest, &mut out);
    out
}

/// Percent-encodes the bytes of a target that a request line cannot have. Variables stay.
pub(super) fn encode_target(template: &str) -> String {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/?:@!$&'()*+,;=%[]#".contains(&byte);
    encode(template, is_legal, |name, out| *out += &format!("${{{name}}}"))
}

/// Percent-encodes a value of a form. Variables are encoded when their value is known.
pub(super) fn encode_form(template: &str) -> String {
    let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    encode(template, is_legal, |name, out| match name {
        "run" | "random" => *out += &format!("${{{name}}}"),
        name => *out += &format!("${{{}:url}}", name.trim_end_matches(":url")),
    })
}

fn encode(template: &str, is_legal: impl Fn(u8) -> bool, variable: impl Fn(&str, &mut String)) -> String {
    let text = |text: &str, out: &mut String| {
        for byte in text.bytes() {
            match is_legal(byte) {
                true => out.push(char::from(byte)),
                false => *out += &format!("%{byte:02X}"),
            }
        }
    };
    map_template(template, text, variable)
}

/// Quotes a text for JSON. Variables stay.
pub(super) fn json_text(template: &str) -> String {
    let text = |text: &str, out: &mut String| {
        let quoted = serde_json::Value::from(text).to_string();
        *out += &literal(&quoted[1..quoted.len() - 1]);
    };
    format!("\"{}\"", map_template(template, text, |name, out| *out += &format!("${{{name}}}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts() {
        assert_eq!(quote("a\"\\\n\u{1}é"), "\"a\\\"\\\\\\n\\u{1}é\"");
        assert_eq!(literal("a${b}$"), "a$${b}$");
        for (template, target, form, json) in [
            ("/a b", "/a%20b", "%2Fa%20b", "\"/a b\""),
            ("${run}", "${run}", "${run}", "\"${run}\""),
            ("é\"${id}", "%C3%A9%22${id}", "%C3%A9%22${id:url}", "\"é\\\"${id}\""),
            ("$${x}", "$%7Bx%7D", "%24%7Bx%7D", "\"$${x}\""),
        ] {
            assert_eq!((&*encode_target(template), &*encode_form(template)), (target, form), "{template}");
            assert_eq!(json_text(template), json, "{template}");
        }
    }
}
