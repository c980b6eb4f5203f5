//! Errors that servers report, in the statuses of Gateways and routes.

use std::collections::BTreeMap;

use super::tests::{INFRA, condition, read, run};

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
