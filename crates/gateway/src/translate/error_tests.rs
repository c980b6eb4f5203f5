//! Errors that servers report, in the statuses of Gateways and routes.

use std::collections::BTreeMap;

use serde_json::json;

use super::tests::{INFRA, condition, read, run};
use crate::objects::{Key, Kind};

#[test]
fn errors_of_servers_are_in_statuses() {
    let name = "gateway-conformance-infra/same-namespace/http".to_owned();
    let errors = BTreeMap::from([(format!("listener/{name}"), "cannot bind".to_owned())]);
    let translation = run(&read(&["base"]), &errors);
    let gateway = "Gateway gateway-conformance-infra/same-namespace";
    assert_eq!(condition(&translation, &format!("{gateway} http"), "Programmed"), "False Invalid");
    assert_eq!(condition(&translation, gateway, "Programmed"), "False Invalid");
    assert_eq!(
        condition(&translation, "Gateway gateway-conformance-infra/all-namespaces", "Programmed"),
        "True Programmed"
    );
}

#[test]
fn errors_of_routes_are_in_their_statuses() {
    let objects = read(&["base", "httproute-weight", "tlsroute-mixed-termination-same-namespace"]);
    let before = run(&objects, &BTreeMap::new());
    let name = |names: &mut dyn Iterator<Item = &String>| names.next().cloned().unwrap();
    let route = name(&mut before.snapshot.routes.keys());
    let stream = name(&mut before.snapshot.stream_routes.keys());
    let backend = before.snapshot.routes[&route].rules[0].backends[0].backend.clone();
    let (http, tls) = (format!("HTTPRoute {INFRA}/weighted-backends"), "TLSRoute".to_owned());
    let tls = format!("{tls} {}", stream.split(' ').next().unwrap());
    for (key, resource, expect) in [
        (format!("route/{route}"), &http, "True UnsupportedValue"),
        (format!("backend/{backend}"), &http, "True UnsupportedValue"),
        (format!("stream-route/{stream}"), &tls, "True UnsupportedValue"),
        (format!("route/{route} of another"), &http, "none "),
    ] {
        let after = run(&objects, &BTreeMap::from([(key.clone(), "not valid".to_owned())]));
        assert_eq!(condition(&after, resource, "PartiallyInvalid"), expect, "{key}");
        assert_eq!(condition(&after, resource, "Accepted"), "True Accepted", "{key}");
        assert_eq!(after.snapshot, before.snapshot, "{key}");
    }
}

#[test]
fn a_server_that_rejects_a_change_is_in_the_statuses_of_gateways() {
    let errors = BTreeMap::from([("server/pod-1".to_owned(), "no memory".to_owned())]);
    let translation = run(&read(&["base"]), &errors);
    let gateway = format!("Gateway {INFRA}/same-namespace");
    assert_eq!(condition(&translation, &gateway, "Programmed"), "False Pending");
    assert_eq!(condition(&translation, &gateway, "Accepted"), "True Accepted");
}

#[test]
fn errors_of_options_are_in_the_statuses_of_their_policies() {
    let mut objects = read(&["base", "httproute-weight"]);
    let targets = [
        ("of-route", "gateway.networking.k8s.io", "HTTPRoute", "weighted-backends"),
        ("of-gateway", "gateway.networking.k8s.io", "Gateway", "same-namespace"),
        ("of-other-gateway", "gateway.networking.k8s.io", "Gateway", "all-namespaces"),
        ("of-service", "", "Service", "infra-backend-v1"),
    ];
    for (name, group, kind, target) in targets {
        let targets = json!([{"group": group, "kind": kind, "name": target}]);
        let metadata = json!({"name": name, "namespace": INFRA});
        objects.insert(Kind::TrafficPolicy, json!({"metadata": metadata, "spec": {"targetRefs": targets}})).unwrap();
    }
    let before = run(&objects, &BTreeMap::new());
    let route = before.snapshot.routes.keys().next().unwrap();
    let backend = &before.snapshot.routes[route].rules[0].backends[0].backend;
    assert!(backend.contains("infra-backend-v1"), "{backend}");
    let other = format!("{INFRA}/other HTTPRoute {INFRA}/same-namespace");
    for (key, invalid) in [
        (format!("route-options/{route}"), Some("of-route")),
        (format!("route-options/{other}"), Some("of-gateway")),
        (format!("backend-options/{backend}"), Some("of-service")),
        (format!("backend-options/{backend} of Ingress {INFRA}/shop"), None),
        (format!("route/{route}"), None),
        ("route-options/shop.test Ingress default/web".to_owned(), None),
    ] {
        let after = run(&objects, &BTreeMap::from([(key.clone(), "no such option".to_owned())]));
        for (name, ..) in targets {
            let status = &after.statuses[&(Kind::TrafficPolicy, Key::new(INFRA, name))];
            let condition = &status["ancestors"][0]["conditions"][0];
            let expect = match invalid == Some(name) {
                true => json!(["False", "Invalid", "servers report: no such option"]),
                false => json!(["True", "Accepted", ""]),
            };
            let found = json!([condition["status"], condition["reason"], condition["message"]]);
            assert_eq!(found, expect, "{key}: {name}");
        }
    }
}
