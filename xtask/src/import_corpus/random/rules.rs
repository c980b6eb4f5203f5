//! Texts that rules write: each name stands for one of its alternatives, chosen at random.

use fastrand::Rng;

/// Names with their alternatives, in which `[[name]]` stands for an alternative of that name. `[[name?]]` may be left
/// out, and `[[name*]]` stands for up to three of them.
pub(super) type GrammarRules = [(&'static str, &'static [&'static str])];

/// Nesting from which on a name stands for its first alternative, which must have no name that leads back to it.
const DEPTH_MAX: usize = 9;

/// A text of a name.
pub(super) fn text(rules: &GrammarRules, name: &str, random: &mut Rng) -> String {
    let mut text = String::new();
    write(rules, name, random, 0, &mut text);
    text
}

fn write(rules: &GrammarRules, name: &str, random: &mut Rng, depth: usize, text: &mut String) {
    let (name, count) = match name.as_bytes().last() {
        Some(b'?') => (&name[..name.len() - 1], random.usize(0..2)),
        Some(b'*') => (&name[..name.len() - 1], random.usize(0..4)),
        _ => (name, 1),
    };
    let alternatives = rules.iter().find(|(known, _)| *known == name).map_or(&[][..], |(_, texts)| texts);
    for _ in 0..count {
        let at = if depth < DEPTH_MAX { random.usize(0..alternatives.len().max(1)) } else { 0 };
        let mut rest = alternatives.get(at).copied().unwrap_or_default();
        while let Some((front, inner)) = rest.split_once("[[") {
            text.push_str(front);
            let (name, after) = inner.split_once("]]").unwrap_or((inner, ""));
            write(rules, name, random, depth + 1, text);
            rest = after;
        }
        text.push_str(rest);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn names_stand_for_their_alternatives() {
        let rules: &GrammarRules = &[("a", &["x", "([[a]])", "[[b*]]"]), ("b", &["y"])];
        let texts: Vec<String> = (0..100).map(|seed| text(rules, "a", &mut Rng::with_seed(seed))).collect();
        for expect in ["x", "(x)", "yy", "((", ""] {
            assert!(texts.iter().any(|text| text.contains(expect)), "{expect}: {texts:?}");
        }
        assert!(texts.iter().all(|text| !text.contains('[')));
    }

    /// Checks that all names of rules are known, and used.
    pub(in super::super) fn check_names(rules: &GrammarRules, first: &[&str]) {
        let all = || rules.iter().flat_map(|(_, texts)| texts.iter()).flat_map(|text| text.split("[[").skip(1));
        let used: Vec<&str> = all().map(|text| text.split("]]").next().unwrap_or_default()).collect();
        let used: Vec<&str> = used.iter().map(|name| name.trim_end_matches(['?', '*'])).collect();
        for name in &used {
            assert!(rules.iter().any(|(known, _)| known == name), "{name} is unknown");
        }
        for (name, _) in rules {
            assert!(used.contains(name) || first.contains(name), "{name} is not used");
        }
    }
}
