// A module in C without a library: it calls WASI's functions as the canonical ABI of components has them
// (https://github.com/WebAssembly/component-model/blob/main/design/mvp/CanonicalABI.md).

#include <stddef.h>
#include <stdint.h>

#define IMPORT(module, name) __attribute__((import_module(module), import_name(name)))
#define EXPORT(name) __attribute__((export_name(name)))
#define TYPES "wasi:http/types@0.2.10"
#define STREAMS "wasi:io/streams@0.2.10"

typedef int32_t handle;

struct list {
    const char *bytes;
    size_t length;
};

// A result or option of something that takes 4 bytes.
struct either {
    uint8_t which;
    handle value;
};

struct optional_text {
    uint8_t is_some;
    struct list text;
};

IMPORT(TYPES, "[method]incoming-request.path-with-query")
void request_path_with_query(handle request, struct optional_text *out);
IMPORT(TYPES, "[resource-drop]incoming-request") void request_drop(handle request);
IMPORT(TYPES, "[constructor]fields") handle fields_new(void);
IMPORT(TYPES, "[method]fields.append")
void fields_append(handle fields, const char *name, size_t name_length, const char *value, size_t value_length,
                   uint8_t *result);
IMPORT(TYPES, "[constructor]outgoing-response") handle response_new(handle fields);
IMPORT(TYPES, "[method]outgoing-response.body") void response_body(handle response, struct either *body);
IMPORT(TYPES, "[static]response-outparam.set")
void response_set(handle out, int32_t is_error, handle response, int32_t, int64_t, int32_t, int32_t, int32_t, int32_t);
IMPORT(TYPES, "[method]outgoing-body.write") void body_write(handle body, struct either *stream);
IMPORT(TYPES, "[static]outgoing-body.finish")
void body_finish(handle body, int32_t has_trailers, handle trailers, void *result);
IMPORT(STREAMS, "[method]output-stream.blocking-write-and-flush")
void stream_write(handle stream, const char *bytes, size_t length, void *result);
IMPORT(STREAMS, "[resource-drop]output-stream") void stream_drop(handle stream);

// What the host hands in is put here. An instance answers one request, so that nothing is ever freed.
static char memory[64 << 10];
static size_t used;

EXPORT("cabi_realloc") void *cabi_realloc(void *old, size_t old_size, size_t alignment, size_t size) {
    used = (used + alignment - 1) / alignment * alignment;
    if (size > sizeof memory - used) {
        __builtin_trap();
    }
    char *new = memory + used;
    used += size;
    for (size_t at = 0; at < old_size && at < size; at++) {
        new[at] = ((char *)old)[at];
    }
    return new;
}

static void write_text(handle stream, const char *bytes, size_t length) {
    char result[32];
    // A stream takes 4096 bytes at a time.
    while (length > 0) {
        size_t piece = length < 4096 ? length : 4096;
        stream_write(stream, bytes, piece, result);
        bytes += piece;
        length -= piece;
    }
}

EXPORT("wasi:http/incoming-handler@0.2.10#handle") void handle_request(handle request, handle out) {
    struct optional_text path = {0};
    request_path_with_query(request, &path);
    request_drop(request);

    static const char name[] = "content-type", value[] = "text/plain; charset=utf-8";
    uint8_t appended[16];
    handle fields = fields_new();
    fields_append(fields, name, sizeof name - 1, value, sizeof value - 1, appended);

    handle response = response_new(fields);
    struct either body, stream;
    response_body(response, &body);
    response_set(out, 0, response, 0, 0, 0, 0, 0, 0);
    body_write(body.value, &stream);
    static const char hello[] = "Hello from C! You asked for ";
    write_text(stream.value, hello, sizeof hello - 1);
    if (path.is_some) {
        write_text(stream.value, path.text.bytes, path.text.length);
    }
    write_text(stream.value, "\n", 1);
    stream_drop(stream.value);
    char finished[64];
    body_finish(body.value, 0, 0, finished);
}
