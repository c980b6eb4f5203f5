//! The controller as a whole, with an API server of its own that keeps objects in memory, and with servers on its channel.

mod api_server;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use api_server::ApiServer;
use routes::{Applied, Hello, Message, Snapshot, VERSION};
use serde_json::{Value, json};
use tailcoat_gateway::{Access, Addresses, ChannelSettings, Settings, run};

/// Longest wait for an event; only a failure takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

const GATEWAY_API: &str = "apis/gateway.networking.k8s.io/v1";

/// A running controller. It ends when it is dropped.
struct Controller {
    _end: tokio::sync::oneshot::Sender<()>,
    directory: tempfile::TempDir,
}

impl Controller {
    fn start(api: &ApiServer, replica: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        std::fs::write(&kubeconfig, api.kubeconfig()).unwrap();
        std::fs::write(directory.path().join("token"), "secret\n").unwrap();
        let settings = Settings {
            access: Access::from_kubeconfig(&kubeconfig).unwrap(),
            controller: "tailcoat.dev/gateway-controller".to_owned(),
            addresses: Addresses::Pool(vec!["127.100.0.0/24".parse().unwrap()]),
            ingress_gateway: None,
            replica: replica.to_owned(),
            lease: ("default".to_owned(), "tailcoat-gateway".to_owned()),
            channel: ChannelSettings {
                listen: format!("unix:{}", directory.path().join("channel").display()),
                token_file: Some(directory.path().join("token")),
                certificate: None,
            },
        };
        let (end, ended) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    result = run(settings) => result.unwrap(),
                    _ = ended => {}
                }
            });
        });
        Self { _end: end, directory }
    }

    fn channel(&self) -> PathBuf {
        self.directory.path().join("channel")
    }
}

/// A server on the channel.
struct Server {
    reader: BufReader<UnixStream>,
    snapshot: Snapshot,
    revision: u64,
}

impl Server {
    fn connect(channel: &Path, token: &str) -> Self {
        let mut stream = eventually("the channel is there", || UnixStream::connect(channel).ok());
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let hello = Hello {
            version: VERSION,
            server: "server-1".to_owned(),
            program: "test".to_owned(),
            token: token.to_owned(),
            revision: None,
        };
        stream.write_all(&Message::Hello(hello).to_line()).unwrap();
        Self { reader: BufReader::new(stream), snapshot: Snapshot::default(), revision: 0 }
    }

    /// Next message, or `None` at the end of the connection.
    fn receive(&mut self) -> Option<Message> {
        loop {
            let mut line = Vec::new();
            if self.reader.read_until(b'\n', &mut line).unwrap() == 0 {
                return None;
            }
            match Message::from_line(&line).unwrap() {
                Message::Ping => self.reader.get_mut().write_all(&Message::Ping.to_line()).unwrap(),
                message => return Some(message),
            }
        }
    }

    /// Applies messages until the snapshot is as wanted, and acknowledges each. Returns the last message.
    fn until(&mut self, what: &str, holds: impl Fn(&Snapshot) -> bool) -> Message {
        loop {
            let message = self.receive().unwrap_or_else(|| panic!("the connection ended before: {what}"));
            match &message {
                Message::Snapshot { revision, snapshot, .. } => {
                    self.snapshot = (**snapshot).clone();
                    self.revision = *revision;
                }
                Message::Change { base, revision, change } => {
                    assert_eq!(*base, self.revision, "changes follow each other");
                    self.snapshot.apply((**change).clone());
                    self.revision = *revision;
                }
                other => panic!("{other:?}"),
            }
            self.acknowledge(Applied { revision: self.revision, ..Applied::default() });
            if holds(&self.snapshot) {
                return message;
            }
        }
    }

    fn acknowledge(&mut self, applied: Applied) {
        self.reader.get_mut().write_all(&Message::Applied(applied).to_line()).unwrap();
    }
}

fn eventually<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "not so: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Cluster with a Gateway, a route and a service.
fn cluster() -> ApiServer {
    let api = ApiServer::start();
    api.put(
        &format!("{GATEWAY_API}/gatewayclasses"),
        json!({
            "metadata": {"name": "tailcoat"}, "spec": {"controllerName": "tailcoat.dev/gateway-controller"},
        }),
    );
    api.put(
        &format!("{GATEWAY_API}/namespaces/default/gateways"),
        json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"gatewayClassName": "tailcoat", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
        }),
    );
    api.put(
        "api/v1/namespaces/default/services",
        json!({
            "metadata": {"name": "shop", "namespace": "default"}, "spec": {"ports": [{"port": 8080}]},
        }),
    );
    api.put("apis/discovery.k8s.io/v1/namespaces/default/endpointslices", slice(&["10.0.0.1"]));
    api.put(&format!("{GATEWAY_API}/namespaces/default/httproutes"), route("shop"));
    api
}

fn slice(addresses: &[&str]) -> Value {
    let endpoints: Vec<Value> = addresses.iter().map(|address| json!({"addresses": [address]})).collect();
    json!({
        "metadata": {"name": "shop-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "shop"}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "", "port": 80}],
    })
}

fn route(service: &str) -> Value {
    json!({
        "metadata": {"name": "shop", "namespace": "default"},
        "spec": {"parentRefs": [{"name": "web"}], "rules": [{"backendRefs": [{"name": service, "port": 8080}]}]},
    })
}

fn has_status(api: &ApiServer, path: &str, condition: &str, expect: &str) -> Option<()> {
    let object = api.get(path)?;
    let of_parent = &object["status"]["parents"][0]["conditions"];
    let conditions = if of_parent.is_null() { &object["status"]["conditions"] } else { of_parent };
    let found = conditions.as_array()?.iter().find(|it| it["type"] == condition)?;
    (found["status"] == expect).then_some(())
}

#[test]
fn resources_reach_servers_and_have_statuses() {
    let api = cluster();
    let controller = Controller::start(&api, "a");
    let mut server = Server::connect(&controller.channel(), "secret");
    server.until("a route is there", |snapshot| !snapshot.routes.is_empty());
    let snapshot = &server.snapshot;
    let listener = &snapshot.listeners["default/web/http"];
    assert_eq!((listener.port, listener.addresses[0].to_string().as_str()), (80, "127.100.0.1"));
    assert_eq!(snapshot.endpoints["default/shop:8080"][0].address.to_string(), "10.0.0.1:80");

    let gateway = format!("{GATEWAY_API}/namespaces/default/gateways/web");
    let of_route = format!("{GATEWAY_API}/namespaces/default/httproutes/shop");
    for (path, condition) in [(&gateway, "Programmed"), (&of_route, "Accepted"), (&of_route, "ResolvedRefs")] {
        eventually(&format!("{path} has {condition}"), || has_status(&api, path, condition, "True"));
    }
    eventually("the Gateway has an address", || {
        (api.get(&gateway)?["status"]["addresses"][0]["value"] == "127.100.0.1").then_some(())
    });
    eventually("the Gateway has a Service", || api.get("api/v1/namespaces/default/services/web-tailcoat"));
    let lease = api.get("apis/coordination.k8s.io/v1/namespaces/default/leases/tailcoat-gateway").unwrap();
    assert_eq!(lease["spec"]["holderIdentity"], "a");

    // Endpoints alone change, and nothing else is sent.
    api.put("apis/discovery.k8s.io/v1/namespaces/default/endpointslices", slice(&["10.0.0.1", "10.0.0.2"]));
    let change = server.until("the endpoint is there", |it| it.endpoints["default/shop:8080"].len() == 2);
    let Message::Change { change, .. } = change else { panic!("{change:?}") };
    assert!(!change.changes_structure(), "{change:?}");

    // A route to a service that does not exist keeps its place, and says what is wrong.
    api.put(&format!("{GATEWAY_API}/namespaces/default/httproutes"), route("none"));
    eventually("the reference is not resolved", || has_status(&api, &of_route, "ResolvedRefs", "False"));
    server.until("the backend is gone", |snapshot| snapshot.backends.is_empty());
    assert_eq!(server.snapshot.routes.len(), 1);

    // An error of a server is in a status.
    let errors = [("listener/default/web/http".to_owned(), "cannot bind".to_owned())].into();
    server.acknowledge(Applied { revision: server.revision, errors, rejected: None });
    eventually("the Gateway is not programmed", || has_status(&api, &gateway, "Programmed", "False"));

    api.delete(&of_route);
    server.until("the route is gone", |snapshot| snapshot.routes.is_empty());
}

#[test]
fn servers_with_a_wrong_token_get_nothing() {
    let api = cluster();
    let controller = Controller::start(&api, "a");
    for token in ["", "wrong", "secret\n", "secrets"] {
        assert!(Server::connect(&controller.channel(), token).receive().is_none(), "{token:?}");
    }
    // Nor does one that sends something else, or too much.
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![b'x'; 1 << 20], Message::Ping.to_line()] {
        let mut stream = UnixStream::connect(controller.channel()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = stream.write_all(&bytes);
        let mut text = String::new();
        assert_eq!(BufReader::new(stream).read_line(&mut text).unwrap_or(0), 0, "{text}");
    }
    let mut server = Server::connect(&controller.channel(), "secret");
    server.until("a route is there", |snapshot| !snapshot.routes.is_empty());
}

#[test]
fn a_server_continues_while_the_api_server_is_away() {
    let api = cluster();
    let controller = Controller::start(&api, "a");
    let mut server = Server::connect(&controller.channel(), "secret");
    server.until("a route is there", |snapshot| !snapshot.routes.is_empty());
    api.set_away(true);
    // A server that connects now gets the last routes.
    let mut late = Server::connect(&controller.channel(), "secret");
    late.until("a route is there", |snapshot| !snapshot.routes.is_empty());
    api.put("apis/discovery.k8s.io/v1/namespaces/default/endpointslices", slice(&["10.0.0.3"]));
    api.set_away(false);
    for server in [&mut server, &mut late] {
        let change = server.until("the endpoint is there", |snapshot| {
            snapshot.endpoints["default/shop:8080"].iter().any(|it| it.address.to_string() == "10.0.0.3:80")
        });
        assert!(matches!(change, Message::Change { .. }), "{change:?}");
        assert_eq!(server.snapshot.routes.len(), 1);
    }
}

#[test]
fn one_replica_writes() {
    let api = cluster();
    let first = Controller::start(&api, "a");
    let of_route = format!("{GATEWAY_API}/namespaces/default/httproutes/shop");
    eventually("the first writes", || has_status(&api, &of_route, "Accepted", "True"));
    let second = Controller::start(&api, "b");
    // Both send routes.
    for controller in [&first, &second] {
        let mut server = Server::connect(&controller.channel(), "secret");
        server.until("a route is there", |snapshot| !snapshot.routes.is_empty());
    }
    api.put(&format!("{GATEWAY_API}/namespaces/default/httproutes"), route("none"));
    eventually("a change is written", || has_status(&api, &of_route, "ResolvedRefs", "False"));
    assert_eq!(api.writers_of_statuses(), ["a"]);
    // The second takes the Lease when the first has not renewed it for its duration.
    drop(first);
    api.put(&format!("{GATEWAY_API}/namespaces/default/httproutes"), route("shop"));
    eventually("the second writes", || has_status(&api, &of_route, "ResolvedRefs", "True"));
    assert_eq!(api.writers_of_statuses(), ["a", "b"]);
}

#[test]
fn services_and_statuses_are_written_once_and_again_if_they_are_lost() {
    const GATEWAYS: usize = 150;
    let api = cluster();
    for number in 0..GATEWAYS {
        api.put(
            &format!("{GATEWAY_API}/namespaces/default/gateways"),
            json!({
                "metadata": {"name": format!("g{number}"), "namespace": "default"},
                "spec": {"gatewayClassName": "tailcoat", "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]},
            }),
        );
    }
    let _controller = Controller::start(&api, "a");
    let gateway = |number: usize| format!("{GATEWAY_API}/namespaces/default/gateways/g{number}");
    let service = "api/v1/namespaces/default/services/g0-tailcoat";
    let mut addresses = std::collections::BTreeSet::new();
    for number in 0..GATEWAYS {
        let address = eventually(&format!("Gateway {number} has an address"), || {
            Some(api.get(&gateway(number))?["status"]["addresses"][0]["value"].as_str()?.to_owned())
        });
        assert!(addresses.insert(address), "each Gateway has an address of its own");
    }
    eventually("Services are there", || {
        (0..GATEWAYS)
            .all(|number| api.get(&format!("api/v1/namespaces/default/services/g{number}-tailcoat")).is_some())
            .then_some(())
    });
    // One for its Service, and one for its status: what comes back from the API server causes no other.
    let most =
        api.writes().into_iter().filter(|(path, _)| path.contains("/gateways/g")).max_by_key(|(_, count)| *count);
    assert_eq!(most.map(|(_, count)| count), Some(1), "writes of a Gateway's status");
    assert_eq!(api.writes().get(service), Some(&1));

    api.delete(service);
    eventually("the Service is back", || api.get(service));
    let mut object = api.get(&gateway(1)).unwrap();
    object["status"] = json!({"addresses": []});
    api.put_status(&gateway(1), object);
    eventually("the status is back", || has_status(&api, &gateway(1), "Programmed", "True"));
}
