//! Directives that Caddy joins: in a row, and with one matcher, which is tried once for all.

use super::order;
use super::scope::Scope;
use super::site::{CaddySiteParts, has_no_matcher};
use crate::directive::Directive;
use crate::notes::Notes;

impl CaddySiteParts<'_, '_> {
    /// Directives with blocks for those that Caddy joins: in a row and with one matcher, which is tried once. So those
    /// after a rewrite apply to its requests, whatever their path is now.
    pub(super) fn joined_routes(
        &mut self,
        directives: &[&Directive],
        scope: &Scope,
        notes: &mut Notes,
    ) -> Vec<Directive> {
        let matcher = |directive: &Directive| -> Option<(String, &'static str)> {
            let text = directive.arguments.first().filter(|text| text.starts_with(['/', '@']))?;
            (!has_no_matcher(directive)).then(|| (text.clone(), group_of(directive, directives)))
        };
        let mut joined = Vec::new();
        for run in directives.chunk_by(|one, other| matcher(one).is_some() && matcher(one) == matcher(other)) {
            let changes = run[..run.len() - 1].iter().any(|directive| changes_path(directive));
            if !changes {
                joined.extend(run.iter().copied().cloned());
                continue;
            }
            let last = run[run.len() - 1];
            let is_handled = order::position(&last.name) >= order::position("handle");
            let is_guarded = || run.iter().skip_while(|one| !changes_path(one)).skip(1).all(|one| is_guard(one));
            if !is_handled && is_guarded() {
                // Passwords are required for the path before the rewrite, too.
                joined.extend(run.iter().copied().cloned());
                continue;
            }
            let rest = |directive: &&Directive| Directive {
                arguments: directive.arguments[1..].to_vec(),
                ..Directive::clone(directive)
            };
            if !is_handled && run.iter().all(|directive| directive.name == "rewrite" && !reads_path(directive)) {
                // Of several targets, the last counts.
                joined.push(last.clone());
                continue;
            }
            if !is_handled {
                if let Ok(Some((reach, _))) = self.reach(last, scope) {
                    let why = "it applies to requests that were rewritten before, whatever their path is now";
                    self.parts.close(last, &reach.paths, why, notes);
                }
                joined.extend(run.iter().copied().cloned());
                continue;
            }
            joined.push(Directive {
                name: "route".to_owned(),
                arguments: vec![last.arguments[0].clone()],
                block: Some(run.iter().map(rest).collect()),
                ..run[0].clone()
            });
        }
        // Without a matcher, the last of several rewrites counts as well.
        let is_total = |directive: &Directive| {
            directive.name == "rewrite" && (directive.arguments.len() == 1 || directive.first() == "*")
        };
        let mut at = 0;
        while at + 1 < joined.len() {
            match is_total(&joined[at]) && is_total(&joined[at + 1]) && !reads_path(&joined[at + 1]) {
                true => drop(joined.remove(at)),
                false => at += 1,
            }
        }
        joined
    }
}

/// Group of directives of which the first match counts, if there are several: Caddy joins none with those of others.
fn group_of(directive: &Directive, all: &[&Directive]) -> &'static str {
    let group = |directive: &Directive| match directive.name.as_str() {
        "handle" | "handle_path" => "handle",
        "rewrite" => "rewrite",
        "root" => "root",
        _ => "",
    };
    let own = group(directive);
    let count = all.iter().filter(|other| !own.is_empty() && group(other) == own).count();
    // A rewrite is in a group of its own: its requests need not match again what follows.
    if count > 1 || own == "rewrite" { own } else { "" }
}

/// Returns `true` if requests may have another path after a directive.
fn changes_path(directive: &Directive) -> bool {
    matches!(directive.name.as_str(), "rewrite" | "uri" | "try_files") || directive.children().iter().any(changes_path)
}

/// Returns `true` for a directive that only keeps clients out, or changes fields.
fn is_guard(directive: &Directive) -> bool {
    matches!(
        directive.name.as_str(),
        "basic_auth" | "basicauth" | "forward_auth" | "request_header" | "encode" | "log_append" | "push" | "intercept"
    )
}

/// Returns `true` if the target of a rewrite depends on the path or query before.
fn reads_path(directive: &Directive) -> bool {
    directive.arguments.last().is_none_or(|target| target.contains('{') || target.starts_with('?'))
}
