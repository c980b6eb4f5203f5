//! Rules of HTTPRoutes and GRPCRoutes.

use routes::{GrpcMatch, Lifetime, Match, PathMatch, PersistenceKind, Retry, Rule, SessionPersistence, Timeouts};
use routes::{ValueMatch, ValueTest};

use super::Context;
use super::attach::RouteKind;
use super::backends::{Backends, Wanted};
use super::filters::{Problem, RuleScope, duration_ms, filters};
use super::gateways::ResolvedGateway;
use super::references::{Referrer, Unresolved};
use super::status::StatusCondition;
use crate::objects::{self, NamedValue, RouteSpec, RuleSpec, SessionPersistenceSpec, SpecResource};
use crate::regular::regex_problem;

/// Statuses that are retried if a rule names none.
const RETRY_CODES: [u16; 4] = [500, 502, 503, 504];

/// Rules of a route after translation.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    pub(crate) rules: Vec<Rule>,
    /// First reference that leads nowhere.
    unresolved: Option<Unresolved>,
    /// Reasons of rules that were dropped.
    dropped: Vec<String>,
    /// True if the reason of a dropped rule are filters that exclude each other.
    is_incompatible: bool,
}

/// A match of a kind of route.
pub(crate) trait SpecMatch {
    /// Translates it.
    fn translate(&self) -> Result<Match, String>;
}

impl Judged {
    /// True if no rule is left.
    pub(crate) fn is_rejected(&self) -> bool {
        self.rules.is_empty() && !self.dropped.is_empty()
    }

    /// Conditions for a parent with these listeners.
    pub(crate) fn conditions(&self, listeners: &Result<Vec<usize>, Unresolved>) -> Vec<StatusCondition> {
        let dropped = self.dropped.join("; ");
        let accepted = match listeners {
            Err((reason, message)) => StatusCondition::no("Accepted", reason, message),
            Ok(_) if self.is_rejected() => {
                let reason = if self.is_incompatible { "IncompatibleFilters" } else { "UnsupportedValue" };
                StatusCondition::no("Accepted", reason, dropped.clone())
            }
            Ok(_) => StatusCondition::yes("Accepted", "Accepted"),
        };
        let resolved = match &self.unresolved {
            None => StatusCondition::yes("ResolvedRefs", "ResolvedRefs"),
            Some((reason, message)) => StatusCondition::no("ResolvedRefs", reason, message),
        };
        let mut all = vec![accepted, resolved];
        if !self.rules.is_empty() && !self.dropped.is_empty() {
            let message = format!("Dropped Rule: {dropped}");
            all.push(StatusCondition::noted("PartiallyInvalid", "UnsupportedValue", message));
        }
        all
    }
}

/// Translates the rules of a route for a Gateway.
pub(crate) fn rules<M: SpecMatch>(
    context: &Context<'_>,
    kind: RouteKind,
    route: &SpecResource<RouteSpec<M>>,
    gateway: &ResolvedGateway,
    backends: &mut Backends,
) -> Judged {
    let mut judged = Judged::default();
    let key = route.metadata.key();
    let (options, forward_options) = context.policies.route_options(kind, &key, &gateway.key);
    let from = Referrer { group: "gateway.networking.k8s.io", kind: kind.name(), namespace: &key.namespace };
    for (at, spec) in route.spec.rules.iter().enumerate() {
        let mut scope = RuleScope { context, from, backends, is_grpc: kind == RouteKind::Grpc, unresolved: None };
        let session = format!("{key} {} {at}", kind.name());
        let translated = rule(&mut scope, spec, gateway, &session);
        judged.unresolved = judged.unresolved.take().or(scope.unresolved.take());
        match translated {
            Ok(rule) => {
                let (options, forward_options) = (options.clone(), forward_options.clone());
                judged.rules.push(Rule { options, forward_options, ..rule });
            }
            Err(problem) => {
                judged.is_incompatible |= problem.is_incompatible;
                judged.dropped.push(format!("rule {}: {}", at + 1, problem.message));
            }
        }
    }
    judged
}

fn rule<M: SpecMatch>(
    scope: &mut RuleScope<'_, '_>,
    spec: &RuleSpec<M>,
    gateway: &ResolvedGateway,
    session: &str,
) -> Result<Rule, Problem> {
    let matches: Result<Vec<Match>, String> = spec.matches.iter().map(SpecMatch::translate).collect();
    let matches = matches.map_err(Problem::invalid)?;
    let (of_rule, error) = filters(scope, &spec.filters)?;
    let persistence = spec.session_persistence.as_ref().map(persistence).transpose().map_err(Problem::invalid)?;
    let mut shares = Vec::new();
    for backend in &spec.backend_refs {
        let wanted = Wanted {
            transport: "TCP",
            is_grpc: scope.is_grpc,
            gateway: Some(&gateway.key),
            client_certificate: gateway.client_certificate.as_ref(),
            session: persistence.clone().map(|persistence| (session, persistence)),
            ..Wanted::default()
        };
        let name = scope.backend(backend, &wanted).unwrap_or_else(|| format!("{} unresolved", backend.to.name));
        let (of_backend, _) = filters(scope, &backend.filters)?;
        shares.push(routes::BackendRef { backend: name, weight: backend.weight.unwrap_or(1), filters: of_backend });
    }
    let time = |text: &Option<String>| text.as_deref().map(duration_ms).transpose().map_err(Problem::invalid);
    let timeouts = Timeouts {
        request_ms: time(&spec.timeouts.request)?,
        backend_request_ms: time(&spec.timeouts.backend_request)?,
    };
    let retry = match &spec.retry {
        None => None,
        Some(retry) => Some(Retry {
            codes: if retry.codes.is_empty() { RETRY_CODES.to_vec() } else { retry.codes.clone() },
            attempts: retry.attempts.unwrap_or(1),
            backoff_ms: time(&retry.backoff)?.unwrap_or(0),
        }),
    };
    Ok(Rule { matches, filters: of_rule, backends: shares, timeouts, retry, error, ..Rule::default() })
}

fn persistence(spec: &SessionPersistenceSpec) -> Result<SessionPersistence, String> {
    let kind = match spec.r#type.as_deref() {
        None | Some("Cookie") => PersistenceKind::Cookie,
        Some("Header") => PersistenceKind::Header,
        Some(other) => return Err(format!("session persistence of the type {other} is not supported")),
    };
    let lifetime = spec.cookie_config.as_ref().and_then(|cookie| cookie.lifetime_type.as_deref());
    let timeout_ms = spec.absolute_timeout.as_deref().map(duration_ms).transpose()?;
    Ok(SessionPersistence {
        name: spec.session_name.clone().unwrap_or_else(|| "tailcoat-session".to_owned()),
        kind,
        lifetime: if lifetime == Some("Permanent") { Lifetime::Permanent } else { Lifetime::Session },
        absolute_timeout_seconds: timeout_ms.map(|ms| ms.div_ceil(1000)),
        path: None,
    })
}

impl SpecMatch for objects::HttpMatchSpec {
    fn translate(&self) -> Result<Match, String> {
        let path = match &self.path {
            None => None,
            Some(path) => {
                let value = path.value.clone().unwrap_or_else(|| "/".to_owned());
                Some(match path.r#type.as_deref().unwrap_or("PathPrefix") {
                    "Exact" => PathMatch::Exact(value),
                    "PathPrefix" => PathMatch::Prefix(value),
                    "RegularExpression" => PathMatch::Regex(checked(value)?),
                    other => return Err(format!("matches of paths of the type {other} are not supported")),
                })
            }
        };
        Ok(Match {
            path,
            method: self.method.clone(),
            headers: values(&self.headers)?,
            query: values(&self.query_params)?,
            grpc: None,
        })
    }
}

impl SpecMatch for objects::GrpcMatchSpec {
    fn translate(&self) -> Result<Match, String> {
        let grpc = match &self.method {
            None => None,
            Some(method) => {
                let is_regex = match method.r#type.as_deref().unwrap_or("Exact") {
                    "Exact" => false,
                    "RegularExpression" => true,
                    other => return Err(format!("matches of methods of the type {other} are not supported")),
                };
                for text in [&method.service, &method.method].into_iter().flatten().filter(|_| is_regex) {
                    checked(text.clone())?;
                }
                Some(GrpcMatch { service: method.service.clone(), method: method.method.clone(), is_regex })
            }
        };
        Ok(Match { headers: values(&self.headers)?, grpc, ..Match::default() })
    }
}

/// Regular expression that can be compiled.
fn checked(regex: String) -> Result<String, String> {
    match regex_problem(&regex) {
        None => Ok(regex),
        Some(problem) => Err(problem),
    }
}

fn values(all: &[NamedValue]) -> Result<Vec<ValueMatch>, String> {
    let mut matches: Vec<ValueMatch> = Vec::new();
    for value in all {
        // Of several entries with the same name, the first counts.
        if matches.iter().any(|known| known.name.eq_ignore_ascii_case(&value.name)) {
            continue;
        }
        let test = match value.r#type.as_deref().unwrap_or("Exact") {
            "Exact" => ValueTest::Exact(value.value.clone()),
            "RegularExpression" => ValueTest::Regex(checked(value.value.clone())?),
            other => return Err(format!("matches of values of the type {other} are not supported")),
        };
        matches.push(ValueMatch { name: value.name.clone(), value: test });
    }
    Ok(matches)
}
