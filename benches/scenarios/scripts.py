"""Scripts: hello by FastCGI from php-fpm, and as a CGI program in C.

php-fpm is on the client's core, in a control group of its own, with connections that are kept: what is counted is the web
server. Of CGI all processes are counted, the programs too."""

import contextlib
import shutil

from harness import client, paired, servers
from .scenario import Scenario

PEERS = {"fastcgi": ("nginx-fastcgi", "apache-fastcgi", "caddy-fastcgi"), "cgi": ("apache-cgi",)}
PHP_FPM = "/usr/sbin/php-fpm8.2"
HELLO_BYTES, PEER_MARK, CONNECTIONS = 13, 1.2, 8
HELLO_PHP = "<?php header('Content-Type: text/plain'); header('Content-Length: 13'); echo 'Hello, world!';\n"


def add_arguments(parser):
    parser.add_argument("--part", nargs="+", choices=PEERS, default=list(PEERS), help=f"default: {' '.join(PEERS)}")
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="default: %(default)s")
    parser.add_argument("--client", choices=["tailor", "wrk"], default="tailor", help="wrk is a second opinion")
    parser.add_argument("--php-core", type=int, default=servers.CLIENT_CORE, help="where php-fpm runs; default: %(default)s, the client's")


@contextlib.contextmanager
def listed(bench, part, path):
    """The servers of the bench that can do this part, configured for it: peers, and all builds of ours."""
    everything = bench.servers
    fit = [server for server in everything if server.name in PEERS[part] or server.command.endswith(servers.TAILCOAT_OPTIONS)]
    with contextlib.ExitStack() as stack:
        port = 0
        if part == "fastcgi":
            client.require(PHP_FPM, "php-fpm is what is asked (package php-fpm)")
            config = (servers.PEERS / "php-fpm.conf").read_text()
            php = servers.Server("php-fpm", f"{PHP_FPM} --nodaemonize --fpm-config {{config}}", config)
            port = stack.enter_context(servers.running(php, bench.tree, path, core=bench.arguments.php_core)).port
        bench.servers = [servers.before(server, port, f"tailcoat-{part}.kdl") for server in fit]
        try:
            yield
        finally:
            bench.servers = everything


def add_script(bench, part):
    """Puts the script into the tree, where other users can get at it."""
    bench.tree.root.chmod(0o755)
    if part == "fastcgi":
        script = bench.tree.root / "hello.php"
        script.write_text(HELLO_PHP)
    else:
        script = bench.tree.root / "hello.cgi"
        shutil.copy(client.compiled(servers.PEERS / "hello.c"), script)
    script.chmod(0o755)
    return f"/{script.name}"


def run(bench):
    for part in bench.arguments.part:
        path = add_script(bench, part)
        plan = [client.RequestKind(path, HELLO_BYTES, pattern_offset=-1)]

        def measure(server, seconds, seed):
            load = client.Load(connections=bench.arguments.connections, seconds=seconds)
            if bench.arguments.client == "wrk":
                return client.run_wrk(server, path, load)
            return client.run(server, plan, bench.tree, load, seed)

        with listed(bench, part, path):
            comparison = paired.compare(bench, path, measure)
        bench.report.add_comparison(part, comparison)
        for peer in PEERS[part]:
            if peer in comparison.samples:
                bench.report.mark_ratio(part, comparison, peer, servers.OURS, PEER_MARK, at_least=True)


SCRIPTS = Scenario("scripts", "hello from php-fpm by FastCGI, and as a CGI program in C", run,
                   servers=("tailcoat", "nginx-fastcgi", "apache-fastcgi", "caddy-fastcgi", "apache-cgi", "tailcoat-again"), rounds=2,
                   add_arguments=add_arguments)
