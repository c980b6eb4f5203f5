//! Files of an application that its configuration names.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::Path;

use super::grid;

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
                let examples = grid::examples(expression).into_iter().filter(|_| expression.starts_with('/'));
                names.extend(examples.map(|name| name.trim_start_matches('/').to_owned()));
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
