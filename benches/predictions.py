#!/usr/bin/env python3
"""Measures whether tailor's percentiles are those of a server whose delays, stalls and losses are known.

    benches/predictions.py                               all servers, with the optimized build
    benches/predictions.py stall --tailor PROGRAM        one of them, with another build

Server on core 0, tailor on core 1, an open loop. The latencies follow from the plan of the server alone: the delay of each
request by its number, the time of the stall, and which requests get no response. A prediction holds if p50, p99 and p99.9 are
within 1 %, and if exactly the lost requests failed. Failed requests rank as infinitely late, so that a percentile that falls on
one must be unknown. Ends with status 1 if a prediction does not hold.
"""

import argparse
import heapq
import json
import math
import multiprocessing
import os
import pathlib
import select
import socket
import subprocess
import sys
import time

PROGRAMS = pathlib.Path(__file__).resolve().parent.parent / "target/programs"
PERCENTILES = (50, 99, 99.9)
TOLERANCE = 0.01
RATE = 500
REQUESTS = 10_000
TIME_OUT_SECONDS = 2.0
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
# A stride without a common divisor with REQUESTS: neighbours have unlike delays.
STRIDE = 3_847
# Time before the next response in which the server polls, because a sleep may be too long.
POLL_SECONDS = 0.003


def tailed(number):
    """Delay of a request: at least 100 ms, with an exponential tail. All requests together have each quantile once."""
    return 0.1 + 0.02 * -math.log(1 - (number * STRIDE % REQUESTS + 0.5) / REQUESTS)


class Delays:
    """Each request has a delay of its own."""

    lost = 0

    def end(self, number, arrival):
        return arrival + tailed(number)

    def latencies(self):
        return [tailed(number) for number in range(REQUESTS)]


class Stall(Delays):
    """All responses take 100 ms; in the middle nothing leaves the server for 2 s."""

    delay, start, length = 0.1, 8.0, 2.0
    begin = None

    def end(self, number, arrival):
        # The first request is due at 0.
        self.begin = self.begin or arrival
        end = arrival + self.delay
        stalled = self.begin + self.start
        return stalled + self.length if stalled <= end < stalled + self.length else end

    def latencies(self):
        due = [number / RATE for number in range(REQUESTS)]
        is_stalled = lambda at: self.start <= at + self.delay < self.start + self.length
        return [self.start + self.length - at if is_stalled(at) else self.delay for at in due]


class Losses(Delays):
    """Each 200th request gets no response."""

    lost = REQUESTS // 200

    def end(self, number, arrival):
        return None if number % 200 == 77 else super().end(number, arrival)

    def latencies(self):
        return [math.inf if number % 200 == 77 else tailed(number) for number in range(REQUESTS)]


SERVERS = {"delays": Delays, "stall": Stall, "losses": Losses}


def serve(plan, listener):
    """Answers each request at its time. One thread, so that the numbers of requests are those of their arrival."""
    os.sched_setaffinity(0, {0})
    listener.setblocking(False)
    poll = select.epoll()
    poll.register(listener.fileno(), select.EPOLLIN)
    clients, ends, number = {}, [], 0
    while True:
        now = time.monotonic()
        while ends and ends[0][0] <= now:
            _, _, descriptor = heapq.heappop(ends)
            try:
                clients[descriptor].send(RESPONSE)
            except (KeyError, OSError):
                pass
        left = ends[0][0] - time.monotonic() - POLL_SECONDS if ends else 1.0
        for descriptor, _ in poll.poll(max(left, 0.0)):
            if descriptor == listener.fileno():
                client = listener.accept()[0]
                client.setblocking(False)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                clients[client.fileno()] = client
                poll.register(client.fileno(), select.EPOLLIN)
                continue
            try:
                received = clients[descriptor].recv(4096)
            except OSError:
                received = b""
            if not received:
                poll.unregister(descriptor)
                clients.pop(descriptor).close()
                continue
            end = plan.end(number, time.monotonic())
            number += 1
            if end is not None:
                heapq.heappush(ends, (end, number, descriptor))


def measure(name, tailor):
    plan = SERVERS[name]()
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    process = multiprocessing.get_context("fork").Process(target=serve, args=(plan, listener), daemon=True)
    process.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    options = ["-c", "1500", "-R", str(RATE), "-n", str(REQUESTS), "--timeout", f"{TIME_OUT_SECONDS + 1}s", "--cpus", "1"]
    command = [str(tailor), "bench", "-q", "--no-calibration", "--json", "-", *options, url]
    try:
        report = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
    finally:
        process.terminate()
    expected = sorted(plan.latencies())
    failed = sum(report["failures"].values())
    fails = failed != plan.lost
    print(f"{name}: {plan.__doc__}\n  {failed} failed, expected {plan.lost}")
    for percentile in PERCENTILES:
        want = expected[math.ceil(len(expected) * percentile / 100) - 1]
        points = report["latency"]["percentiles"]
        got = next((point["nanos"] / 1e9 for point in points if point["percentile"] >= percentile), math.inf)
        # Without failed requests the last percentile is the maximum.
        if math.isinf(want):
            holds, cell = math.isinf(got), "unknown" if math.isinf(got) else f"{got * 1e3:.2f} ms"
            print(f"  p{percentile:<5} expected  unknown      measured {cell}{'' if holds else '   !'}")
        else:
            holds = abs(got / want - 1) <= TOLERANCE
            print(f"  p{percentile:<5} expected {want * 1e3:8.2f} ms  measured {got * 1e3:8.2f} ms   {got / want - 1:+.2%}{'' if holds else '   !'}")
        fails |= not holds
    sys.stdout.flush()
    return fails


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="*", metavar="SERVER", help=f"of {' '.join(SERVERS)}; all, if none is named")
    parser.add_argument("--tailor", default=PROGRAMS / "tailor", help="default: the optimized build")
    arguments = parser.parse_args()
    sys.exit(any([measure(name, arguments.tailor) for name in arguments.servers or SERVERS]))


if __name__ == "__main__":
    main()
