//! What keeps somebody out in ways that can't be said here: it is said as far as it can be, and refused beyond.

use super::condition::{self, Test};
use super::settings::{Level, Rules};
use super::syntax::Directive;
use super::values::{Location, expression, without_look_around};
use super::{Notes, forward};

/// Takes up a directive that guards, and says whether it is one.
pub(super) fn add(rules: &mut Rules, directive: &Directive, level: &Level, notes: &mut Notes) -> bool {
    match directive.name.as_str() {
        "limit_except" => limit_except(rules, directive, level, notes),
        name if is_guard(name) => {
            if directive.first() != "off" {
                rules.close(directive, level, "who it lets in can't be said here", notes);
            }
        }
        _ => return false,
    }
    true
}

/// Whether a directive that is not known by name decides who may come.
fn is_guard(name: &str) -> bool {
    let is_other = matches!(name, "auth_basic" | "auth_basic_user_file" | "auth_delay" | "auth_request_set");
    let families = ["auth_", "access_by_lua", "rewrite_by_lua", "js_access", "secure_link", "modsecurity"];
    !is_other && !name.starts_with("modsecurity_") && families.iter().any(|family| name.starts_with(family))
}

/// `limit_except GET { deny all; }`: all other methods are refused, also those that would be allowed to some.
fn limit_except(rules: &mut Rules, directive: &Directive, level: &Level, notes: &mut Notes) {
    let mut methods = directive.arguments.clone();
    if directive.has("GET") && !directive.has("HEAD") {
        methods.push("HEAD".to_owned());
    }
    let test = Test::Method(format!("!{}", methods.join(" ")));
    let mut node = condition::answer(403, level.pattern(), &test);
    let denies_all = |child: &Directive| child.name == "deny" && child.first() == "all";
    if !directive.children().iter().all(denies_all) {
        node = node.comment(notes.refused(directive, "other methods are for nobody here, and not for some"));
    }
    rules.answer_elsewhere(403, node);
}

/// `internal`: nobody may ask for these paths. They are asked for within nginx: by error pages and scripts, as here; by
/// servers behind (`X-Accel-Redirect`), as not here.
pub(super) fn internal(
    rules: &mut Rules,
    directive: &Directive,
    location: &Location,
    server: &[Directive],
    notes: &mut Notes,
) {
    let why = "only nginx itself, for a server behind (`X-Accel-Redirect`) or a rewrite, may ask for them";
    let level = Level::Location { pattern: location.pattern(), is_forwarded: false };
    if is_led_to(location, server) {
        // It is known what leads there, so that nothing is missing.
        rules.close(directive, &level, why, &mut Notes::default());
    } else {
        rules.close(directive, &level, why, notes);
    }
}

/// Whether an error page or the last of `try_files` is one of a location's paths.
fn is_led_to(location: &Location, block: &[Directive]) -> bool {
    block.iter().any(|directive| {
        let is_leader = matches!(directive.name.as_str(), "error_page" | "try_files");
        let path = directive.arguments.last().map_or("", |path| path.split(['?', '$']).next().unwrap_or_default());
        (is_leader && location.fits(path)) || is_led_to(location, directive.children())
    })
}

/// A location whose expression can't be read: if it guards paths or hands them on, all that it may be for are refused.
pub(super) fn unreadable(directive: &Directive, why: String, rules: &mut Rules, notes: &mut Notes) {
    let is_harmless = |child: &Directive| {
        let name = child.name.as_str();
        !is_guard(name) && !matches!(name, "deny" | "auth_basic" | "internal" | "limit_except" | "return" | "if")
    };
    if forward::pass(directive.children()).is_none() && directive.children().iter().all(is_harmless) {
        return notes.left(directive, why);
    }
    let ignores_case = directive.first() == "~*";
    let pattern = expression(&without_look_around(directive.argument(1)), ignores_case).ok();
    let pattern = pattern.filter(|expression| !expression.is_empty()).map(|expression| format!("~{expression}"));
    rules.close(directive, &Level::Location { pattern, is_forwarded: false }, why, notes);
}
