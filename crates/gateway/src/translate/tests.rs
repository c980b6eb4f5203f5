//! Tables made from the manifests of Gateway API's conformance suite, in `conformance/gateway/suite`.

use std::collections::{BTreeMap, BTreeSet};

use routes::{BackendProtocol, ExternalAuthKind, Filter, PathMatch, PathRewrite};
use serde_json::{Value, json};

use super::{Addresses, ChangedObjects, FEATURES, Frame, ResourceTranslator, Translation};
use crate::objects::{Key, Kind, Objects};

const CONTROLLER: &str = "tailcoat.dev/gateway-controller";
pub(super) const INFRA: &str = "gateway-conformance-infra";

/// Manifests of the suite, whose certificates it makes while it runs.
pub(super) fn read(names: &[&str]) -> Objects {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/gateway/suite");
    let mut objects = Objects::default();
    for name in names {
        let text = std::fs::read_to_string(folder.join(format!("{name}.yaml"))).unwrap();
        let text = text.replace("{GATEWAY_CLASS_NAME}", "tailcoat");
        assert_eq!(objects.read_manifests(&text).unwrap(), Vec::<String>::new(), "{name}");
    }
    let class = json!({"metadata": {"name": "tailcoat", "generation": 1}, "spec": {"controllerName": CONTROLLER}});
    objects.insert(Kind::GatewayClass, class).unwrap();
    let made = rcgen::generate_simple_self_signed(["example.org".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    for (namespace, name) in [
        (INFRA, "tls-validity-checks-certificate"),
        (INFRA, "tls-terminate-checks-certificate"),
        (INFRA, "tls-checks-certificate"),
        ("gateway-conformance-web-backend", "certificate"),
    ] {
        let secret = json!({
            "metadata": {"name": name, "namespace": namespace}, "stringData": {"tls.crt": certificate, "tls.key": key},
        });
        objects.insert(Kind::Secret, secret).unwrap();
    }
    for (namespace, name) in [
        (INFRA, "tls-validity-checks-ca-certificate"),
        (INFRA, "tls-checks-ca-certificate"),
        ("gateway-conformance-web-backend", "web-backend-cm"),
    ] {
        let map = json!({"metadata": {"name": name, "namespace": namespace}, "data": {"ca.crt": certificate}});
        objects.insert(Kind::ConfigMap, map).unwrap();
    }
    objects
}

fn translate(objects: &Objects, frame: &Frame<'_>) -> Translation {
    let mut translation = Translation::default();
    let change = ResourceTranslator::default().translate(objects, frame, &ChangedObjects::default());
    translation.apply(change, objects, &BTreeSet::new());
    translation
}

pub(super) fn run(objects: &Objects, errors: &BTreeMap<String, String>) -> Translation {
    let addresses = Addresses::Pool(vec!["127.100.0.0/24".parse().unwrap()]);
    run_after(&Translation::default(), objects, &addresses, errors)
}

fn run_after(
    before: &Translation,
    objects: &Objects,
    addresses: &Addresses,
    errors: &BTreeMap<String, String>,
) -> Translation {
    let assigned = &before.assigned;
    let now = "2026-01-01T00:00:00Z";
    translate(objects, &Frame { controller: CONTROLLER, addresses, assigned, ingress_gateway: None, now, errors })
}

/// Finds `KIND NAMESPACE/NAME [LISTENER or PARENT]` in statuses, and returns `STATUS REASON` of a condition.
pub(super) fn condition(translation: &Translation, resource: &str, condition: &str) -> String {
    let mut words = resource.split(' ');
    let kind = Kind::named(words.next().unwrap()).unwrap();
    let (namespace, name) = words.next().unwrap().split_once('/').unwrap();
    let Some(status) = translation.statuses.get(&(kind, Key::new(namespace, name))) else {
        return "no status".to_owned();
    };
    let part = words.next();
    let conditions = match kind {
        Kind::Gateway | Kind::ListenerSet => match part {
            None => &status["conditions"],
            Some(listener) => &super::status::find(&status["listeners"], |it| it["name"] == listener)["conditions"],
        },
        Kind::BackendTlsPolicy => &status["ancestors"][0]["conditions"],
        _ => {
            let is_it = |it: &Value| part.is_none_or(|parent| it["parentRef"]["name"] == parent);
            &super::status::find(&status["parents"], is_it)["conditions"]
        }
    };
    let found = super::status::find(conditions, |it| it["type"] == condition);
    format!("{} {}", found["status"].as_str().unwrap_or("none"), found["reason"].as_str().unwrap_or(""))
}

/// Resource, condition, and the expected status and reason.
type ConditionCases = &'static [(&'static str, &'static str, &'static str)];

#[test]
fn conditions_of_the_suite() {
    let cases: &[(&str, ConditionCases)] = &[
        (
            "gateway-invalid-route-kind",
            &[
                (
                    "Gateway gateway-conformance-infra/gateway-only-invalid-route-kind http",
                    "ResolvedRefs",
                    "False InvalidRouteKinds",
                ),
                (
                    "Gateway gateway-conformance-infra/gateway-supported-and-invalid-route-kind http",
                    "ResolvedRefs",
                    "False InvalidRouteKinds",
                ),
            ],
        ),
        (
            "gateway-invalid-listeners-unsupported-protocol",
            &[
                (
                    "Gateway gateway-conformance-infra/gateway-only-unsupported-protocols",
                    "Accepted",
                    "False ListenersNotValid",
                ),
                (
                    "Gateway gateway-conformance-infra/gateway-only-unsupported-protocols invalid",
                    "Accepted",
                    "False UnsupportedProtocol",
                ),
                (
                    "Gateway gateway-conformance-infra/gateway-supported-and-unsupported-protocols",
                    "Accepted",
                    "True ListenersNotValid",
                ),
                (
                    "Gateway gateway-conformance-infra/gateway-supported-and-unsupported-protocols http",
                    "Programmed",
                    "True Programmed",
                ),
            ],
        ),
        (
            "gateway-secret-missing-reference-grant",
            &[(
                "Gateway gateway-conformance-infra/gateway-secret-missing-reference-grant https",
                "ResolvedRefs",
                "False RefNotPermitted",
            )],
        ),
        (
            "gateway-secret-reference-grant-specific",
            &[(
                "Gateway gateway-conformance-infra/gateway-secret-reference-grant-specific https",
                "ResolvedRefs",
                "True ResolvedRefs",
            )],
        ),
        (
            "gateway-invalid-tls-backend-configuration",
            &[
                (
                    "Gateway gateway-conformance-infra/gateway-client-certificate-nonexistent-secret",
                    "ResolvedRefs",
                    "False InvalidClientCertificateRef",
                ),
                (
                    "Gateway gateway-conformance-infra/gateway-client-certificate-unsupported-group",
                    "ResolvedRefs",
                    "False InvalidClientCertificateRef",
                ),
                (
                    "Gateway gateway-conformance-infra/gateway-client-certificate-malformed-secret",
                    "ResolvedRefs",
                    "False InvalidClientCertificateRef",
                ),
                (
                    "Gateway gateway-conformance-infra/gateway-client-certificate-missing-reference-grant",
                    "ResolvedRefs",
                    "False RefNotPermitted",
                ),
                (
                    "Gateway gateway-conformance-infra/gateway-client-certificate-missing-reference-grant",
                    "Accepted",
                    "True Accepted",
                ),
            ],
        ),
        (
            "gateway-with-invalid-clientcertificate-validation",
            &[
                (
                    "Gateway gateway-conformance-infra/gateway-with-invalid-client-cert-validation https",
                    "Programmed",
                    "True Programmed",
                ),
                (
                    "Gateway gateway-conformance-infra/gateway-with-invalid-client-cert-validation https-unresolved",
                    "Accepted",
                    "False NoValidCACertificate",
                ),
                (
                    "Gateway gateway-conformance-infra/gateway-with-invalid-client-cert-validation https-unresolved",
                    "ResolvedRefs",
                    "False InvalidCACertificateRef",
                ),
                (
                    "Gateway gateway-conformance-infra/gateway-with-invalid-client-cert-validation https-invalid-kind",
                    "ResolvedRefs",
                    "False InvalidCACertificateKind",
                ),
                (
                    "Gateway gateway-conformance-infra/gateway-with-invalid-client-cert-validation https-grant-missing",
                    "ResolvedRefs",
                    "False RefNotPermitted",
                ),
            ],
        ),
        (
            "gateway-static-addresses",
            &[("Gateway gateway-conformance-infra/gateway-static-addresses", "Accepted", "False UnsupportedAddress")],
        ),
        (
            "httproute-invalid-cross-namespace-backend-ref",
            &[
                (
                    "HTTPRoute gateway-conformance-infra/invalid-cross-namespace-backend-ref",
                    "Accepted",
                    "True Accepted",
                ),
                (
                    "HTTPRoute gateway-conformance-infra/invalid-cross-namespace-backend-ref",
                    "ResolvedRefs",
                    "False RefNotPermitted",
                ),
            ],
        ),
        (
            "httproute-invalid-nonexistent-backendref",
            &[(
                "HTTPRoute gateway-conformance-infra/invalid-nonexistent-backend-ref",
                "ResolvedRefs",
                "False BackendNotFound",
            )],
        ),
        (
            "httproute-invalid-backendref-unknown-kind",
            &[(
                "HTTPRoute gateway-conformance-infra/invalid-backend-ref-unknown-kind",
                "ResolvedRefs",
                "False InvalidKind",
            )],
        ),
        (
            "httproute-invalid-parentref-not-matching-section-name",
            &[(
                "HTTPRoute gateway-conformance-infra/httproute-listener-not-matching-section-name",
                "Accepted",
                "False NoMatchingParent",
            )],
        ),
        (
            "httproute-invalid-parentref-not-matching-listener-port",
            &[(
                "HTTPRoute gateway-conformance-infra/httproute-listener-not-matching-route-port",
                "Accepted",
                "False NoMatchingParent",
            )],
        ),
        (
            "httproute-invalid-cross-namespace-parent-ref",
            &[(
                "HTTPRoute gateway-conformance-web-backend/invalid-cross-namespace-parent-ref",
                "Accepted",
                "False NotAllowedByListeners",
            )],
        ),
        (
            "httproute-disallowed-kind",
            &[("HTTPRoute gateway-conformance-infra/disallowed-kind", "Accepted", "False NotAllowedByListeners")],
        ),
        (
            "httproute-reference-grant",
            &[("HTTPRoute gateway-conformance-infra/reference-grant", "ResolvedRefs", "True ResolvedRefs")],
        ),
        (
            "httproute-hostname-intersection",
            &[(
                "HTTPRoute gateway-conformance-infra/no-intersecting-hosts",
                "Accepted",
                "False NoMatchingListenerHostname",
            )],
        ),
        (
            "listenerset-protocol-conflict",
            &[
                (
                    "ListenerSet gateway-conformance-infra/listenerset-with-protocol-conflict-with-gateway-1",
                    "Accepted",
                    "True ListenersNotValid",
                ),
                (
                    "ListenerSet gateway-conformance-infra/listenerset-with-protocol-conflict-with-gateway-1",
                    "Programmed",
                    "True Programmed",
                ),
                (
                    "ListenerSet gateway-conformance-infra/listenerset-with-protocol-conflict-with-listener-set-1",
                    "Programmed",
                    "True Programmed",
                ),
                (
                    "ListenerSet gateway-conformance-infra/listenerset-with-protocol-conflict-with-gateway-2",
                    "Accepted",
                    "False ListenersNotValid",
                ),
                (
                    "ListenerSet gateway-conformance-infra/listenerset-with-protocol-conflict-with-gateway-2 protocol-conflict-with-gateway-listener",
                    "Conflicted",
                    "True ProtocolConflict",
                ),
                (
                    "Gateway gateway-conformance-infra/gateway-with-listenerset-protocol-conflict protocol-conflict-with-gateway-listener",
                    "Accepted",
                    "True Accepted",
                ),
            ],
        ),
        (
            "listenerset-hostname-conflict",
            &[
                (
                    "ListenerSet gateway-conformance-infra/listenerset-with-hostname-conflict-with-gateway-1 hostname-conflict-with-gateway-listener",
                    "Accepted",
                    "False HostnameConflict",
                ),
                (
                    "ListenerSet gateway-conformance-infra/listenerset-with-hostname-conflict-with-listener-set-2",
                    "Programmed",
                    "False ListenersNotValid",
                ),
            ],
        ),
        (
            "listenerset-allowed-namespace-none",
            &[
                ("ListenerSet gateway-conformance-infra/listenerset-not-allowed", "Accepted", "False NotAllowed"),
                ("ListenerSet gateway-conformance-infra/listenerset-not-allowed", "Programmed", "False NotAllowed"),
            ],
        ),
        (
            "listenerset-allowed-namespace-selector",
            &[
                (
                    "ListenerSet gateway-api-listenerset-selector-allowed-ns/listenerset-in-selected-namespace",
                    "Accepted",
                    "True Accepted",
                ),
                (
                    "ListenerSet gateway-api-listenerset-selector-not-allowed-ns/listenerset-not-in-selected-namespace",
                    "Accepted",
                    "False NotAllowed",
                ),
            ],
        ),
        (
            "backendtlspolicy-invalid-ca-certificate-ref",
            &[
                (
                    "BackendTLSPolicy gateway-conformance-infra/nonexistent-ca-certificate-ref",
                    "Accepted",
                    "False NoValidCACertificate",
                ),
                (
                    "BackendTLSPolicy gateway-conformance-infra/nonexistent-ca-certificate-ref",
                    "ResolvedRefs",
                    "False InvalidCACertificateRef",
                ),
                (
                    "BackendTLSPolicy gateway-conformance-infra/malformed-ca-certificate-ref",
                    "ResolvedRefs",
                    "False InvalidCACertificateRef",
                ),
            ],
        ),
        (
            "tlsroute-mixed-termination-same-namespace",
            &[
                (
                    "Gateway gateway-conformance-infra/gateway-tlsroute-mixed-termination tls-terminate",
                    "Accepted",
                    "True Accepted",
                ),
                (
                    "Gateway gateway-conformance-infra/gateway-tlsroute-mixed-termination tls-passthrough",
                    "Accepted",
                    "True Accepted",
                ),
            ],
        ),
        (
            "tlsroute-invalid-no-matching-listener",
            &[
                (
                    "TLSRoute gateway-conformance-infra/tlsroute-not-allowed-protocol-http",
                    "Accepted",
                    "False NotAllowedByListeners",
                ),
                (
                    "TLSRoute gateway-conformance-infra/tlsroute-no-matching-section-name",
                    "Accepted",
                    "False NoMatchingParent",
                ),
            ],
        ),
        (
            "tcproute-invalid-non-tcp-listener",
            &[("TCPRoute gateway-conformance-infra/tcp-route", "Accepted", "False NotAllowedByListeners")],
        ),
        (
            "udproute-not-allowed-by-listeners",
            &[(
                "UDPRoute gateway-conformance-infra/udproute-not-allowed-by-listeners",
                "Accepted",
                "False NotAllowedByListeners",
            )],
        ),
    ];
    for (file, expected) in cases {
        let translation = run(&read(&["base", file]), &BTreeMap::new());
        for (resource, kind, expect) in *expected {
            assert_eq!(condition(&translation, resource, kind), *expect, "{file}: {resource} {kind}");
        }
    }
}

#[test]
fn routes_of_the_suite() {
    let of = |file: &str, route: &str| {
        let translation = run(&read(&["base", file]), &BTreeMap::new());
        let found = translation.snapshot.routes.iter().find(|(name, _)| name.starts_with(&format!("{INFRA}/{route} ")));
        (found.unwrap_or_else(|| panic!("{file}: no {route}")).1.clone(), translation.snapshot)
    };
    let (weights, snapshot) = of("httproute-weight", "weighted-backends");
    let shares: Vec<_> = weights.rules[0].backends.iter().map(|it| (it.backend.as_str(), it.weight)).collect();
    assert_eq!(shares[0], ("gateway-conformance-infra/infra-backend-v1:8080", 70));
    assert_eq!(shares[2].1, 0);
    assert_eq!(weights.listeners, ["gateway-conformance-infra/same-namespace/http"]);
    assert_eq!(snapshot.listeners[&weights.listeners[0]].port, 80);

    let (mirror, _) = of("httproute-request-percentage-mirror", "request-percentage-mirror");
    let fractions = mirror.rules.iter().flat_map(|rule| &rule.filters).filter_map(|filter| match filter {
        Filter::Mirror(mirror) => Some(mirror.fraction),
        _ => None,
    });
    assert!(fractions.into_iter().any(|fraction| fraction == (20, 100)));

    let (redirect, _) = of("httproute-redirect-path", "redirect-path");
    let Filter::Redirect(first) = &redirect.rules[0].filters[0] else { panic!("{redirect:?}") };
    assert_eq!(first.path, Some(PathRewrite::Prefix("/replacement-prefix".to_owned())));
    assert_eq!(redirect.rules[0].matches[0].path, Some(PathMatch::Prefix("/original-prefix".to_owned())));

    let (timeout, _) = of("httproute-timeout-request", "request-timeout");
    assert_eq!(timeout.rules[0].timeouts.request_ms, Some(500));

    let (grpc, snapshot) = of("grpcroute-exact-method-matching", "exact-matching");
    let method = grpc.rules[0].matches[0].grpc.as_ref().unwrap();
    assert_eq!(method.service.as_deref(), Some("gateway_api_conformance.echo_basic.grpcecho.GrpcEcho"));
    assert_eq!(snapshot.backends[&grpc.rules[0].backends[0].backend].protocol, BackendProtocol::Http2);
}

#[test]
fn a_status_that_is_written_is_not_written_again() {
    let mut objects = read(&["base", "listenerset-protocol-conflict", "httproute-weight"]);
    let first = run(&objects, &BTreeMap::new());
    for ((kind, key), status) in &first.statuses {
        let spec = match kind {
            Kind::Gateway => json!({"metadata": {"name": key.name, "namespace": key.namespace}, "status": status}),
            _ => continue,
        };
        // The specification stays: only the status of Gateways decides their addresses.
        let mut gateway = (*objects.gateways[key]).clone();
        gateway.status = spec["status"].clone();
        objects.gateways.insert(key.clone(), std::sync::Arc::new(gateway));
    }
    let second = run(&objects, &BTreeMap::new());
    assert_eq!(first.statuses, second.statuses);
    assert!(second.snapshot.change_from(&first.snapshot).is_empty());
}

/// Hostile and wrong input: the condition that the specification names, and nothing else moves.
#[test]
fn wrong_routes() {
    let rule = |rule: Value| {
        json!({
            "metadata": {"name": "wrong", "namespace": INFRA, "generation": 3},
            "spec": {"parentRefs": [{"name": "same-namespace"}], "rules": [rule]},
        })
    };
    let path = |kind: &str, value: &str| json!({"matches": [{"path": {"type": kind, "value": value}}]});
    let redirect = json!({"type": "RequestRedirect", "requestRedirect": {"hostname": "a.example"}});
    let rewrite = json!({"type": "URLRewrite", "urlRewrite": {"hostname": "a.example"}});
    let custom = json!({"type": "ExtensionRef", "extensionRef": {"group": "x", "kind": "Y", "name": "z"}});
    let auth = |protocol: &str, bytes: u32| {
        let backend = json!({"name": "infra-backend-v1", "port": 8080});
        let auth = json!({"protocol": protocol, "backendRef": backend, "forwardBody": {"maxSize": bytes}});
        json!({"filters": [{"type": "ExternalAuth", "externalAuth": auth}]})
    };
    for (case, accepted, resolved) in [
        (auth("SMTP", 0), "True Accepted", "False UnsupportedProtocol"),
        (path("RegularExpression", "("), "False UnsupportedValue", "True ResolvedRefs"),
        (path("RegularExpression", "(a{1000}){1000}"), "False UnsupportedValue", "True ResolvedRefs"),
        (path("Other", "/"), "False UnsupportedValue", "True ResolvedRefs"),
        (json!({"timeouts": {"request": "soon"}}), "False UnsupportedValue", "True ResolvedRefs"),
        (json!({"filters": [{"type": "Other"}]}), "False UnsupportedValue", "True ResolvedRefs"),
        (json!({"filters": [{"type": "CORS"}]}), "False UnsupportedValue", "True ResolvedRefs"),
        (json!({"filters": [redirect, rewrite]}), "False IncompatibleFilters", "True ResolvedRefs"),
        (json!({"filters": [custom]}), "True Accepted", "False InvalidKind"),
        (json!({"backendRefs": [{"name": "infra-backend-v1"}]}), "True Accepted", "False BackendNotFound"),
        (json!({"backendRefs": [{"name": "infra-backend-v1", "port": 1}]}), "True Accepted", "False BackendNotFound"),
    ] {
        let mut objects = read(&["base", "httproute-weight"]);
        let before = run(&objects, &BTreeMap::new());
        objects.insert(Kind::HttpRoute, rule(case.clone())).unwrap();
        let mut after = run(&objects, &BTreeMap::new());
        let resource = format!("HTTPRoute {INFRA}/wrong");
        assert_eq!(condition(&after, &resource, "Accepted"), accepted, "{case}");
        assert_eq!(condition(&after, &resource, "ResolvedRefs"), resolved, "{case}");
        let is_wrong = |name: &String| name.starts_with(&format!("{INFRA}/wrong "));
        if let Some((_, route)) = after.snapshot.routes.iter().find(|(name, _)| is_wrong(name)) {
            assert!(route.rules[0].error.is_some() || !route.rules[0].backends.is_empty(), "{case}");
        }
        after.snapshot.routes.retain(|name, _| !is_wrong(name));
        assert_eq!(after.snapshot, before.snapshot, "{case}");
    }
    // Fields of another type are errors of that resource alone.
    let mut objects = Objects::default();
    assert!(objects.insert(Kind::HttpRoute, json!({"metadata": {"name": "a"}, "spec": {"rules": 1}})).is_err());
    assert!(objects.http_routes.is_empty());
}

#[test]
fn external_authorization() {
    for (protocol, expect) in [("HTTP", ExternalAuthKind::Http("/check".into())), ("GRPC", ExternalAuthKind::Grpc)] {
        let config = json!({"path": "/check", "allowedHeaders": ["x-user"], "allowedResponseHeaders": ["x-name"]});
        let filter = json!({"type": "ExternalAuth", "externalAuth": {
            "protocol": protocol, "backendRef": {"name": "infra-backend-v1", "port": 8080},
            protocol.to_lowercase(): config, "forwardBody": {"maxSize": 9},
        }});
        let route = json!({
            "metadata": {"name": "auth", "namespace": INFRA},
            "spec": {"parentRefs": [{"name": "same-namespace"}], "rules": [{
                "filters": [filter], "backendRefs": [{"name": "infra-backend-v2", "port": 8080}],
            }]},
        });
        let mut objects = read(&["base", "httproute-weight"]);
        objects.insert(Kind::HttpRoute, route).unwrap();
        let after = run(&objects, &BTreeMap::new());
        assert_eq!(condition(&after, &format!("HTTPRoute {INFRA}/auth"), "ResolvedRefs"), "True ResolvedRefs");
        let (_, route) =
            after.snapshot.routes.iter().find(|(name, _)| name.starts_with(&format!("{INFRA}/auth "))).unwrap();
        let [Filter::ExternalAuth(auth)] = route.rules[0].filters.as_slice() else { panic!("{route:?}") };
        assert_eq!((&auth.kind, auth.body_bytes_max), (&expect, 9));
        assert_eq!(
            (&auth.request_headers[..], &auth.response_headers[..]),
            (&["x-user".to_owned()][..], &["x-name".to_owned()][..])
        );
        let backend = &after.snapshot.backends[&auth.backend];
        let is_http2 = backend.protocol == BackendProtocol::Http2;
        assert_eq!(is_http2, protocol == "GRPC", "{backend:?}");
    }
}

#[test]
fn policies_for_tls_conflict_by_age() {
    let mut objects = read(&["base", "backendtlspolicy-conflict-resolution"]);
    // The API server sets times of creation.
    let old = objects.backend_tls_policies.keys().cloned().collect::<Vec<_>>();
    for (at, key) in old.iter().enumerate() {
        let mut policy = (*objects.backend_tls_policies[key]).clone();
        policy.metadata.creation_timestamp = format!("2026-01-01T00:00:{at:02}Z");
        objects.backend_tls_policies.insert(key.clone(), std::sync::Arc::new(policy));
    }
    let translation = run(&objects, &BTreeMap::new());
    for (name, expect) in [
        ("conflicted-without-section-name-1", "True Accepted"),
        ("conflicted-without-section-name-2", "False Conflicted"),
        ("conflicted-with-section-name-1", "True Accepted"),
        ("conflicted-with-section-name-2", "False Conflicted"),
        ("not-conflicted-with-section-name", "True Accepted"),
    ] {
        assert_eq!(condition(&translation, &format!("BackendTLSPolicy {INFRA}/{name}"), "Accepted"), expect, "{name}");
    }
}

#[test]
fn services_give_each_gateway_ports_of_its_own() {
    let objects = read(&["base"]);
    let selector = BTreeMap::from([("app".to_owned(), "tailcoat".to_owned())]);
    let addresses = Addresses::Services { r#type: "LoadBalancer".to_owned(), selector };
    let translate = |objects: &Objects| run_after(&Translation::default(), objects, &addresses, &BTreeMap::new());
    let first = translate(&objects);
    let ports: std::collections::BTreeSet<u16> = first.snapshot.listeners.values().map(|it| it.port).collect();
    assert_eq!(ports.len(), first.services.len(), "each of these Gateways has one port");
    let gateway = "Gateway gateway-conformance-infra/same-namespace";
    assert_eq!(condition(&first, gateway, "Programmed"), "False AddressNotAssigned");

    // The Services exist now, and the load balancer has given one of them an address.
    let mut objects = objects;
    for (key, service) in &first.services {
        let mut service = service.clone();
        if key.name == "same-namespace-tailcoat" {
            service["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.7"}]}});
        }
        objects.insert(Kind::Service, service).unwrap();
    }
    let second = translate(&objects);
    assert_eq!(second.snapshot.listeners, first.snapshot.listeners, "ports stay");
    assert_eq!(condition(&second, gateway, "Programmed"), "True Programmed");
    let status = &second.statuses[&(Kind::Gateway, Key::new(INFRA, "same-namespace"))];
    assert_eq!(status["addresses"], json!([{"type": "IPAddress", "value": "192.0.2.7"}]));
}

fn gateway(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": INFRA, "generation": 1},
        "spec": {"gatewayClassName": "tailcoat", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
    })
}

/// Nothing that the translation before has given is stored yet: a Gateway that is new takes nothing from others.
#[test]
fn gateways_keep_addresses_that_are_not_stored_yet() {
    let services = Addresses::Services { r#type: "ClusterIP".to_owned(), selector: BTreeMap::new() };
    let pool = Addresses::Pool(vec!["127.100.0.0/29".parse().unwrap()]);
    for addresses in [pool, services] {
        let mut objects = read(&[]);
        for name in ["b", "c"] {
            objects.insert(Kind::Gateway, gateway(name)).unwrap();
        }
        let first = run_after(&Translation::default(), &objects, &addresses, &BTreeMap::new());
        objects.insert(Kind::Gateway, gateway("a")).unwrap();
        let second = run_after(&first, &objects, &addresses, &BTreeMap::new());
        let place = |translation: &Translation, name: &str| {
            let listener = &translation.snapshot.listeners[&format!("{INFRA}/{name}/http")];
            (listener.addresses.clone(), listener.port)
        };
        assert_eq!(place(&first, "b"), place(&second, "b"));
        assert_eq!(place(&first, "c"), place(&second, "c"));
        let all: BTreeSet<_> = ["a", "b", "c"].map(|name| place(&second, name)).into();
        assert_eq!(all.len(), 3, "{all:?}");
    }
}

#[test]
fn a_pool_has_as_many_gateways_as_addresses() {
    let addresses = Addresses::Pool(vec!["127.100.0.0/22".parse().unwrap()]);
    let mut objects = read(&[]);
    for number in 0..1_023 {
        objects.insert(Kind::Gateway, gateway(&format!("g{number:04}"))).unwrap();
    }
    let translation = run_after(&Translation::default(), &objects, &addresses, &BTreeMap::new());
    let taken: BTreeSet<_> = translation.snapshot.listeners.values().map(|it| it.addresses.clone()).collect();
    assert_eq!(taken.len(), 1_022);
    let without = format!("Gateway {INFRA}/g1022");
    assert_eq!(condition(&translation, &without, "Programmed"), "False AddressNotAssigned");
}

/// An Ingress whose Secret is missing sends requests to HTTPS, and nothing in plain text; another, such as that by which the
/// certificate is issued, is served.
#[test]
fn ingresses_wait_for_their_certificates() {
    let mut objects = read(&[]);
    objects.insert(Kind::Gateway, gateway("ingress")).unwrap();
    let class = json!({"metadata": {"name": "tailcoat"}, "spec": {"controller": "tailcoat.dev/ingress-controller"}});
    objects.insert(Kind::IngressClass, class).unwrap();
    let ingress = |name: &str, path: &str, tls: Value| {
        let backend = json!({"service": {"name": name, "port": {"number": 80}}});
        json!({
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"ingressClassName": "tailcoat", "tls": tls, "rules": [{"host": "shop.example", "http": {"paths": [
                {"path": path, "pathType": "Prefix", "backend": backend},
            ]}}]},
        })
    };
    let tls = json!([{"hosts": ["shop.example"], "secretName": "shop-tls"}]);
    objects.insert(Kind::Ingress, ingress("shop", "/", tls)).unwrap();
    let addresses = Addresses::Pool(vec!["127.100.0.0/29".parse().unwrap()]);
    let key = Key::new(INFRA, "ingress");
    let run = |objects: &Objects| {
        let (assigned, errors) = (super::Assignments::new(), BTreeMap::new());
        let (ingress_gateway, now) = (Some(&key), "2026-01-01T00:00:00Z");
        let frame = Frame {
            controller: CONTROLLER,
            addresses: &addresses,
            assigned: &assigned,
            ingress_gateway,
            now,
            errors: &errors,
        };
        translate(objects, &frame)
    };
    // Routes of the plain listener, with the paths of those that are served.
    let served = |translation: &Translation| -> Vec<(String, Vec<Option<PathMatch>>)> {
        let plain = format!("{INFRA}/ingress/http");
        let of_plain = translation.snapshot.routes.iter().filter(|(_, route)| route.listeners.contains(&plain));
        of_plain
            .map(|(name, route)| {
                let name = name.trim_end_matches(&format!(" {key}")).to_owned();
                let matches = route.rules.iter().flat_map(|rule| &rule.matches);
                (name, matches.map(|it| it.path.clone()).collect())
            })
            .collect()
    };
    let redirect = ("shop.example Ingress to-https".to_owned(), vec![]);
    assert_eq!(served(&run(&objects)), vec![redirect.clone()]);

    objects.insert(Kind::Ingress, ingress("solver", "/.well-known/acme-challenge/x", json!([]))).unwrap();
    let solver = vec![Some(PathMatch::Prefix("/.well-known/acme-challenge/x".to_owned()))];
    assert_eq!(served(&run(&objects)), [("shop.example Ingress".to_owned(), solver), redirect.clone()]);

    let made = rcgen::generate_simple_self_signed(["shop.example".to_owned()]).unwrap();
    let data = json!({"tls.crt": made.cert.pem(), "tls.key": made.signing_key.serialize_pem()});
    let secret = json!({"metadata": {"name": "shop-tls", "namespace": "shop"}, "stringData": data});
    objects.insert(Kind::Secret, secret).unwrap();
    let after = run(&objects);
    assert_eq!(served(&after), [redirect]);
    let with_tls = &after.snapshot.routes[&format!("shop.example Ingress {key}")];
    assert_eq!((with_tls.listeners.len(), with_tls.rules.len()), (1, 2));
}

#[test]
fn traffic_policies() {
    let mut objects = read(&["base", "httproute-weight"]);
    let policy = |name: &str, time: &str, spec: Value| json!({"metadata": {"name": name, "namespace": INFRA, "creationTimestamp": time}, "spec": spec});
    let target = |kind: &str, name: &str| json!({"group": "gateway.networking.k8s.io", "kind": kind, "name": name});
    let route = target("HTTPRoute", "weighted-backends");
    for (name, time, spec) in [
        ("a", "2026-01-01T00:00:01Z", json!({"targetRefs": [route], "rateLimits": [{"requests": 5, "per": "second"}]})),
        ("b", "2026-01-01T00:00:02Z", json!({"targetRefs": [route]})),
        (
            "c",
            "2026-01-01T00:00:03Z",
            json!({"targetRefs": [target("Gateway", "same-namespace")], "allow": ["10.0.0.0/8"]}),
        ),
        ("d", "2026-01-01T00:00:04Z", json!({"targetRefs": [target("Gateway", "none")]})),
        ("e", "2026-01-01T00:00:05Z", json!({"targetRefs": [target("Gateway", "all-namespaces")], "allow": ["x\" }"]})),
    ] {
        objects.insert(Kind::TrafficPolicy, policy(name, time, spec)).unwrap();
    }
    let translation = run(&objects, &BTreeMap::new());
    let reason = |name: &str| {
        let status = &translation.statuses[&(Kind::TrafficPolicy, Key::new(INFRA, name))];
        status["ancestors"][0]["conditions"][0]["reason"].as_str().unwrap_or("none").to_owned()
    };
    let reasons = ["a", "b", "c", "d", "e"].map(reason);
    assert_eq!(reasons, ["Accepted", "Conflicted", "Accepted", "none", "Invalid"]);
    let route = translation.snapshot.routes.values().next().unwrap();
    assert_eq!(route.rules[0].options, "rate-limit \"5/s\"\n");
}

/// Features that the report does not list: those that all implementations have, and one that belongs to no profile but has
/// passed its test, `GRPCRouteNamedRule`.
const UNLISTED: [&str; 6] =
    ["GRPCRoute", "GRPCRouteNamedRouteRule", "Gateway", "HTTPRoute", "ReferenceGrant", "TLSRoute"];

#[test]
fn features_are_those_that_the_suite_has_shown() {
    let report = include_str!("../../../../conformance/gateway/report.yaml");
    assert!(!report.contains("failedTests") && !report.contains("skippedTests"));
    let listed = report.lines().filter_map(|line| line.strip_prefix("    - "));
    let shown: BTreeSet<&str> = listed.chain(UNLISTED).collect();
    assert_eq!(FEATURES.iter().copied().collect::<BTreeSet<_>>(), shown);
}
