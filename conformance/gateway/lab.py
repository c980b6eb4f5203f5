#!/usr/bin/env python3
"""Lab for Kubernetes on one machine, and the conformance suite of Gateway API in it.

Runs etcd, kube-apiserver and kube-controller-manager. A stand-in for kubelet runs each pod's program in a network namespace
of its own. `cargo xtask gateway-conformance` starts this file in new namespaces, so that no address leaves the machine and
every process ends with it.
"""

import argparse
import base64
import ipaddress
import json
import os
import queue
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

POD_NETWORK = ipaddress.ip_network("10.244.0.0/16")
GATEWAY_NETWORK = "127.100.0.0/16"
# In the pool, and used by no Gateway unless a test names it; and outside the pool.
USABLE_ADDRESS, UNUSABLE_ADDRESS = "127.100.200.1", "198.51.100.1"
ADMIN_TOKEN, CONTROLLER_TOKEN = "lab-admin", "lab-controller"
PROFILES = "GATEWAY-HTTP,GATEWAY-GRPC,GATEWAY-TLS,GATEWAY-TCP,GATEWAY-UDP"
CONTROLLERS = ("deployment-controller,replicaset-controller,endpointslice-controller,namespace-controller,"
               "garbage-collector-controller,serviceaccount-controller")
START_SECONDS = 120
KUBELET_PORT = 10250


def say(text):
    print(text, flush=True)


class Api:
    """Requests to the API server, as its administrator."""

    def __init__(self, authorities):
        self.url = "https://127.0.0.1:6443"
        self.tls = ssl.create_default_context(cafile=authorities)

    def open(self, method, path, value=None, kind="application/json", timeout=30):
        request = urllib.request.Request(self.url + path, method=method)
        request.add_header("Authorization", f"Bearer {ADMIN_TOKEN}")
        data = None
        if value is not None:
            request.add_header("Content-Type", kind)
            data = json.dumps(value).encode()
        return urllib.request.urlopen(request, data=data, timeout=timeout, context=self.tls)

    def ask(self, method, path, value=None, kind="application/json"):
        with self.open(method, path, value, kind) as response:
            return json.load(response)

    def watch(self, path, on_event):
        """Lists, then watches, for ever."""
        while True:
            try:
                listed = self.ask("GET", path)
                for item in listed["items"]:
                    on_event("ADDED", item)
                version = listed["metadata"]["resourceVersion"]
                with self.open("GET", f"{path}?watch=1&resourceVersion={version}", timeout=3600) as stream:
                    for line in stream:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            break
                        on_event(event["type"], event["object"])
            except (OSError, ValueError) as error:
                say(f"lab: watching {path} again: {error}")
                time.sleep(0.5)


class Kubelet:
    """Runs pods as processes, each in a network namespace with an address of its own."""

    def __init__(self, api, echo, directory):
        self.api, self.echo, self.directory = api, echo, directory
        self.addresses = POD_NETWORK.hosts()
        self.pods = {}
        self.lock = threading.Lock()
        run("ip", "link", "add", "pods", "type", "bridge")
        run("ip", "address", "add", f"{next(self.addresses)}/{POD_NETWORK.prefixlen}", "dev", "pods")
        run("ip", "link", "set", "pods", "up")

    def on_pod(self, event, pod):
        metadata = pod["metadata"]
        uid = metadata["uid"]
        if event == "DELETED":
            with self.lock:
                ended = self.pods.pop(uid, None)
            if ended:
                end(ended)
        elif "deletionTimestamp" in metadata:
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            try:
                self.api.ask("DELETE", path, {"gracePeriodSeconds": 0})
            except urllib.error.HTTPError:
                pass
        else:
            with self.lock:
                if uid in self.pods:
                    return
                self.pods[uid] = []
            try:
                self.start(pod, uid)
            except (OSError, subprocess.CalledProcessError) as error:
                say(f"lab: pod {metadata['name']} does not start yet: {error}")
                with self.lock:
                    end(self.pods.pop(uid, []))
                # A secret that its volume needs may come later.
                again = threading.Timer(1, self.retry, [metadata["namespace"], metadata["name"]])
                again.daemon = True
                again.start()

    def retry(self, namespace, name):
        try:
            self.on_pod("ADDED", self.api.ask("GET", f"/api/v1/namespaces/{namespace}/pods/{name}"))
        except urllib.error.HTTPError:
            pass

    def start(self, pod, uid):
        metadata, spec = pod["metadata"], pod["spec"]
        namespace, name = metadata["namespace"], metadata["name"]
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        container = spec["containers"][0]
        environment = {}
        folders = self.volumes(namespace, uid, spec, container)
        for entry in container.get("env", []):
            value = entry.get("value", "")
            field = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            if field:
                value = {"metadata.name": name, "metadata.namespace": namespace}.get(field, "")
            for mount, folder in folders.items():
                value = value.replace(mount, folder)
            environment[entry["name"]] = value
        if "nodeName" not in spec:
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
                       "target": {"apiVersion": "v1", "kind": "Node", "name": "lab"}}
            self.api.ask("POST", f"{path}/binding", binding)
        with self.lock:
            address = str(next(self.addresses))
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL)
        processes = [holder]
        with self.lock:
            self.pods[uid] = processes
        while os.readlink(f"/proc/{holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            time.sleep(0.002)
        link = f"p{holder.pid}"
        run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        run("ip", "link", "set", link, "master", "pods", "up")
        inside = ["nsenter", "--target", str(holder.pid), "--net"]
        run(*inside, "ip", "address", "add", f"{address}/{POD_NETWORK.prefixlen}", "dev", "eth0")
        run(*inside, "ip", "link", "set", "eth0", "up")
        run(*inside, "ip", "link", "set", "lo", "up")
        program = [self.echo]
        if "coredns" in container["image"]:
            program = [sys.executable, os.path.abspath(__file__), "dns"]
        log = open(self.directory / f"pod-{name}.log", "ab")
        environment["PATH"] = os.environ["PATH"]
        processes.append(subprocess.Popen(inside + program, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        conditions = [{"type": kind, "status": "True", "lastTransitionTime": now}
                      for kind in ["PodScheduled", "Initialized", "ContainersReady", "Ready"]]
        state = {"name": container["name"], "ready": True, "restartCount": 0, "started": True, "image": container["image"],
                 "imageID": "", "state": {"running": {"startedAt": now}}}
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "hostIP": "127.0.0.1",
                  "startTime": now, "conditions": conditions, "containerStatuses": [state]}
        self.api.ask("PATCH", f"{path}/status", {"status": status}, "application/merge-patch+json")

    def volumes(self, namespace, uid, spec, container):
        """Writes secrets and ConfigMaps into folders. Returns the folder of each mount."""
        folders = {}
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        for mount in container.get("volumeMounts", []):
            volume = volumes.get(mount["name"], {})
            secret, config = volume.get("secret"), volume.get("configMap")
            if secret:
                data = self.api.ask("GET", f"/api/v1/namespaces/{namespace}/secrets/{secret['secretName']}")["data"]
                content = {key: base64.b64decode(value) for key, value in data.items()}
            elif config:
                data = self.api.ask("GET", f"/api/v1/namespaces/{namespace}/configmaps/{config['name']}")["data"]
                content = {key: value.encode() for key, value in data.items()}
            else:
                continue
            items = {item["key"]: item["path"] for item in (secret or config).get("items", [])}
            folder = self.directory / f"volume-{uid}-{mount['name']}"
            folder.mkdir(exist_ok=True)
            for key, value in content.items():
                (folder / items.get(key, key)).write_bytes(value)
            folders[mount["mountPath"]] = str(folder)
        return folders


def serve_logs(directory, certificates):
    """Serves the logs of pods to the API server, as kubelet does: /containerLogs/NAMESPACE/POD/CONTAINER."""
    class Logs(BaseHTTPRequestHandler):
        def do_GET(self):
            parts = self.path.partition("?")[0].strip("/").split("/")
            log = directory / f"pod-{parts[2]}.log" if len(parts) == 4 and parts[0] == "containerLogs" else None
            content = log.read_bytes() if log and log.exists() else b""
            self.send_response(200 if log else 404)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", KUBELET_PORT), Logs)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificates / "apiserver.crt", certificates / "apiserver.key")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


def run(*command):
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True)


def end(processes):
    for process in reversed(processes):
        process.kill()
        process.wait()


def serve_dns():
    """Answers each question with an address of documentation, as a stand-in for CoreDNS."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("0.0.0.0", 53))
    while True:
        question, peer = server.recvfrom(512)
        if len(question) < 12:
            continue
        end_of_name = question.find(b"\0", 12)
        asked = question[12:end_of_name + 5]
        answer = struct.pack("!HHHIH", 0xC00C, 1, 1, 60, 4) + bytes([192, 0, 2, 1])
        head = question[:2] + b"\x85\x80" + struct.pack("!HHHH", 1, 1, 0, 0)
        server.sendto(head + asked + answer, peer)


class Lab:
    def __init__(self, options):
        self.options = options
        self.directory = Path(options.directory).absolute()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.binaries = Path(options.binaries).absolute()
        self.processes = []

    def spawn(self, name, *command, environment=None):
        log = open(self.directory / f"{name}.log", "wb")
        process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        self.processes.append((name, process))
        return process

    def write(self, name, text):
        path = self.directory / name
        path.write_text(text)
        return path

    def kubeconfig(self, name, token):
        config = {
            "apiVersion": "v1", "kind": "Config", "current-context": "lab",
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab", "namespace": "tailcoat-system"}}],
            "clusters": [{"name": "lab", "cluster": {"server": "https://127.0.0.1:6443",
                                                    "certificate-authority": str(self.directory / "certificates/apiserver.crt")}}],
            "users": [{"name": "lab", "user": {"token": token}}],
        }
        return self.write(name, json.dumps(config))

    def start_cluster(self):
        run("ip", "link", "set", "lo", "up")
        # kube-apiserver wants a default route to find its own address.
        run("ip", "route", "add", "default", "dev", "lo")
        certificates = self.directory / "certificates"
        certificates.mkdir(exist_ok=True)
        key, public = certificates / "accounts.key", certificates / "accounts.pub"
        run("openssl", "genrsa", "-out", str(key), "2048")
        run("openssl", "rsa", "-in", str(key), "-pubout", "-out", str(public))
        tokens = self.write("tokens.csv", f'{ADMIN_TOKEN},admin,1,"system:masters"\n'
                            f'{CONTROLLER_TOKEN},system:serviceaccount:tailcoat-system:tailcoat-controller,2,'
                            '"system:serviceaccounts,system:authenticated"\n')
        self.spawn("etcd", "etcd", "--data-dir", self.directory / "etcd", "--listen-client-urls", "http://127.0.0.1:2379",
                   "--advertise-client-urls", "http://127.0.0.1:2379", "--listen-peer-urls", "http://127.0.0.1:2380",
                   "--unsafe-no-fsync")
        self.spawn("kube-apiserver", self.binaries / "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379",
                   "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port=6443",
                   f"--cert-dir={certificates}", f"--token-auth-file={tokens}", "--authorization-mode=RBAC",
                   "--service-cluster-ip-range=10.96.0.0/16", "--service-account-issuer=https://lab",
                   f"--service-account-key-file={public}", f"--service-account-signing-key-file={key}",
                   "--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none", "--allow-privileged=true")
        authorities = certificates / "apiserver.crt"
        until("the API server is ready", authorities.exists)
        self.api = Api(str(authorities))
        until("the API server is ready", self.is_ready)
        admin = self.kubeconfig("admin.kubeconfig", ADMIN_TOKEN)
        self.spawn("kube-controller-manager", self.binaries / "kube-controller-manager", f"--kubeconfig={admin}",
                   "--leader-elect=false", f"--controllers={CONTROLLERS}", f"--service-account-private-key-file={key}",
                   "--concurrent-deployment-syncs=10", "--concurrent-replicaset-syncs=10",
                   f"--cert-dir={certificates}", "--secure-port=0")
        self.kubectl("create", "namespace", "tailcoat-system")
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "lab"}}
        self.api.ask("POST", "/api/v1/nodes", node)
        serve_logs(self.directory, certificates)
        status = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                  "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}}}
        self.api.ask("PATCH", "/api/v1/nodes/lab/status", {"status": status}, "application/merge-patch+json")
        kubelet = Kubelet(self.api, str(self.binaries / "echo-basic"), self.directory)
        threading.Thread(target=self.api.watch, args=("/api/v1/pods", self.in_turn(kubelet.on_pod)), daemon=True).start()

    @staticmethod
    def in_turn(handle):
        """Pods start side by side, and the watch does not wait for them."""
        events = queue.Queue()

        def work():
            while True:
                handle(*events.get())

        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        return lambda event, value: events.put((event, value))

    def is_ready(self):
        try:
            with self.api.open("GET", "/readyz", timeout=5) as response:
                return response.status == 200
        except OSError:
            return False

    def kubectl(self, *arguments):
        command = ["kubectl", "--kubeconfig", str(self.directory / "admin.kubeconfig"), *arguments]
        return subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout

    def apply(self, *objects):
        """Applies objects as `kubectl apply --server-side` does, without starting a program for each."""
        for value in objects:
            group, kind, metadata = value["apiVersion"], value["kind"].lower(), value["metadata"]
            root = "/api/v1" if group == "v1" else f"/apis/{group}"
            plural = kind + ("es" if kind.endswith("s") else "s")
            scope = f"/namespaces/{metadata['namespace']}" if "namespace" in metadata else ""
            path = f"{root}{scope}/{plural}/{metadata['name']}?fieldManager=lab&force=true"
            self.api.ask("PATCH", path, value, "application/apply-patch+yaml")

    def start_tailcoat(self):
        for manifests in self.options.manifests:
            self.kubectl("apply", "--server-side", "-f", str(manifests))
        until("definitions of Gateway API are served", lambda: "gatewayclasses" in self.kubectl(
            "api-resources", "--api-group=gateway.networking.k8s.io", "-o", "name"))
        controller = self.kubeconfig("controller.kubeconfig", CONTROLLER_TOKEN)
        channel = self.directory / "channel.sock"
        self.spawn("controller", self.options.program, "gateway", "--kubeconfig", controller, "--address-pool",
                   GATEWAY_NETWORK, "--listen", f"unix:{channel}", "--namespace", "tailcoat-system",
                   "--ingress-gateway", "tailcoat-system/ingress")
        until("the controller listens", channel.exists)
        state = self.directory / "state"
        state.mkdir(exist_ok=True)
        configuration = self.write("tailcoat.kdl", f'''server {{
    control-socket "{self.directory}/control.sock"
    control-plane "unix:{channel}" directory="{state}"
}}
access-log "{self.directory}/access.log"
''')
        environment = dict(os.environ, STATE_DIRECTORY=str(state))
        self.spawn("server", self.options.program, "run", "-c", configuration, environment=environment)
        gateway_class = {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "tailcoat"},
                         "spec": {"controllerName": "tailcoat.dev/gateway-controller"}}
        self.write("class.json", json.dumps(gateway_class))
        self.kubectl("apply", "-f", str(self.directory / "class.json"))
        until("the class is accepted", lambda: "True" in self.kubectl(
            "get", "gatewayclass", "tailcoat", "-o", "jsonpath={.status.conditions[?(@.type=='Accepted')].status}"))

    def run_suite(self):
        report = self.directory / "report.yaml"
        options = [
            f"--gateway-class=tailcoat", f"--report-output={report}", "--organization=tailcoat", "--project=tailcoat",
            "--url=https://tailcoat.dev", f"--version={self.options.version}", "--contact=tailcoat",
            f"--conformance-profiles={PROFILES}", f"--usable-address={USABLE_ADDRESS}", f"--unusable-address={UNUSABLE_ADDRESS}",
        ]
        if self.options.serial:
            options.append("--disable-parallel-tests")
        if self.options.test:
            options.append(f"--run-test={self.options.test}")
        environment = dict(os.environ, KUBECONFIG=str(self.directory / "admin.kubeconfig"))
        log = self.directory / "suite.log"
        with open(log, "wb") as output:
            command = [str(self.binaries / "gateway-conformance"), "-test.run=^TestConformance$", "-test.v", "-test.timeout=90m", *options]
            result = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                    cwd=self.directory)
        lines = log.read_text(errors="replace").splitlines()
        failed = [line.strip() for line in lines if line.lstrip().startswith("--- FAIL")]
        passed = sum(line.startswith("    --- PASS") for line in lines)
        for line in failed:
            say(line)
        if report.exists():
            say(report.read_text())
        say(f"{passed} passed, {sum(line.startswith('--- FAIL: TestConformance/') for line in failed)} failed; the log is {log}")
        return result.returncode

    def stop(self):
        for _, process in reversed(self.processes):
            process.terminate()
        for name, process in reversed(self.processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def until(what, holds):
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            if holds():
                return
        except subprocess.CalledProcessError:
            pass
        if time.monotonic() > deadline:
            raise SystemExit(f"lab: not so after {START_SECONDS} s: {what}")
        time.sleep(0.2)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("dns", help="stand-in for CoreDNS")
    suite = commands.add_parser("suite", help="bring the lab up and run the suite")
    suite.add_argument("--version", required=True)
    suite.add_argument("--test", help="name of one test")
    suite.add_argument("--serial", action="store_true", help="run tests one after the other")
    suite.add_argument("--hold", action="store_true", help="keep the lab until a signal, in place of the suite")
    ingress = commands.add_parser("ingress", help="bring the lab up and send requests to Ingresses")
    scale = commands.add_parser("scale", help="bring the lab up with many routes, and change endpoints under load")
    scale.add_argument("--routes", type=int, default=5000)
    scale.add_argument("--listeners", type=int, default=1000)
    scale.add_argument("--endpoints", type=int, default=50000)
    scale.add_argument("--churn-seconds", type=int, default=600)
    for command in (suite, ingress, scale):
        command.add_argument("--binaries", required=True, help="folder of kube-apiserver, kube-controller-manager, echo-basic, gateway-conformance")
        command.add_argument("--directory", required=True, help="folder for state, logs and the report")
        command.add_argument("--program", required=True, help="tailcoat")
        command.add_argument("--manifests", action="append", default=[], help="file or folder for kubectl apply; may be repeated")
    options = parser.parse_args()
    if options.command == "dns":
        serve_dns()
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lab = Lab(options)
    try:
        lab.start_cluster()
        say("lab: the cluster is up")
        lab.start_tailcoat()
        say("lab: Tailcoat is up")
        if options.command == "ingress":
            import ingress_cases
            return ingress_cases.run(lab)
        if options.command == "scale":
            import scale
            return scale.run(lab)
        if options.hold:
            signal.pause()
        return lab.run_suite()
    finally:
        lab.stop()


if __name__ == "__main__":
    sys.exit(main())
