//! `tailcoat import ingress`: Ingresses as resources of Gateway API.

use std::collections::{BTreeMap, BTreeSet};

use routes::{FieldChanges, Filter, Lifetime, Match, PathMatch, PathRewrite, Redirect, ValueMatch, ValueTest};
use serde_json::{Map, Value, json};

use super::convert::{AnnotationRemark, Converted, IngressHost, IngressRule, IngressShare, convert};
use super::print::yaml;
use super::table::AnnotationOutcome;
use crate::objects::Objects;

/// Rules of an HTTPRoute, at most, as its definition says.
const RULES_MAX: usize = 16;

/// Resources and remarks.
#[derive(Debug, Default)]
pub struct ImportedIngresses {
    /// Resources, as YAML documents.
    pub text: String,
    /// Differences, one a line.
    pub remarks: Vec<String>,
    /// True if requests are rejected that were served before.
    pub is_partial: bool,
}

/// Resources of Gateway API for the Ingresses of a text, in YAML or JSON. Services of the text give names of ports their
/// numbers.
///
/// # Errors
/// The text is neither YAML nor JSON, or has no Ingress.
pub fn import(text: &str, gateway_class: &str) -> Result<ImportedIngresses, String> {
    let mut objects = Objects::default();
    let problems = objects.read_manifests(text)?;
    if objects.ingresses.is_empty() {
        return Err("there is no Ingress; use `kubectl get ingress,service -A -o yaml`".to_owned());
    }
    let all: Vec<_> = objects.ingresses.values().collect();
    let converted = convert(&all);
    let mut writer = Writer { objects: &objects, class: gateway_class, documents: Vec::new(), left: BTreeSet::new() };
    writer.write(&converted);
    let mut imported = ImportedIngresses::default();
    imported.remarks.extend(problems);
    imported.remarks.extend(converted.remarks.iter().map(describe));
    imported.remarks.extend(writer.left);
    imported.is_partial = converted.remarks.iter().any(|remark| remark.outcome == AnnotationOutcome::Rejected);
    let documents: Vec<String> = writer.documents.iter().map(yaml).collect();
    imported.text = documents.join("---\n");
    Ok(imported)
}

fn describe(remark: &AnnotationRemark) -> String {
    let word = match remark.outcome {
        AnnotationOutcome::Kept => "kept",
        AnnotationOutcome::Differs => "differs",
        AnnotationOutcome::Ignored => "ignored",
        AnnotationOutcome::Rejected => "rejects its requests",
    };
    format!("{}: {}: {word}: {}", remark.ingress, remark.annotation, remark.note)
}

struct Writer<'a> {
    objects: &'a Objects,
    class: &'a str,
    documents: Vec<Value>,
    /// Settings that Gateway API cannot express.
    left: BTreeSet<String>,
}

impl Writer<'_> {
    fn write(&mut self, converted: &Converted) {
        let mut by_namespace: BTreeMap<&str, Vec<(&Option<String>, &IngressHost)>> = BTreeMap::new();
        for (name, host) in &converted.hosts {
            let Some(rule) = host.rules.first() else { continue };
            by_namespace.entry(&rule.ingress.namespace).or_default().push((name, host));
        }
        for (namespace, hosts) in by_namespace {
            self.gateway(namespace, &hosts);
            for (name, host) in hosts {
                self.host(namespace, name.as_deref(), host);
            }
        }
    }

    fn gateway(&mut self, namespace: &str, hosts: &[(&Option<String>, &IngressHost)]) {
        let mut listeners = vec![json!({"name": "http", "port": 80, "protocol": "HTTP"})];
        for (name, host) in hosts {
            let Some(secret) = &host.secret else { continue };
            let label = name.as_deref().map_or_else(|| "https".to_owned(), |name| format!("https-{}", label(name)));
            let mut listener = json!({
                "name": label, "port": 443, "protocol": "HTTPS",
                "tls": {"certificateRefs": [{"name": secret.name}]},
            });
            if let Some(name) = name {
                listener["hostname"] = json!(name);
            }
            listeners.push(listener);
        }
        self.documents.push(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": "ingress", "namespace": namespace},
            "spec": {"gatewayClassName": self.class, "listeners": listeners},
        }));
    }

    fn host(&mut self, namespace: &str, name: Option<&str>, host: &IngressHost) {
        let base = name.map_or_else(|| "default".to_owned(), label);
        let mut hostnames: Vec<String> = name.map(str::to_owned).into_iter().collect();
        hostnames.extend(host.aliases.iter().cloned());
        let redirects = host.redirects_to_tls && host.secret.is_some();
        if redirects {
            let redirect =
                json!({"type": "RequestRedirect", "requestRedirect": {"scheme": "https", "statusCode": 301}});
            self.left.insert(format!(
                "{base}: redirects to HTTPS have status 301, not 308, which older versions of Gateway API lack"
            ));
            self.route(
                namespace,
                &format!("{base}-to-https"),
                &hostnames,
                Some("http"),
                vec![json!({"filters": [redirect]})],
            );
        }
        let section = redirects.then(|| format!("https-{base}"));
        let section = section.as_deref().map(|section| if name.is_none() { "https" } else { section });
        let groups: Vec<&[IngressRule]> = host.rules.chunks(RULES_MAX).collect();
        for (at, group) in groups.iter().enumerate() {
            let route = if groups.len() == 1 { base.clone() } else { format!("{base}-{}", at + 1) };
            let rules = group.iter().map(|rule| self.rule(rule)).collect();
            self.route(namespace, &route, &hostnames, section, rules);
            self.policy(namespace, &route, group);
        }
    }

    fn route(&mut self, namespace: &str, name: &str, hostnames: &[String], section: Option<&str>, rules: Vec<Value>) {
        let mut parent = json!({"name": "ingress"});
        if let Some(section) = section {
            parent["sectionName"] = json!(section);
        }
        let mut spec = json!({"parentRefs": [parent], "rules": rules});
        if !hostnames.is_empty() {
            spec["hostnames"] = json!(hostnames);
        }
        self.documents.push(json!({
            "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": name, "namespace": namespace}, "spec": spec,
        }));
    }

    /// Policy of a route, if its rules agree on their options.
    fn policy(&mut self, namespace: &str, route: &str, rules: &[IngressRule]) {
        let options: BTreeSet<(&str, &str)> =
            rules.iter().map(|rule| (rule.rule.options.as_str(), rule.rule.forward_options.as_str())).collect();
        let mut all = options.iter();
        let Some((site, forward)) = all.next() else { return };
        if all.next().is_some() {
            self.left.insert(format!(
                "{namespace}/{route}: Ingresses of this host have different limits; make a route for each"
            ));
            return;
        }
        let target = json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": route});
        let mut spec = Map::from_iter([("targetRefs".to_owned(), json!([target]))]);
        for (name, text) in [("options", site), ("forwardOptions", forward)] {
            if !text.is_empty() {
                spec.insert(name.to_owned(), json!(text));
            }
        }
        self.documents.push(json!({
            "apiVersion": "gateway.tailcoat.dev/v1alpha1", "kind": "TrafficPolicy",
            "metadata": {"name": route, "namespace": namespace}, "spec": spec,
        }));
    }

    fn rule(&mut self, rule: &IngressRule) -> Value {
        let of = &rule.rule;
        let mut written = Map::new();
        let matches: Vec<Value> = of.matches.iter().map(match_of).collect();
        if !matches.is_empty() {
            written.insert("matches".to_owned(), json!(matches));
        }
        let mut filters: Vec<Value> = of.filters.iter().filter_map(|filter| self.filter(rule, filter)).collect();
        if let Some(auth) = &rule.auth {
            filters.push(json!({"type": "ExternalAuth", "externalAuth": {
                "protocol": "HTTP",
                "backendRef": {"name": auth.service.name, "namespace": auth.service.namespace, "port": auth.port},
                "http": {"path": auth.path, "allowedResponseHeaders": auth.response_headers},
            }}));
            if auth.login.is_some() {
                self.left.insert(format!(
                    "{}: auth-signin: Gateway API has no login page; clients get status 401",
                    rule.ingress
                ));
            }
        }
        if let Some(error) = &of.error {
            // The rule stays closed.
            self.left.insert(format!("{}: {error}; the rule has no backend, and gets status 500", rule.ingress));
            written.insert("backendRefs".to_owned(), json!([]));
            return Value::Object(written);
        }
        if !filters.is_empty() {
            written.insert("filters".to_owned(), json!(filters));
        }
        let backends: Vec<Value> = rule.backends.iter().map(|share| self.backend(rule, share)).collect();
        if !backends.is_empty() {
            written.insert("backendRefs".to_owned(), json!(backends));
        }
        if let Some(retry) = &of.retry {
            written.insert("retry".to_owned(), json!({"codes": retry.codes, "attempts": retry.attempts}));
        }
        if let Some(session) = rule.backends.first().and_then(|share| share.session.as_ref()) {
            let lifetime = if session.lifetime == Lifetime::Permanent { "Permanent" } else { "Session" };
            let mut persistence =
                json!({"sessionName": session.name, "type": "Cookie", "cookieConfig": {"lifetimeType": lifetime}});
            if let Some(seconds) = session.absolute_timeout_seconds {
                persistence["absoluteTimeout"] = json!(format!("{seconds}s"));
            }
            written.insert("sessionPersistence".to_owned(), persistence);
        }
        Value::Object(written)
    }

    fn backend(&mut self, rule: &IngressRule, share: &IngressShare) -> Value {
        let port = self.port(share);
        if port.is_none() {
            let name = share.port_name.as_deref().unwrap_or_default();
            self.left.insert(format!(
                "{}: the port {name} of Service {} is not known; name its number",
                rule.ingress, share.service
            ));
        }
        if share.tls.is_some() {
            self.left.insert(format!(
                "{}: TLS to Service {} needs a BackendTLSPolicy with a CA",
                rule.ingress, share.service
            ));
        }
        if share.is_grpc {
            self.left
                .insert(format!("{}: set appProtocol: kubernetes.io/h2c on Service {}", rule.ingress, share.service));
        }
        if !share.options.is_empty() {
            self.left.insert(format!(
                "{}: Service {} needs a TrafficPolicy with upstreamOptions: {}",
                rule.ingress,
                share.service,
                share.options.trim().replace('\n', "; ")
            ));
        }
        let mut backend = json!({"name": share.service.name, "port": port.unwrap_or(80)});
        if share.weight != 100 {
            backend["weight"] = json!(share.weight);
        }
        backend
    }

    fn port(&self, share: &IngressShare) -> Option<u16> {
        share.port.or_else(|| {
            let service = self.objects.services.get(&share.service)?;
            service.port_number(share.port_name.as_deref()?)
        })
    }

    fn filter(&mut self, rule: &IngressRule, filter: &Filter) -> Option<Value> {
        Some(match filter {
            Filter::RequestHeaders(changes) => {
                json!({"type": "RequestHeaderModifier", "requestHeaderModifier": header_changes(changes)})
            }
            Filter::ResponseHeaders(changes) => {
                json!({"type": "ResponseHeaderModifier", "responseHeaderModifier": header_changes(changes)})
            }
            Filter::Redirect(redirect) => json!({"type": "RequestRedirect", "requestRedirect": redirect_of(redirect)}),
            Filter::Rewrite(rewrite) => {
                let mut written = Map::new();
                if let Some(hostname) = &rewrite.hostname {
                    written.insert("hostname".to_owned(), json!(hostname));
                }
                match &rewrite.path {
                    Some(PathRewrite::Groups(target)) => {
                        self.left.insert(format!("{}: rewrite-target: Gateway API has no groups of expressions ({target}); keep the Ingress for this path", rule.ingress));
                    }
                    Some(path) => drop(written.insert("path".to_owned(), path_of(path))),
                    None => {}
                }
                if written.is_empty() {
                    return None;
                }
                json!({"type": "URLRewrite", "urlRewrite": written})
            }
            Filter::Cors(cors) => json!({"type": "CORS", "cors": {
                "allowOrigins": cors.allow_origins, "allowMethods": cors.allow_methods, "allowHeaders": cors.allow_headers,
                "exposeHeaders": cors.expose_headers, "allowCredentials": cors.allow_credentials,
                "maxAge": cors.max_age_seconds.unwrap_or(5),
            }}),
            _ => return None,
        })
    }
}

/// Name of a resource or listener for a host.
fn label(host: &str) -> String {
    let label: String =
        host.replace('*', "wildcard").chars().map(|it| if it.is_ascii_alphanumeric() { it } else { '-' }).collect();
    label.chars().take(50).collect::<String>().trim_matches('-').to_owned()
}

fn match_of(of: &Match) -> Value {
    let mut written = Map::new();
    if let Some(path) = &of.path {
        let (kind, value) = match path {
            PathMatch::Exact(path) => ("Exact", path),
            PathMatch::Prefix(path) | PathMatch::Start(path) => ("PathPrefix", path),
            PathMatch::Regex(regex) => ("RegularExpression", regex),
        };
        written.insert("path".to_owned(), json!({"type": kind, "value": value}));
    }
    let headers: Vec<Value> = of.headers.iter().map(value_match).collect();
    if !headers.is_empty() {
        written.insert("headers".to_owned(), json!(headers));
    }
    Value::Object(written)
}

fn value_match(of: &ValueMatch) -> Value {
    match &of.value {
        ValueTest::Exact(value) => json!({"name": of.name, "value": value}),
        ValueTest::Regex(value) => json!({"name": of.name, "type": "RegularExpression", "value": value}),
        ValueTest::Present => json!({"name": of.name, "type": "RegularExpression", "value": ".*"}),
    }
}

fn header_changes(changes: &FieldChanges) -> Value {
    let pairs = |all: &[(String, String)]| -> Vec<Value> {
        all.iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
    };
    let mut written = Map::new();
    for (name, list) in [("set", pairs(&changes.set)), ("add", pairs(&changes.add))] {
        if !list.is_empty() {
            written.insert(name.to_owned(), json!(list));
        }
    }
    if !changes.remove.is_empty() {
        written.insert("remove".to_owned(), json!(changes.remove));
    }
    Value::Object(written)
}

fn redirect_of(redirect: &Redirect) -> Value {
    let mut written = Map::new();
    for (name, value) in [("scheme", &redirect.scheme), ("hostname", &redirect.hostname)] {
        if let Some(value) = value {
            written.insert(name.to_owned(), json!(value));
        }
    }
    if let Some(port) = redirect.port {
        written.insert("port".to_owned(), json!(port));
    }
    if let Some(path) = &redirect.path {
        written.insert("path".to_owned(), path_of(path));
    }
    written.insert("statusCode".to_owned(), json!(redirect.status.unwrap_or(302)));
    Value::Object(written)
}

fn path_of(path: &PathRewrite) -> Value {
    match path {
        PathRewrite::Full(path) | PathRewrite::Groups(path) => {
            json!({"type": "ReplaceFullPath", "replaceFullPath": path})
        }
        PathRewrite::Prefix(path) => json!({"type": "ReplacePrefixMatch", "replacePrefixMatch": path}),
    }
}
