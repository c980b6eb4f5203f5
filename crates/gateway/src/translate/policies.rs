//! TrafficPolicies: options for Gateways, routes and services beyond Gateway API.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::attach::{RouteKind, snapshot_name_parts};
use super::backends::service_of;
use super::gateways::Gateways;
use super::status::{StatusCondition, conditions, find};
use super::{Context, TranslationChange};
use crate::objects::{Key, Kind, Objects, PolicyOptions, TargetRef, TrafficPolicySpec};

/// Group of Gateway API.
const GATEWAY_GROUP: &str = "gateway.networking.k8s.io";

/// Kinds of errors of servers about options of policies, as in [`routes::Applied::errors`].
const ROUTE_OPTIONS: &str = "route-options/";
const BACKEND_OPTIONS: &str = "backend-options/";

/// Policies by target.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    of_targets: BTreeMap<(String, Key), PolicyOptions>,
    /// Targets that policies name, whether there are such or not, by kind and name.
    named: BTreeSet<(String, Key)>,
    judged: Vec<(Key, StatusCondition)>,
}

impl Policies {
    /// Reads all policies, the oldest first. A target has one policy.
    pub(crate) fn new(objects: &Objects) -> Self {
        let mut sorted: Vec<_> = objects.traffic_policies.values().collect();
        sorted.sort_by_cached_key(|policy| policy.metadata.age());
        let mut policies = Self::default();
        for policy in sorted {
            let key = policy.metadata.key();
            let condition = policies.add(objects, &key, &policy.spec);
            let targets = policy.spec.target_refs.iter();
            let named = targets.map(|target| (target.kind.clone(), Key::new(&key.namespace, &target.name)));
            policies.named.extend(named);
            policies.judged.push((key, condition));
        }
        policies
    }

    fn add(&mut self, objects: &Objects, key: &Key, spec: &TrafficPolicySpec) -> StatusCondition {
        let options = match spec.kdl() {
            Ok(options) => options,
            Err(message) => return StatusCondition::no("Accepted", "Invalid", message),
        };
        for target in &spec.target_refs {
            let to = Key::new(&key.namespace, &target.name);
            let is_known = match (target.group.as_str(), target.kind.as_str()) {
                (GATEWAY_GROUP, "Gateway") => objects.gateways.contains_key(&to),
                (GATEWAY_GROUP, "HTTPRoute") => objects.http_routes.contains_key(&to),
                (GATEWAY_GROUP, "GRPCRoute") => objects.grpc_routes.contains_key(&to),
                ("", "Service") => objects.services.contains_key(&to),
                (group, kind) => {
                    return StatusCondition::no(
                        "Accepted",
                        "Invalid",
                        format!("{kind} of {group:?} cannot be a target"),
                    );
                }
            };
            if !is_known {
                return StatusCondition::no(
                    "Accepted",
                    "TargetNotFound",
                    format!("{} {to} does not exist", target.kind),
                );
            }
            if self.of_targets.contains_key(&(target.kind.clone(), to.clone())) {
                let message = format!("an older TrafficPolicy has the target {} {to}", target.kind);
                return StatusCondition::no("Accepted", "Conflicted", message);
            }
        }
        for target in &spec.target_refs {
            let to = Key::new(&key.namespace, &target.name);
            self.of_targets.insert((target.kind.clone(), to), options.clone());
        }
        StatusCondition::yes("Accepted", "Accepted")
    }

    /// True if a policy names this target.
    pub(crate) fn names(&self, kind: Kind, key: &Key) -> bool {
        !self.named.is_empty() && self.named.contains(&(kind.name().to_owned(), key.clone()))
    }

    /// Targets, by kind and name, whose options differ.
    pub(crate) fn differences<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = &'a (String, Key)> {
        let targets: BTreeSet<_> = self.of_targets.keys().chain(other.of_targets.keys()).collect();
        targets.into_iter().filter(|target| self.of_targets.get(*target) != other.of_targets.get(*target))
    }

    fn of(&self, kind: &str, key: &Key) -> Option<&PolicyOptions> {
        self.of_targets.get(&(kind.to_owned(), key.clone()))
    }

    /// Options of a route for sites and for `forward`: those of its own policy, else those of its Gateway's.
    pub(crate) fn route_options(&self, kind: RouteKind, route: &Key, gateway: &Key) -> (String, String) {
        let options = self.of(kind.name(), route).or_else(|| self.of("Gateway", gateway));
        options.map(|options| (options.site.clone(), options.forward.clone())).unwrap_or_default()
    }

    /// Options of a service's upstream.
    pub(crate) fn upstream_options(&self, service: &Key) -> String {
        self.of("Service", service).map(|options| options.upstream.clone()).unwrap_or_default()
    }

    /// Errors that servers report about options of policies, by target.
    fn server_errors<'a>(&self, errors: &'a BTreeMap<String, String>) -> BTreeMap<(&str, Key), &'a str> {
        let mut of_targets = BTreeMap::new();
        let mut note = |kind: &'static str, key: Key, error: &'a String| {
            of_targets.entry((kind, key)).or_insert(error.as_str());
        };
        for (name, error) in errors {
            if let Some((route, kind, gateway)) = name.strip_prefix(ROUTE_OPTIONS).and_then(snapshot_name_parts) {
                match self.of(kind.name(), &route) {
                    Some(_) => note(kind.name(), route, error),
                    None => note("Gateway", gateway, error),
                }
            } else if let Some(backend) = name.strip_prefix(BACKEND_OPTIONS)
                && let Some(service) = service_of(backend)
            {
                note("Service", service, error);
            }
        }
        of_targets
    }

    /// True if an error of servers, by its kind and name, is one of a policy's options.
    pub(crate) fn has_error(name: &str) -> bool {
        name.starts_with(ROUTE_OPTIONS) || name.starts_with(BACKEND_OPTIONS)
    }

    /// Statuses of all policies, with an entry for each target.
    pub(crate) fn write_statuses(&self, context: &Context<'_>, gateways: &Gateways, to: &mut TranslationChange) {
        let errors = self.server_errors(context.frame.errors);
        for (key, condition) in &self.judged {
            let Some(policy) = context.objects.traffic_policies.get(key) else { continue };
            // A policy for a Gateway of another controller is none of ours.
            let is_foreign = |target: &TargetRef| {
                target.kind == "Gateway" && gateways.get(&Key::new(&key.namespace, &target.name)).is_none()
            };
            let old = &policy.status["ancestors"];
            let all = old.as_array().into_iter().flatten();
            let mut entries: Vec<Value> =
                all.filter(|it| it["controllerName"] != context.controller()).cloned().collect();
            for target in policy.spec.target_refs.iter().filter(|target| !is_foreign(target)) {
                let reference = json!({
                    "group": target.group, "kind": target.kind, "namespace": key.namespace, "name": target.name,
                });
                let before = find(old, |it| it["ancestorRef"] == reference);
                let at = (target.kind.as_str(), Key::new(&key.namespace, &target.name));
                // Another condition that does not hold comes first: the options of the policy are in no server.
                let reported = errors
                    .get(&at)
                    .filter(|_| condition.status)
                    .map(|error| StatusCondition::no("Accepted", "Invalid", format!("servers report: {error}")));
                let written = conditions(
                    std::slice::from_ref(reported.as_ref().unwrap_or(condition)),
                    &before["conditions"],
                    policy.metadata.generation,
                    context.now(),
                );
                entries.push(json!({
                    "ancestorRef": reference, "controllerName": context.controller(), "conditions": written,
                }));
            }
            to.set_status(Kind::TrafficPolicy, key, json!({ "ancestors": entries }));
        }
    }
}
