//! YAML of resources.

use std::fmt::Write as _;

use serde_json::Value;

/// Resource as a YAML document. Texts are quoted as in JSON, which YAML has in common.
pub(super) fn yaml(value: &Value) -> String {
    let mut text = String::new();
    write_value(&mut text, value, 0, false);
    text
}

fn write_value(text: &mut String, value: &Value, indent: usize, in_list: bool) {
    match value {
        Value::Object(members) if !members.is_empty() => {
            for (at, (name, member)) in members.iter().enumerate() {
                if !(in_list && at == 0) {
                    let _ = write!(text, "{:indent$}", "");
                }
                let _ = write!(text, "{name}:");
                write_member(text, member, indent);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let _ = write!(text, "{:indent$}- ", "");
                match item {
                    Value::Object(members) if !members.is_empty() => write_value(text, item, indent + 2, true),
                    _ => {
                        let _ = writeln!(text, "{}", scalar(item));
                    }
                }
            }
        }
        other => {
            let _ = writeln!(text, "{}", scalar(other));
        }
    }
}

fn write_member(text: &mut String, member: &Value, indent: usize) {
    let is_block = match member {
        Value::Object(members) => !members.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    if is_block {
        text.push('\n');
        write_value(text, member, indent + 2, false);
    } else {
        let _ = writeln!(text, " {}", scalar(member));
    }
}

/// A text is plain if nothing can read it as another type.
fn scalar(value: &Value) -> String {
    let Value::String(text) = value else { return value.to_string() };
    let is_plain = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_./".contains(letter))
        && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text.to_lowercase().as_str());
    if is_plain { text.clone() } else { value.to_string() }
}
