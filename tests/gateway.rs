//! The controller for Kubernetes and a server together, as programs, over TLS, beside an API server that keeps objects in
//! memory.

#[allow(dead_code)]
#[path = "../crates/gateway/tests/api_server/mod.rs"]
pub(crate) mod api_server;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use self::api_server::ApiServer;
use crate::support::controller::{application, write_config};
use crate::support::port::free_port;
use crate::support::tls::TestCa;
use crate::support::waiting::{eventually, stays};
use crate::support::{PATIENCE, TestServer, read_all, tailcoat};

const GATEWAY_API: &str = "apis/gateway.networking.k8s.io/v1";
const SLICES: &str = "apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// Pool of one address.
const POOL: &str = "127.101.37.1/32";

/// A controller that runs. It is killed when it is dropped.
pub(crate) struct Controller(Child);

impl Controller {
    fn start(directory: &Path, port: u16, replica: &str) -> Self {
        let listen = format!("127.0.0.1:{port}");
        let channel = ["--listen", &listen, "--token-file", "token", "--certificate", "channel.pem"];
        Self::run(directory, POOL, &[&channel[..], &["--key", "channel.key", "--replica", replica]].concat())
    }

    /// Runs a controller with the kubeconfig of a directory, and further arguments.
    pub(crate) fn run(directory: &Path, pool: &str, arguments: &[&str]) -> Self {
        let mut command = tailcoat();
        command.current_dir(directory).stdin(Stdio::null()).stderr(Stdio::null());
        command.args(["gateway", "--kubeconfig", "kubeconfig", "--address-pool", pool, "--namespace", "default"]);
        Self(command.args(arguments).spawn().unwrap())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn slice(address: SocketAddr) -> Value {
    json!({
        "metadata": {"name": "shop-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "shop"}},
        "addressType": "IPv4", "endpoints": [{"addresses": [address.ip()]}],
        "ports": [{"name": "", "port": address.port()}],
    })
}

/// Cluster with a Gateway at a port, and a route to a service.
fn cluster(port: u16, endpoint: SocketAddr) -> ApiServer {
    let api = ApiServer::start();
    let class =
        json!({"metadata": {"name": "tailcoat"}, "spec": {"controllerName": "tailcoat.dev/gateway-controller"}});
    api.put(&format!("{GATEWAY_API}/gatewayclasses"), class);
    let listener = json!({"name": "http", "port": port, "protocol": "HTTP"});
    let gateway = json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"gatewayClassName": "tailcoat", "listeners": [listener]},
    });
    api.put(&format!("{GATEWAY_API}/namespaces/default/gateways"), gateway);
    let service = json!({"metadata": {"name": "shop", "namespace": "default"}, "spec": {"ports": [{"port": 8080}]}});
    api.put("api/v1/namespaces/default/services", service);
    api.put(SLICES, slice(endpoint));
    let route = json!({
        "metadata": {"name": "shop", "namespace": "default"},
        "spec": {"parentRefs": [{"name": "web"}], "rules": [{"backendRefs": [{"name": "shop", "port": 8080}]}]},
    });
    api.put(&format!("{GATEWAY_API}/namespaces/default/httproutes"), route);
    api
}

/// Starts a server of the control plane at a port.
fn server(directory: &Path, port: u16, token: &str, authority: &str) -> TestServer {
    let at = directory.join(format!("server-{token}-{authority}"));
    std::fs::create_dir(&at).unwrap();
    let (text, token, authority) = (at.display(), directory.join(token), directory.join(authority));
    let config = format!(
        "server {{\n workers 1\n control-plane \"https://localhost:{port}\" token-file={token:?} ca-file={authority:?} \
         directory=\"{text}/state\"\n}}\nsite \"own.example\" {{\n listen \"127.0.0.1:0\"\n respond \"*\" 200 \"own\"\n}}\n",
    );
    let file = at.join("tailcoat.kdl");
    std::fs::write(&file, config).unwrap();
    TestServer::run_from(&file)
}

/// Response of the Gateway, empty while it has no listener.
fn ask(port: u16) -> String {
    let Ok(mut stream) = TcpStream::connect(("127.101.37.1", port)) else { return String::new() };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: close\r\n\r\n");
    read_all(&mut stream)
}

#[test]
fn a_server_gets_routes_over_tls_and_continues_while_the_controller_is_away() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let (port, channel) = (free_port(), free_port());
    let api = cluster(port, application("first"));
    let (authority, other) = (TestCa::new(), TestCa::new());
    let pair = authority.sign(&["localhost"]);
    for (name, text) in [
        ("kubeconfig", api.kubeconfig()),
        ("token", "secret\n".to_owned()),
        ("wrong", "secrets\n".to_owned()),
        ("ca.pem", authority.pem()),
        ("other.pem", other.pem()),
        ("channel.pem", pair.certificate),
        ("channel.key", pair.key),
    ] {
        std::fs::write(at.join(name), text).unwrap();
    }
    let controller = Controller::start(at, channel, "a");
    // One that trusts another CA, and one with another token, get nothing.
    for (token, authority) in [("token", "other.pem"), ("wrong", "ca.pem")] {
        let server = server(at, channel, token, authority);
        server.await_log("controller lost");
        stays("no listener", std::time::Duration::from_millis(300), || ask(port).is_empty());
    }
    let _server = server(at, channel, "token", "ca.pem");
    eventually("the route is served", || ask(port).contains("first"));
    let gateway = format!("{GATEWAY_API}/namespaces/default/gateways/web");
    eventually("the Gateway has its address", || {
        api.get(&gateway).is_some_and(|it| it["status"]["addresses"][0]["value"] == "127.101.37.1")
    });

    drop(controller);
    api.put(SLICES, slice(application("second")));
    for _ in 0..20 {
        assert!(ask(port).contains("first"));
    }
    let _controller = Controller::start(at, channel, "b");
    eventually("the change is served", || ask(port).contains("second"));
    // A slice that moves to another service takes its endpoints along.
    let mut moved = slice(application("second"));
    moved["metadata"]["labels"]["kubernetes.io/service-name"] = json!("other");
    api.put(SLICES, moved);
    eventually("no endpoint is left", || ask(port).starts_with("HTTP/1.1 503"));
}

/// The replica that leads is killed: the other sends changes all the time, and writes statuses when the Lease has expired.
#[test]
fn changes_and_statuses_go_on_after_the_leader_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let port = free_port();
    let api = cluster(port, application("first"));
    std::fs::write(at.join("kubeconfig"), api.kubeconfig()).unwrap();
    let replica =
        |name: &str| Controller::run(at, POOL, &["--listen", &format!("unix:{name}.sock"), "--replica", name]);
    let leader = replica("a");
    let lease = "apis/coordination.k8s.io/v1/namespaces/default/leases/tailcoat-gateway";
    let holder = || api.get(lease).map(|lease| lease["spec"]["holderIdentity"].clone());
    eventually("the first replica leads", || holder() == Some(json!("a")));
    let _other = replica("plane");
    let route = format!("{GATEWAY_API}/namespaces/default/httproutes/shop");
    let observed = || Some(api.get(&route)?["status"]["parents"][0]["conditions"][0]["observedGeneration"].clone());
    eventually("the leader writes", || observed() == Some(json!(1)));
    // The Service of the channel leads the server to one replica or the other.
    let server_directory = tempfile::tempdir_in(at).unwrap();
    let socket = server_directory.path().join("plane.sock");
    std::os::unix::fs::symlink(at.join("plane.sock"), &socket).unwrap();
    let _server = TestServer::run_from(&write_config(&server_directory, ""));
    eventually("the route is served", || ask(port).contains("first"));

    drop(leader);
    api.put(SLICES, slice(application("second")));
    eventually("the change of endpoints is served", || ask(port).contains("second"));
    let mut value = api.get(&route).unwrap();
    value["spec"]["rules"][0]["matches"] = json!([{"path": {"type": "PathPrefix", "value": "/other"}}]);
    api.put(&format!("{GATEWAY_API}/namespaces/default/httproutes"), value);
    eventually("the change of the route is served", || ask(port).starts_with("HTTP/1.1 404"));
    eventually("the other replica leads", || holder() == Some(json!("plane")));
    eventually("it writes statuses", || observed() == Some(json!(2)));
}
