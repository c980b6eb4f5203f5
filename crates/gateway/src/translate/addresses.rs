//! Addresses of Gateways.
//!
//! With a pool, servers bind the addresses themselves: each Gateway gets one of its own, and keeps it. With services, each
//! Gateway has a Service of its own, whose ports lead to ports of the servers that no other Gateway has.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::objects::{AddressSpec, GatewaySpec, Key, Objects, SpecResource};

/// First port of servers for Gateways with services. Those below are for the container's own use.
const TARGET_PORT_MIN: u16 = 10_000;

/// Addresses of a pool that are looked at, at most.
const POOL_LOOKS_MAX: usize = 1 << 16;

/// Label of the resources that belong to a Gateway (GEP-1762).
pub(crate) const GATEWAY_LABEL: &str = "gateway.networking.k8s.io/gateway-name";

/// Origin of the addresses of Gateways.
#[derive(Clone, Debug)]
pub enum Addresses {
    /// Networks of addresses that servers can bind.
    Pool(Vec<IpNet>),
    /// A Service for each Gateway, of this type, that selects servers by these labels.
    Services {
        /// `LoadBalancer`, `NodePort` or `ClusterIP`.
        r#type: String,
        /// Labels of the servers' pods.
        selector: BTreeMap<String, String>,
    },
}

/// Addresses of a Gateway.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Assigned {
    /// Addresses that servers bind; none is all.
    pub(crate) bind: Vec<IpAddr>,
    /// Ports of servers by port of the Gateway and transport; a port that is missing is the same.
    pub(crate) target_ports: BTreeMap<(u16, &'static str), u16>,
    /// Addresses for the status.
    pub(crate) status: Vec<AddressSpec>,
    /// Reason of `Accepted: False`.
    pub(crate) unsupported: Option<String>,
    /// Reason of `Programmed: False`, and a text.
    pub(crate) problem: Option<(&'static str, String)>,
}

/// Addresses of all Gateways.
pub(crate) type Assignments = BTreeMap<Key, Assigned>;

/// Addresses and ports in use.
pub(crate) struct Book<'a> {
    addresses: &'a Addresses,
    before: &'a Assignments,
    taken: BTreeMap<IpAddr, Key>,
    /// The least address of each Gateway.
    of_gateways: BTreeMap<Key, IpAddr>,
    /// Addresses of the pool that were not looked at yet.
    rest: Box<dyn Iterator<Item = IpAddr> + 'a>,
    ports_taken: BTreeSet<u16>,
    /// Ports that were not looked at yet.
    ports_rest: std::ops::RangeInclusive<u16>,
}

impl<'a> Book<'a> {
    /// Notes what Gateways have already, by their statuses and by the translation before, whose statuses may not be
    /// stored yet.
    pub(crate) fn new(
        addresses: &'a Addresses,
        before: &'a Assignments,
        objects: &Objects,
        gateways: &[&SpecResource<GatewaySpec>],
    ) -> Self {
        let pool = match addresses {
            Addresses::Pool(pool) => pool.as_slice(),
            Addresses::Services { .. } => &[],
        };
        let mut book = Self {
            addresses,
            before,
            taken: BTreeMap::new(),
            of_gateways: BTreeMap::new(),
            rest: Box::new(pool.iter().flat_map(|network| network.hosts()).take(POOL_LOOKS_MAX)),
            ports_taken: BTreeSet::new(),
            ports_rest: TARGET_PORT_MIN..=u16::MAX,
        };
        // A wish is stronger than a habit.
        for gateway in gateways {
            for wish in gateway.spec.addresses.iter().filter_map(|wish| wish.value.parse().ok()) {
                if book.has(wish) {
                    book.taken.entry(wish).or_insert_with(|| gateway.metadata.key());
                }
            }
        }
        for gateway in gateways.iter().filter(|gateway| gateway.spec.addresses.iter().all(|wish| wish.value.is_empty()))
        {
            let key = gateway.metadata.key();
            let known = || before.get(&key)?.bind.first().copied();
            if let Some(address) = stored(&gateway.status).or_else(known).filter(|address| book.has(*address)) {
                book.taken.entry(address).or_insert(key);
            }
        }
        for (address, gateway) in &book.taken {
            book.of_gateways.entry(gateway.clone()).or_insert(*address);
        }
        for service in objects.services.values().filter(|it| it.metadata.labels.contains_key(GATEWAY_LABEL)) {
            let ports = service.spec.ports.iter().filter_map(|port| port.target_port.as_u64());
            book.ports_taken.extend(ports.filter_map(|port| u16::try_from(port).ok()));
        }
        let of_before = gateways.iter().filter_map(|gateway| before.get(&gateway.metadata.key()));
        book.ports_taken.extend(of_before.flat_map(|assigned| assigned.target_ports.values().copied()));
        book
    }

    fn has(&self, address: IpAddr) -> bool {
        match self.addresses {
            Addresses::Pool(pool) => pool.iter().any(|network| network.contains(&address)),
            Addresses::Services { .. } => false,
        }
    }

    /// Addresses and ports of a Gateway. `ports` are those of its listeners, with their transports.
    pub(crate) fn assign(
        &mut self,
        objects: &Objects,
        gateway: &SpecResource<GatewaySpec>,
        ports: &BTreeSet<(u16, &'static str)>,
    ) -> Assigned {
        let is_ip = |wish: &&AddressSpec| matches!(wish.r#type.as_deref(), None | Some("IPAddress"));
        if let Some(other) = gateway.spec.addresses.iter().find(|wish| !is_ip(wish)) {
            let kind = other.r#type.as_deref().unwrap_or_default();
            let unsupported = Some(format!("addresses of the type {kind} are not supported; use IPAddress"));
            return Assigned { unsupported, ..Assigned::default() };
        }
        match self.addresses {
            Addresses::Pool(_) => self.assign_of_pool(gateway),
            Addresses::Services { .. } => self.assign_of_service(objects, gateway, ports),
        }
    }

    fn assign_of_pool(&mut self, gateway: &SpecResource<GatewaySpec>) -> Assigned {
        let key = gateway.metadata.key();
        let mut assigned = Assigned::default();
        let wishes: Vec<&AddressSpec> = gateway.spec.addresses.iter().filter(|wish| !wish.value.is_empty()).collect();
        for wish in &wishes {
            match wish.value.parse::<IpAddr>().ok().filter(|address| self.taken.get(address) == Some(&key)) {
                Some(address) => assigned.add(address),
                None => {
                    let text = format!("the address {} is not in the pool, or another Gateway has it", wish.value);
                    assigned.problem = Some(("AddressNotUsable", text));
                }
            }
        }
        if !wishes.is_empty() {
            return assigned;
        }
        let known = self.of_gateways.get(&key).copied();
        match known.or_else(|| self.rest.by_ref().find(|address| !self.taken.contains_key(address))) {
            Some(address) => assigned.add(address),
            None => assigned.problem = Some(("AddressNotAssigned", "the pool has no free address".to_owned())),
        }
        assigned
    }

    fn assign_of_service(
        &mut self,
        objects: &Objects,
        gateway: &SpecResource<GatewaySpec>,
        ports: &BTreeSet<(u16, &'static str)>,
    ) -> Assigned {
        let mut assigned = Assigned::default();
        let service = objects.services.get(&service_key(gateway));
        let before = self.before.get(&gateway.metadata.key());
        for &(port, transport) in ports {
            let is_it = |it: &&crate::objects::ServicePort| {
                it.port == port && it.protocol.as_deref().unwrap_or("TCP") == transport
            };
            let known = service.and_then(|service| service.spec.ports.iter().find(is_it));
            let known = known.and_then(|known| u16::try_from(known.target_port.as_u64()?).ok());
            let known = known.or_else(|| before?.target_ports.get(&(port, transport)).copied());
            let target = known.or_else(|| self.ports_rest.find(|port| !self.ports_taken.contains(port)));
            let Some(target) = target else {
                assigned.problem = Some(("NoResources", "the servers have no free port".to_owned()));
                continue;
            };
            assigned.target_ports.insert((port, transport), target);
        }
        let Some(service) = service else {
            assigned.problem =
                assigned.problem.or(Some(("AddressNotAssigned", "the Service does not exist yet".to_owned())));
            return assigned;
        };
        let ingress = service.status["loadBalancer"]["ingress"].as_array();
        for entry in ingress.into_iter().flatten() {
            let address = entry["ip"].as_str().map(|ip| ("IPAddress", ip));
            if let Some((kind, value)) = address.or_else(|| Some(("Hostname", entry["hostname"].as_str()?))) {
                assigned.status.push(AddressSpec { r#type: Some(kind.to_owned()), value: value.to_owned() });
            }
        }
        if assigned.status.is_empty() && service.spec.r#type != "LoadBalancer" && !service.spec.cluster_ip.is_empty() {
            let value = service.spec.cluster_ip.clone();
            assigned.status.push(AddressSpec { r#type: Some("IPAddress".to_owned()), value });
        }
        let lacks = |wish: &&AddressSpec| {
            !wish.value.is_empty() && !assigned.status.iter().any(|address| address.value == wish.value)
        };
        if let Some(wish) = gateway.spec.addresses.iter().find(lacks) {
            let text = format!("the load balancer has not assigned the address {}", wish.value);
            assigned.problem = Some(("AddressNotUsable", text));
        } else if assigned.status.is_empty() {
            assigned.problem = Some(("AddressNotAssigned", "the Service has no address yet".to_owned()));
        }
        assigned
    }
}

impl Assigned {
    fn add(&mut self, address: IpAddr) {
        self.bind.push(address);
        self.status.push(AddressSpec { r#type: Some("IPAddress".to_owned()), value: address.to_string() });
    }
}

/// Address in a stored status.
fn stored(status: &Value) -> Option<IpAddr> {
    status["addresses"][0]["value"].as_str()?.parse().ok()
}

/// Name of the Service of a Gateway.
pub(crate) fn service_key(gateway: &SpecResource<GatewaySpec>) -> Key {
    // A name of a Service has at most 63 characters. The UID keeps shortened names apart.
    let name = &gateway.metadata.name;
    let name = if name.len() <= 54 {
        format!("{name}-tailcoat")
    } else {
        let uid: String = gateway.metadata.uid.chars().filter(char::is_ascii_alphanumeric).take(12).collect();
        let start: String = name.chars().take(40).collect();
        format!("{}-{uid}-tailcoat", start.trim_end_matches(['-', '.']))
    };
    Key::new(&gateway.metadata.namespace, &name.replace('.', "-"))
}

/// Service of a Gateway, as it must be in the cluster.
pub(crate) fn service(
    addresses: &Addresses,
    gateway: &SpecResource<GatewaySpec>,
    ports: &BTreeSet<(u16, &'static str)>,
    assigned: &Assigned,
) -> Value {
    let key = service_key(gateway);
    let infrastructure = &gateway.spec.infrastructure;
    let mut labels = infrastructure.labels.clone();
    labels.insert(GATEWAY_LABEL.to_owned(), gateway.metadata.name.clone());
    labels.insert("app.kubernetes.io/managed-by".to_owned(), "tailcoat".to_owned());
    let of_ports = ports.iter().map(|(port, transport)| {
        let target = assigned.target_ports.get(&(*port, *transport)).unwrap_or(port);
        json!({
            "name": format!("{}-{port}", transport.to_lowercase()),
            "port": port, "protocol": transport, "targetPort": target,
        })
    });
    let ports: Vec<Value> = of_ports.collect();
    let mut spec = match addresses {
        // Servers bind the addresses. The Service carries labels and annotations for other programs.
        Addresses::Pool(_) => json!({ "type": "ClusterIP", "clusterIP": "None", "ports": ports }),
        Addresses::Services { r#type, selector } => json!({ "type": r#type, "selector": selector, "ports": ports }),
    };
    if let Addresses::Services { r#type, .. } = addresses
        && r#type == "LoadBalancer"
        && let Some(wish) = gateway.spec.addresses.iter().find(|wish| !wish.value.is_empty())
    {
        spec["loadBalancerIP"] = json!(wish.value);
    }
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "labels": labels,
            "annotations": infrastructure.annotations,
            "ownerReferences": [{
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                "name": gateway.metadata.name, "uid": gateway.metadata.uid, "controller": true,
            }],
        },
        "spec": spec,
    })
}
