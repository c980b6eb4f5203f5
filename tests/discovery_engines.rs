//! Servers of upstreams that come from Docker and from Kubernetes, and those that outlive a restart.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::discovery::{config, counts, expect_counts, get, named, source, started_with};
use crate::support::TestServer;
use crate::support::engine_server::{EngineResponse, EngineServer};
use crate::support::function_server::{FunctionServer, field};
use crate::support::operated::Operated;
use crate::support::waiting::{eventually, stays};

/// Value of a parameter in the target of a request, decoded.
fn parameter(head: &str, name: &str) -> Option<String> {
    let query = head.split(' ').nth(1)?.split_once('?')?.1;
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    let mut parts = value.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

/// Engine with the API of Docker.
struct Docker {
    engine: EngineServer,
    containers: Arc<Mutex<Vec<Value>>>,
    is_failing: Arc<AtomicBool>,
}

impl Docker {
    fn start(socket: &Path) -> Self {
        let (containers, is_failing) = (Arc::new(Mutex::new(Vec::<Value>::new())), Arc::new(AtomicBool::new(false)));
        let (known, fails) = (Arc::clone(&containers), Arc::clone(&is_failing));
        let engine = EngineServer::on_socket(socket, move |head| {
            let path = head.split(' ').nth(1).unwrap().split('?').next().unwrap().to_owned();
            let filters: Value = serde_json::from_str(&parameter(head, "filters").unwrap()).unwrap();
            match path.as_str() {
                _ if fails.load(Ordering::SeqCst) => {
                    EngineResponse::Whole("500 Internal Server Error", r#"{"message":"broken"}"#.to_owned())
                }
                "/v1.41/events" => {
                    assert!(filters["event"].as_array().unwrap().contains(&json!("die")), "{filters}");
                    EngineResponse::Stream
                }
                "/v1.41/containers/json" => {
                    let chosen = known.lock().unwrap().iter().filter(|it| is_chosen(it, &filters)).cloned().collect();
                    EngineResponse::Whole("200 OK", Value::Array(chosen).to_string())
                }
                _ => EngineResponse::Whole("404 Not Found", r#"{"message":"page not found"}"#.to_owned()),
            }
        });
        Self { engine, containers, is_failing }
    }

    /// Replaces the containers. Each is a name, a server, and a health.
    fn set(&self, containers: &[(&str, &FunctionServer, &str)]) {
        let container = |(name, server, health): &(&str, &FunctionServer, &str)| {
            json!({
                "Id": name, "Names": [format!("/{name}")], "State": "running",
                "Labels": { "app": "web", "tailcoat.port": server.address.port().to_string() },
                "Ports": [{ "PrivatePort": 9, "Type": "tcp" }],
                "NetworkSettings": { "Networks": {
                    "shop": { "IPAddress": "127.0.0.1", "GlobalIPv6Address": "" },
                    "other": { "IPAddress": "127.0.0.9", "GlobalIPv6Address": "" },
                } },
                // For the filter alone.
                "TestHealth": health,
            })
        };
        *self.containers.lock().unwrap() = containers.iter().map(container).collect();
        let event = json!({ "Type": "container", "Action": "start", "Actor": { "ID": "a", "Attributes": {} } });
        self.engine.send(&format!("{event}\n"));
    }
}

/// Filters of a list, as the documentation of the Docker Engine API says.
fn is_chosen(container: &Value, filters: &Value) -> bool {
    let has = |name: &str, test: &dyn Fn(&str) -> bool| {
        let Some(values) = filters[name].as_array() else { return true };
        values.iter().any(|value| test(value.as_str().unwrap()))
    };
    let labels = &container["Labels"];
    has("status", &|status| container["State"] == status)
        && has("health", &|health| container["TestHealth"] == health)
        && has("network", &|network| !container["NetworkSettings"]["Networks"][network].is_null())
        && has("label", &|label| match label.split_once('=') {
            Some((name, value)) => labels[name] == value,
            None => !labels[label].is_null(),
        })
}

#[test]
fn containers_of_docker_are_followed() {
    let [one, two, three] = ["one", "two", "three"].map(named);
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("docker.sock");
    let docker = Docker::start(&socket);
    docker.set(&[("a", &one, "healthy"), ("b", &two, "none"), ("c", &three, "starting")]);
    let discover = format!("\"docker:{}\" label=\"app=web\" network=\"shop\"", socket.display());
    let operated = started_with(&config(&discover, ""), &directory.path().join("state"));
    expect_counts(&operated.server, &[("one", 2), ("two", 2)]);

    // A change is an event, and holds without a reload.
    docker.set(&[("b", &two, "unhealthy"), ("c", &three, "healthy")]);
    expect_counts(&operated.server, &[("three", 4)]);
    let lists = |heads: Vec<String>| heads.iter().filter(|head| head.contains("/containers/json")).count();
    assert!(lists(docker.engine.heads()) >= 2);
    // Nothing is asked while nothing happens. Time is what this tests.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(lists(docker.engine.heads()), 0);

    // The stream ends: the next one begins with a list.
    docker.engine.end_streams();
    *docker.containers.lock().unwrap() = Vec::new();
    docker.set(&[("a", &one, "healthy"), ("c", &three, "healthy")]);
    expect_counts(&operated.server, &[("one", 2), ("three", 2)]);

    // The engine fails: the last servers stay, also over a restart.
    docker.is_failing.store(true, Ordering::SeqCst);
    docker.engine.end_streams();
    eventually("the failure is seen", || {
        source(&operated)["error"].as_str().is_some_and(|text| text.contains("status 500: {\"message\":\"broken\"}"))
    });
    expect_counts(&operated.server, &[("one", 2), ("three", 2)]);
    let kept = directory.path().join("state/discovered/app.json");
    eventually("they are kept", || {
        let kept = fs::read_to_string(&kept).unwrap_or_default();
        [&one, &three].iter().all(|server| kept.contains(&server.address.to_string()))
    });
    drop(operated);
    let operated = started_with(&config(&discover, ""), &directory.path().join("state"));
    // Each worker begins its own turns, so that only the names are certain.
    assert_eq!(counts(&operated.server, 4).into_keys().collect::<Vec<_>>(), ["one", "three"]);
    eventually("the failure is seen", || source(&operated)["error"].is_string());
    assert_eq!(source(&operated)["servers"], 2);
    eventually("it is logged", || operated.file("errors.log").contains("last servers of a source restored"));

    // The engine is back, without containers: an empty list is a response.
    docker.containers.lock().unwrap().clear();
    docker.is_failing.store(false, Ordering::SeqCst);
    eventually("there is no server", || get(&operated.server) == "503");
}

/// Servers on disk are those of the same source only.
#[test]
fn kept_servers_are_those_of_the_same_source() {
    let one = named("one");
    let directory = tempfile::tempdir().unwrap();
    let (socket, state) = (directory.path().join("docker.sock"), directory.path().join("state"));
    let docker = Docker::start(&socket);
    docker.set(&[("a", &one, "none")]);
    let discover = format!("\"docker:{}\" label=\"app=web\" network=\"shop\"", socket.display());
    let operated = started_with(&config(&discover, ""), &state);
    expect_counts(&operated.server, &[("one", 1)]);
    let file = state.join("discovered/app.json");
    eventually("they are kept", || file.exists());
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    drop(operated);
    docker.is_failing.store(true, Ordering::SeqCst);
    let content = fs::read_to_string(&file).unwrap();
    for (discover, text) in [
        (format!("{discover} port=81"), content.clone()),
        (discover.replace("app=web", "app=other"), content.clone()),
        (discover.clone(), content.replace("http:", "ftp:")),
        (discover.clone(), "[".repeat(100_000)),
        (discover.clone(), String::new()),
    ] {
        fs::write(&file, text).unwrap();
        let operated = started_with(&config(&discover, ""), &state);
        eventually("the failure is seen", || source(&operated)["error"].is_string());
        assert_eq!(get(&operated.server), "503", "{discover}");
    }
    fs::write(&file, content).unwrap();
    let operated = started_with(&config(&discover, ""), &state);
    assert_eq!(get(&operated.server), "one");
}

/// API server of Kubernetes, for the slices of one service.
#[derive(Clone, Default)]
struct Api(Arc<Mutex<ApiState>>);

#[derive(Default)]
struct ApiState {
    slices: BTreeMap<String, Value>,
    version: u64,
    /// Versions before this one are forgotten.
    oldest: u64,
    /// Versions from which watches began.
    watched: Vec<u64>,
    lists: usize,
}

const PATH: &str = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";

impl Api {
    fn start(&self) -> (EngineServer, String) {
        let api = self.clone();
        let (engine, address) = EngineServer::on_port(move |head| api.respond(head));
        (engine, format!("\"kubernetes://shop/api\" endpoint=\"http://{address}\""))
    }

    fn respond(&self, head: &str) -> EngineResponse {
        let mut state = self.0.lock().unwrap();
        assert_eq!(head.split([' ', '?']).nth(1), Some(PATH));
        assert_eq!(parameter(head, "labelSelector").as_deref(), Some("kubernetes.io/service-name=api"));
        let gone = json!({ "kind": "Status", "code": 410, "reason": "Expired", "message": "too old" }).to_string();
        if parameter(head, "watch").is_some() {
            let version: u64 = parameter(head, "resourceVersion").unwrap().parse().unwrap();
            if version < state.oldest {
                return EngineResponse::Whole("410 Gone", gone);
            }
            state.watched.push(version);
            return EngineResponse::Stream;
        }
        state.lists += 1;
        // Pages of one slice.
        let begin: usize = parameter(head, "continue").map_or(0, |token| token.trim_end_matches('=').parse().unwrap());
        let items: Vec<&Value> = state.slices.values().skip(begin).take(1).collect();
        let next = if begin + 1 < state.slices.len() { format!("{}=", begin + 1) } else { String::new() };
        let metadata = json!({ "resourceVersion": state.version.to_string(), "continue": next });
        let list = json!({ "kind": "EndpointSliceList", "metadata": metadata, "items": items });
        EngineResponse::Whole("200 OK", list.to_string())
    }

    /// Sets a slice; returns the event of it. Endpoints are ports of this machine's servers, so a slice has one port.
    fn set(&self, name: &str, server: &FunctionServer, is_ready: bool) -> String {
        let mut state = self.0.lock().unwrap();
        state.version += 1;
        let slice = json!({
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
            "metadata": { "name": name, "namespace": "shop", "resourceVersion": state.version.to_string() },
            "addressType": "IPv4",
            "endpoints": [{ "addresses": ["127.0.0.1"], "conditions": { "ready": is_ready, "serving": is_ready } }],
            "ports": [
                { "name": "http", "port": server.address.port(), "protocol": "TCP" },
                { "name": "metrics", "port": 9, "protocol": "TCP" },
            ],
        });
        let kind = if state.slices.insert(name.to_owned(), slice.clone()).is_none() { "ADDED" } else { "MODIFIED" };
        format!("{}\n", json!({ "type": kind, "object": slice }))
    }

    fn remove(&self, name: &str) -> String {
        let mut state = self.0.lock().unwrap();
        state.version += 1;
        let mut slice = state.slices.remove(name).unwrap();
        slice["metadata"]["resourceVersion"] = state.version.to_string().into();
        format!("{}\n", json!({ "type": "DELETED", "object": slice }))
    }
}

#[test]
fn endpoint_slices_are_followed() {
    let [one, two, three] = ["one", "two", "three"].map(named);
    let api = Api::default();
    api.set("api-1", &one, true);
    api.set("api-2", &two, true);
    api.set("api-3", &three, false);
    let (engine, discover) = api.start();
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("token"), "secret\n").unwrap();
    let discover = format!("{discover} port=\"http\" token-file=\"{}\"", directory.path().join("token").display());
    let operated = started_with(&config(&discover, ""), &directory.path().join("state"));
    expect_counts(&operated.server, &[("one", 2), ("two", 2)]);
    assert!(engine.heads().iter().all(|head| field(head, "authorization") == "Bearer secret"));
    eventually("there is a watch", || engine.stream_count() == 1);
    let lists = {
        let state = api.0.lock().unwrap();
        assert_eq!((state.lists, &state.watched), (3, &vec![state.version]));
        state.lists
    };

    // Events are applied at once; several that arrive together are one change.
    let changes = source(&operated)["changes"].as_u64().unwrap();
    engine.send(&(api.set("api-3", &three, true) + &api.set("api-1", &one, false)));
    expect_counts(&operated.server, &[("two", 2), ("three", 2)]);
    assert_eq!(source(&operated)["changes"], changes + 1);
    engine.send(&api.remove("api-2"));
    expect_counts(&operated.server, &[("three", 2)]);
    // An event in two pieces, as a network may bring it.
    let event = api.set("api-2", &two, true);
    let (begin, end) = event.split_at(event.len() / 2);
    engine.send(begin);
    engine.send(end);
    expect_counts(&operated.server, &[("two", 2), ("three", 2)]);

    // A watch that ends continues at its latest version, which a bookmark raises.
    let version = {
        let mut state = api.0.lock().unwrap();
        state.version += 5;
        state.version
    };
    engine.send(&format!(
        "{}\n",
        json!({ "type": "BOOKMARK", "object": { "metadata": { "resourceVersion": version.to_string() } } })
    ));
    eventually("the bookmark is read", || {
        engine.end_streams();
        api.0.lock().unwrap().watched.last() == Some(&version)
    });
    assert_eq!(api.0.lock().unwrap().lists, lists);

    // A version that is forgotten: by an event, and by a status. Changes meanwhile are found by a list.
    eventually("there is a watch", || engine.stream_count() == 1);
    api.set("api-1", &one, true);
    engine.send(&format!("{}\n", json!({ "type": "ERROR", "object": { "kind": "Status", "code": 410 } })));
    expect_counts(&operated.server, &[("one", 1), ("two", 1), ("three", 1)]);
    eventually("there is a watch", || engine.stream_count() == 1);
    api.remove("api-1");
    let oldest = {
        let mut state = api.0.lock().unwrap();
        state.oldest = state.version;
        state.oldest
    };
    engine.end_streams();
    expect_counts(&operated.server, &[("two", 2), ("three", 2)]);
    eventually("there is a watch", || api.0.lock().unwrap().watched.last() == Some(&oldest));
    assert!(source(&operated)["error"].is_null(), "{}", source(&operated));

    // All endpoints gone.
    eventually("there is a watch", || engine.stream_count() == 1);
    engine.send(&(api.remove("api-2") + &api.remove("api-3")));
    eventually("there is no server", || get(&operated.server) == "503");
}

/// A reason that the status shows, with the last servers in use.
fn expect_failure(operated: &Operated, expect: &str) {
    eventually(expect, || source(operated)["error"].as_str().is_some_and(|text| text.contains(expect)));
    assert_eq!(get(&operated.server), "one", "{expect}");
}

/// Engines that lie cost nothing else: their responses and events have limits, and they are not asked faster.
#[test]
fn hostile_engines() {
    let one = named("one");
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("docker.sock");
    let docker = Docker::start(&socket);
    docker.set(&[("a", &one, "none")]);
    let discover = format!("\"docker:{}\" network=\"shop\"", socket.display());
    let operated = started_with(&config(&discover, ""), &directory.path().join("state"));
    expect_counts(&operated.server, &[("one", 1)]);
    // Events without a pause.
    docker.engine.heads();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let events = "{\"Type\":\"container\",\"Action\":\"die\"}\n".repeat(100);
            // Each waits until the server has read the events before.
            while !is_over.load(Ordering::SeqCst) {
                if docker.engine.send(&events) == 0 {
                    break;
                }
            }
        });
        // Time is what this tests. On a busy machine there is more of it.
        let began = Instant::now();
        stays("it serves", Duration::from_secs(3), || get(&operated.server) == "one");
        // Each time, a second list has those that are unhealthy.
        let is_first = |head: &&String| head.contains("/containers/json") && !head.contains("unhealthy");
        let lists = docker.engine.heads().iter().filter(is_first).count() as u64;
        let seconds = began.elapsed().as_secs();
        is_over.store(true, Ordering::SeqCst);
        assert!(lists <= seconds + 2, "{lists} lists in {seconds} s");
        // The writer may wait for the reader.
        docker.engine.heads();
    });
    // An event without an end.
    eventually("the stream has ended", || docker.engine.send(&"a".repeat(100_000)) == 0);
    expect_failure(&operated, "its response is too large");
    // Lists that are none.
    for content in ["[".repeat(100_000), "{}".to_owned(), String::new()] {
        let other = directory.path().join("other.sock");
        let _ = fs::remove_file(&other);
        let _engine = EngineServer::on_socket(&other, move |head| match head.contains("/events") {
            true => EngineResponse::Stream,
            false => EngineResponse::Whole("200 OK", content.clone()),
        });
        operated.reload(&config(&discover.replace("docker.sock", "other.sock"), "connect-timeout \"2s\""));
        eventually("the failure is seen", || {
            source(&operated)["error"].as_str().is_some_and(|text| text.contains("the response is not one of Docker"))
        });
        assert_eq!(get(&operated.server), "503");
        operated.reload(&config(&discover, ""));
        expect_counts(&operated.server, &[("one", 1)]);
    }

    let api = Api::default();
    api.set("api-1", &one, true);
    let (engine, discover) = api.start();
    let operated = started_with(&config(&format!("{discover} port=\"http\""), ""), &directory.path().join("state"));
    for (event, expect) in [
        ("null\n".to_owned(), "the response is not one of Kubernetes"),
        ("[".repeat(100_000) + "\n", "the response is not one of Kubernetes"),
        (
            "{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"resourceVersion\":\"9\"}}}\n".to_owned(),
            "an event is not one of",
        ),
        ("{\"type\":\"ADDED\",\"object\":{\"metadata\":{}}}\n".to_owned(), "an event has no version"),
        ("{\"type\":\"ERROR\",\"object\":{\"code\":500,\"message\":\"broken\"}}\n".to_owned(), "500: broken"),
        ("a".repeat(5 << 20), "its response is too large"),
    ] {
        eventually("there is a watch", || engine.stream_count() == 1 && source(&operated)["error"].is_null());
        engine.send(&event);
        expect_failure(&operated, expect);
        engine.end_streams();
    }
    // Pages without end.
    let (_engine, address) = EngineServer::on_port(|_| {
        let list = json!({ "metadata": { "resourceVersion": "1", "continue": "more" }, "items": [] });
        EngineResponse::Whole("200 OK", list.to_string())
    });
    operated.reload(&config(&format!("\"kubernetes://shop/api\" endpoint=\"http://{address}\""), ""));
    eventually("the failure is seen", || {
        source(&operated)["error"].as_str().is_some_and(|text| text.contains("a list of the API server has no end"))
    });
}

/// The server's user may not use the socket, or there is none.
#[test]
fn sockets_without_permission() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("docker.sock");
    let _docker = Docker::start(&socket);
    let user = if rustix::process::geteuid().is_root() { "server { user \"nobody\" }\n" } else { "" };
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o000)).unwrap();
    let check = |socket: &Path, expect: &str| {
        let errors = directory.path().join("errors.log");
        let config = user.to_owned() + &config(&format!("\"docker:{}\" label=\"a\"", socket.display()), "");
        let server = TestServer::run_logging(&config, &errors);
        eventually(expect, || fs::read_to_string(&errors).is_ok_and(|text| text.contains(expect)));
        assert_eq!(get(&server), "503");
    };
    check(&socket, "let the server's user use the socket");
    if user.is_empty() {
        check(&directory.path().join("none.sock"), "No such file");
    }
}

/// Starts nothing outside of a pod.
#[test]
fn kubernetes_needs_an_address() {
    let directory = tempfile::tempdir().unwrap();
    let config = config("\"kubernetes://shop/api\"", "");
    let state = directory.path().join("state");
    let operated = Operated::start_with(directory, &config, |command: &mut Command| {
        command.env_remove("KUBERNETES_SERVICE_HOST").env("STATE_DIRECTORY", state);
    });
    eventually("the failure is seen", || {
        source(&operated)["error"].as_str().is_some_and(|text| text.contains("`endpoint` names the API server"))
    });
    assert_eq!(get(&operated.server), "503");
}
