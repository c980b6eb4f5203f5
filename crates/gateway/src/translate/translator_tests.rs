//! Translations that follow each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::{Addresses, Assignments, ChangedObjects, Frame, ResourceTranslator, Touched, Translation};
use crate::objects::{Key, Kind, Objects};

const CONTROLLER: &str = "tailcoat.dev/gateway-controller";
const GROUP: &str = "gateway.networking.k8s.io";

/// A cluster that changes at random.
struct Cluster {
    random: fastrand::Rng,
    objects: Objects,
    addresses: Addresses,
    changed: ChangedObjects,
    /// Services whose endpoints have changed.
    services: BTreeSet<Key>,
    errors: BTreeMap<String, String>,
    certificate: (String, String),
}

impl Cluster {
    fn new(seed: u64, certificate: &(String, String)) -> Self {
        let pool = Addresses::Pool(vec!["127.100.0.0/29".parse().unwrap()]);
        let services = Addresses::Services { r#type: "ClusterIP".to_owned(), selector: BTreeMap::new() };
        Self {
            random: fastrand::Rng::with_seed(seed),
            objects: Objects::default(),
            addresses: if seed.is_multiple_of(2) { pool } else { services },
            changed: ChangedObjects::default(),
            services: BTreeSet::new(),
            errors: BTreeMap::new(),
            certificate: certificate.clone(),
        }
    }

    fn insert(&mut self, kind: Kind, value: Value) {
        let text = |name: &str| value["metadata"][name].as_str().unwrap_or_default();
        self.services.extend(self.objects.service_of_slice(&Key::new(text("namespace"), text("name"))).cloned());
        let (key, is_changed) = self.objects.insert(kind, value).unwrap();
        if kind == Kind::EndpointSlice {
            self.services.extend(self.objects.service_of_slice(&key).cloned());
        } else if is_changed {
            self.changed.objects.insert((kind, key));
        }
    }

    fn remove(&mut self, kind: Kind, key: &Key) {
        if kind == Kind::EndpointSlice {
            self.services.extend(self.objects.service_of_slice(key).cloned());
        } else {
            self.changed.objects.insert((kind, key.clone()));
        }
        self.objects.remove(kind, key);
    }

    fn one_of<'a>(&mut self, texts: &[&'a str]) -> &'a str {
        texts[self.random.usize(..texts.len())]
    }

    fn number(&mut self, prefix: &str, below: u32) -> String {
        format!("{prefix}{}", self.random.u32(0..below))
    }

    fn metadata(&mut self, name: String) -> Value {
        json!({
            "name": name, "namespace": self.number("n", 2), "generation": self.random.u32(1..1_000_000),
            "creationTimestamp": format!("2026-01-01T00:00:{:02}Z", self.random.u32(0..4)),
        })
    }

    fn allowed_routes(&mut self) -> Value {
        match self.random.u32(0..4) {
            0 => json!({"namespaces": {"from": "Same"}}),
            1 => json!({"namespaces": {"from": "Selector", "selector": {"matchLabels": {"team": "a"}}}}),
            2 => json!({"kinds": [{"kind": "GRPCRoute"}], "namespaces": {"from": "All"}}),
            _ => json!({"namespaces": {"from": "All"}}),
        }
    }

    fn listener(&mut self, at: usize) -> Value {
        let (protocol, port) =
            [("HTTP", 80), ("HTTPS", 443), ("TLS", 443), ("TCP", 5432), ("UDP", 53), ("X", 1)][self.random.usize(..6)];
        let secret = self.number("x", 3);
        let mut listener = json!({
            "name": format!("l{at}"), "port": port, "protocol": protocol, "allowedRoutes": self.allowed_routes(),
        });
        if matches!(protocol, "HTTPS" | "TLS") {
            let mode = if protocol == "TLS" { self.one_of(&["Terminate", "Passthrough"]) } else { "Terminate" };
            listener["tls"] = json!({"mode": mode, "certificateRefs": [{"name": secret, "namespace": "n0"}]});
        }
        if self.random.bool() {
            listener["hostname"] = json!(self.one_of(&["a.test", "*.b.test"]));
        }
        listener
    }

    fn listeners(&mut self) -> Vec<Value> {
        (0..self.random.usize(1..4)).map(|at| self.listener(at)).collect()
    }

    fn gateway(&mut self) -> Value {
        let mut gateway = json!({
            "metadata": self.number("g", 3),
            "spec": {"gatewayClassName": self.one_of(&["tailcoat", "tailcoat", "other"]), "listeners": self.listeners()},
        });
        let name = gateway["metadata"].as_str().unwrap_or_default().to_owned();
        gateway["metadata"] = self.metadata(name);
        if self.random.bool() {
            gateway["spec"]["allowedListeners"] =
                json!({"namespaces": {"from": self.one_of(&["All", "Same", "None"])}});
        }
        if self.random.u32(0..3) == 0 {
            let reference = json!({"name": self.number("x", 3)});
            gateway["spec"]["tls"] = json!({"backend": {"clientCertificateRef": reference}});
        }
        if self.random.u32(0..6) == 0 {
            gateway["spec"]["addresses"] = json!([{"value": "127.100.0.2"}]);
        }
        gateway
    }

    fn listener_set(&mut self) -> Value {
        let name = self.number("set", 2);
        json!({
            "metadata": self.metadata(name),
            "spec": {
                "parentRef": {"name": self.number("g", 3), "namespace": self.number("n", 2)},
                "listeners": self.listeners(),
            },
        })
    }

    fn backend(&mut self) -> Value {
        let port = [80, 81, 53][self.random.usize(..3)];
        json!({
            "name": self.number("s", 4), "namespace": self.number("n", 2),
            "port": port, "weight": self.random.u32(0..3),
        })
    }

    fn filters(&mut self) -> Vec<Value> {
        let mut filters = Vec::new();
        if self.random.bool() {
            filters.push(json!({"type": "RequestMirror", "requestMirror": {"backendRef": self.backend()}}));
        }
        if self.random.u32(0..4) == 0 {
            filters.push(json!({"type": "RequestRedirect", "requestRedirect": {"statusCode": 301}}));
        }
        if self.random.u32(0..4) == 0 {
            filters.push(json!({"type": "URLRewrite", "urlRewrite": {"hostname": "x.test"}}));
        }
        filters
    }

    fn route(&mut self, kind: Kind) -> Value {
        let name = self.number("r", 4);
        let parents: Vec<Value> = (0..self.random.usize(1..4))
            .map(|_| {
                let is_set = self.random.u32(0..3) == 0;
                let (kind, name) = if is_set { ("ListenerSet", "set") } else { ("Gateway", "g") };
                let mut parent = json!({"kind": kind, "name": self.number(name, 3), "namespace": self.number("n", 2)});
                if self.random.bool() {
                    parent["sectionName"] = json!(self.number("l", 3));
                }
                parent
            })
            .collect();
        let rules: Vec<Value> = (0..self.random.usize(1..3))
            .map(|_| {
                let mut rule = json!({"backendRefs": [self.backend(), self.backend()]});
                if kind == Kind::HttpRoute {
                    rule["filters"] = json!(self.filters());
                    let path = json!({"type": self.one_of(&["PathPrefix", "RegularExpression"]), "value": self.one_of(&["/a", "/(b"])});
                    rule["matches"] = json!([{"path": path}]);
                    if self.random.u32(0..4) == 0 {
                        rule["sessionPersistence"] = json!({"sessionName": "session"});
                    }
                }
                rule
            })
            .collect();
        let mut route = json!({"metadata": self.metadata(name), "spec": {"parentRefs": parents, "rules": rules}});
        if self.random.bool() {
            route["spec"]["hostnames"] = json!([self.one_of(&["a.test", "c.b.test", "d.test"])]);
        }
        route
    }

    fn service(&mut self) -> Value {
        let name = self.number("s", 4);
        let protocol = self.one_of(&["", "kubernetes.io/h2c", "kubernetes.io/other"]);
        json!({
            "metadata": {"name": name, "namespace": self.number("n", 2)},
            "spec": {"ports": [
                {"name": "web", "port": 80, "appProtocol": protocol},
                {"name": self.one_of(&["web", "other"]), "port": 81},
                {"name": "dns", "port": 53, "protocol": "UDP"},
            ]},
        })
    }

    fn slice(&mut self) -> Value {
        let (name, service) = (self.number("e", 6), self.number("s", 4));
        json!({
            "metadata": {
                "name": name, "namespace": self.number("n", 2), "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": "IPv4",
            "ports": [{"name": self.one_of(&["web", "other", "dns"]), "port": 8080}],
            "endpoints": [{"addresses": [format!("10.0.0.{}", self.random.u32(1..200))]}],
        })
    }

    fn grant(&mut self) -> Value {
        let name = self.number("grant", 2);
        let kinds = [GROUP, GROUP, GROUP, "networking.k8s.io"];
        let from = ["HTTPRoute", "TCPRoute", "Gateway", "Ingress"];
        let at = self.random.usize(..from.len());
        json!({
            "metadata": self.metadata(name),
            "spec": {
                "from": [{"group": kinds[at], "kind": from[at], "namespace": self.number("n", 2)}],
                "to": [{"group": "", "kind": self.one_of(&["Service", "Secret"])}],
            },
        })
    }

    fn traffic_policy(&mut self) -> Value {
        let name = self.number("p", 3);
        let (group, kind, target) =
            [(GROUP, "Gateway", "g"), (GROUP, "HTTPRoute", "r"), ("", "Service", "s")][self.random.usize(..3)];
        json!({
            "metadata": self.metadata(name),
            "spec": {
                "targetRefs": [{"group": group, "kind": kind, "name": self.number(target, 3)}],
                "bodyBytesMax": self.random.u32(1..4), "upstreamOptions": "connections-max 7\n",
            },
        })
    }

    fn tls_policy(&mut self) -> Value {
        let name = self.number("t", 3);
        let mut target = json!({"group": "", "kind": "Service", "name": self.number("s", 4)});
        if self.random.bool() {
            target["sectionName"] = json!("web");
        }
        json!({
            "metadata": self.metadata(name),
            "spec": {
                "targetRefs": [target],
                "validation": {"hostname": "s.test", "caCertificateRefs": [{"kind": "ConfigMap", "name": "ca"}]},
            },
        })
    }

    fn ingress(&mut self) -> Value {
        let name = self.number("i", 3);
        let backend = json!({"service": {"name": self.number("s", 4), "port": {"number": 80}}});
        let mut ingress = json!({
            "metadata": self.metadata(name),
            "spec": {"ingressClassName": "tailcoat", "rules": [{
                "host": self.one_of(&["i.test", "j.test"]),
                "http": {"paths": [{"path": self.one_of(&["/", "/i"]), "pathType": "Prefix", "backend": backend}]},
            }]},
        });
        if self.random.bool() {
            ingress["spec"]["tls"] = json!([{"hosts": ["i.test"], "secretName": self.number("x", 3)}]);
        }
        if self.random.bool() {
            let url = "http://s1.n0.svc/check";
            ingress["metadata"]["annotations"] = json!({"nginx.ingress.kubernetes.io/auth-url": url});
        }
        ingress
    }

    /// Changes something, or removes it.
    fn change(&mut self, translation: &Translation) {
        let kinds = [
            Kind::HttpRoute,
            Kind::HttpRoute,
            Kind::GrpcRoute,
            Kind::TlsRoute,
            Kind::TcpRoute,
            Kind::UdpRoute,
            Kind::Gateway,
            Kind::ListenerSet,
            Kind::Service,
            Kind::EndpointSlice,
            Kind::ReferenceGrant,
            Kind::TrafficPolicy,
            Kind::BackendTlsPolicy,
            Kind::Ingress,
            Kind::Namespace,
            Kind::Secret,
            Kind::ConfigMap,
            Kind::GatewayClass,
            Kind::IngressClass,
        ];
        let kind = kinds[self.random.usize(..kinds.len())];
        match self.random.u32(0..10) {
            0 => return self.store_statuses(translation),
            1 => return self.report_error(translation),
            2 | 3 => {
                let keys = self.objects.keys(kind);
                if !keys.is_empty() {
                    let key = keys[self.random.usize(..keys.len())].clone();
                    return self.remove(kind, &key);
                }
            }
            _ => {}
        }
        let value = match kind {
            Kind::Gateway => self.gateway(),
            Kind::ListenerSet => self.listener_set(),
            Kind::Service => self.service(),
            Kind::EndpointSlice => self.slice(),
            Kind::ReferenceGrant => self.grant(),
            Kind::TrafficPolicy => self.traffic_policy(),
            Kind::BackendTlsPolicy => self.tls_policy(),
            Kind::Ingress => self.ingress(),
            Kind::Namespace => {
                json!({"metadata": {"name": self.number("n", 2), "labels": {"team": self.one_of(&["a", "b"])}}})
            }
            Kind::Secret => {
                let (chain, key) = self.certificate.clone();
                let chain = if self.random.u32(0..4) == 0 { "broken".to_owned() } else { chain };
                let metadata = json!({"name": self.number("x", 3), "namespace": self.number("n", 2)});
                json!({"metadata": metadata, "stringData": {"tls.crt": chain, "tls.key": key}})
            }
            Kind::ConfigMap => {
                let metadata = json!({"name": "ca", "namespace": self.number("n", 2)});
                json!({"metadata": metadata, "data": {"ca.crt": self.certificate.0}})
            }
            Kind::GatewayClass => {
                let controller = self.one_of(&[CONTROLLER, CONTROLLER, "other"]);
                let generation = self.random.u32(1..1_000_000);
                json!({"metadata": {"name": "tailcoat", "generation": generation}, "spec": {"controllerName": controller}})
            }
            Kind::IngressClass => {
                let controller = self.one_of(&["tailcoat.dev/ingress-controller", "other"]);
                json!({"metadata": {"name": "tailcoat"}, "spec": {"controller": controller}})
            }
            route => self.route(route),
        };
        self.insert(kind, value);
    }

    /// Stores statuses and Services as they must be, and some with an entry of another controller.
    fn store_statuses(&mut self, translation: &Translation) {
        for ((kind, key), status) in &translation.statuses {
            let mut status = status.clone();
            let has_other = status.get("parents").is_some() && self.random.u32(0..8) == 0;
            if has_other {
                let other = json!({"controllerName": "other", "parentRef": {"name": "other"}});
                status["parents"].as_array_mut().unwrap().insert(0, other);
                self.changed.objects.insert((*kind, key.clone()));
            }
            self.objects.set_status(*kind, key, status);
        }
        if matches!(self.addresses, Addresses::Services { .. }) {
            for service in translation.services.values() {
                let mut service = service.clone();
                service["spec"]["clusterIP"] = json!("10.96.0.7");
                self.insert(Kind::Service, service);
            }
        }
    }

    fn report_error(&mut self, translation: &Translation) {
        self.errors.clear();
        let listeners: Vec<&String> = translation.snapshot.listeners.keys().collect();
        if !listeners.is_empty() && self.random.bool() {
            let listener = listeners[self.random.usize(..listeners.len())];
            self.errors.insert(format!("listener/{listener}"), "in use".to_owned());
        }
        let snapshot = &translation.snapshot;
        let routes = snapshot.routes.keys().map(|name| format!("route/{name}"));
        let streams = snapshot.stream_routes.keys().map(|name| format!("stream-route/{name}"));
        let backends = snapshot.backends.keys().map(|name| format!("backend/{name}"));
        let options = snapshot.routes.keys().map(|name| format!("route-options/{name}"));
        let of_backends = snapshot.backends.keys().map(|name| format!("backend-options/{name}"));
        for name in routes.chain(streams).chain(backends).chain(options).chain(of_backends) {
            if self.random.u8(..) < 40 {
                self.errors.insert(name, "not valid".to_owned());
            }
        }
        if self.random.u8(..) < 40 {
            self.errors.insert("server/pod-1".to_owned(), "out of memory".to_owned());
        }
        self.changed.has_errors = true;
    }

    fn translate(
        &self,
        translator: &mut ResourceTranslator,
        assigned: &Assignments,
        to: &mut Translation,
    ) -> (routes::Change, Touched) {
        let frame = Frame {
            controller: CONTROLLER,
            addresses: &self.addresses,
            assigned,
            ingress_gateway: Some(&Key::new("n0", "g0")),
            now: "2026-01-01T00:00:00Z",
            errors: &self.errors,
        };
        let change = translator.translate(&self.objects, &frame, &self.changed);
        to.apply(change, &self.objects, &self.services)
    }
}

fn certificate() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["a.test".to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

#[test]
fn a_translation_after_changes_is_that_of_the_whole() {
    let certificate = certificate();
    for seed in 0..40 {
        let mut cluster = Cluster::new(seed, &certificate);
        let (mut translator, mut translation) = (ResourceTranslator::default(), Translation::default());
        for step in 0..40 {
            let steps = if step == 0 { 60 } else { cluster.random.usize(1..4) };
            (0..steps).for_each(|_| cluster.change(&translation));
            let (assigned, before) = (Arc::clone(&translation.assigned), translation.snapshot.clone());
            let (change, _) = cluster.translate(&mut translator, &assigned, &mut translation);
            let mut whole = Translation::default();
            cluster.translate(&mut ResourceTranslator::default(), &assigned, &mut whole);
            let changed = std::mem::take(&mut cluster.changed);
            let mut seen = translation.clone();
            // An entry that was taken out of a stored status is no longer known to the whole.
            let is_stored =
                |(kind, key): &(Kind, Key), status: &Value| cluster.objects.status(*kind, key) == Some(status);
            seen.statuses.retain(|at, status| whole.statuses.contains_key(at) || !is_stored(at, status));
            assert_eq!(seen, whole, "seed {seed}, step {step}, {changed:?}");
            assert_eq!(change, translation.snapshot.change_from(&before), "seed {seed}, step {step}, {changed:?}");
            cluster.services.clear();
        }
    }
}

/// The work depends on what a change touches, not on the number of resources.
#[test]
fn a_change_translates_what_it_touches() {
    let mut cluster = Cluster::new(0, &certificate());
    cluster.addresses = Addresses::Pool(vec!["127.100.0.0/20".parse().unwrap()]);
    let (gateways, routes, services) = (50, 500, 25);
    let metadata = |name: String, generation: u32| json!({"name": name, "namespace": "n", "generation": generation});
    let route = |number: usize, generation: u32| {
        let backend = json!({"name": format!("s{}", number % services), "port": 80});
        let path = json!({"type": "PathPrefix", "value": format!("/{generation}")});
        json!({
            "metadata": metadata(format!("r{number}"), generation),
            "spec": {
                "parentRefs": [{"name": format!("g{}", number % gateways)}],
                "rules": [{"matches": [{"path": path}], "backendRefs": [backend]}],
            },
        })
    };
    let class = json!({"metadata": {"name": "tailcoat"}, "spec": {"controllerName": CONTROLLER}});
    cluster.insert(Kind::GatewayClass, class);
    for number in 0..services {
        let ports = json!([{"name": "", "port": 80}]);
        cluster.insert(Kind::Service, json!({"metadata": metadata(format!("s{number}"), 1), "spec": {"ports": ports}}));
    }
    for number in 0..gateways {
        let listeners = json!([{"name": "http", "port": 80, "protocol": "HTTP"}]);
        let spec = json!({"gatewayClassName": "tailcoat", "listeners": listeners});
        cluster.insert(Kind::Gateway, json!({"metadata": metadata(format!("g{number}"), 1), "spec": spec}));
    }
    (0..routes).for_each(|number| cluster.insert(Kind::HttpRoute, route(number, 1)));
    let (mut translator, mut translation) = (ResourceTranslator::default(), Translation::default());
    let mut step = |cluster: &mut Cluster| {
        let assigned = Arc::clone(&translation.assigned);
        let result = cluster.translate(&mut translator, &assigned, &mut translation);
        cluster.changed = ChangedObjects::default();
        result
    };
    let (change, touched) = step(&mut cluster);
    assert_eq!((change.routes.len(), change.listeners.len(), change.backends.len()), (routes, gateways, services));
    assert_eq!(touched.len(), 1 + routes + 2 * gateways, "statuses, and a Service for each Gateway");

    cluster.insert(Kind::HttpRoute, route(7, 2));
    let (change, touched) = step(&mut cluster);
    let names: Vec<&str> = change.routes.keys().map(String::as_str).collect();
    assert_eq!((names, change.listeners.len(), change.backends.len()), (vec!["n/r7 HTTPRoute n/g7"], 0, 0));
    let statuses = [(Kind::Gateway, Key::new("n", "g7")), (Kind::HttpRoute, Key::new("n", "r7"))];
    assert_eq!(touched, statuses.into());

    let ports = json!([{"name": "", "port": 80, "appProtocol": "kubernetes.io/h2c"}]);
    cluster.insert(Kind::Service, json!({"metadata": metadata("s3".to_owned(), 2), "spec": {"ports": ports}}));
    let (change, touched) = step(&mut cluster);
    assert_eq!((change.routes.len(), change.backends.len()), (0, 1));
    let users = touched.iter().filter(|(kind, _)| *kind == Kind::HttpRoute).count();
    assert_eq!(users, routes / services);

    cluster.remove(Kind::Gateway, &Key::new("n", "g5"));
    let (change, _) = step(&mut cluster);
    assert_eq!((change.routes.len(), change.listeners.len()), (routes / gateways, 1));
}
