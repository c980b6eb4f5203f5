"""Calls of all four kinds, errors, deadlines and metadata, through whatever is at the address."""

import queue
import sys
import threading

import grpc

address, certificate = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
if certificate:
    credentials = grpc.ssl_channel_credentials(open(certificate, "rb").read())
    channel = grpc.secure_channel(address, credentials)
else:
    channel = grpc.insecure_channel(address)


def check(found, expect, what):
    assert found == expect, f"{what}: {found!r}, not {expect!r}"


unary = channel.unary_unary("/test.Echo/Unary")
for number in range(30):
    message = b"abc%d" % number * (1 + number * 500)
    answer, call = unary.with_call(message, metadata=(("x-sent", str(number)),), timeout=30)
    check(answer, message[::-1], "unary")
    check(dict(call.initial_metadata()).get("x-initial"), "1", "initial metadata")
    check(dict(call.trailing_metadata()).get("x-trailing"), str(number), "trailing metadata")


def status(method, timeout):
    try:
        channel.unary_unary(method)(b"x", timeout=timeout)
    except grpc.RpcError as error:
        return error.code(), error.details()
    raise AssertionError(f"{method} went well")


check(status("/test.Echo/Failing", 30), (grpc.StatusCode.FAILED_PRECONDITION, "not now"), "an error")
check(status("/test.Echo/Missing", 30)[0], grpc.StatusCode.UNIMPLEMENTED, "no such method")
check(status("/test.Echo/Sleeping", 1)[0], grpc.StatusCode.DEADLINE_EXCEEDED, "a deadline")

pieces = list(channel.unary_stream("/test.Echo/Downloading")(b"500", timeout=60))
check([piece[:8] for piece in pieces], [(b"%d " % number * 8)[:8] for number in range(500)], "a stream of answers")

sent = [b"u" * 10_000] * 300
check(channel.stream_unary("/test.Echo/Uploading")(iter(sent), timeout=60), b"3000000", "a stream of requests")

said = queue.Queue()
answers = channel.stream_stream("/test.Echo/Talking")(iter(said.get, None), timeout=60)
for number in range(20):
    said.put(b"%d" % number)
    check(next(answers), b"heard %d" % number, "talking")
said.put(None)
check(list(answers), [], "the end of a talk")

# Many at a time on one connection.
failures = []


def call_often():
    try:
        for _ in range(20):
            check(unary(b"xy", timeout=30), b"yx", "many at a time")
    except Exception as error:  # Reported below.
        failures.append(error)


threads = [threading.Thread(target=call_often) for _ in range(10)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
check(failures, [], "many at a time")
print("all is well")
