//! Values about paths, fields, types and statuses.

use std::path::Path;

use wire::http::Status;

use super::parse::{Wrong, not_empty, wrong_type};
use super::rules::parse_regex;
use super::{OptionValue, ValueKind};
use crate::model::*;
use crate::text::kdl::KdlValue;

/// A path pattern of this program; `None` if it is wrong.
pub(crate) fn parse_pattern(text: &str) -> Option<PathPattern> {
    parse_path_pattern(text).ok()
}

pub(super) fn parse_path_pattern(text: &str) -> Result<PathPattern, Wrong> {
    if matches!(text, "*" | "/*") {
        return Ok(PathPattern::Any);
    }
    if let Some(regex) = text.strip_prefix('~') {
        return parse_regex(regex).map(PathPattern::Regex);
    }
    let (stars, fixed) = (text.matches('*').count(), text.trim_matches('*'));
    if stars > 1 || fixed.contains('*') {
        return Err(Wrong::help(
            format!("`{text}` has a `*` in the wrong place"),
            expression_help(text)
                .unwrap_or_else(|| "write one `*`, at the end (`\"/a/*\"`) or at the start (`\"*.css\"`)".to_owned()),
        ));
    }
    if text.starts_with('*') {
        return Ok(PathPattern::Suffix(fixed.to_owned()));
    }
    check_request_path(fixed)?;
    Ok(if stars == 1 { PathPattern::Prefix(fixed.to_owned()) } else { PathPattern::Exact(fixed.to_owned()) })
}

/// Help for what looks like a regular expression, and is not marked as one.
fn expression_help(text: &str) -> Option<String> {
    let is_expression = text.starts_with('^') || text.ends_with('$') || text.contains(['(', '[', '|', '\\']);
    is_expression.then(|| format!("a regular expression begins with `~`: write `#\"~{text}\"#`"))
}

/// Paths are compared after percent-decoding and without dot segments and empty segments: others would never match.
fn check_request_path(path: &str) -> Result<(), Wrong> {
    if !path.starts_with('/') {
        let help = expression_help(path).unwrap_or_else(|| "a path begins with a slash".to_owned());
        return Err(Wrong::help(format!("`{path}` is not a path"), help));
    }
    if path.contains("//") || path.split('/').any(|segment| segment == "." || segment == "..") {
        return Err(Wrong::new(format!("`{path}` matches no request: paths are compared without `//`, `.` and `..`")));
    }
    let is_hex = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    let bytes = path.as_bytes();
    if (0..bytes.len()).any(|at| bytes[at] == b'%' && is_hex(bytes.get(at + 1)) && is_hex(bytes.get(at + 2))) {
        return Err(Wrong::help(
            format!("`{path}` matches no request: paths are compared decoded"),
            "write the character itself instead of `%` and its code",
        ));
    }
    if path.contains('?') || path.contains('#') {
        return Err(Wrong::new(format!("`{path}` matches no request: a path has no query and no fragment")));
    }
    Ok(())
}

pub(super) fn parse_site_path(text: &str) -> Result<String, Wrong> {
    check_request_path(text)?;
    Ok(text.to_owned())
}

pub(super) fn parse_error_page_file(text: &str, directory: &Path) -> Result<ErrorPageFile, Wrong> {
    match text.strip_prefix("file:") {
        Some(file) => Ok(ErrorPageFile::File(directory.join(not_empty(file)?))),
        None if text.starts_with('/') => parse_site_path(text).map(ErrorPageFile::BelowRoot),
        None => Err(Wrong::help(
            format!("`{text}` is neither below the root nor a file elsewhere"),
            format!("write `\"/{text}\"` or `\"file:{text}\"`"),
        )),
    }
}

pub(super) fn parse_file_name(text: &str) -> Result<String, Wrong> {
    if text.contains('/') || matches!(text, "" | "." | "..") {
        return Err(Wrong::help(format!("`{text}` is not the name of a file"), "leave the directory out"));
    }
    Ok(text.to_owned())
}

pub(super) fn parse_field_match(text: &str) -> Result<FieldMatch, Wrong> {
    if text.starts_with(['/', '~']) || text.starts_with('*') && text != "*/*" {
        return parse_path_pattern(text).map(FieldMatch::Path);
    }
    if let Some(prefix) = text.strip_suffix("/*")
        && is_token(prefix)
    {
        return Ok(FieldMatch::Type(format!("{}/", prefix.to_ascii_lowercase())));
    }
    match text.split_once('/') {
        Some((main, sub)) if is_token(main) && is_token(sub) => Ok(FieldMatch::Type(text.to_ascii_lowercase())),
        _ => Err(Wrong::help(
            format!("`{text}` is neither a path nor a content type"),
            "write `\"/a/*\"`, `\"*.css\"`, `\"text/css\"` or `\"image/*\"`",
        )),
    }
}

pub(super) fn parse_field_name(text: &str) -> Result<String, Wrong> {
    if !is_token(text) {
        return Err(Wrong::new(format!("`{text}` is not the name of a header field (RFC 9110, section 5.1)")));
    }
    if OWN_FIELDS.contains(&text.to_ascii_lowercase().as_str()) {
        return Err(Wrong::new(format!("`{text}` is set by the server itself")));
    }
    Ok(text.to_owned())
}

/// Fields of a response that only the server itself may set.
const OWN_FIELDS: &[&str] = &[
    "connection",
    "content-length",
    "content-range",
    "date",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// RFC 9110, section 5.5: visible characters, and spaces between them.
pub(super) fn parse_field_value(text: &str) -> Result<String, Wrong> {
    if text.bytes().any(|byte| byte == 0x7f || byte < b' ' && byte != b'\t') {
        return Err(Wrong::new("the value of a field has no control characters"));
    }
    Ok(text.trim_matches([' ', '\t']).to_owned())
}

/// RFC 9110, section 5.6.2.
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

pub(super) fn parse_extension(text: &str) -> Result<String, Wrong> {
    let extension = text.strip_prefix("*.").or(text.strip_prefix('.')).unwrap_or(text);
    if extension != text || extension.is_empty() || extension.contains(['/', '.']) {
        return Err(Wrong::help(
            format!("`{text}` is not an extension"),
            "write what follows the last dot of the names: `\"md\"`",
        ));
    }
    Ok(extension.to_ascii_lowercase())
}

pub(super) fn parse_media_type(text: &str) -> Result<String, Wrong> {
    let value = parse_field_value(text)?;
    let essence = value.split(';').next().unwrap_or_default().trim_end();
    match essence.split_once('/') {
        Some((main, sub)) if is_token(main) && is_token(sub) && value.is_ascii() => Ok(value),
        _ => Err(Wrong::help(format!("`{text}` is not a content type"), "write, for example, `\"text/markdown\"`")),
    }
}

pub(super) fn parse_status(
    kind: ValueKind,
    value: &KdlValue,
    is_fit: impl Fn(u16) -> bool,
) -> Result<OptionValue, Wrong> {
    let KdlValue::Integer(code) = value else { return Err(wrong_type(kind, value)) };
    u16::try_from(*code)
        .ok()
        .filter(|code| is_fit(*code))
        .and_then(Status::new)
        .map(OptionValue::Status)
        .ok_or_else(|| Wrong::help(format!("{code} can't be used here"), format!("expected {}", kind.describe())))
}

pub(super) fn parse_status_range(kind: ValueKind, value: &KdlValue) -> Result<OptionValue, Wrong> {
    let (from, to) = match value {
        KdlValue::Integer(code) => {
            let code = u16::try_from(*code).unwrap_or(0);
            (code, code)
        }
        KdlValue::String(text) => match text.as_str() {
            "4xx" => (400, 499),
            "5xx" => (500, 599),
            text => {
                let (from, to) = text.split_once('-').unwrap_or((text, text));
                (from.parse().unwrap_or(0), to.parse().unwrap_or(0))
            }
        },
        _ => return Err(wrong_type(kind, value)),
    };
    if (400..=599).contains(&from) && (from..=599).contains(&to) {
        return Ok(OptionValue::StatusRange((from, to)));
    }
    Err(Wrong::help("this is no error status", format!("expected {}", kind.describe())))
}
