"""Server of gRPC for tests: returns the message of each call, after a delay or with an error that the method names."""

import sys
import time
from concurrent import futures

import grpc


class Methods(grpc.GenericRpcHandler):
    def service(self, details):
        method = details.method.rsplit("/", 1)[1]

        def call(request, context):
            if method == "Delay":
                time.sleep(0.03)
            elif method == "Fail":
                context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
            return request

        if method == "None":
            return None
        return grpc.unary_unary_rpc_method_handler(call)


server = grpc.server(futures.ThreadPoolExecutor(16))
server.add_generic_rpc_handlers((Methods(),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
sys.stdin.read()
