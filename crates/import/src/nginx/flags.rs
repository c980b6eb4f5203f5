//! Flags: `set $block 0; if (A) { set $block 1; } if (B) { set $block 1; } if ($block) { return 403; }`.
//!
//! The last `if` becomes one for each condition that sets the flag.

use std::collections::BTreeMap;

use super::condition::parts;
use super::syntax::NginxDirective;

/// A variable with a fixed value, and the `if` blocks that give it another one.
#[derive(Default)]
struct Flag<'a> {
    initial: &'a str,
    setters: Vec<(&'a NginxDirective, &'a str)>,
    /// Uses of the variable in the tests that were replaced.
    tests: usize,
}

/// All directives, with the conditions of flags in place of the flags.
pub(super) fn expanded(block: &[NginxDirective]) -> Vec<NginxDirective> {
    let mut flags: BTreeMap<&str, Flag<'_>> = BTreeMap::new();
    let mut result = Vec::new();
    for directive in block {
        match directive.name.as_str() {
            "set" => {
                let name = variable(directive.first());
                let flag = Flag { initial: directive.argument(1), ..Flag::default() };
                match directive.argument(1).contains('$') {
                    true => drop(flags.remove(name)),
                    false => drop(flags.insert(name, flag)),
                }
            }
            "if" if is_setter(directive) => {
                for child in directive.children() {
                    if let Some(flag) = flags.get_mut(variable(child.first())) {
                        flag.setters.push((directive, child.argument(1)));
                    }
                }
            }
            "if" => {
                let [subject, operator, value] = parts(directive);
                let flag = flags.get_mut(variable(&subject)).filter(|_| subject.starts_with('$'));
                if let Some(replaced) = flag.and_then(|flag| flag.replaced(directive, &operator, &value)) {
                    result.extend(replaced);
                    continue;
                }
                flags.retain(|name, _| !sets(directive.children(), name));
                if directive.children().iter().any(|child| child.name == "rewrite") {
                    flags.clear();
                }
            }
            // Conditions on the path may hold for another one then.
            "rewrite" => flags.clear(),
            _ => {}
        }
        let inner = directive.block.as_deref().filter(|_| directive.name != "if").map(expanded);
        result.push(match inner {
            Some(inner) => NginxDirective { block: Some(inner), ..directive.clone() },
            None => directive.clone(),
        });
    }
    // A flag that nothing else uses is no variable.
    let is_left = |directive: &NginxDirective| {
        let is_unused = |name: &str| {
            let flag = flags.get(name).filter(|flag| flag.tests > 0);
            flag.is_some_and(|flag| count(block, name) == 1 + flag.setters.len() + flag.tests)
        };
        let is_of_flags =
            is_setter(directive) && directive.children().iter().all(|set| is_unused(variable(set.first())));
        !(is_of_flags || directive.name == "set" && is_unused(variable(directive.first())))
    };
    result.retain(is_left);
    result
}

fn is_setter(directive: &NginxDirective) -> bool {
    directive.name == "if" && !directive.children().is_empty() && directive.children().iter().all(is_fixed_set)
}

fn is_fixed_set(directive: &NginxDirective) -> bool {
    directive.name == "set" && !directive.argument(1).contains('$')
}

/// Name of a variable without its sign.
fn variable(text: &str) -> &str {
    text.trim_start_matches('$')
}

/// Returns `true` if a block sets a variable.
fn sets(block: &[NginxDirective], name: &str) -> bool {
    block.iter().any(|child| (child.name == "set" && variable(child.first()) == name) || sets(child.children(), name))
}

/// Number of uses of a variable in a block.
fn count(block: &[NginxDirective], name: &str) -> usize {
    let of_text = |text: &String| {
        let is_use = |(at, _): &(usize, &str)| {
            let rest = text[at + 1..].trim_start_matches('{');
            rest.strip_prefix(name)
                .is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
        };
        text.match_indices('$').filter(is_use).count()
    };
    block.iter().map(|child| child.arguments.iter().map(of_text).sum::<usize>() + count(child.children(), name)).sum()
}

impl Flag<'_> {
    /// The tests in place of one of the flag, if its block rejects or redirects requests.
    fn replaced(&mut self, test: &NginxDirective, operator: &str, value: &str) -> Option<Vec<NginxDirective>> {
        let holds = |of: &str| match operator {
            "" => Some(!matches!(of, "" | "0")),
            "=" => Some(of == value),
            "!=" => Some(of != value),
            _ => None,
        };
        let is_end = |child: &NginxDirective| matches!(child.name.as_str(), "return" | "break" | "access_log");
        let is_alike =
            self.setters.iter().all(|(_, other)| Some(*other) == self.setters.first().map(|(_, first)| *first));
        if value.contains('$') || !test.children().iter().all(is_end) || !is_alike || self.setters.is_empty() {
            return None;
        }
        let with = |arguments: Vec<String>| NginxDirective { arguments, ..test.clone() };
        let replaced = match (holds(self.initial)?, holds(self.setters[0].1)?) {
            (false, true) => self.setters.iter().map(|(setter, _)| with(setter.arguments.clone())).collect(),
            // Only one condition can be negated.
            (true, false) if self.setters.len() == 1 => vec![with(vec![negated(self.setters[0].0)?])],
            _ => return None,
        };
        self.tests += 1;
        Some(replaced)
    }
}

/// The opposite of a condition.
fn negated(directive: &NginxDirective) -> Option<String> {
    let [subject, operator, value] = parts(directive);
    if subject.starts_with("-") {
        return Some(format!("(!{subject} {operator})"));
    }
    if let Some(subject) = subject.strip_prefix('!') {
        return Some(format!("({subject} {operator})"));
    }
    let operator = match operator.as_str() {
        "=" => "!=",
        "!=" => "=",
        "~" => "!~",
        "!~" => "~",
        "~*" => "!~*",
        "!~*" => "~*",
        _ => return None,
    };
    Some(format!("({subject} {operator} {value})"))
}

#[cfg(test)]
mod tests {
    use crate::nginx::tests::site;

    /// Issue 23: the idiom of many sites rejected all requests.
    #[test]
    fn flags_are_their_conditions() {
        let check = |text: &str, expect: &[&str]| {
            let (lines, remarks) = site(text);
            let found: Vec<&str> = lines.lines().filter(|line| line.starts_with("deny")).collect();
            assert_eq!(found, expect, "{text}\n{lines}");
            assert_eq!(remarks, Vec::<String>::new(), "{text}");
        };
        let (a, b) = ("$http_user_agent ~* bad", "$request_method = POST");
        let (agent, post) = ("deny all field=\"user-agent: ~(?i)bad\"", "deny all method=\"POST\"");
        check(
            &format!(
                "set $block 0; if ({a}) {{ set $block 1; }} if ({b}) {{ set $block 1; }} if ($block = 1) {{ return 403; }}"
            ),
            &[agent, post],
        );
        check(&format!("set $x ''; if ({b}) {{ set $x y; }} if ($x) {{ return 403; }}"), &[post]);
        check(&format!("set $x 0; if ({b}) {{ set $x 1; }} if ($x != 0) {{ return 403; }}"), &[post]);
        check(
            &format!("set $ok 0; if ({b}) {{ set $ok 1; }} if ($ok = 0) {{ return 403; }}"),
            &["deny all method=\"!POST\""],
        );
    }

    #[test]
    fn other_flags_reject_all_requests() {
        let check = |text: &str| {
            let (lines, remarks) = site(text);
            assert!(lines.lines().any(|line| line == "deny all") && !remarks.is_empty(), "{text}: {lines}");
        };
        let (a, b) = ("$http_user_agent ~* bad", "$request_method = POST");
        // Conditions that all must fail, values that depend on their order, and one that is no condition.
        check(&format!(
            "set $ok 0; if ({a}) {{ set $ok 1; }} if ({b}) {{ set $ok 1; }} if ($ok = 0) {{ return 403; }}"
        ));
        check(&format!("set $x 0; if ({a}) {{ set $x 1; }} if ({b}) {{ set $x 0; }} if ($x) {{ return 403; }}"));
        check(&format!(
            "set $x 0; if ({a}) {{ set $x 1; }} if ({b}) {{ set $x 1; return 204; }} if ($x) {{ return 403; }}"
        ));
        check(&format!("set $x 0; if ({b}) {{ set $x 1; }} rewrite ^/a /b; if ($x) {{ return 403; }}"));
        check(&format!("set $x a; if ({a}) {{ set $x ${{x}}b; }} if ($x = ab) {{ return 403; }}"));
    }
}
