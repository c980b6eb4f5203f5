"""Sends content back as it comes, with its trailers."""

from typing import Optional

from componentize_py_types import Err, Ok
from wit_world import exports
from wit_world.imports.streams import InputStream, StreamError_Closed
from wit_world.imports.types import (
    Fields,
    IncomingBody,
    IncomingRequest,
    OutgoingBody,
    OutgoingResponse,
    ResponseOutparam,
)


class IncomingHandler(exports.IncomingHandler):
    def handle(self, request: IncomingRequest, out: ResponseOutparam) -> None:
        target = request.path_with_query() or ""
        if target == "/fail":
            raise RuntimeError("as it was told to")
        if target == "/echo":
            echo(request, out)
        else:
            hello(target, out)


def hello(target: str, out: ResponseOutparam) -> None:
    body = begin(out)
    with body.write() as output:
        output.blocking_write_and_flush(f"Hello from Python! You asked for {target}\n".encode())
    OutgoingBody.finish(body, None)


def echo(request: IncomingRequest, out: ResponseOutparam) -> None:
    content = request.consume()
    body = begin(out)
    with content.stream() as source, body.write() as output:
        while (piece := read(source)) is not None:
            output.blocking_write_and_flush(piece)
    OutgoingBody.finish(body, trailers_of(content))


def read(source: InputStream) -> Optional[bytes]:
    """A piece of content that has come; None at its end."""
    try:
        return source.blocking_read(4096)
    except Err as error:
        if isinstance(error.value, StreamError_Closed):
            return None
        raise


def trailers_of(content: IncomingBody) -> Optional[Fields]:
    with IncomingBody.finish(content) as future:
        with future.subscribe() as pollable:
            pollable.block()
        result = future.get()
        if isinstance(result, Ok) and isinstance(result.value, Ok):
            return result.value.value
        raise RuntimeError("the content is not whole")


def begin(out: ResponseOutparam) -> OutgoingBody:
    response = OutgoingResponse(Fields.from_list([("content-type", b"text/plain; charset=utf-8")]))
    body = response.body()
    ResponseOutparam.set(out, Ok(response))
    return body
