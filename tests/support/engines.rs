//! Engines of stores that run as programs. `.ci/run` installs Valkey or Redis, moto (S3) and Consul; the API server of Kubernetes
//! is one that `cargo xtask gateway-conformance` has built.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::port::free_port;
use super::real_server::{RealServer, Recipe, is_installed};
use super::skips::skip_without;
use super::waiting::eventually;

/// Folder where `.ci/run` installs moto.
const MOTO: &str = "/usr/local/lib/moto";

/// Folders of the API server: where a build puts it, and where it may be installed.
const KUBERNETES: [&str; 2] = [concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/kubernetes/bin"), "/usr/local/bin"];

/// Token of the API server's administrator.
pub(crate) const KUBERNETES_TOKEN: &str = "administrator";

/// Starts Valkey or Redis with further arguments. In them, `@PORT@` is its port, and `@DIR@` its directory.
pub(crate) fn valkey(files: &[(&str, &str)], arguments: &[&str]) -> Option<RealServer> {
    let command = valkey_command(arguments);
    RealServer::start(&Recipe { needs: &command[..1], files, command: &command, ..Recipe::default() })
}

/// Command of Valkey or Redis with further arguments.
pub(crate) fn valkey_command<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    let program = if is_installed("valkey-server") { "valkey-server" } else { "redis-server" };
    let usual = [program, "--bind", "127.0.0.1", "--dir", "@DIR@", "--save", "", "--appendonly", "no"];
    let port = ["--port", "@PORT@"];
    let port = if arguments.contains(&"--tls-port") { &port[..0] } else { &port[..] };
    [&usual[..], port, arguments].concat()
}

/// Starts a Sentinel, which watches the primary of this port under the name `edge` and replaces it after half a second.
pub(crate) fn sentinel(primary: u16) -> Option<RealServer> {
    let program = if is_installed("valkey-server") { "valkey-server" } else { "redis-server" };
    let config = format!(
        "port @PORT@\nbind 127.0.0.1\ndir @DIR@\nsentinel monitor edge 127.0.0.1 {primary} 1\n\
         sentinel down-after-milliseconds edge 500\nsentinel failover-timeout edge 2000\n"
    );
    let command = [program, "@DIR@/sentinel.conf", "--sentinel"];
    let files = [("sentinel.conf", config.as_str())];
    RealServer::start(&Recipe { needs: &[program], files: &files, command: &command, ..Recipe::default() })
}

/// Sends a command to Valkey; returns the start of its reply.
pub(crate) fn say(port: u16, command: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    stream.write_all(format!("{command}\r\n").as_bytes()).ok()?;
    let mut reply = [0; 4096];
    let count = stream.read(&mut reply).ok()?;
    Some(String::from_utf8_lossy(&reply[..count]).into_owned())
}

/// Starts moto with the bucket `shared`. Any credentials will do.
pub(crate) fn s3() -> Option<RealServer> {
    let start = "import sys; from moto.server import main; main(sys.argv[1:])";
    let server = RealServer::start(&Recipe {
        needs: &["python3", &format!("{MOTO}/moto/server.py")],
        command: &["python3", "-c", start, "-H", "127.0.0.1", "-p", "@PORT@"],
        environment: &[("PYTHONPATH", MOTO)],
        ..Recipe::default()
    })?;
    eventually("the bucket is made", || {
        let mut stream = TcpStream::connect(server.address).expect("it listens");
        let request = "PUT /shared HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut response = String::new();
        stream.read_to_string(&mut response).is_ok() && response.contains(" 200 ")
    });
    Some(server)
}

/// Starts a Consul of one server.
pub(crate) fn consul() -> Option<RealServer> {
    let [lan, raft] = [free_port(), free_port()];
    let config = format!(
        "ports {{ http = @PORT@ dns = -1 grpc = -1 serf_lan = {lan} serf_wan = -1 server = {raft} }}\n\
         performance {{ raft_multiplier = 1 }}\n"
    );
    RealServer::start(&Recipe {
        needs: &["consul"],
        files: &[("consul.hcl", &config)],
        command: &[
            "consul",
            "agent",
            "-server",
            "-bootstrap-expect=1",
            "-bind=127.0.0.1",
            "-data-dir=@DIR@/data",
            "-config-file=@DIR@/consul.hcl",
        ],
        ..Recipe::default()
    })
}

/// API server of Kubernetes with its etcd.
pub(crate) struct Kubernetes {
    pub(crate) server: RealServer,
    _etcd: RealServer,
}

impl Kubernetes {
    /// Starts them; the administrator's token is [`KUBERNETES_TOKEN`]. The key signs tokens of service accounts.
    pub(crate) fn start(account: &rcgen::KeyPair) -> Option<Self> {
        let programs = KUBERNETES.map(|folder| format!("{folder}/kube-apiserver"));
        let Some(program) = programs.iter().find(|path| is_installed(path)) else {
            skip_without("kube-apiserver");
            return None;
        };
        let (client, peer) = ("http://127.0.0.1:@PORT@", format!("http://127.0.0.1:{}", free_port()));
        let etcd = RealServer::start(&Recipe {
            needs: &["etcd"],
            command: &[
                "etcd",
                "--data-dir",
                "@DIR@/data",
                "--listen-client-urls",
                client,
                "--advertise-client-urls",
                client,
                "--listen-peer-urls",
                &peer,
                "--unsafe-no-fsync",
            ],
            ..Recipe::default()
        })?;
        let tokens = format!("{KUBERNETES_TOKEN},admin,1,\"system:masters\"\n");
        let server = RealServer::start(&Recipe {
            files: &[
                ("accounts.key", &account.serialize_pem()),
                ("accounts.pub", &account.public_key_pem()),
                ("tokens.csv", &tokens),
            ],
            command: &[
                program,
                &format!("--etcd-servers=http://{}", etcd.address),
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                "--secure-port=@PORT@",
                "--cert-dir=@DIR@/certificates",
                "--token-auth-file=@DIR@/tokens.csv",
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--service-account-issuer=https://tests",
                "--service-account-key-file=@DIR@/accounts.pub",
                "--service-account-signing-key-file=@DIR@/accounts.key",
                "--disable-admission-plugins=ServiceAccount",
                "--endpoint-reconciler-type=none",
            ],
            ..Recipe::default()
        })?;
        Some(Self { server, _etcd: etcd })
    }

    /// CA certificates of the API server.
    pub(crate) fn authority(&self) -> std::path::PathBuf {
        self.server.directory().join("certificates/apiserver.crt")
    }
}
