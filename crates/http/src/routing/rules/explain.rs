//! Explanation of a site's rules for a request: which apply, which do not, and why.

use super::guarded_paths::GuardedPath;
use super::rewrites::{Rewrites, fits_path, may_hold};
use super::shared::PathOrigin;
use super::{GuardPattern, OtherPath, Passage, RoutedFacts, Rules};
use crate::config::{Condition, FieldEdit, ForwardAuthRule, RuleConditions};
use crate::handler::Routed;
use crate::routing::explain::{ExplainedKind, ExplainedStep};

/// Rules of forward authentication, and the pattern of each.
#[derive(Default)]
pub struct ForwardAuths(Vec<ForwardAuthRule>, Vec<GuardPattern>);

const OTHER_PATH: &str = "the path differs";
const OTHER_CLIENT: &str = "the client differs";
const EARLIER_RULE: &str = "an earlier rule decides";
const WHEN: &str = "`when` does not hold";

impl Rules {
    /// Rules before the handlers, in their order, for a request that has entered them. Takes nothing of the limits.
    pub fn explain(&self, passage: &Passage, routed: &Routed<'_>) -> Vec<ExplainedStep> {
        let others = self.shared.other_paths(routed.path);
        let mut paths = passage.guarded(routed);
        paths.extend(others.iter().map(OtherPath::guarded));
        let paths: Vec<_> = paths.into_iter().flat_map(GuardedPath::with_original).collect();
        let mut steps = Vec::new();
        if let Some((bots, report)) = self.bots.as_ref().zip(passage.visit.bot()) {
            let (applies, reason) = bots.explain(report);
            steps.push(ExplainedStep::new(ExplainedKind::Bots, 0, applies, reason));
        }
        self.explain_clients(&paths, passage, routed, &mut steps);
        self.explain_limits(&paths, routed, &mut steps);
        if let Some(response) = self.shared.https().redirect(routed) {
            let location = response.fields.get("Location").unwrap_or_default();
            let reason = format!("redirects to {}", String::from_utf8_lossy(location));
            steps.push(ExplainedStep::new(ExplainedKind::SiteRedirect, 0, true, reason));
        }
        explain_rewrites(&self.rewrites, ExplainedKind::Rewrite, routed, &mut steps);
        self.explain_authentication(&paths, routed, &mut steps);
        let seen = passage.paths_in_given_case(routed);
        explain_edits(&self.request_fields, ExplainedKind::RequestField, &seen, routed, &mut steps);
        steps
    }

    /// Rules for requests that all handlers have declined.
    pub fn explain_missing(&self, routed: &Routed<'_>) -> Vec<ExplainedStep> {
        let mut steps = Vec::new();
        explain_rewrites(&self.missing, ExplainedKind::Missing, routed, &mut steps);
        steps
    }

    /// Rules after the handlers.
    pub fn explain_response(&self, passage: &Passage, routed: &Routed<'_>) -> Vec<ExplainedStep> {
        let mut steps = Vec::new();
        explain_edits(&self.response_fields, ExplainedKind::ResponseField, &passage.paths(routed), routed, &mut steps);
        steps
    }

    /// Exchanges the rules of forward authentication. An explanation asks no server, and assumes that it permits.
    pub fn swap_forward_auths(&mut self, others: &mut ForwardAuths) {
        std::mem::swap(&mut self.auths, &mut others.0);
        std::mem::swap(&mut self.auth_paths, &mut others.1);
    }

    fn explain_clients(
        &self,
        paths: &[GuardedPath<'_>],
        passage: &Passage,
        routed: &Routed<'_>,
        steps: &mut Vec<ExplainedStep>,
    ) {
        let client = passage.visit.client();
        let rule_for = |path: &GuardedPath<'_>| self.shared.rule_for_client(routed, client, *path, PathOrigin::Client);
        let chosen: Vec<_> = paths.iter().filter_map(rule_for).map(std::ptr::from_ref).collect();
        for (index, (rule, pattern, clients)) in self.shared.client_rules().iter().enumerate() {
            let fits = |path: &&GuardedPath<'_>| pattern.holds_for(**path);
            let of_path = paths.iter().find(fits);
            let applies = chosen.contains(&std::ptr::from_ref(rule));
            let reason = match of_path {
                _ if applies && rule.is_allowed => "lets the client in".to_owned(),
                _ if applies => format!("rejects the client with {}", rule.status.code()),
                None => OTHER_PATH.to_owned(),
                Some(_) if !clients.has(client) => OTHER_CLIENT.to_owned(),
                Some(path) => mismatch(&rule.conditions, routed, path.path()).unwrap_or(EARLIER_RULE).to_owned(),
            };
            steps.push(ExplainedStep::new(ExplainedKind::Client, index, applies, reason));
        }
    }

    fn explain_limits(&self, paths: &[GuardedPath<'_>], routed: &Routed<'_>, steps: &mut Vec<ExplainedStep>) {
        let (rates, counts) = self.shared.limits();
        for (index, (limit, pattern, _)) in rates.iter().enumerate() {
            let (applies, reason) = guard(pattern, limit.when.as_ref(), paths, routed);
            steps.push(ExplainedStep::new(ExplainedKind::RateLimit, index, applies, reason));
        }
        for (index, (limit, pattern, _)) in counts.iter().enumerate() {
            let (applies, reason) = guard(pattern, limit.when.as_ref(), paths, routed);
            steps.push(ExplainedStep::new(ExplainedKind::RequestLimit, index, applies, reason));
        }
    }

    fn explain_authentication(&self, paths: &[GuardedPath<'_>], routed: &Routed<'_>, steps: &mut Vec<ExplainedStep>) {
        let asked: Vec<usize> =
            paths.iter().flat_map(|path| self.passwords_for(*path, routed)).map(|(rule, _)| rule).collect();
        for (index, (rule, pattern)) in self.passwords.iter().zip(&self.password_paths).enumerate() {
            let (mut applies, mut reason) = guard(pattern, rule.when.as_ref(), paths, routed);
            if applies && rule.file.is_some() && !asked.contains(&index) {
                (applies, reason) = (false, EARLIER_RULE.to_owned());
            } else if applies {
                reason = if rule.file.is_some() { "asks for a password" } else { "needs no password" }.to_owned();
            }
            steps.push(ExplainedStep::new(ExplainedKind::Password, index, applies, reason));
        }
        let asked: Vec<usize> = paths.iter().flat_map(|path| self.auths_for(*path, routed)).collect();
        for (index, (rule, pattern)) in self.auths.iter().zip(&self.auth_paths).enumerate() {
            let (mut applies, mut reason) = guard(pattern, rule.when.as_ref(), paths, routed);
            match &rule.auth {
                Some(_) if applies && !asked.contains(&index) => (applies, reason) = (false, EARLIER_RULE.to_owned()),
                Some(auth) if applies => {
                    reason = format!("asks {}; the following assumes that it permits", auth.forward.upstream);
                }
                None if applies => "asks no server".clone_into(&mut reason),
                _ => {}
            }
            steps.push(ExplainedStep::new(ExplainedKind::ForwardAuth, index, applies, reason));
        }
    }
}

/// True if a guard applies to one of the paths; otherwise the reason.
fn guard(
    pattern: &GuardPattern,
    when: Option<&Condition>,
    paths: &[GuardedPath<'_>],
    routed: &Routed<'_>,
) -> (bool, String) {
    let mut of_path = paths.iter().filter(|path| pattern.holds_for(**path)).peekable();
    if of_path.peek().is_none() {
        return (false, OTHER_PATH.to_owned());
    }
    match of_path.any(|path| may_hold(when, routed, path.path())) {
        true => (true, String::new()),
        false => (false, WHEN.to_owned()),
    }
}

fn explain_rewrites(rewrites: &Rewrites, kind: ExplainedKind, routed: &Routed<'_>, steps: &mut Vec<ExplainedStep>) {
    let chosen = rewrites.find(routed).map(std::ptr::from_ref);
    for (index, rule) in rewrites.rules().iter().enumerate() {
        let applies = chosen == Some(std::ptr::from_ref(rule));
        let reason = match (applies, rule.path.matches(routed.path)) {
            (true, _) => String::new(),
            (false, false) => OTHER_PATH.to_owned(),
            (false, true) => mismatch(&rule.conditions, routed, routed.path).unwrap_or(EARLIER_RULE).to_owned(),
        };
        steps.push(ExplainedStep::new(kind, index, applies, reason));
    }
}

fn explain_edits(
    edits: &[FieldEdit],
    kind: ExplainedKind,
    paths: &[&[u8]],
    routed: &Routed<'_>,
    steps: &mut Vec<ExplainedStep>,
) {
    for (index, edit) in edits.iter().enumerate() {
        let is_of_path = paths.iter().any(|path| edit.path.matches(path));
        // A condition may ask for the status of the response, which is not known.
        let holds = edit.when.as_ref().is_none_or(|when| when.evaluate(&RoutedFacts::new(routed)).may_be_true());
        let reason = match (is_of_path, holds) {
            (true, true) => "",
            (false, _) => OTHER_PATH,
            (true, false) => WHEN,
        };
        steps.push(ExplainedStep::new(kind, index, is_of_path && holds, reason.to_owned()));
    }
}

/// First condition that a request does not fulfil.
pub fn mismatch(conditions: &RuleConditions, routed: &Routed<'_>, path: &[u8]) -> Option<&'static str> {
    let RuleConditions { methods, query, field, when, is_missing: _ } = conditions.clone();
    let alone = RuleConditions::default();
    let each = [
        (RuleConditions { methods, ..alone.clone() }, "the method differs"),
        (RuleConditions { query, ..alone.clone() }, "the query differs"),
        (RuleConditions { field, ..alone.clone() }, "the header field differs"),
        (RuleConditions { when, ..alone }, WHEN),
    ];
    each.into_iter().find(|(condition, _)| !fits_path(condition, routed, path)).map(|(_, reason)| reason)
}
