//! The nearest valid name for a wrong one.

use crate::value::one_of;

/// Maximum number of names in a list; longer lists are not read.
const LISTED_MAX: usize = 12;

/// The nearest of these names, if one is near enough to be what was meant.
pub(crate) fn nearest<'a>(wrong: &str, names: &[&'a str]) -> Option<&'a str> {
    let wrong = wrong.to_ascii_lowercase().replace('_', "-");
    // Long texts are no misspelt names, and the distance takes the product of the lengths.
    if wrong.len() > 64 {
        return None;
    }
    names
        .iter()
        .map(|name| (strsim::osa_distance(&wrong, name), *name))
        .filter(|(distance, name)| *distance <= name.len().max(3) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Help for a wrong name: the nearest, or else all if they are few.
pub(crate) fn did_you_mean(wrong: &str, names: &[&str]) -> String {
    match nearest(wrong, names) {
        Some(name) => format!("did you mean `{name}`?"),
        None if names.len() <= LISTED_MAX => format!("expected {}", one_of(names)),
        None => format!("expected one of {} names, see `tailcoat reference`", names.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_what_was_meant() {
        let names = ["root", "index", "browse", "cache-control", "idle-timeout", "error-page"];
        let check = |wrong: &str, expect: Option<&str>| assert_eq!(nearest(wrong, &names), expect, "{wrong}");
        check("rot", Some("root"));
        check("idnex", Some("index"));
        check("Browse", Some("browse"));
        check("cache_control", Some("cache-control"));
        check("idletimeout", Some("idle-timeout"));
        check("eror-pages", Some("error-page"));
        check("x", None);
        check("proxy", None);
        check("", None);
        check(&"a".repeat(100_000), None);
    }
}
