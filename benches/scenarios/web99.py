"""The dynamic GET of the web99 workload (`tailor web99`), with and without ad rotation: the modules of examples/modules,
php-fpm with nginx, and a FastCGI program in C with nginx. All processes are counted. Not SPECweb99 results."""

import dataclasses
import hashlib
import http.client
import pathlib
import random
import re
import subprocess
import time

from harness import client, paired, servers
from .scenario import Scenario

MODULES = pathlib.Path(__file__).resolve().parent.parent.parent / "target/modules"
CONFIG, NGINX_CONFIG, PHP_CONFIG = ((servers.PEERS / name).read_text()
                                    for name in ("tailcoat-web99.kdl", "nginx-web99.conf", "php-fpm-web99.conf"))
PHP_FPM = "/usr/sbin/php-fpm8.2"
NGINX = "exec {enter} nginx -c {config} -g \"daemon off;\""
SCRIPT, USERS, CONNECTIONS, DIRECTORIES = "/web99.php", 1000, 64, 25
CLASS_SHARES, FILE_RANKS = (0.35, 0.50, 0.14, 0.01), (4, 3, 5, 2, 6, 1, 7, 8, 0)
MARKS = {"nginx-php": 5, "nginx-fastcgi-c": 1.5}
OTHER_BY_SERVER = re.compile(rb"(?m)^<p>(SERVER_SOFTWARE|REMOTE_ADDR) = .*$")


def add_arguments(parser):
    parser.add_argument("--part", nargs="+", choices=("get", "rotation"), default=["get", "rotation"], help="default: both")
    parser.add_argument("--modules", default=str(MODULES), metavar="DIRECTORY",
                        help="where `cargo xtask modules web99 web99-filter` has put them; default: %(default)s")


def run(bench):
    directory = bench.tree.root / "web99"
    subprocess.run([client.tailor(), "web99", "init", "--connections", "1", directory], check=True, stdout=subprocess.DEVNULL)
    (directory / "data").mkdir()
    bench.servers = [configured(bench, server, directory) for server in bench.servers]
    for part in bench.arguments.part:
        paths, digests, plans = list(requests(part == "rotation")), {}, {}

        def measure(server, seconds, seed):
            if server.name not in plans:
                plans[server.name], digests[server.name] = asked(server, paths, resets=not plans)
            load = client.Load(connections=CONNECTIONS, seconds=seconds)
            return client.run(server, plans[server.name], bench.tree, load, seed)

        comparison = paired.compare(bench, SCRIPT, measure)
        if len(set(digests.values())) > 1:
            bench.report.void(f"{part}: the servers' replies differ")
        bench.report.add_comparison(part, comparison)
        for peer, least in MARKS.items():
            bench.report.mark_ratio(part, comparison, peer, servers.OURS, least, at_least=True)


def configured(bench, server, directory):
    """The server with its part of the workload."""
    fill = {"site": directory / "site", "data": directory / "data"}
    if server.name == "nginx-php":
        client.require(PHP_FPM, "php-fpm is a peer (package php-fpm)")
        command = f"sh -c '{PHP_FPM} -F -R -y {{run}}/php-fpm.conf & {NGINX}'"
        return dataclasses.replace(server, command=command, config=NGINX_CONFIG, fill=fill, files={"php-fpm.conf": PHP_CONFIG})
    if server.name == "nginx-fastcgi-c":
        client.require("spawn-fcgi", "it starts the FastCGI program (packages spawn-fcgi and libfcgi-dev)")
        program = client.compiled(servers.PEERS / "web99.c", libraries=("-lfcgi",))
        command = f"sh -c 'spawn-fcgi -s {{run}}/application.sock -M 0666 -F 16 -- {program} && {NGINX}'"
        return dataclasses.replace(server, command=command, config=NGINX_CONFIG, fill=fill)
    for key, name in {"module": "web99", "filter": "web99-filter"}.items():
        fill[key] = pathlib.Path(bench.arguments.modules, name, "module.wasm")
        if not fill[key].exists():
            raise SystemExit(f"{fill[key]} is not there: `cargo xtask modules {name}` builds it")
    command = server.command.removesuffix(servers.TAILCOAT_OPTIONS) + servers.TAILCOAT_CONFIG_OPTIONS
    return dataclasses.replace(server, command=command, config=CONFIG, fill=fill)


def requests(has_cookie):
    """Weights, targets and cookies: each file of the set as often as the workload has it (docs of `tailor web99`)."""
    draw = random.Random(99)
    zipf = lambda count: [1 / rank / sum(1 / each for each in range(1, count + 1)) for rank in range(1, count + 1)]
    for directory, directory_share in enumerate(zipf(DIRECTORIES)):
        for number_class, class_share in enumerate(CLASS_SHARES):
            for number, file_share in zip(FILE_RANKS, zipf(len(FILE_RANKS))):
                cookie = f"my_cookie=user_id={10000 + draw.randrange(USERS)}&last_ad={draw.randrange(360)}"
                yield (directory_share * class_share * file_share,
                       f"{SCRIPT}?/file_set/dir{directory:05}/class{number_class}_{number}", cookie if has_cookie else None)


def asked(server, paths, resets):
    """The plan for a server, with the length of each of its replies, and a digest of what has to be the same for all."""
    connection, digest, plan = http.client.HTTPConnection("127.0.0.1", server.port), hashlib.sha256(), []
    if resets:
        get(connection, f"{SCRIPT}?command/Reset&users={USERS}&seed=1&now={int(time.time())}", None)
    for weight, target, cookie in paths:
        response, body = get(connection, target, cookie)
        digest.update(f"{target} {response.getheader('Set-Cookie')}\n".encode() + OTHER_BY_SERVER.sub(b"", body))
        fields = (f"Cookie: {cookie}",) if cookie else ()
        plan.append(client.RequestKind(target, len(body), pattern_offset=-1, fields=fields, weight=weight))
    return plan, digest.hexdigest()


def get(connection, target, cookie, tries=100):
    """The response and its content. An application may need some time to start."""
    for _ in range(tries):
        connection.request("GET", target, headers={"Cookie": cookie} if cookie else {})
        response = connection.getresponse()
        body = response.read()
        if response.status == 200:
            return response, body
        time.sleep(0.05)
    raise SystemExit(f"{target} at port {connection.port}: status {response.status}")


WEB99 = Scenario("web99", "the dynamic GET of the web99 workload as modules, in PHP and in C with nginx", run, rounds=1, slots=8,
                 seconds=1, servers=("tailcoat", "nginx-php", "nginx-fastcgi-c", "tailcoat-again"), add_arguments=add_arguments)
