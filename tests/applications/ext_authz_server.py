"""A server of Envoy's ext_authz, whose messages Google's library for protobuf reads and writes. It permits requests with
`x-user`, unless their content says `secret`; others get what `x-denied` asks for, or 403."""

import sys
from concurrent import futures

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELD = descriptor_pb2.FieldDescriptorProto
STRING, INT32, UINT32, INT64 = FIELD.TYPE_STRING, FIELD.TYPE_INT32, FIELD.TYPE_UINT32, FIELD.TYPE_INT64
BYTES, BOOL = FIELD.TYPE_BYTES, FIELD.TYPE_BOOL

# Messages with the numbers of envoy/service/auth/v3/external_auth.proto and those that it imports.
MESSAGES = {
    "CheckRequest": [("attributes", 1, "AttributeContext", False)],
    "AttributeContext": [
        ("source", 1, "Peer", False), ("destination", 2, "Peer", False), ("request", 4, "Request", False),
    ],
    "Peer": [("address", 1, "Address", False), ("principal", 4, STRING, False)],
    "Address": [("socket_address", 1, "SocketAddress", False)],
    "SocketAddress": [("address", 2, STRING, False), ("port_value", 3, UINT32, False)],
    "Request": [("time", 1, "Timestamp", False), ("http", 2, "HttpRequest", False)],
    "Timestamp": [("seconds", 1, INT64, False), ("nanos", 2, INT32, False)],
    "Entry": [("key", 1, STRING, False), ("value", 2, STRING, False)],
    "HttpRequest": [
        ("method", 2, STRING, False), ("headers", 3, "Entry", True), ("path", 4, STRING, False),
        ("host", 5, STRING, False), ("scheme", 6, STRING, False), ("size", 9, INT64, False),
        ("protocol", 10, STRING, False), ("body", 11, STRING, False), ("raw_body", 12, BYTES, False),
    ],
    "CheckResponse": [
        ("status", 1, "Status", False), ("denied_response", 2, "Denied", False), ("ok_response", 3, "Ok", False),
    ],
    "Status": [("code", 1, INT32, False), ("message", 2, STRING, False)],
    "Denied": [("status", 1, "HttpStatus", False), ("headers", 2, "Option", True), ("body", 3, STRING, False)],
    "HttpStatus": [("code", 1, INT32, False)],
    "Ok": [
        ("headers", 2, "Option", True), ("headers_to_remove", 5, STRING, True),
        ("response_headers_to_add", 6, "Option", True),
    ],
    "Option": [("header", 1, "Header", False), ("append", 2, "BoolValue", False), ("append_action", 3, INT32, False)],
    "BoolValue": [("value", 1, BOOL, False)],
    "Header": [("key", 1, STRING, False), ("value", 2, STRING, False)],
}


def classes():
    file = descriptor_pb2.FileDescriptorProto(name="auth.proto", package="auth", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, is_repeated in fields:
            label = FIELD.LABEL_REPEATED if is_repeated else FIELD.LABEL_OPTIONAL
            new = message.field.add(name=field, number=number, label=label)
            if isinstance(kind, str):
                new.type, new.type_name = FIELD.TYPE_MESSAGE, ".auth." + kind
            else:
                new.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    factory = message_factory.MessageFactory(pool)
    return {name: factory.GetPrototype(pool.FindMessageTypeByName("auth." + name)) for name in MESSAGES}


CLASSES = classes()


def option(to, key, value, append=None):
    new = to.add()
    new.header.key, new.header.value = key, value
    if append is not None:
        new.append.value = append


def check(message, context):
    request = CLASSES["CheckRequest"].FromString(message).attributes
    http = request.request.http
    headers = {entry.key: entry.value for entry in http.headers}
    response = CLASSES["CheckResponse"]()
    if "x-user" in headers and "secret" not in http.body:
        response.status.code = 0
        facts = [
            http.method, http.path, http.host, http.scheme, http.protocol, str(http.size), str(len(http.body)),
            headers.get("x-envoy-auth-partial-body", "-"), headers[":method"],
            request.source.address.socket_address.address,
            "timed" if request.request.time.seconds > 1_500_000_000 else "untimed",
        ]
        option(response.ok_response.headers, "X-Facts", " ".join(facts))
        option(response.ok_response.headers, "x-user", headers["x-user"].upper())
        option(response.ok_response.headers, "x-more", "added", True)
        response.ok_response.headers_to_remove.append("x-removed")
        option(response.ok_response.response_headers_to_add, "x-decision", "permitted")
        option(response.ok_response.response_headers_to_add, "set-cookie", "seen=1")
    else:
        response.status.code = 7
        if "x-denied" in headers:
            response.denied_response.status.code = int(headers["x-denied"])
            option(response.denied_response.headers, "location", "https://login.example/")
            response.denied_response.body = "denied by the server"
    return response.SerializeToString()


class Authorization(grpc.GenericRpcHandler):
    def service(self, details):
        if details.method == "/envoy.service.auth.v3.Authorization/Check":
            return grpc.unary_unary_rpc_method_handler(check)
        return None


server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
server.add_generic_rpc_handlers((Authorization(),))
server.add_insecure_port("127.0.0.1:" + sys.argv[1])
server.start()
server.wait_for_termination()
