//! Ingresses: their hosts become routes of one Gateway.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use routes::{
    BackendRef, BackendTls, Certificate, ExternalAuth, ExternalAuthKind, Filter, Match, Protocol, Redirect, Route,
    Rule, ValueMatch, ValueTest,
};
use serde_json::{Value, json};

use super::backends::{Backends, Wanted};
use super::gateways::{Gateways, ResolvedGateway};
use super::references::{Referrer, Unresolved};
use super::{Addresses, Context};
use crate::ingress::{IngressHost, IngressRule, IngressShare, convert};
use crate::objects::{self, Ingress, Key, ResourceRef};

/// Controller of the classes of Ingresses that are served.
const CLASS_CONTROLLER: &str = "tailcoat.dev/ingress-controller";

/// Annotation that named the class before there was a field.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

/// All Ingresses of accepted classes after translation: those of a host are one route.
#[derive(Default)]
pub(super) struct TranslatedIngresses {
    pub(super) listeners: BTreeMap<String, routes::Listener>,
    pub(super) routes: BTreeMap<String, Route>,
    pub(super) backends: Backends,
    pub(super) statuses: BTreeMap<Key, Value>,
}

/// Translates Ingresses of accepted classes, for the Gateway that the controller's settings name.
pub(super) fn translate(context: &Context<'_>, gateways: &Gateways) -> TranslatedIngresses {
    let mut translated = TranslatedIngresses::default();
    let Some(gateway) = context.frame.ingress_gateway.and_then(|key| gateways.get(key)) else { return translated };
    let classes: BTreeSet<&str> = context
        .objects
        .ingress_classes
        .values()
        .filter(|class| class.spec.controller == CLASS_CONTROLLER)
        .map(|class| class.metadata.name.as_str())
        .collect();
    let class = |ingress: &Ingress| -> Option<String> {
        let of_field = ingress.spec.ingress_class_name.clone();
        of_field.or_else(|| ingress.metadata.annotations.get(CLASS_ANNOTATION).cloned())
    };
    let is_ours = |ingress: &&Arc<Ingress>| class(ingress).is_some_and(|class| classes.contains(class.as_str()));
    let ours: Vec<&Arc<Ingress>> = context.objects.ingresses.values().filter(is_ours).collect();
    let converted = convert(&ours);
    let mut scope = IngressScope { context, gateway, translated: &mut translated };
    for (name, host) in &converted.hosts {
        scope.host(name.as_deref(), host);
    }
    translated.statuses = ours.into_iter().map(|ingress| (ingress.metadata.key(), status(gateway))).collect();
    translated
}

/// Status with the addresses of the Gateway.
fn status(gateway: &ResolvedGateway) -> Value {
    let one = |address: &objects::AddressSpec| match address.r#type.as_deref() {
        Some("Hostname") => json!({ "hostname": address.value }),
        _ => json!({ "ip": address.value }),
    };
    let addresses: Vec<Value> = gateway.assigned.status.iter().map(one).collect();
    json!({ "loadBalancer": { "ingress": addresses } })
}

/// Restricts a rule to requests that came over TLS to a load balancer in front.
fn require_forwarded_tls(rule: &mut Rule) {
    if rule.matches.is_empty() {
        rule.matches.push(Match::default());
    }
    let value = ValueTest::Exact("https".to_owned());
    let test = ValueMatch { name: "X-Forwarded-Proto".to_owned(), value };
    rule.matches.iter_mut().for_each(|of| of.headers.push(test.clone()));
}

struct IngressScope<'a, 'b> {
    context: &'a Context<'b>,
    gateway: &'a ResolvedGateway,
    translated: &'a mut TranslatedIngresses,
}

impl IngressScope<'_, '_> {
    fn host(&mut self, name: Option<&str>, host: &IngressHost) {
        let hostnames: Vec<String> = name.map(str::to_owned).into_iter().chain(host.aliases.iter().cloned()).collect();
        let plain: Vec<String> = self
            .gateway
            .listeners
            .iter()
            .filter(|listener| listener.is_programmed() && listener.protocol == Some(Protocol::Http))
            .map(|listener| listener.name.clone())
            .collect();
        let with_tls = self.tls_listeners(name, host, &hostnames);
        let label = name.unwrap_or("default");
        let mut all: Vec<(bool, Rule)> = host.rules.iter().map(|rule| (rule.has_tls, self.rule(rule))).collect();
        let mut listeners = with_tls.clone().unwrap_or_default();
        let redirects = match &with_tls {
            Some(with_tls) => host.redirects_to_tls && (host.forces_tls || !with_tls.is_empty()),
            None => host.redirects_to_tls,
        };
        if redirects {
            match &with_tls {
                // Without a certificate here, a load balancer in front decrypts, and says so.
                Some(with_tls) if with_tls.is_empty() => {
                    all.iter_mut().for_each(|(_, rule)| require_forwarded_tls(rule));
                    listeners.clone_from(&plain);
                }
                Some(_) => {}
                // Until there is a certificate, the rules that need none are served, such as those by which it is issued.
                None => {
                    all.retain(|(has_tls, _)| !has_tls);
                    listeners.clone_from(&plain);
                }
            }
            let redirect = Redirect { scheme: Some("https".to_owned()), status: Some(308), ..Redirect::default() };
            let rules = vec![Rule { filters: vec![Filter::Redirect(redirect)], ..Rule::default() }];
            let route = Route { listeners: plain, hostnames: hostnames.clone(), created: host.created, rules };
            self.translated.routes.insert(format!("{label} Ingress to-https {}", self.gateway.key), route);
        } else {
            listeners.extend(plain);
        }
        let rules: Vec<Rule> = all.into_iter().map(|(_, rule)| rule).collect();
        if !rules.is_empty() {
            let route = Route { listeners, hostnames, created: host.created, rules };
            self.translated.routes.insert(format!("{label} Ingress {}", self.gateway.key), route);
        }
    }

    /// Adds a listener with the certificate of a host for each of its names. Returns the listeners' names: none if the host
    /// or the Gateway has no TLS, and `None` if the certificate is missing or invalid.
    fn tls_listeners(&mut self, name: Option<&str>, host: &IngressHost, hostnames: &[String]) -> Option<Vec<String>> {
        let Some(secret) = &host.secret else { return Some(Vec::new()) };
        let port = match (self.gateway.assigned.target_ports.get(&(443, "TCP")), self.context.frame.addresses) {
            (Some(port), _) => *port,
            (None, Addresses::Pool(_)) => 443,
            // The Service has no such port: the Gateway needs a listener with it.
            (None, Addresses::Services { .. }) => return Some(Vec::new()),
        };
        let from = Referrer { group: "networking.k8s.io", kind: "Ingress", namespace: &secret.namespace };
        let to = ResourceRef { name: secret.name.clone(), ..ResourceRef::default() };
        let certificate = self.context.objects.certificate(from, &to, "InvalidCertificateRef").ok()?;
        let names: Vec<Option<&str>> =
            if name.is_none() { vec![None] } else { hostnames.iter().map(|name| Some(name.as_str())).collect() };
        let mut added = Vec::new();
        for hostname in names {
            let listener = routes::Listener {
                addresses: self.gateway.assigned.bind.clone(),
                hostname: hostname.map(str::to_owned),
                certificates: vec![certificate.clone()],
                ..routes::Listener::new(port, Protocol::Https)
            };
            let key = format!("{}/ingress/{}", self.gateway.key, hostname.unwrap_or("*"));
            self.translated.listeners.insert(key.clone(), listener);
            added.push(key);
        }
        Some(added)
    }

    fn rule(&mut self, of: &IngressRule) -> Rule {
        let mut rule = of.rule.clone();
        if let Some(auth) = &of.auth {
            let share =
                IngressShare { service: auth.service.clone(), port: Some(auth.port), ..IngressShare::default() };
            match self.backend(&of.ingress, &share) {
                Ok(backend) => rule.filters.insert(
                    0,
                    Filter::ExternalAuth(ExternalAuth {
                        backend,
                        kind: ExternalAuthKind::Http(auth.path.clone()),
                        request_headers: Vec::new(),
                        response_headers: auth.response_headers.clone(),
                        login: auth.login.clone(),
                        body_bytes_max: 0,
                    }),
                ),
                // Requests must not pass without a decision of the server.
                Err((_, message)) => rule.error = Some(message),
            }
        }
        for share in &of.backends {
            let backend = self.backend(&of.ingress, share);
            let backend = backend.unwrap_or_else(|_| format!("{} unresolved", share.service));
            rule.backends.push(BackendRef::new(backend, share.weight));
        }
        rule
    }

    fn backend(&mut self, ingress: &Key, share: &IngressShare) -> Result<String, Unresolved> {
        let service = self.context.objects.services.get(&share.service);
        let named = || service?.port_number(share.port_name.as_deref()?);
        let to = objects::BackendRefSpec {
            to: ResourceRef {
                name: share.service.name.clone(),
                namespace: Some(share.service.namespace.clone()),
                ..ResourceRef::default()
            },
            port: share.port.or_else(named),
            ..objects::BackendRefSpec::default()
        };
        let from = Referrer { group: "networking.k8s.io", kind: "Ingress", namespace: &ingress.namespace };
        let session = format!("Ingress {ingress}");
        let wanted = Wanted {
            transport: "TCP",
            is_grpc: share.is_grpc,
            session: share.session.clone().map(|persistence| (session.as_str(), persistence)),
            ..Wanted::default()
        };
        let name = self.translated.backends.resolve(self.context, from, &to, &wanted)?;
        if share.options.is_empty() && share.tls.is_none() {
            return Ok(name);
        }
        // The settings are those of the Ingress, so that it has a backend of its own.
        let mut backend = self.translated.backends.backends.get(&name).cloned().unwrap_or_default();
        backend.options.push_str(&share.options);
        if let Some(tls) = &share.tls {
            let of_service = || format!("{}.{}.svc", share.service.name, share.service.namespace);
            let hostname = tls.name.clone().unwrap_or_else(of_service);
            let mut of_backend =
                BackendTls { hostname, accepts_any_certificate: !tls.is_verified, ..BackendTls::default() };
            if let Some(secret) = &tls.secret {
                (of_backend.client_certificate, of_backend.authorities) = self.backend_secret(from, secret)?;
                if tls.is_verified && of_backend.authorities.is_none() {
                    return Err(("InvalidCertificateRef", format!("Secret {secret} lacks ca.crt")));
                }
            }
            backend.tls = Some(of_backend);
        }
        let own = format!("{name} of Ingress {ingress}");
        self.translated.backends.backends.insert(own.clone(), backend);
        let port = to.port.unwrap_or_default();
        self.translated.backends.by_service.entry(share.service.clone()).or_default().insert(own.clone(), port);
        Ok(own)
    }

    /// Certificate and CA of a secret for TLS to servers. It may lack one of them.
    fn backend_secret(
        &self,
        from: Referrer<'_>,
        secret: &Key,
    ) -> Result<(Option<Certificate>, Option<String>), Unresolved> {
        // A secret of another namespace would be used without its owner's consent.
        if secret.namespace != from.namespace {
            return Err(("RefNotPermitted", format!("Secret {secret} is in another namespace")));
        }
        let objects = self.context.objects;
        let authorities = objects.secrets.get(secret).and_then(|found| found.text("ca.crt"));
        let has_certificate = objects.secrets.get(secret).is_some_and(|found| found.text("tls.crt").is_some());
        if authorities.is_some() && !has_certificate {
            return Ok((None, authorities));
        }
        let to = ResourceRef { name: secret.name.clone(), ..ResourceRef::default() };
        let certificate = objects.certificate(from, &to, "InvalidCertificateRef")?;
        Ok((Some(certificate), authorities))
    }
}
