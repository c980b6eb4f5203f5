//! Files of an application that its configuration names, and its certificates.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::Path;

use super::examples;

/// Scripts of an application that its rewrites name, and files that they leave alone.
pub(super) fn scripts(text: &str, roots: &BTreeSet<String>) -> Result<(), Box<dyn Error>> {
    let is_fixed = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    let mut names = BTreeSet::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().map(|word| word.trim_matches('"')).collect();
        match words.as_slice() {
            ["RewriteRule", _, target, ..] => {
                let target = target.split_once('}').map_or(*target, |(_, rest)| rest);
                let name = target.split('?').next().unwrap_or_default().trim_start_matches('/');
                names.extend(Some(name.to_owned()).filter(|name| name.ends_with(".php")));
            }
            ["RewriteCond", "%{REQUEST_FILENAME}", expression, ..] => {
                let expression = expression.trim_start_matches('!');
                let examples = examples::examples(expression).into_iter().filter(|_| expression.starts_with('/'));
                names.extend(examples.map(|name| name.trim_start_matches('/').to_owned()));
            }
            // Directories in which files are looked for first.
            ["RewriteCond", subject, "-f", ..] => {
                let inner =
                    subject.strip_prefix("%{DOCUMENT_ROOT}/").and_then(|rest| rest.strip_suffix("%{REQUEST_URI}"));
                names.extend(inner.map(|directory| format!("{}/page.html", directory.trim_end_matches('/'))));
            }
            _ => {}
        }
    }
    for name in names.iter().filter(|name| is_fixed(name) && !name.ends_with('/') && name.contains('.')) {
        for path in roots.iter().map(|root| Path::new(root).join(name)).filter(|path| !path.exists()) {
            fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
            fs::write(&path, format!("FILE {}\n", path.display()))?;
        }
    }
    Ok(())
}

/// A Caddyfile whose sites use no TLS: their certificates could not be obtained here.
pub(super) fn without_tls(text: &str) -> String {
    let mut result = String::new();
    let mut depth = 0_i32;
    let mut skipped = None;
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        let opens = trimmed.ends_with('{');
        let closes = trimmed == "}";
        if depth == 1 && (trimmed == "tls" || trimmed.starts_with("tls ")) && skipped.is_none() {
            skipped = opens.then_some(depth);
        } else if skipped.is_none() {
            let is_address = depth == 0
                && !trimmed.is_empty()
                && !trimmed.starts_with(['#', '(', '&', '{', '}', '@'])
                && !trimmed.starts_with("import ")
                && (opens || trimmed.ends_with(',') || index == 0);
            let line = if is_address { address_line(trimmed) } else { line.to_owned() };
            result.push_str(&line);
            result.push('\n');
        }
        depth += i32::from(opens) - i32::from(closes);
        if closes && skipped == Some(depth) {
            skipped = None;
        }
    }
    result
}

fn address_line(line: &str) -> String {
    let words = line.split_whitespace().map(|word| {
        let (name, comma) = word.strip_suffix(',').map_or((word, ""), |name| (name, ","));
        match name {
            "{" => "{".to_owned(),
            name if name.starts_with("http://") || name.starts_with(':') => format!("{name}{comma}"),
            name => {
                let name = name.trim_start_matches("https://").trim_end_matches(":443");
                format!("http://{name}{comma}")
            }
        }
    });
    words.collect::<Vec<_>>().join(" ")
}
