#!/usr/bin/env python3
"""A back end of limited capacity: so many requests at a time, each of so long; others wait.

  limited.py PORT SLOTS MILLISECONDS BYTES
"""

import asyncio
import sys

PORT, SLOTS, MILLISECONDS, BYTES = map(int, sys.argv[1:])
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % BYTES + b"x" * BYTES


async def serve(reader, writer, slots):
    try:
        while await reader.readuntil(b"\r\n\r\n"):
            async with slots:
                await asyncio.sleep(MILLISECONDS / 1000)
            writer.write(RESPONSE)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main():
    slots = asyncio.Semaphore(SLOTS)
    server = await asyncio.start_server(lambda reader, writer: serve(reader, writer, slots), "127.0.0.1", PORT, backlog=4096)
    await server.serve_forever()


asyncio.run(main())
