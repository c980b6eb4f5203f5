//! Listeners: what each needs, and which of them exclude each other.

use std::collections::BTreeMap;

use routes::{Certificate, ClientValidation, Protocol, is_valid_hostname};
use serde_json::{Value, json};

use super::Context;
use super::attach::RouteKind;
use super::references::{Referrer, Unresolved};
use super::status::StatusCondition;
use crate::objects::{GatewaySpec, Key, ListenerEntry, Namespaces, SpecResource};

/// A listener of a Gateway, its own or of a ListenerSet.
#[derive(Debug, PartialEq)]
pub(crate) struct ResolvedListener {
    pub(crate) spec: ListenerEntry,
    /// ListenerSet that it belongs to; `None` is the Gateway.
    pub(crate) set: Option<Key>,
    /// Namespace of the Gateway or ListenerSet.
    pub(crate) namespace: String,
    /// Name in the snapshot.
    pub(crate) name: String,
    pub(crate) hostname: Option<String>,
    pub(crate) protocol: Option<Protocol>,
    pub(crate) kinds: Vec<RouteKind>,
    pub(crate) certificates: Vec<Certificate>,
    pub(crate) client_validation: Option<ClientValidation>,
    /// Reason why it is not accepted.
    pub(crate) rejected: Option<Unresolved>,
    /// Reason why it conflicts with another.
    pub(crate) conflict: Option<Unresolved>,
    /// Reason why a reference is not resolved.
    pub(crate) unresolved: Option<Unresolved>,
    /// True if it serves in spite of `unresolved`.
    pub(crate) serves_unresolved: bool,
}

impl ResolvedListener {
    pub(crate) fn new(
        context: &Context<'_>,
        gateway: &SpecResource<GatewaySpec>,
        set: Option<Key>,
        kind: &'static str,
        namespace: &str,
        spec: &ListenerEntry,
    ) -> Self {
        let key = gateway.metadata.key();
        let name = match &set {
            None => format!("{key}/{}", spec.name),
            Some(set) => format!("{key}/{set}/{}", spec.name),
        };
        let hostname = spec.hostname.as_deref().filter(|name| !name.is_empty()).map(str::to_lowercase);
        let mode = spec.tls.as_ref().and_then(|tls| tls.mode.as_deref()).unwrap_or("Terminate");
        let protocol = match (spec.protocol.as_str(), mode) {
            ("HTTP", _) => Some(Protocol::Http),
            ("HTTPS", "Terminate") => Some(Protocol::Https),
            ("TLS", "Terminate") => Some(Protocol::TlsTerminate),
            ("TLS", "Passthrough") => Some(Protocol::TlsPassthrough),
            ("TCP", _) => Some(Protocol::Tcp),
            ("UDP", _) => Some(Protocol::Udp),
            _ => None,
        };
        let mut listener = Self {
            spec: spec.clone(),
            set,
            namespace: namespace.to_owned(),
            name,
            hostname,
            protocol,
            kinds: Vec::new(),
            certificates: Vec::new(),
            client_validation: None,
            rejected: None,
            conflict: None,
            unresolved: None,
            serves_unresolved: true,
        };
        let Some(protocol) = protocol else {
            let (protocol, is_known) = (&spec.protocol, matches!(spec.protocol.as_str(), "HTTPS" | "TLS"));
            let reason = if is_known { "UnsupportedValue" } else { "UnsupportedProtocol" };
            listener.rejected = Some((reason, format!("protocol {protocol} with TLS mode {mode} is not supported")));
            return listener;
        };
        if let Some(name) = listener.hostname.as_deref().filter(|name| !is_valid_hostname(name)) {
            listener.rejected = Some(("UnsupportedValue", format!("{name} is not a valid host name")));
        }
        listener.read_kinds(protocol);
        let from = Referrer { group: "gateway.networking.k8s.io", kind, namespace };
        if matches!(protocol, Protocol::Https | Protocol::TlsTerminate) {
            listener.read_certificates(context, from);
            let of_gateway = Referrer { kind: "Gateway", namespace: &gateway.metadata.namespace, ..from };
            listener.read_validation(context, of_gateway, gateway);
        }
        listener
    }

    fn read_kinds(&mut self, protocol: Protocol) {
        let of_protocol: &[RouteKind] = match protocol {
            Protocol::Http | Protocol::Https => &[RouteKind::Http, RouteKind::Grpc],
            Protocol::TlsPassthrough | Protocol::TlsTerminate => &[RouteKind::Tls],
            Protocol::Tcp => &[RouteKind::Tcp],
            Protocol::Udp => &[RouteKind::Udp],
        };
        let allowed = &self.spec.allowed_routes.kinds;
        if allowed.is_empty() {
            self.kinds = of_protocol.to_vec();
            return;
        }
        for kind in allowed {
            let is_ours = matches!(kind.group.as_deref(), None | Some("gateway.networking.k8s.io"));
            match of_protocol.iter().find(|it| is_ours && it.name() == kind.kind) {
                Some(known) => self.kinds.push(*known),
                None => {
                    let message = format!("routes of kind {} do not attach to {}", kind.kind, self.spec.protocol);
                    self.unresolved = Some(("InvalidRouteKinds", message));
                }
            }
        }
    }

    fn read_certificates(&mut self, context: &Context<'_>, from: Referrer<'_>) {
        let references = self.spec.tls.as_ref().map(|tls| tls.certificate_refs.as_slice()).unwrap_or_default();
        for reference in references {
            match context.objects.certificate(from, reference, "InvalidCertificateRef") {
                Ok(certificate) => self.certificates.push(certificate),
                Err(unresolved) => self.unresolved = Some(unresolved),
            }
        }
        if self.certificates.is_empty() {
            self.serves_unresolved = false;
            let message = || "the listener has no certificate".to_owned();
            self.unresolved.get_or_insert_with(|| ("InvalidCertificateRef", message()));
        }
    }

    fn read_validation(&mut self, context: &Context<'_>, from: Referrer<'_>, gateway: &SpecResource<GatewaySpec>) {
        let frontend = &gateway.spec.tls.frontend;
        let of_port = frontend.per_port.iter().find(|it| it.port == self.spec.port).map(|it| &it.tls);
        let Some(validation) = &of_port.unwrap_or(&frontend.default).validation else { return };
        let mut authorities = Vec::new();
        for reference in &validation.ca_certificate_refs {
            let reasons = ["InvalidCACertificateRef", "InvalidCACertificateKind"];
            match context.objects.authorities(from, reference, reasons) {
                Ok(text) => authorities.push(text),
                Err(unresolved) => self.unresolved = Some(unresolved),
            }
        }
        if authorities.is_empty() {
            let message = "no valid certificate of a CA is left to validate client certificates".to_owned();
            self.rejected = Some(("NoValidCACertificate", message));
            return;
        }
        self.client_validation = Some(ClientValidation {
            authorities: authorities.join("\n"),
            allows_invalid: validation.mode.as_deref() == Some("AllowInsecureFallback"),
        });
    }

    pub(crate) fn transport(&self) -> &'static str {
        if self.protocol == Some(Protocol::Udp) { "UDP" } else { "TCP" }
    }

    /// True if it is accepted and serves.
    pub(crate) fn is_programmed(&self) -> bool {
        self.is_accepted() && (self.unresolved.is_none() || self.serves_unresolved)
    }

    pub(crate) fn is_accepted(&self) -> bool {
        self.rejected.is_none() && self.conflict.is_none()
    }

    /// True if routes of a namespace may attach.
    pub(crate) fn allows(&self, context: &Context<'_>, namespace: &str) -> bool {
        permits(context, self.spec.allowed_routes.namespaces.as_ref(), "Same", &self.namespace, namespace)
    }

    /// Conditions for the status. `error` is what servers report.
    pub(crate) fn conditions(&self, error: Option<&String>) -> Vec<StatusCondition> {
        let accepted = match self.conflict.as_ref().or(self.rejected.as_ref()) {
            None => StatusCondition::yes("Accepted", "Accepted"),
            Some((reason, message)) => StatusCondition::no("Accepted", reason, message),
        };
        let conflicted = match &self.conflict {
            None => StatusCondition::no("Conflicted", "NoConflicts", ""),
            Some((reason, message)) => StatusCondition::noted("Conflicted", reason, message),
        };
        let resolved = match &self.unresolved {
            None => StatusCondition::yes("ResolvedRefs", "ResolvedRefs"),
            Some((reason, message)) => StatusCondition::no("ResolvedRefs", reason, message),
        };
        let programmed = match (&self.conflict, error) {
            (Some((reason, message)), _) => StatusCondition::no("Programmed", reason, message),
            (None, _) if !self.is_programmed() => {
                let why = self.rejected.as_ref().or(self.unresolved.as_ref());
                StatusCondition::no(
                    "Programmed",
                    "Invalid",
                    why.map(|(_, message)| message.clone()).unwrap_or_default(),
                )
            }
            (None, Some(error)) => StatusCondition::no("Programmed", "Invalid", error),
            (None, None) => StatusCondition::yes("Programmed", "Programmed"),
        };
        vec![accepted, conflicted, resolved, programmed]
    }

    /// Kinds of routes for the status.
    pub(crate) fn supported_kinds(&self) -> Value {
        let one = |kind: &RouteKind| json!({ "group": "gateway.networking.k8s.io", "kind": kind.name() });
        self.kinds.iter().map(one).collect()
    }
}

/// True if namespaces with a selector, and a default for `from`, permit a namespace.
pub(crate) fn permits(
    context: &Context<'_>,
    namespaces: Option<&Namespaces>,
    default: &str,
    own: &str,
    other: &str,
) -> bool {
    match namespaces.and_then(|it| it.from.as_deref()).unwrap_or(default) {
        "All" => true,
        "Same" => own == other,
        "Selector" => {
            let selector = namespaces.and_then(|it| it.selector.as_ref());
            let namespace = context.objects.namespaces.get(&Key::new("", other));
            selector.zip(namespace).is_some_and(|(selector, found)| selector.matches(&found.metadata.labels))
        }
        _ => false,
    }
}

/// Groups of protocols that can share a port.
fn group(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Http => 0,
        Protocol::Https | Protocol::TlsPassthrough | Protocol::TlsTerminate => 1,
        Protocol::Tcp => 2,
        Protocol::Udp => 3,
    }
}

/// Marks listeners that conflict. An earlier one prevails over those of ListenerSets; those of the Gateway itself exclude
/// each other.
pub(crate) fn mark_conflicts(listeners: &mut [ResolvedListener]) {
    let mut by_port: BTreeMap<(u16, &'static str), Vec<usize>> = BTreeMap::new();
    for (at, listener) in listeners.iter().enumerate() {
        if listener.protocol.is_some() {
            by_port.entry((listener.spec.port, listener.transport())).or_default().push(at);
        }
    }
    for same_port in by_port.values() {
        let mut kept: Vec<usize> = Vec::new();
        for &at in same_port {
            let mut is_kept = true;
            for &other in &kept {
                let Some(conflict) = conflict(&listeners[at], &listeners[other]) else { continue };
                if listeners[at].set.is_none() && listeners[other].set.is_none() {
                    listeners[other].conflict = Some(conflict.clone());
                }
                listeners[at].conflict = Some(conflict);
                is_kept = false;
            }
            if is_kept || listeners[at].set.is_none() {
                kept.push(at);
            }
        }
    }
}

fn conflict(one: &ResolvedListener, other: &ResolvedListener) -> Option<Unresolved> {
    let (of_one, of_other) = (one.protocol?, other.protocol?);
    let port = one.spec.port;
    if group(of_one) != group(of_other) {
        return Some(("ProtocolConflict", format!("another listener has port {port} with another protocol")));
    }
    let is_same_host = one.hostname == other.hostname || matches!(of_one, Protocol::Tcp | Protocol::Udp);
    let host = one.hostname.as_deref().unwrap_or("any host name");
    is_same_host.then(|| ("HostnameConflict", format!("another listener has port {port} with {host}")))
}
