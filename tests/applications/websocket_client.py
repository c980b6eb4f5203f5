"""Tries all features of the protocol against a WebSocket server that echoes messages."""

import asyncio
import os
import ssl
import sys

import websockets

URL = sys.argv[1]


def connect(**options):
    if URL.startswith("wss:"):
        # The certificate is made up for the test.
        options["ssl"] = ssl._create_unverified_context()
    return websockets.connect(URL, max_size=1 << 25, ping_interval=None, **options)


async def messages():
    async with connect() as connection:
        for message in ["", "text", "\u00e9\U0001f600" * 1000, b"", os.urandom(125), os.urandom(126), os.urandom(65536)]:
            await connection.send(message)
            assert await connection.recv() == message, len(message)


async def large_messages():
    for compression in [None, "deflate"]:
        async with connect(compression=compression) as connection:
            message = os.urandom(1 << 20) * 16
            await connection.send(message)
            assert await connection.recv() == message, compression


async def fragments():
    async with connect(compression=None) as connection:
        await connection.send(["one ", "two ", "", "three"])
        assert await connection.recv() == "one two three"
        pieces = [os.urandom(length) for length in range(0, 5000, 7)]
        await connection.send(pieces)
        assert await connection.recv() == b"".join(pieces)


async def pings():
    async with connect() as connection:
        for data in [b"", b"ping", b"x" * 125]:
            await asyncio.wait_for(await connection.ping(data), 30)
        await connection.pong(b"unasked")
        await connection.send("after")
        assert await connection.recv() == "after"


async def order():
    async with connect() as connection:
        # Both ways at a time, more than all buffers hold.
        async def send():
            for number in range(5000):
                await connection.send(f"{number} " + "x" * 1000)

        sending = asyncio.create_task(send())
        for number in range(5000):
            assert (await connection.recv()).split()[0] == str(number)
        await sending
        await connection.send("many")
        assert [await connection.recv() for _ in range(1000)] == [str(number) for number in range(1000)]


async def closing():
    for code in [1000, 1001, 1003, 1011, 3000, 4999]:
        async with connect() as connection:
            await connection.send(f"close {code}")
            try:
                await connection.recv()
                raise AssertionError("not closed")
            except websockets.ConnectionClosed as closed:
                assert (closed.rcvd.code, closed.rcvd.reason) == (code, "as wished"), closed
        connection = await connect()
        await connection.close(code, "ours")
        assert connection.close_code == code


async def handshake():
    async with connect(subprotocols=["none", "other"]) as connection:
        assert connection.subprotocol == "other"
        assert "permessage-deflate" in connection.response_headers["Sec-WebSocket-Extensions"]
    async with connect(compression=None) as connection:
        assert "Sec-WebSocket-Extensions" not in connection.response_headers


async def many():
    async def one(number):
        async with connect() as connection:
            for count in range(20):
                await connection.send(f"{number} {count}")
                assert await connection.recv() == f"{number} {count}"

    await asyncio.gather(*(one(number) for number in range(100)))


async def main():
    for check in [messages, large_messages, fragments, pings, order, closing, handshake, many]:
        await asyncio.wait_for(check(), 60)
        print("ok", check.__name__)


asyncio.run(main())
