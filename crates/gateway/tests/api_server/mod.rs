//! An API server that keeps objects in memory: lists, watches, patches, and versions that exclude lost updates.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

/// The API server. It ends with the process.
pub(crate) struct ApiServer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Objects by path, such as `api/v1/namespaces/default/services/a`.
    objects: BTreeMap<String, Value>,
    version: u64,
    watchers: Vec<Watcher>,
    connections: Vec<TcpStream>,
    is_away: bool,
    /// Holders of the Lease when a status was written.
    writers: BTreeSet<String>,
    /// Patches of each object.
    writes: BTreeMap<String, usize>,
}

struct Watcher {
    api: String,
    plural: String,
    stream: TcpStream,
}

impl ApiServer {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<Mutex<State>>::default();
        let of_thread = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let state = Arc::clone(&of_thread);
                thread::spawn(move || serve(stream.unwrap(), &state));
            }
        });
        Self { address, state }
    }

    pub(crate) fn kubeconfig(&self) -> String {
        json!({
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "clusters": [{"name": "a", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "a", "user": {"token": "token"}}],
        })
        .to_string()
    }

    /// Adds or replaces an object of a collection.
    pub(crate) fn put(&self, collection: &str, object: Value) {
        let name = object["metadata"]["name"].as_str().unwrap();
        self.state.lock().unwrap().put(&format!("{collection}/{name}"), object, true);
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.state.lock().unwrap().objects.get(path).cloned()
    }

    pub(crate) fn delete(&self, path: &str) {
        let mut state = self.state.lock().unwrap();
        let object = state.objects.remove(path).unwrap();
        state.version += 1;
        state.notify(path, "DELETED", &object);
    }

    /// Closes all connections, and new ones at once, or serves again.
    pub(crate) fn set_away(&self, is_away: bool) {
        let mut state = self.state.lock().unwrap();
        state.is_away = is_away;
        state.watchers.clear();
        for connection in state.connections.drain(..) {
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Replaces an object with its status.
    pub(crate) fn put_status(&self, path: &str, object: Value) {
        self.state.lock().unwrap().put(path, object, false);
    }

    /// Number of patches of each object, by path.
    pub(crate) fn writes(&self) -> BTreeMap<String, usize> {
        self.state.lock().unwrap().writes.clone()
    }

    pub(crate) fn writers_of_statuses(&self) -> Vec<String> {
        self.state.lock().unwrap().writers.iter().cloned().collect()
    }
}

impl State {
    fn put(&mut self, path: &str, mut object: Value, is_spec: bool) {
        self.version += 1;
        let before = self.objects.get(path);
        let generation = before.and_then(|it| it["metadata"]["generation"].as_u64()).unwrap_or(0) + u64::from(is_spec);
        let is_new = before.is_none();
        if object["status"].is_null()
            && let Some(before) = before
        {
            object["status"] = before["status"].clone();
        }
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        object["metadata"]["generation"] = json!(generation);
        self.objects.insert(path.to_owned(), object.clone());
        self.notify(path, if is_new { "ADDED" } else { "MODIFIED" }, &object);
    }

    fn notify(&mut self, path: &str, kind: &str, object: &Value) {
        let mut object = object.clone();
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let line = format!("{}\n", json!({"type": kind, "object": object}));
        self.watchers.retain_mut(|watcher| {
            !is_of(path, &watcher.api, &watcher.plural) || watcher.stream.write_all(line.as_bytes()).is_ok()
        });
    }
}

/// True if an object is of a collection of all namespaces.
fn is_of(path: &str, api: &str, plural: &str) -> bool {
    let Some(rest) = path.strip_prefix(api).and_then(|rest| rest.strip_prefix('/')) else { return false };
    let parts: Vec<&str> = rest.split('/').collect();
    parts.len() >= 2 && parts[parts.len() - 2] == plural
}

fn serve(stream: TcpStream, state: &Mutex<State>) {
    if state.lock().unwrap().is_away {
        return;
    }
    state.lock().unwrap().connections.push(stream.try_clone().unwrap());
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    while let Some(request) = read(&mut reader) {
        if !answer(&request, &stream, state) {
            return;
        }
    }
}

struct Request {
    method: String,
    path: String,
    query: String,
    is_authorized: bool,
    content: Value,
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let (method, rest) = line.split_once(' ')?;
    let target = rest.split(' ').next()?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (mut length, mut is_authorized) = (0, false);
    loop {
        let mut field = String::new();
        reader.read_line(&mut field).ok()?;
        let Some((name, value)) = field.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().ok()?,
            "authorization" => is_authorized = value == "Bearer token",
            _ => {}
        }
    }
    let mut content = vec![0; length];
    reader.read_exact(&mut content).ok()?;
    Some(Request {
        method: method.to_owned(),
        path: path.trim_start_matches('/').to_owned(),
        query: query.to_owned(),
        is_authorized,
        content: serde_json::from_slice(&content).unwrap_or_default(),
    })
}

/// Answers a request. False if the connection is used up.
fn answer(request: &Request, stream: &TcpStream, state: &Mutex<State>) -> bool {
    let mut state = state.lock().unwrap();
    if !request.is_authorized {
        return respond(stream, 401, &json!({"message": "no token"}));
    }
    let path = request.path.as_str();
    let (api, plural) = path.rsplit_once('/').unwrap();
    match request.method.as_str() {
        "GET" if request.query.contains("watch=1") => {
            let mut stream = stream.try_clone().unwrap();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
            if stream.write_all(head.as_bytes()).is_err() {
                return false;
            }
            // Changes between the list and the watch.
            let since: u64 = request.query.rsplit_once("resourceVersion=").unwrap().1.parse().unwrap();
            let objects = state.objects.iter().filter(|(path, _)| is_of(path, api, plural));
            for (_, object) in objects {
                let version: u64 = object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
                if version > since {
                    let line = format!("{}\n", json!({"type": "MODIFIED", "object": object}));
                    let _ = stream.write_all(line.as_bytes());
                }
            }
            state.watchers.push(Watcher { api: api.to_owned(), plural: plural.to_owned(), stream });
            true
        }
        "GET" => match state.objects.get(path) {
            Some(object) => respond(stream, 200, object),
            None if path.contains("/namespaces/") => respond(stream, 404, &json!({"message": "not found"})),
            None => {
                let all = state.objects.iter().filter(|(path, _)| is_of(path, api, plural));
                let items: Vec<&Value> = all.map(|(_, object)| object).collect();
                let version = state.version.to_string();
                respond(stream, 200, &json!({"metadata": {"resourceVersion": version}, "items": items}))
            }
        },
        "POST" => {
            let name = request.content["metadata"]["name"].as_str().unwrap();
            let path = format!("{path}/{name}");
            if state.objects.contains_key(&path) {
                return respond(stream, 409, &json!({"message": "exists"}));
            }
            state.put(&path, request.content.clone(), true);
            respond(stream, 201, &state.objects[&path])
        }
        "PUT" => {
            let stored = state.objects.get(path).map(|object| object["metadata"]["resourceVersion"].clone());
            if stored.as_ref() != Some(&request.content["metadata"]["resourceVersion"]) {
                return respond(stream, 409, &json!({"message": "another was first"}));
            }
            state.put(path, request.content.clone(), true);
            respond(stream, 200, &state.objects[path])
        }
        "PATCH" => {
            *state.writes.entry(path.trim_end_matches("/status").to_owned()).or_default() += 1;
            patch(request, stream, &mut state, path)
        }
        _ => respond(stream, 405, &Value::Null),
    }
}

fn patch(request: &Request, stream: &TcpStream, state: &mut State, path: &str) -> bool {
    match path.strip_suffix("/status") {
        Some(path) => {
            let Some(mut object) = state.objects.get(path).cloned() else {
                return respond(stream, 404, &json!({"message": "not found"}));
            };
            for (name, value) in request.content["status"].as_object().unwrap() {
                object["status"][name.as_str()] = value.clone();
            }
            let lease = state.objects.get("apis/coordination.k8s.io/v1/namespaces/default/leases/tailcoat-gateway");
            let holder = lease.map(|lease| lease["spec"]["holderIdentity"].as_str().unwrap().to_owned());
            state.writers.extend(holder);
            state.put(path, object, false);
            respond(stream, 200, &state.objects[path])
        }
        None => {
            state.put(path, request.content.clone(), true);
            respond(stream, 200, &state.objects[path])
        }
    }
}

fn respond(mut stream: &TcpStream, status: u16, value: &Value) -> bool {
    let content = value.to_string();
    let head =
        format!("HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", content.len());
    stream.write_all(head.as_bytes()).is_ok() && stream.write_all(content.as_bytes()).is_ok()
}
