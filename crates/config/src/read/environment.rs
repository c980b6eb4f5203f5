//! Environment variables in values: `{env.NAME}`.

use crate::text::kdl::KdlValue;
use crate::value::{ValueKind, Wrong};

/// Beginning of the placeholder.
const START: &str = "{env.";

/// The value with environment variables in their places; `None` if it has none, or if its kind reads them itself. A value
/// that is a single variable with digits becomes a number.
pub(crate) fn replaced(kind: ValueKind, value: &KdlValue) -> Result<Option<KdlValue>, Wrong> {
    let Some(text) = value.as_string().filter(|text| text.contains(START) && !reads_variables(kind)) else {
        return Ok(None);
    };
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(START) {
        let Some((name, after)) = after.split_once('}') else {
            return Err(Wrong::help(format!("`{text}` has a brace that is not closed"), "write `{env.NAME}`"));
        };
        let Ok(value) = std::env::var(name) else {
            let help = "set it to a text before the start, such as with `Environment=` of systemd";
            return Err(Wrong::help(format!("the environment has no variable `{name}`"), help));
        };
        if value.contains(['{', '}']) || value.contains(char::is_control) {
            return Err(Wrong::help(
                format!("the environment variable `{name}` has a brace or a control character"),
                "give it another value; for passwords and keys, use `secret`",
            ));
        }
        out.push_str(before);
        out.push_str(&value);
        rest = after;
    }
    out.push_str(rest);
    let is_alone = text.starts_with(START) && text.find('}') == Some(text.len() - 1);
    Ok(Some(match out.parse() {
        Ok(number) if is_alone => KdlValue::Integer(number),
        _ => KdlValue::String(out),
    }))
}

/// Returns `true` for values whose own syntax has variables.
fn reads_variables(kind: ValueKind) -> bool {
    matches!(
        kind,
        ValueKind::FieldTemplate(_)
            | ValueKind::Condition(_)
            | ValueKind::Expression(_)
            | ValueKind::RedirectTarget
            | ValueKind::RewriteTarget
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_in_values() {
        // Variables that each process of Cargo has.
        let version = env!("CARGO_PKG_VERSION");
        let check = |text: &str, expect: Result<Option<&str>, &str>| {
            let found = replaced(ValueKind::Text, &KdlValue::String(text.into()));
            let found = found.map(|value| value.map(|value| value.as_string().unwrap_or_default().to_owned()));
            let expect = expect.map(|value| value.map(str::to_owned));
            assert_eq!(found.map_err(|wrong| wrong.message), expect.map_err(str::to_owned), "{text}");
        };
        check("a", Ok(None));
        check("{host}", Ok(None));
        check("v{env.CARGO_PKG_VERSION}!", Ok(Some(&format!("v{version}!"))));
        check("{env.TAILCOAT_NONE}", Err("the environment has no variable `TAILCOAT_NONE`"));
        check("{env.A", Err("`{env.A` has a brace that is not closed"));
    }
}
