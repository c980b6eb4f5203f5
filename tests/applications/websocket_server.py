"""Echoes messages; a message "close" closes with the code that follows it."""

import asyncio
import sys

import websockets


async def echo(connection):
    async for message in connection:
        if isinstance(message, str) and message.startswith("close "):
            await connection.close(int(message.split()[1]), "as wished")
        elif message == "many":
            for number in range(1000):
                await connection.send(str(number))
        else:
            await connection.send(message)


async def main():
    async with websockets.serve(echo, "127.0.0.1", int(sys.argv[1]), max_size=1 << 25, subprotocols=["chat", "other"]):
        await asyncio.Future()


asyncio.run(main())
