//! Wrong input: conflicts, missing secrets, references without a grant, and cycles. Each has the condition that the
//! specification names, and nothing else moves. Wrong rules of routes are in `tests`.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Translation;
use super::tests::{INFRA, condition, read, run};
use crate::objects::{Key, Kind, Objects};

const GROUP: &str = "gateway.networking.k8s.io";

/// Translation without faults, with its resources.
fn right() -> (Objects, Translation) {
    let objects = read(&["base", "httproute-weight"]);
    let translation = run(&objects, &BTreeMap::new());
    (objects, translation)
}

/// Asserts that a translation differs from another in parts of one resource alone, and in no status but those named.
#[track_caller]
fn moves_nothing_else(before: &Translation, mut after: Translation, name: &str, statuses: &[(Kind, Key)]) {
    let is_other = |of: &String| !of.starts_with(&format!("{INFRA}/{name}"));
    after.snapshot.listeners.retain(|of, _| is_other(of));
    after.snapshot.routes.retain(|of, _| is_other(of));
    assert_eq!(after.snapshot, before.snapshot, "{name}");
    after.statuses.retain(|at, _| !statuses.contains(at));
    assert_eq!(after.statuses, before.statuses, "{name}");
}

fn listener(name: &str, port: u16, secret: Option<Value>) -> Value {
    let protocol = if secret.is_some() { "HTTPS" } else { "HTTP" };
    let tls = secret.map_or(Value::Null, |secret| json!({"certificateRefs": [secret]}));
    json!({"name": name, "port": port, "protocol": protocol, "tls": tls})
}

#[test]
fn listeners_with_conflicts_and_without_secrets() {
    let (objects, before) = right();
    let secret = |name: &str| listener("https", 443, Some(json!({"name": name})));
    let foreign = json!({"name": "certificate", "namespace": "gateway-conformance-web-backend"});
    let config_map = json!({"name": "tls-checks-ca-certificate", "kind": "ConfigMap"});
    let no_conflict = "False NoConflicts";
    for (case, listeners, resolved, programmed, conflicted) in [
        ("missing", vec![secret("none")], "False InvalidCertificateRef", "False Invalid", no_conflict),
        ("malformed", vec![secret("broken")], "False InvalidCertificateRef", "False Invalid", no_conflict),
        ("foreign", vec![listener("https", 443, Some(foreign))], "False RefNotPermitted", "False Invalid", no_conflict),
        (
            "other kind",
            vec![listener("https", 443, Some(config_map))],
            "False InvalidCertificateRef",
            "False Invalid",
            no_conflict,
        ),
        (
            "host",
            vec![listener("https", 80, None), listener("other", 80, None)],
            "True ResolvedRefs",
            "False HostnameConflict",
            "True HostnameConflict",
        ),
        (
            "protocol",
            vec![secret("tls-checks-certificate"), listener("other", 443, None)],
            "True ResolvedRefs",
            "False ProtocolConflict",
            "True ProtocolConflict",
        ),
    ] {
        let mut objects = objects.clone();
        let metadata = json!({"name": "broken", "namespace": INFRA});
        let data = json!({"tls.crt": "none", "tls.key": "none"});
        objects.insert(Kind::Secret, json!({"metadata": metadata, "stringData": data})).unwrap();
        let metadata = json!({"name": "wrong", "namespace": INFRA, "generation": 1});
        let spec = json!({"gatewayClassName": "tailcoat", "listeners": listeners});
        objects.insert(Kind::Gateway, json!({"metadata": metadata, "spec": spec})).unwrap();
        let after = run(&objects, &BTreeMap::new());
        let of_listener = format!("Gateway {INFRA}/wrong https");
        let found = ["ResolvedRefs", "Programmed", "Conflicted"].map(|kind| condition(&after, &of_listener, kind));
        assert_eq!(found, [resolved, programmed, conflicted], "{case}");
        let of_gateway = condition(&after, &format!("Gateway {INFRA}/wrong"), "Programmed");
        assert!(of_gateway.starts_with("False"), "{case}: {of_gateway}");
        moves_nothing_else(&before, after, "wrong", &[(Kind::Gateway, Key::new(INFRA, "wrong"))]);
    }
}

/// Routes with the same match are both accepted: the index of routes prefers the older one.
#[test]
fn routes_that_conflict_are_accepted() {
    let (mut objects, mut before) = right();
    for name in ["wrong", "wrong-too"] {
        let metadata = json!({"name": name, "namespace": INFRA, "generation": 1});
        let backend = json!({"name": "infra-backend-v2", "port": 8080});
        let spec = json!({"parentRefs": [{"name": "same-namespace"}], "rules": [{"backendRefs": [backend]}]});
        objects.insert(Kind::HttpRoute, json!({"metadata": metadata, "spec": spec})).unwrap();
    }
    let after = run(&objects, &BTreeMap::new());
    for name in ["weighted-backends", "wrong", "wrong-too"] {
        assert_eq!(condition(&after, &format!("HTTPRoute {INFRA}/{name}"), "Accepted"), "True Accepted", "{name}");
    }
    // The Gateway counts its routes.
    let touched = [
        (Kind::HttpRoute, Key::new(INFRA, "wrong")),
        (Kind::HttpRoute, Key::new(INFRA, "wrong-too")),
        (Kind::Gateway, Key::new(INFRA, "same-namespace")),
    ];
    before.statuses.remove(&touched[2]);
    moves_nothing_else(&before, after, "wrong", &touched);
}

#[test]
fn cycles_of_references() {
    let metadata = |name: &str| json!({"name": name, "namespace": INFRA, "generation": 1});
    let (objects, before) = right();

    // Sets that are each other's parent, and one that is its own, belong to no Gateway.
    let mut with_sets = objects.clone();
    for (name, parent) in [("wrong-a", "wrong-b"), ("wrong-b", "wrong-a"), ("wrong-c", "wrong-c")] {
        let parent = json!({"group": GROUP, "kind": "ListenerSet", "name": parent});
        let spec = json!({"parentRef": parent, "listeners": [listener("http", 8080, None)]});
        with_sets.insert(Kind::ListenerSet, json!({"metadata": metadata(name), "spec": spec})).unwrap();
    }
    moves_nothing_else(&before, run(&with_sets, &BTreeMap::new()), "wrong", &[]);

    // A route that is its own parent has none.
    let mut with_parent = objects.clone();
    let parent = json!({"group": GROUP, "kind": "HTTPRoute", "name": "wrong"});
    let backend = json!({"name": "infra-backend-v2", "port": 8080});
    let spec = json!({"parentRefs": [parent], "rules": [{"backendRefs": [backend]}]});
    with_parent.insert(Kind::HttpRoute, json!({"metadata": metadata("wrong"), "spec": spec})).unwrap();
    moves_nothing_else(&before, run(&with_parent, &BTreeMap::new()), "wrong", &[]);

    // Routes that lead to each other.
    let mut with_routes = objects.clone();
    for (name, to) in [("wrong-a", "wrong-b"), ("wrong-b", "wrong-a")] {
        let backend = json!({"group": GROUP, "kind": "HTTPRoute", "name": to});
        let spec = json!({"parentRefs": [{"name": "same-namespace"}], "rules": [{"backendRefs": [backend]}]});
        with_routes.insert(Kind::HttpRoute, json!({"metadata": metadata(name), "spec": spec})).unwrap();
    }
    let after = run(&with_routes, &BTreeMap::new());
    for name in ["wrong-a", "wrong-b"] {
        let route = format!("HTTPRoute {INFRA}/{name}");
        let found = ["Accepted", "ResolvedRefs"].map(|kind| condition(&after, &route, kind));
        assert_eq!(found, ["True Accepted", "False InvalidKind"], "{name}");
    }

    // A policy whose target is a policy.
    let mut with_policy = objects.clone();
    let target = json!({"group": "gateway.tailcoat.dev", "kind": "TrafficPolicy", "name": "wrong"});
    let policy = json!({"metadata": metadata("wrong"), "spec": {"targetRefs": [target]}});
    with_policy.insert(Kind::TrafficPolicy, policy).unwrap();
    let after = run(&with_policy, &BTreeMap::new());
    let at = (Kind::TrafficPolicy, Key::new(INFRA, "wrong"));
    let of_policy = &after.statuses[&at]["ancestors"][0]["conditions"][0];
    assert_eq!((&of_policy["status"], &of_policy["reason"]), (&json!("False"), &json!("Invalid")));
    moves_nothing_else(&before, after, "wrong", &[at]);
}
