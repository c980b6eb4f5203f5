"""Requests to Ingresses with annotations of ingress-nginx, in the lab of lab.py."""

import base64
import http.client
import json
import socket
import ssl
import subprocess
import time

NAMESPACE = "shop"
PREFIX = "nginx.ingress.kubernetes.io/"
WAIT_SECONDS = 20


def backend(name):
    """A deployment of the echo program with a service."""
    labels = {"app": name}
    environment = [{"name": "SERVICE_NAME", "value": name}]
    for variable, field in [("POD_NAME", "metadata.name"), ("NAMESPACE", "metadata.namespace")]:
        environment.append({"name": variable, "valueFrom": {"fieldRef": {"fieldPath": field}}})
    container = {"name": name, "image": "echo-basic", "env": environment}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    return [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": NAMESPACE},
         "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": NAMESPACE},
         "spec": {"selector": labels, "ports": [{"name": "http", "port": 80, "targetPort": 3000}]}},
    ]


def ingress(name, host, path="/", kind="Prefix", service="main", tls=None, **annotations):
    port = {"name": "http"}
    rule = {"host": host, "http": {"paths": [{"path": path, "pathType": kind,
                                             "backend": {"service": {"name": service, "port": port}}}]}}
    spec = {"ingressClassName": "tailcoat", "rules": [rule]}
    if tls:
        spec["tls"] = [{"hosts": [host], "secretName": tls}]
    annotations = {PREFIX + key.replace("_", "-"): value for key, value in annotations.items()}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "spec": spec,
            "metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations}}


INGRESSES = [
    ingress("plain", "plain.test", "/app"),
    ingress("exact", "exact.test", "/one", "Exact"),
    ingress("rewrite", "rewrite.test", "/api(/|$)(.*)", "ImplementationSpecific", use_regex="true", rewrite_target="/$2"),
    ingress("root", "root.test", app_root="/start"),
    ingress("moved", "moved.test", permanent_redirect="https://new.test/now?a=b"),
    ingress("secure", "secure.test", tls="certificate"),
    ingress("both", "both.test", tls="certificate", ssl_redirect="false"),
    ingress("forced", "forced.test", force_ssl_redirect="true"),
    ingress("cross", "cross.test", enable_cors="true", cors_allow_origin="https://a.test", cors_allow_methods="GET, PUT"),
    ingress("denied", "denied.test", whitelist_source_range="192.0.2.0/24"),
    ingress("allowed", "allowed.test", whitelist_source_range="127.0.0.0/8"),
    ingress("small", "small.test", proxy_body_size="1k"),
    ingress("rate", "rate.test", limit_rps="1", limit_burst_multiplier="1"),
    ingress("host", "host.test", upstream_vhost="inner.test"),
    ingress("alias", "alias.test", server_alias="other.test,third.test"),
    ingress("prefix", "prefix.test", "/x(/|$)(.*)", "ImplementationSpecific", use_regex="true", rewrite_target="/$2",
            x_forwarded_prefix="/x"),
    ingress("sticky", "sticky.test", affinity="cookie", session_cookie_name="stay"),
    ingress("slow", "slow.test", proxy_read_timeout="1", proxy_next_upstream="off"),
    ingress("guarded", "guarded.test", auth_url="http://main.shop.svc.cluster.local/auth", auth_response_headers="X-User"),
    ingress("basic", "basic.test", auth_type="basic", auth_secret="users"),
    ingress("snippet", "snippet.test", configuration_snippet="return 418;"),
    ingress("canary-main", "canary.test"),
    ingress("canary-header", "canary.test", service="canary", canary="true", canary_by_header="x-canary"),
    ingress("weight-main", "weight.test"),
    ingress("weight", "weight.test", service="canary", canary="true", canary_weight="50"),
]


class Client:
    def __init__(self, address):
        self.address = address

    def request(self, method, host, path, body=None, tls=False, **fields):
        if tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            raw = context.wrap_socket(socket.create_connection((self.address, 443), 10), server_hostname=host)
        else:
            raw = socket.create_connection((self.address, 80), 10)
        connection = http.client.HTTPConnection(host)
        connection.sock = raw
        connection.request(method, path, body, {key.replace("_", "-"): value for key, value in fields.items()})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        try:
            echo = json.loads(content)
        except ValueError:
            echo = {}
        return response.status, {key.lower(): value for key, value in response.getheaders()}, echo

    def get(self, host, path="/", **rest):
        return self.request("GET", host, path, **rest)


def expect(value, wanted):
    if value != wanted:
        raise AssertionError(f"{value!r} is not {wanted!r}")


def is_status(host, wanted, path="/", **rest):
    def check(client):
        expect(client.get(host, path, **rest)[0], wanted)
    return check


def redirects(host, path, status, to):
    def check(client):
        got, fields, _ = client.get(host, path)
        expect((got, fields.get("location")), (status, to))
    return check


def path_of(host, path, wanted):
    def check(client):
        status, _, echo = client.get(host, path)
        expect((status, echo.get("path")), (200, wanted))
    return check


def cors(client):
    status, fields, _ = client.request("OPTIONS", "cross.test", "/", Origin="https://a.test", Access_Control_Request_Method="PUT")
    expect((status in (200, 204), fields.get("access-control-allow-origin")), (True, "https://a.test"))
    expect("PUT" in fields.get("access-control-allow-methods", ""), True)
    expect(client.get("cross.test", Origin="https://b.test")[1].get("access-control-allow-origin"), None)


def body(client):
    expect(client.request("POST", "small.test", "/", b"a" * 100)[0], 200)
    expect(client.request("POST", "small.test", "/", b"a" * 5000)[0], 413)


def rate(client):
    time.sleep(2)
    statuses = [client.get("rate.test")[0] for _ in range(10)]
    expect((200 in statuses, 429 in statuses), (True, True))


def upstream_host(client):
    status, _, echo = client.get("host.test")
    expect((status, echo.get("host")), (200, "inner.test"))


def forwarded_prefix(client):
    status, _, echo = client.get("prefix.test", "/x/a")
    expect((status, echo.get("path"), echo.get("headers", {}).get("X-Forwarded-Prefix")), (200, "/a", ["/x"]))


def sticky(client):
    status, fields, echo = client.get("sticky.test")
    cookie = fields.get("set-cookie", "").partition(";")[0]
    expect((status, cookie.startswith("stay=")), (200, True))
    pods = {client.get("sticky.test", Cookie=cookie)[2].get("pod") for _ in range(20)}
    expect(pods, {echo.get("pod")})


def slow(client):
    expect(client.get("slow.test", "/?delay=3s")[0], 504)


def canary(client):
    service = lambda **fields: client.get("canary.test", **fields)[2].get("service")
    expect((service(), service(x_canary="always"), service(x_canary="never")), ("main", "canary", "main"))


def weight(client):
    services = [client.get("weight.test")[2].get("service") for _ in range(100)]
    expect(20 < services.count("canary") < 80, True)


CASES = {
    "a prefix ends with a segment": path_of("plain.test", "/app/a?b=c", "/app/a?b=c"),
    "a prefix of letters is none": is_status("plain.test", 404, "/apple"),
    "pathType Exact": path_of("exact.test", "/one", "/one"),
    "pathType Exact, another path": is_status("exact.test", 404, "/one/two"),
    "an unknown host": is_status("none.test", 404),
    "rewrite-target with groups": path_of("rewrite.test", "/api/a/b", "/a/b"),
    "use-regex ignores case": path_of("rewrite.test", "/API/a", "/a"),
    "app-root": redirects("root.test", "/", 302, "http://root.test/start"),
    "permanent-redirect": redirects("moved.test", "/a?c=d", 301, "https://new.test/now?a=b"),
    "TLS redirects": redirects("secure.test", "/a", 308, "https://secure.test/a"),
    "TLS serves": is_status("secure.test", 200, tls=True),
    "ssl-redirect false": is_status("both.test", 200),
    "force-ssl-redirect": redirects("forced.test", "/a", 308, "https://forced.test/a"),
    "force-ssl-redirect behind a load balancer": is_status("forced.test", 200, X_Forwarded_Proto="https"),
    "enable-cors": cors,
    "whitelist-source-range denies": is_status("denied.test", 403),
    "whitelist-source-range allows": is_status("allowed.test", 200),
    "proxy-body-size": body,
    "limit-rps": rate,
    "upstream-vhost": upstream_host,
    "server-alias": is_status("third.test", 200),
    "x-forwarded-prefix": forwarded_prefix,
    "affinity cookie": sticky,
    "proxy-read-timeout": slow,
    "auth-url": is_status("guarded.test", 200),
    "auth-type basic is rejected": is_status("basic.test", 500),
    "configuration-snippet is ignored": is_status("snippet.test", 200),
    "canary-by-header": canary,
    "canary-weight": weight,
}


def eventually(check, client):
    """Runs a check until it holds: changes need a moment. Returns the last error."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            check(client)
            return None
        except (AssertionError, OSError, http.client.HTTPException) as error:
            if time.monotonic() > deadline:
                return error
        time.sleep(0.25)


def certificate(directory):
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
               "-keyout", "ingress.key", "-out", "ingress.crt", "-subj", "/CN=test",
               "-addext", "subjectAltName=DNS:secure.test,DNS:both.test"]
    subprocess.run(command, check=True, cwd=directory, capture_output=True)
    data = {name: base64.b64encode((directory / file).read_bytes()).decode()
            for name, file in [("tls.crt", "ingress.crt"), ("tls.key", "ingress.key")]}
    return {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": data,
            "metadata": {"name": "certificate", "namespace": NAMESPACE}}


def upgrade(address):
    """Opens a WebSocket; returns the socket after the response."""
    raw = socket.create_connection((address, 80), 10)
    raw.sendall(b"GET /ws HTTP/1.1\r\nHost: plain-ws.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://plain-ws.test\r\n\r\n")
    head = b""
    while b"\r\n\r\n" not in head:
        head += raw.recv(1)
    expect(head.split(b" ")[1], b"101")
    return raw


def echoes(raw, text):
    mask = b"\1\2\3\4"
    raw.sendall(bytes([0x81, 0x80 | len(text)]) + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(text)))
    received = b""
    while len(received) < 2 or len(received) < 2 + received[1]:
        part = raw.recv(4096)
        if not part:
            raise AssertionError("the WebSocket was closed")
        received += part
    return received


def websockets_survive(lab, address):
    """A WebSocket stays open while Ingresses change 20 times."""
    lab.apply(ingress("ws", "plain-ws.test", "/ws"))
    error = eventually(lambda _: upgrade(address).close(), None)
    if error:
        raise error
    raw = upgrade(address)
    raw.settimeout(10)
    for number in range(20):
        lab.apply(ingress("churn", f"churn-{number}.test"))
        echoes(raw, b"still here")
    raw.close()


def run(lab):
    """Says by its result whether all cases passed: 0 if so."""
    lab.kubectl("create", "namespace", NAMESPACE)
    lab.apply({"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": "tailcoat"},
               "spec": {"controller": "tailcoat.dev/ingress-controller"}})
    listeners = [{"name": "http", "port": 80, "protocol": "HTTP"}]
    lab.apply({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
               "metadata": {"name": "ingress", "namespace": "tailcoat-system"},
               "spec": {"gatewayClassName": "tailcoat", "listeners": listeners}})
    lab.apply(*backend("main"), *backend("canary"), certificate(lab.directory), *INGRESSES)
    path = ".status.loadBalancer.ingress[0].ip"
    deadline = time.monotonic() + WAIT_SECONDS
    address = ""
    while not address and time.monotonic() < deadline:
        address = lab.kubectl("get", "ingress", "plain", "-n", NAMESPACE, "-o", f"jsonpath={{{path}}}")
    client, failed = Client(address), 0
    cases = dict(CASES)
    cases["WebSockets survive changes of Ingresses"] = lambda _: websockets_survive(lab, address)
    for name, check in cases.items():
        error = eventually(check, client)
        failed += error is not None
        print(f"{'FAIL' if error else 'ok  '} {name}{f': {error}' if error else ''}", flush=True)
    print(f"{len(cases) - failed} of {len(cases)} cases of Ingress passed", flush=True)
    return min(failed, 1)
