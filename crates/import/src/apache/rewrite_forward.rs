//! mod_rewrite with the flag `P`: rules that forward requests.

use super::proxy::{self, ProxyOptions};
use super::rewrite::{RewriteOutcome, RewriteRule};
use super::rewrite_condition::{PropertyCondition, Tests, path_matches, with_properties};
use crate::directive::Directive;
use crate::kdl::KdlNode;
use crate::notes::Notes;
use crate::parts::{SiteParts, with_path};
use crate::pattern::ForeignPattern;

impl RewriteRule<'_> {
    /// `[P]`: a rule that forwards its paths to an upstream.
    pub(super) fn forward(
        &self,
        tests: &Tests,
        target: &str,
        pattern: &ForeignPattern,
        parts: &mut SiteParts,
        outcome: &mut RewriteOutcome,
        notes: &mut Notes,
    ) -> Result<(), String> {
        // Upstreams get the path in any case.
        let found = proxy::target(target.strip_suffix("%{REQUEST_URI}").unwrap_or(target))?;
        let is_whole = matches!(found.path.as_str(), "/$1" | "$1" | "%{REQUEST_URI}" | "") && pattern.is_all();
        let mut tests = tests.clone();
        let of_upgrade =
            |one: &PropertyCondition| one.name == "field" && one.value.to_ascii_lowercase().contains("websocket");
        if let Some(upgrade) = tests.properties.iter().position(of_upgrade) {
            let upgrade = tests.properties.remove(upgrade);
            let is_plain = upgrade.value.starts_with('!');
            let prefix = found.path.strip_suffix("/$1").or(found.path.strip_suffix("$1"));
            match prefix {
                _ if is_plain => {}
                // The next rule forwards the other requests to the same upstream.
                Some(prefix) if !is_whole && pattern.is_all() => {
                    tests.properties.push(upgrade);
                    let node = KdlNode::with("rewrite", "~^/(.*)$").text(format!("{prefix}/{{1}}"));
                    parts.redirects.push(with_properties(node, &tests));
                    return Ok(());
                }
                _ => {
                    notes.needless(self.directive, "`forward` upgrades connections");
                    return Ok(());
                }
            }
        }
        let excluded = tests.excluded.iter().map(|excluded| format!("not {}", path_matches(excluded)));
        tests.whens = tests.whens.iter().cloned().chain(excluded).chain(self.passed("")).collect();
        let has_conditions = !tests.properties.is_empty() || !tests.whens.is_empty();
        if !is_whole {
            return match self.prefixes(pattern, &found.path) {
                Some((from, to)) if from == to && tests.paths.is_empty() && !tests.is_missing => {
                    let options = match self.scope.preserves_host {
                        true => Vec::new(),
                        false => vec![KdlNode::new("host").word("upstream")],
                    };
                    let node =
                        KdlNode::with("forward", found.to).property("path", format!("~^{}", regex::escape(&from)));
                    parts.handlers.push(with_properties(node, &tests).block(options));
                    Ok(())
                }
                Some((from, to)) if !has_conditions && tests.paths.is_empty() && !tests.is_missing => {
                    let address = target.strip_suffix(&found.path).unwrap_or(target);
                    let arguments = vec![from, format!("{address}{to}")];
                    let directive = Directive { arguments, ..self.directive.clone() };
                    let options = ProxyOptions { preserves_host: self.scope.preserves_host };
                    proxy::pass(&directive, None, options, None, parts, notes);
                    Ok(())
                }
                _ => Err("paths are forwarded unchanged, or without a prefix".to_owned()),
            };
        }
        let node = KdlNode::with("forward", found.to);
        let node = |pattern| {
            let options =
                if self.scope.preserves_host { Vec::new() } else { vec![KdlNode::new("host").word("upstream")] };
            with_properties(with_path(node.clone(), pattern), &tests).block(options)
        };
        match tests.paths.as_slice() {
            [] if has_conditions && tests.is_missing => {
                return Err("a handler has no conditions except the path".to_owned());
            }
            [] if has_conditions => parts.handlers.push(node(Some("*".to_owned()))),
            [] => {
                if tests.leaves_root {
                    // Its index comes from the upstream, too.
                    parts.redirects.push(KdlNode::with("rewrite", "/").text(format!("/{}", self.scope.index)));
                }
                outcome.keeps_files |= tests.is_missing;
                outcome.takes_directories |= tests.is_missing && !tests.is_no_directory;
                parts.last = Some(node(None));
            }
            _ if tests.is_missing => return Err("a handler has no conditions except the path".to_owned()),
            paths => parts.handlers.extend(paths.iter().map(|path| node(path.text()))),
        }
        Ok(())
    }

    /// Fixed prefixes of paths here and at the upstream, if the rule replaces one by the other: `^/a(.*)` and `/b$1`.
    fn prefixes(&self, pattern: &ForeignPattern, path: &str) -> Option<(String, String)> {
        let expression = pattern.expression();
        let text = expression.strip_prefix("^/?").or(expression.strip_prefix("^/"))?.trim_end_matches('$');
        let from = text.strip_suffix("(.*)")?;
        let is_fixed = from.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/_-".contains(&byte));
        let to = path.strip_suffix("$1").filter(|_| is_fixed && !from.is_empty())?;
        (from.ends_with('/') == to.ends_with('/')).then(|| (format!("/{from}"), to.to_owned()))
    }
}
