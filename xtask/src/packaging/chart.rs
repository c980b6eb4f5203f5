//! The Helm chart: its templates use plain values and `with` alone, so that they are rendered here as Helm does it.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;

const CHART: &str = "packaging/kubernetes/chart";

/// Plain manifests that are the rendered chart.
pub(super) const PLAIN: &str = "packaging/kubernetes/gateway.yaml";

/// Namespace of the plain manifests.
const NAMESPACE: &str = "tailcoat-system";

/// The chart with its default values, as one file for `kubectl apply`.
pub(crate) fn render() -> Result<String, Box<dyn Error>> {
    render_with(&[])
}

/// The chart as one file, with these values in place of the defaults.
///
/// # Errors
/// A name is no value, or a template cannot be rendered.
pub(super) fn render_with(others: &[(&str, &str)]) -> Result<String, Box<dyn Error>> {
    let mut values = values(&fs::read_to_string(format!("{CHART}/values.yaml"))?);
    for (name, value) in others {
        let default = values.get_mut(*name).ok_or_else(|| format!("{name} is no value"))?;
        (*value).clone_into(default);
    }
    let mut text = format!(
        "# The Helm chart of packaging/kubernetes/chart with its default values; `cargo xtask packaging --write` makes this file.\n\
         apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n"
    );
    for folder in ["crds", "templates"] {
        let mut files: Vec<_> = fs::read_dir(Path::new(CHART).join(folder))?.collect::<Result<_, _>>()?;
        files.sort_by_key(fs::DirEntry::path);
        for file in files {
            text.push_str("---\n");
            let template = fs::read_to_string(file.path())?;
            text.push_str(&fill(&template, &values).map_err(|error| format!("{}: {error}", file.path().display()))?);
        }
    }
    Ok(text)
}

/// Values by their path, such as `.Values.servers.cpu`.
fn values(text: &str) -> BTreeMap<String, String> {
    let mut values = BTreeMap::from([(".Release.Namespace".to_owned(), NAMESPACE.to_owned())]);
    let mut group = String::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#')) {
        let Some((name, value)) = line.trim().split_once(':') else { continue };
        if !line.starts_with(' ') {
            group.clear();
        }
        if value.is_empty() {
            name.clone_into(&mut group);
            continue;
        }
        let path = if group.is_empty() { name.to_owned() } else { format!("{group}.{name}") };
        values.insert(format!(".Values.{path}"), value.trim().trim_matches('"').to_owned());
    }
    values
}

fn fill(template: &str, values: &BTreeMap<String, String>) -> Result<String, String> {
    let mut text = String::new();
    // Value of the `with` whose block this is.
    let mut block: Option<&str> = None;
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (expression, after) = after.split_once("}}").ok_or("an expression has no end")?;
        let value = |name: &str| values.get(name).ok_or_else(|| format!("{name} is no value"));
        let is_left_out = block == Some("");
        let (before, expression) = match expression.strip_prefix('-') {
            Some(expression) => (before.trim_end(), expression.trim()),
            None => (before, expression.trim()),
        };
        if !is_left_out {
            text.push_str(before);
        }
        match (expression, block) {
            ("end", Some(_)) => block = None,
            _ if is_left_out => {}
            (".", Some(value)) => text.push_str(value),
            _ => match (expression.strip_prefix("with "), block) {
                (Some(_), Some(_)) => return Err("a `with` is in another".to_owned()),
                (Some(name), None) => block = Some(value(name.trim())?),
                (None, _) => text.push_str(value(expression)?),
            },
        }
        rest = after;
    }
    if block.is_some() {
        return Err("a `with` has no end".to_owned());
    }
    text.push_str(rest);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates() {
        let values = values("a: 1\nb:\n  # Text.\n  c: x\nd: y\nempty: \"\"\nquoted: \"z\"\n");
        for (template, expect) in [
            ("{{ .Values.a }}{{ .Values.b.c }}-{{.Values.d}}", Ok("1x-y".to_owned())),
            ("{{ .Release.Namespace }}", Ok(NAMESPACE.to_owned())),
            ("plain", Ok("plain".to_owned())),
            ("{{ .Values.quoted }}", Ok("z".to_owned())),
            ("[\n  {{- with .Values.a }}\n  - {{ . }}{{ .Values.d }}\n  {{- end }}\n]", Ok("[\n  - 1y\n]".to_owned())),
            ("[\n  {{- with .Values.empty }}\n  - {{ . }}{{ .Values.d }}\n  {{- end }}\n]", Ok("[\n]".to_owned())),
            ("{{ with .Values.a }}", Err("a `with` has no end".to_owned())),
            ("{{ . }}", Err(". is no value".to_owned())),
            ("{{ end }}", Err("end is no value".to_owned())),
            ("{{ .Values.none }}", Err(".Values.none is no value".to_owned())),
            ("{{ .Values.a", Err("an expression has no end".to_owned())),
        ] {
            assert_eq!(fill(template, &values), expect, "{template}");
        }
    }
}
