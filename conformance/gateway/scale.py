"""Many routes, listeners and endpoints in the lab of lab.py: time from a change to traffic, and changes under load."""

import http.client
import json
import multiprocessing
import queue
import random
import re
import subprocess
import threading
import time

NAMESPACE = "scale"
BACKEND_NETWORK = "10.250.0.0/16"
BACKEND_PORT = 3900
ENDPOINTS_OF_SLICE = 100
CHANGES = 200
CHANGES_A_SECOND = 100
LOAD_CONNECTIONS = 8
LOAD_PAUSE_SECONDS = 0.02
WAIT_SECONDS = 600
GATEWAY_API = "/apis/gateway.networking.k8s.io/v1"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"


class Pool:
    """Sends objects over some connections to the API server side by side."""

    def __init__(self, lab, connections=6):
        self.lab, self.jobs, self.errors = lab, queue.Queue(), []
        for _ in range(connections):
            threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        connection = None
        while True:
            method, path, value, kind, done = self.jobs.get()
            try:
                if connection is None:
                    connection = http.client.HTTPSConnection("127.0.0.1", 6443, context=self.lab.api.tls, timeout=60)
                connection.request(method, path, json.dumps(value), {"Authorization": "Bearer lab-admin", "Content-Type": kind})
                response = connection.getresponse()
                content = response.read()
                if response.status >= 300:
                    self.errors.append(f"{method} {path}: {response.status} {content[:200]}")
            except (OSError, http.client.HTTPException) as error:
                self.errors.append(f"{method} {path}: {error}")
                connection = None
            finally:
                if done:
                    done(time.monotonic())
                self.jobs.task_done()

    def send(self, method, path, value, kind="application/json", done=None):
        self.jobs.put((method, path, value, kind, done))

    def create(self, path, value):
        self.send("POST", path, value)

    def finish(self):
        self.jobs.join()
        if self.errors:
            raise SystemExit(f"lab: {len(self.errors)} requests failed, the first: {self.errors[0]}")


def address_of(number):
    return f"10.250.{number // 250}.{number % 250 + 1}"


def slice_of(number, shift=0):
    """Endpoints of a service. Another shift leaves out another of them."""
    addresses = [address_of(number * ENDPOINTS_OF_SLICE + at) for at in range(ENDPOINTS_OF_SLICE)]
    if shift:
        del addresses[shift % ENDPOINTS_OF_SLICE]
    return {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": f"s{number}", "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": f"s{number}"}},
            "ports": [{"name": "", "port": BACKEND_PORT, "protocol": "TCP"}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses]}


def service_of(number):
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": f"s{number}", "namespace": NAMESPACE},
            "spec": {"ports": [{"port": 80, "targetPort": BACKEND_PORT}]}}


def gateway_of(number):
    listeners = [{"name": "http", "port": 80, "protocol": "HTTP"}]
    return {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": f"g{number}", "namespace": NAMESPACE},
            "spec": {"gatewayClassName": "tailcoat", "listeners": listeners}}


def route_of(number, gateway, service, edition="0"):
    mark = {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"set": [{"name": "X-Edition", "value": edition}]}}
    rule = {"matches": [{"path": {"type": "PathPrefix", "value": f"/r{number}"}}], "filters": [mark],
            "backendRefs": [{"name": f"s{service}", "port": 80}]}
    return {"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": f"r{number}", "namespace": NAMESPACE},
            "spec": {"parentRefs": [{"name": f"g{gateway}"}], "hostnames": [f"h{number}.test"], "rules": [rule]}}


class Load:
    """Requests over kept connections, in a process of its own."""

    def __init__(self, targets):
        self.stop, self.results = multiprocessing.Event(), multiprocessing.Queue()
        self.process = multiprocessing.Process(target=self.run, args=(targets,), daemon=True)
        self.process.start()

    def run(self, targets):
        counts, times, errors, lock = [0], [], [], threading.Lock()

        def work(number):
            connections, draw = {}, random.Random(number)
            while not self.stop.is_set():
                address, host, path = draw.choice(targets)
                started = time.monotonic()
                try:
                    connection = connections.setdefault(address, http.client.HTTPConnection(address, 80, timeout=30))
                    connection.request("GET", path, headers={"Host": host})
                    response = connection.getresponse()
                    response.read()
                    fault = None if response.status == 200 else f"status {response.status}"
                except (OSError, http.client.HTTPException) as error:
                    connections.pop(address, None)
                    fault = repr(error)
                with lock:
                    counts[0] += 1
                    times.append(time.monotonic() - started)
                    if fault:
                        errors.append(f"{host}{path}: {fault}")
                time.sleep(LOAD_PAUSE_SECONDS)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(LOAD_CONNECTIONS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.results.put((counts[0], times, len(errors), errors[:5]))

    def end(self):
        self.stop.set()
        return self.results.get(timeout=120)


def percentile(times, share):
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def memory_of(process):
    """Memory in use, and the most of it so far, in MiB."""
    text = open(f"/proc/{process.pid}/status").read()
    now, most = re.search(r"VmRSS:\s+(\d+)", text), re.search(r"VmHWM:\s+(\d+)", text)
    return int(now[1]) // 1024, int(most[1]) // 1024


def processor_seconds(process):
    fields = open(f"/proc/{process.pid}/stat").read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def statuses_written(lab):
    """Statuses that the controller has written, as the API server has counted them. Nothing else writes these."""
    with lab.api.open("GET", "/metrics") as response:
        lines = re.findall(r"^apiserver_request_total\{(.*)\} ([0-9.e+]+)$", response.read().decode(), re.MULTILINE)
    is_one = lambda labels: 'subresource="status"' in labels and 'group="gateway.networking.k8s.io"' in labels
    return sum(int(float(count)) for labels, count in lines if is_one(labels))


def report_processes(lab, label):
    for name, process in lab.processes:
        if name in ("controller", "server"):
            now, most = memory_of(process)
            print(f"{label}: {name}: {now} MiB in use, {most} MiB at most, {processor_seconds(process):.1f} s of CPU", flush=True)
    print(f"{label}: {statuses_written(lab)} statuses written", flush=True)


def edition_of(address, host, path):
    connection = http.client.HTTPConnection(address, 80, timeout=10)
    try:
        connection.request("GET", path, headers={"Host": host})
        response = connection.getresponse()
        response.read()
        return response.getheader("X-Edition") if response.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def wait_for(address, number, edition="0"):
    deadline = time.monotonic() + WAIT_SECONDS
    while edition_of(address, f"h{number}.test", f"/r{number}") != edition:
        if time.monotonic() > deadline:
            raise SystemExit(f"lab: route {number} is not served after {WAIT_SECONDS} s")
        time.sleep(0.005)


def time_to_traffic(pool, addresses, routes, gateways, services):
    """Seconds from the API server's response to a change until a request is served by it."""
    times = []
    for change in range(CHANGES):
        number, edition, applied = random.randrange(routes), str(change + 1), []
        value = route_of(number, number % gateways, number % services, edition)
        path = f"{GATEWAY_API}/namespaces/{NAMESPACE}/httproutes/r{number}"
        pool.send("PATCH", path, {"spec": value["spec"]}, "application/merge-patch+json", applied.append)
        pool.finish()
        wait_for(addresses[number % gateways], number, edition)
        times.append(time.monotonic() - applied[0])
    return times


def churn(pool, services, seconds):
    """Changes endpoints at a steady rate. Returns the number of changes."""
    started, changes = time.monotonic(), 0
    while (now := time.monotonic() - started) < seconds:
        if changes > now * CHANGES_A_SECOND:
            time.sleep(0.002)
            continue
        number = changes % services
        body = {"endpoints": slice_of(number, changes // services + 1)["endpoints"]}
        pool.send("PATCH", f"{SLICES}/s{number}", body, "application/merge-patch+json")
        changes += 1
    pool.finish()
    return changes, time.monotonic() - started


def run(lab):
    options = lab.options
    services = max(1, options.endpoints // ENDPOINTS_OF_SLICE)
    routes, gateways = options.routes, min(options.listeners, options.routes)
    subprocess.run(["ip", "route", "add", "local", BACKEND_NETWORK, "dev", "lo"], check=True)
    lab.spawn("echo", lab.binaries / "echo-basic", environment={"HTTP_PORT": str(BACKEND_PORT), "HTTPS_PORT": "3943",
                                                               "H2C_PORT": "3944", "POD_NAME": "echo", "NAMESPACE": NAMESPACE})
    lab.kubectl("create", "namespace", NAMESPACE)
    pool, started = Pool(lab), time.monotonic()
    for number in range(services):
        pool.create(f"/api/v1/namespaces/{NAMESPACE}/services", service_of(number))
        pool.create(SLICES, slice_of(number))
    for number in range(gateways):
        pool.create(f"{GATEWAY_API}/namespaces/{NAMESPACE}/gateways", gateway_of(number))
    for number in range(routes):
        pool.create(f"{GATEWAY_API}/namespaces/{NAMESPACE}/httproutes", route_of(number, number % gateways, number % services))
    pool.finish()
    print(f"{routes} routes, {gateways} Gateways, {services * ENDPOINTS_OF_SLICE} endpoints: created in "
          f"{time.monotonic() - started:.0f} s", flush=True)
    addresses = {}
    while len(addresses) < gateways:
        listed = lab.api.ask("GET", f"{GATEWAY_API}/namespaces/{NAMESPACE}/gateways")
        for item in listed["items"]:
            for address in item.get("status", {}).get("addresses", []):
                addresses[int(item["metadata"]["name"][1:])] = address["value"]
        time.sleep(0.5)
        if time.monotonic() - started > WAIT_SECONDS:
            raise SystemExit(f"lab: {len(addresses)} of {gateways} Gateways have an address")
    wait_for(addresses[(routes - 1) % gateways], routes - 1)
    print(f"served after {time.monotonic() - started:.0f} s", flush=True)
    report_processes(lab, "at rest")
    times = time_to_traffic(pool, addresses, routes, gateways, services)
    print(f"from a change to traffic, {len(times)} changes: p50 {percentile(times, 0.5) * 1000:.0f} ms, "
          f"p99 {percentile(times, 0.99) * 1000:.0f} ms, at most {max(times) * 1000:.0f} ms", flush=True)
    targets = [(addresses[number % gateways], f"h{number}.test", f"/r{number}") for number in range(min(routes, 50))]
    load = Load(targets)
    changes, seconds = churn(pool, services, options.churn_seconds)
    count, times, lost, examples = load.end()
    print(f"{changes} changes of endpoints in {seconds:.0f} s: {count} requests, {lost} lost, p50 "
          f"{percentile(times, 0.5) * 1000:.1f} ms, p99 {percentile(times, 0.99) * 1000:.1f} ms", flush=True)
    for example in examples:
        print(f"lost: {example}", flush=True)
    report_processes(lab, "after the changes")
    return 1 if lost else 0
