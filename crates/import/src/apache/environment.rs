//! Variables of the environment that conditions name: `SetEnvIf`, `BrowserMatch` and `SetEnv`. Apache sets those of
//! `SetEnv` after it has checked access, so that they count for header fields only.

use super::expression::{self, ApacheCondition, ApacheEnvironment, ExpressionScope};
use super::host::is;
use super::section::ApacheSection;
use crate::directive::Directive;
use crate::pattern::{ForeignPattern, expression as translated};

/// Variables that these blocks set, for requests to all their paths, when Apache checks access. One that something sets
/// for some paths only is unknown, unless `block` does.
pub(super) fn of_blocks(
    blocks: &[&[Directive]],
    sections: &[ApacheSection<'_>],
    block: &[Directive],
    has_tls: bool,
) -> ApacheEnvironment {
    collected(blocks, sections, block, has_tls, &is_early)
}

/// Variables that these blocks set when Apache writes a response.
pub(super) fn of_responses(
    blocks: &[&[Directive]],
    sections: &[ApacheSection<'_>],
    block: &[Directive],
    has_tls: bool,
) -> ApacheEnvironment {
    collected(blocks, sections, block, has_tls, &|_| true)
}

fn is_early(directive: &Directive) -> bool {
    !is(directive, "setenv") && !is(directive, "unsetenv")
}

fn collected(
    blocks: &[&[Directive]],
    sections: &[ApacheSection<'_>],
    block: &[Directive],
    has_tls: bool,
    is_meant: &dyn Fn(&Directive) -> bool,
) -> ApacheEnvironment {
    let mut all = ApacheEnvironment::new();
    let add = |block: &[Directive], all: &mut ApacheEnvironment| add(block, has_tls, is_meant, all);
    blocks.iter().for_each(|block| add(block, &mut all));
    for section in sections {
        let is_all = section.patterns.as_deref().is_ok_and(|patterns| patterns.iter().any(ForeignPattern::is_all));
        if is_all {
            add(section.block, &mut all);
        } else if !std::ptr::eq(section.block, block) {
            for name in section.block.iter().filter(|directive| is_meant(directive)).flat_map(names) {
                all.insert(name.to_owned(), None);
            }
        }
    }
    if !blocks.iter().any(|other| std::ptr::eq(*other, block)) {
        add(block, &mut all);
    }
    all
}

fn is_setter(directive: &Directive) -> bool {
    ["setenvif", "setenvifnocase", "browsermatch", "browsermatchnocase", "setenvifexpr"]
        .iter()
        .any(|name| is(directive, name))
}

/// Names that a directive sets or unsets.
fn names(directive: &Directive) -> Vec<&str> {
    let from = match directive.name.to_ascii_lowercase().as_str() {
        "setenv" => return vec![directive.first()],
        "unsetenv" => 0,
        name if name.starts_with("browsermatch") || name == "setenvifexpr" => 1,
        _ if is_setter(directive) => 2,
        _ => return Vec::new(),
    };
    let words = directive.arguments.get(from..).unwrap_or_default();
    words.iter().map(|word| word.trim_start_matches('!').split('=').next().unwrap_or_default()).collect()
}

fn add(block: &[Directive], has_tls: bool, is_meant: &dyn Fn(&Directive) -> bool, all: &mut ApacheEnvironment) {
    for directive in block.iter().filter(|directive| is_meant(directive)) {
        let is_fixed = is(directive, "setenv") || is(directive, "unsetenv");
        let condition = match directive.name.to_ascii_lowercase().as_str() {
            "setenv" => Some(ApacheCondition::Constant(true)),
            "unsetenv" => Some(ApacheCondition::Constant(false)),
            "setenvifexpr" => {
                expression::condition(directive.first(), ExpressionScope { has_tls, environment: &all.clone() })
            }
            _ if is_setter(directive) => attribute(directive),
            _ => continue,
        };
        for name in names(directive) {
            let is_unset = directive.arguments.iter().any(|word| word.strip_prefix('!') == Some(name));
            let before = all.get(name).cloned().unwrap_or(Some(ApacheCondition::Constant(false)));
            let after = match (before, condition.clone()) {
                (_, condition) if is_fixed => condition,
                (Some(before), Some(condition)) if is_unset => Some(before.and(condition.not())),
                (Some(before), Some(condition)) => Some(before.or(condition)),
                _ => None,
            };
            all.insert(name.to_owned(), after);
        }
    }
}

/// The condition of `SetEnvIf ATTRIBUTE EXPRESSION` and `BrowserMatch EXPRESSION`.
fn attribute(directive: &Directive) -> Option<ApacheCondition> {
    let name = directive.name.to_ascii_lowercase();
    let (attribute, text) = match name.starts_with("browsermatch") {
        true => ("User-Agent", directive.first()),
        false => (directive.first(), directive.argument(1)),
    };
    let variable = match attribute.to_ascii_lowercase().as_str() {
        "remote_addr" => "client".to_owned(),
        "request_method" => "method".to_owned(),
        "request_uri" => "path".to_owned(),
        "remote_host" | "server_addr" | "request_protocol" | "remote_port" => return None,
        _ if attribute.is_empty() || !attribute.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') => {
            return None;
        }
        "host" => "host".to_owned(),
        _ => format!("request.header.{attribute}"),
    };
    let flag = if name.ends_with("nocase") { "(?i)" } else { "" };
    let text = translated(&format!("{flag}{text}")).ok()?;
    expression::matching(&variable, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_have_conditions() {
        let check = |text: &str, name: &str, expect: Option<ApacheCondition>| {
            let block = super::super::syntax::parse_resolved(text).unwrap();
            assert_eq!(of_responses(&[], &[], &block, false).get(name).cloned().flatten(), expect, "{text}");
        };
        let when = |text: &str| Some(ApacheCondition::When(text.to_owned()));
        check("SetEnvIf Referer example\\.com good", "good", when("request.header.Referer matches 'example\\.com'"));
        check("SetEnvIfNoCase User-Agent ^Bad a b=1", "b", when("request.header.User-Agent matches '(?i)^Bad'"));
        check(
            "BrowserMatch x a\nSetEnvIf Request_URI ^/y !a",
            "a",
            when("(request.header.User-Agent matches 'x') and (not (path matches '^/y'))"),
        );
        check("SetEnv a", "a", Some(ApacheCondition::Constant(true)));
        check("SetEnvIf Remote_Host x a\nSetEnvIf Host y a", "a", None);
        check("SetEnvIf ^X-.* y a", "a", None);
    }

    /// Issue 23: a variable that Apache sets after its access check let clients in.
    #[test]
    fn fixed_variables_are_set_after_the_access_check() {
        let block = super::super::syntax::parse_resolved("SetEnv a 1\nSetEnvIf Host x b\nUnsetEnv b").unwrap();
        let early = of_blocks(&[], &[], &block, false);
        assert_eq!(early.get("a"), None);
        assert_eq!(early.get("b").cloned().flatten(), Some(ApacheCondition::When("host matches 'x'".to_owned())));
        assert_eq!(
            of_responses(&[], &[], &block, false).get("b").cloned().flatten(),
            Some(ApacheCondition::Constant(false))
        );
    }
}
