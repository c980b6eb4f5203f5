//! Explanation of a request: the site that gets it, and the rules and handlers that it passes, in their order. It runs
//! the same code as requests do, but asks no upstream and counts in no limit.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use wire::http::Status;

use super::rules::{ForwardAuths, Passage, RuleDecision, Rules, mismatch};
use super::site::{Site, declined_by_all};
use super::{Hosts, SiteSetup};
use crate::config::SiteConfig;
use crate::handler::{BuiltResponse, Routed};

/// Kind of a step that a request passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExplainedKind {
    /// Score of a bot.
    Bots,
    /// Access by address, and paths of the server itself.
    Client,
    /// Limit of rate.
    RateLimit,
    /// Limit of requests in progress.
    RequestLimit,
    /// Redirect to HTTPS, or to the host of the site.
    SiteRedirect,
    /// Redirect or rewrite.
    Rewrite,
    /// Access by password.
    Password,
    /// Access by an authentication server.
    ForwardAuth,
    /// Edit of the request's fields.
    RequestField,
    /// Handler.
    Handler,
    /// Redirect or rewrite of what no handler has.
    Missing,
    /// Edit of the response's fields.
    ResponseField,
}

/// A rule or handler, and whether it applies to the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedStep {
    /// Kind of the step.
    pub kind: ExplainedKind,
    /// Index among the rules of the kind, or that of the route.
    pub index: usize,
    /// True if it applies.
    pub applies: bool,
    /// Reason, or effect; empty if there is nothing to add.
    pub reason: String,
}

impl ExplainedStep {
    /// Makes a step.
    pub fn new(kind: ExplainedKind, index: usize, applies: bool, reason: String) -> Self {
        Self { kind, index, applies, reason }
    }
}

/// Explanation of a request in its site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteExplanation {
    /// Rules and handlers, in their order.
    pub steps: Vec<ExplainedStep>,
    /// Path that the handlers got; differs from the requested one after a rewrite.
    pub path: Vec<u8>,
    /// Index of the route that handles the request; `None` if a rule answers it, or no handler has it.
    pub route: Option<usize>,
    /// Result of the handler, or the response of a rule.
    pub outcome: String,
}

/// Result of a route for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probed {
    /// Responds; with a description.
    Responds(String),
    /// Declines, for this reason.
    Declines(String),
    /// Leads to another path.
    Elsewhere(Vec<u8>),
}

/// Result that becomes available later.
pub type ProbeFuture<'a> = Pin<Box<dyn Future<Output = Probed> + 'a>>;

/// Looks up what the handler of a route does with a request, without asking an upstream.
pub trait RouteProbe {
    /// Result of the route with this index.
    fn probe<'a>(&'a self, route: usize, routed: &'a Routed<'a>) -> ProbeFuture<'a>;
}

/// Site of a listener that gets requests for a host: its index among `sites`, and the reason.
pub fn site_for_host(sites: &[(usize, &SiteConfig)], host: &[u8]) -> Option<(usize, &'static str)> {
    let mut hosts = Hosts::default();
    sites.iter().for_each(|(index, config)| hosts.add(config, index));
    let found = *hosts.find(host)?;
    let is_same = |site: Option<&usize>| site == Some(&found);
    let reason = if is_same(hosts.exact.get(host)) {
        "it has this name"
    } else if is_same(hosts.find_pattern(host)) {
        "a pattern of its names matches"
    } else {
        "it is the default of this address"
    };
    Some((found, reason))
}

/// Explains what a site does with a request.
pub async fn explain(
    mut setup: SiteSetup<'_>,
    rules: Option<Rules>,
    probe: &dyn RouteProbe,
    routed: &Routed<'_>,
) -> SiteExplanation {
    setup.rules = None;
    let site = Rc::new(Site::new(setup));
    let mut steps = Vec::new();
    let Some(mut rules) = rules else {
        let (route, outcome, _) = ask_routes(&site, None, probe, routed, &mut steps).await;
        return SiteExplanation { steps, path: routed.path.to_vec(), route, outcome };
    };
    let mut auths = ForwardAuths::default();
    rules.swap_forward_auths(&mut auths);
    let (mut passage, mut decision) = rules.enter(routed);
    // The rules after it depend on whether a crawler is what it claims to be.
    if let RuleDecision::Confirm(confirmation) = decision {
        decision = rules.on_confirmation(confirmation.await, &mut passage, routed);
    }
    rules.swap_forward_auths(&mut auths);
    steps.extend(rules.explain(&passage, routed));
    rules.swap_forward_auths(&mut auths);
    let (route, outcome) = loop {
        match decision {
            RuleDecision::Answer(response) => break (None, rule_response(&response)),
            RuleDecision::RejectBot(reason) => {
                break (None, rule_response(&BuiltResponse::rejection(Status::FORBIDDEN, reason)));
            }
            RuleDecision::Ask(question) => {
                let verdict = question.verify().await;
                decision = rules.on_answer(verdict, &mut passage, routed);
                continue;
            }
            RuleDecision::Confirm(confirmation) => {
                let verdict = confirmation.await;
                decision = rules.on_confirmation(verdict, &mut passage, routed);
                continue;
            }
            // Local invariant: these rules have no forward authentication.
            RuleDecision::Authorize(..) | RuleDecision::Pass => {}
        }
        let (route, outcome, elsewhere) = ask_routes(&site, Some((&rules, &passage)), probe, routed, &mut steps).await;
        let next = match elsewhere {
            Some(path) => rules.enter_elsewhere(path, &mut passage, routed),
            None if route.is_some() => break (route, outcome),
            None => {
                steps.extend(rules.explain_missing(&passage.seen(routed)));
                rules.enter_again(&mut passage, routed)
            }
        };
        match next {
            Some(next) => decision = next,
            None => break (None, outcome),
        }
    };
    steps.extend(rules.explain_response(&passage, routed));
    SiteExplanation { steps, path: passage.seen(routed).path.to_vec(), route, outcome }
}

/// Asks the routes in turn. Returns the one that responds, its response, and another path that it leads to.
async fn ask_routes(
    site: &Site,
    ruled: Option<(&Rules, &Passage)>,
    probe: &dyn RouteProbe,
    routed: &Routed<'_>,
    steps: &mut Vec<ExplainedStep>,
) -> (Option<usize>, String, Option<Vec<u8>>) {
    let seen = ruled.map_or(*routed, |(_, passage)| passage.seen(routed));
    let has_missing = ruled.is_some_and(|(rules, passage)| rules.has_for_missing(passage, &seen));
    let mut next = 0;
    while let Some(index) = site.next_route(&seen, next) {
        steps.extend((next..index).map(|skipped| skipped_route(site, skipped, &seen)));
        next = index + 1;
        let has_next = has_missing || site.next_route(&seen, next).is_some();
        let (applies, reason, result) = match probe.probe(index, &Routed { has_next, ..seen }).await {
            Probed::Responds(response) => (true, response.clone(), Some((Some(index), response, None))),
            Probed::Declines(reason) => (false, format!("declines: {reason}"), None),
            Probed::Elsewhere(path) => {
                let reason = format!("leads to {}", String::from_utf8_lossy(&path));
                (true, reason.clone(), Some((None, reason, Some(path))))
            }
        };
        steps.push(ExplainedStep::new(ExplainedKind::Handler, index, applies, reason));
        if let Some(result) = result {
            return result;
        }
    }
    steps.extend((next..site.route_count()).map(|skipped| skipped_route(site, skipped, &seen)));
    let status = declined_by_all(&seen).status();
    (None, format!("status {}: no handler has this path", status.code()), None)
}

fn skipped_route(site: &Site, index: usize, routed: &Routed<'_>) -> ExplainedStep {
    let reason = match site.conditions_of(index, routed.path) {
        None => "the path differs",
        Some(conditions) => mismatch(conditions, routed, routed.path).unwrap_or("a condition does not hold"),
    };
    ExplainedStep::new(ExplainedKind::Handler, index, false, reason.to_owned())
}

/// Description of a rule's response.
fn rule_response(response: &BuiltResponse) -> String {
    let location = response.fields.get("Location").map(|location| String::from_utf8_lossy(location).into_owned());
    match (response.status, location, response.reason) {
        (status, Some(location), _) => format!("status {}: redirects to {location}", status.code()),
        (Status::UNAUTHORIZED, None, _) => "status 401: asks for a password; send one with -u".to_owned(),
        (status, None, "") => format!("status {}: a rule responds", status.code()),
        (status, None, reason) => format!("status {}: {reason}", status.code()),
    }
}
