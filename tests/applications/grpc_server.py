"""A server of gRPC without generated code: bytes in, bytes out."""

import sys
import threading
from concurrent import futures

import grpc


def unary(request, context):
    context.send_initial_metadata((("x-initial", "1"),))
    context.set_trailing_metadata((("x-trailing", dict(context.invocation_metadata()).get("x-sent", "")),))
    return request[::-1]


def failing(request, context):
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")


def downloading(request, context):
    for number in range(int(request)):
        yield b"%d " % number * 1000


def uploading(requests, context):
    return b"%d" % sum(len(request) for request in requests)


def talking(requests, context):
    for request in requests:
        yield b"heard " + request


def sleeping(request, context):
    ended = threading.Event()
    context.add_callback(ended.set)
    ended.wait(60)
    return b""


class Echo(grpc.GenericRpcHandler):
    HANDLERS = {
        "/test.Echo/Unary": grpc.unary_unary_rpc_method_handler(unary),
        "/test.Echo/Failing": grpc.unary_unary_rpc_method_handler(failing),
        "/test.Echo/Downloading": grpc.unary_stream_rpc_method_handler(downloading),
        "/test.Echo/Uploading": grpc.stream_unary_rpc_method_handler(uploading),
        "/test.Echo/Talking": grpc.stream_stream_rpc_method_handler(talking),
        "/test.Echo/Sleeping": grpc.unary_unary_rpc_method_handler(sleeping),
    }

    def service(self, details):
        return self.HANDLERS.get(details.method)


server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))
server.add_generic_rpc_handlers((Echo(),))
server.add_insecure_port("127.0.0.1:" + sys.argv[1])
server.start()
server.wait_for_termination()
