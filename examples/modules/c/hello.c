// A module in C without a library, which says hello, or sends content back as it comes, with its trailers. It calls WASI's functions as the canonical ABI of components has them
// (https://github.com/WebAssembly/component-model/blob/main/design/mvp/CanonicalABI.md).

#include <stddef.h>
#include <stdint.h>

#define IMPORT(module, name) __attribute__((import_module(module), import_name(name)))
#define EXPORT(name) __attribute__((export_name(name)))
#define TYPES "wasi:http/types@0.2.10"
#define STREAMS "wasi:io/streams@0.2.10"
#define POLL "wasi:io/poll@0.2.10"

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

// A list of bytes, or by what there is none: the end, for one.
struct piece {
    uint8_t is_error;
    struct list bytes;
};

// A result in a result in an option. Only an error in the innermost is one that can happen, if it is asked for once.
struct trailers {
    uint64_t is_some, is_taken;
    uint8_t is_error;
    _Alignas(8) struct either fields;
    char error[24];
};

IMPORT(TYPES, "[method]incoming-request.path-with-query")
void request_path_with_query(handle request, struct optional_text *out);
IMPORT(TYPES, "[method]incoming-request.consume") void request_consume(handle request, struct either *content);
IMPORT(TYPES, "[resource-drop]incoming-request") void request_drop(handle request);
IMPORT(TYPES, "[method]incoming-body.stream") void content_stream(handle content, struct either *stream);
IMPORT(TYPES, "[static]incoming-body.finish") handle content_finish(handle content);
IMPORT(TYPES, "[method]future-trailers.subscribe") handle trailers_subscribe(handle trailers);
IMPORT(TYPES, "[method]future-trailers.get") void trailers_get(handle trailers, struct trailers *out);
IMPORT(POLL, "[method]pollable.block") void pollable_block(handle pollable);
IMPORT(POLL, "[resource-drop]pollable") void pollable_drop(handle pollable);
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
IMPORT(STREAMS, "[method]input-stream.blocking-read") void stream_read(handle stream, uint64_t length, struct piece *out);
IMPORT(STREAMS, "[resource-drop]input-stream") void input_drop(handle stream);
IMPORT(STREAMS, "[method]output-stream.blocking-write-and-flush")
void stream_write(handle stream, const char *bytes, size_t length, void *result);
IMPORT(STREAMS, "[resource-drop]output-stream") void output_drop(handle stream);

// Memory for arguments from the host. An instance responds to one request, so that nothing is ever freed.
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

struct answer {
    handle body, stream;
};

static struct answer begin(handle out) {
    static const char name[] = "content-type", value[] = "text/plain; charset=utf-8";
    uint8_t appended[16];
    handle fields = fields_new();
    fields_append(fields, name, sizeof name - 1, value, sizeof value - 1, appended);
    handle response = response_new(fields);
    struct either body, stream;
    response_body(response, &body);
    response_set(out, 0, response, 0, 0, 0, 0, 0, 0);
    body_write(body.value, &stream);
    return (struct answer){body.value, stream.value};
}

static void finish(struct answer answer, int32_t has_trailers, handle trailers) {
    char finished[64];
    output_drop(answer.stream);
    body_finish(answer.body, has_trailers, trailers, finished);
}

static void hello(struct list path, handle out) {
    struct answer answer = begin(out);
    static const char hello[] = "Hello from C! You asked for ";
    write_text(answer.stream, hello, sizeof hello - 1);
    write_text(answer.stream, path.bytes, path.length);
    write_text(answer.stream, "\n", 1);
    finish(answer, 0, 0);
}

static void echo(handle request, handle out) {
    struct either content, input;
    request_consume(request, &content);
    content_stream(content.value, &input);
    struct answer answer = begin(out);
    struct piece piece;
    size_t before = used;
    while (stream_read(input.value, 4096, &piece), !piece.is_error) {
        write_text(answer.stream, piece.bytes.bytes, piece.bytes.length);
        used = before;
    }
    input_drop(input.value);
    // The trailers report a regular end.
    handle future = content_finish(content.value);
    handle pollable = trailers_subscribe(future);
    pollable_block(pollable);
    pollable_drop(pollable);
    struct trailers trailers;
    trailers_get(future, &trailers);
    if (trailers.is_error) {
        __builtin_trap();
    }
    finish(answer, trailers.fields.which, trailers.fields.value);
}

static int is(struct list text, const char *other) {
    size_t at = 0;
    while (at < text.length && other[at] == text.bytes[at]) {
        at++;
    }
    return at == text.length && other[at] == 0;
}

EXPORT("wasi:http/incoming-handler@0.2.10#handle") void handle_request(handle request, handle out) {
    struct optional_text path = {0};
    request_path_with_query(request, &path);
    if (is(path.text, "/fail")) {
        __builtin_trap();
    } else if (is(path.text, "/echo")) {
        echo(request, out);
    } else {
        hello(path.text, out);
    }
    request_drop(request);
}
