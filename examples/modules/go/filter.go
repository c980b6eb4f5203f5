// A filter of http-wasm (https://http-wasm.io/http-handler-abi/) in Go, built by Go's own toolchain: it answers /hello,
// sends old paths on to where they are now, and marks all other responses.
package main

import (
	"strings"
	"unsafe"
)

const (
	responseFields = 1
	responseBody   = 1
)

//go:wasmimport http_handler get_uri
func getURI(buffer unsafe.Pointer, limit uint32) uint32

//go:wasmimport http_handler set_uri
func setURI(uri unsafe.Pointer, length uint32)

//go:wasmimport http_handler set_header_value
func setHeader(kind uint32, name unsafe.Pointer, nameLength uint32, value unsafe.Pointer, valueLength uint32)

//go:wasmimport http_handler write_body
func writeBody(kind uint32, body unsafe.Pointer, length uint32)

//go:wasmexport handle_request
func handleRequest() uint64 {
	uri := uri()
	if path, _, _ := strings.Cut(uri, "?"); path == "/hello" {
		set(responseFields, "content-type", "text/plain")
		content := "Hello from Go! You asked for " + uri + "\n"
		writeBody(responseBody, pointer(content), uint32(len(content)))
		return 0
	}
	if rest, isOld := strings.CutPrefix(uri, "/old/"); isOld {
		now := "/new/" + rest
		setURI(pointer(now), uint32(len(now)))
	}
	// The next handler has it.
	return 1
}

//go:wasmexport handle_response
func handleResponse(context uint32, isError uint32) {
	set(responseFields, "x-filter", "go")
}

// uri is path and query: as many bytes as it has, so that a longer one is asked for again.
func uri() string {
	buffer := make([]byte, 2048)
	for {
		length := getURI(unsafe.Pointer(unsafe.SliceData(buffer)), uint32(len(buffer)))
		if int(length) <= len(buffer) {
			return string(buffer[:length])
		}
		buffer = make([]byte, length)
	}
}

func set(kind uint32, name, value string) {
	setHeader(kind, pointer(name), uint32(len(name)), pointer(value), uint32(len(value)))
}

func pointer(text string) unsafe.Pointer {
	return unsafe.Pointer(unsafe.StringData(text))
}

// A library has no beginning of its own.
func main() {}
