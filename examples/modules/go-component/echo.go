// Sends content back as it comes, with its trailers: a component by Go's own toolchain, without a library. It calls WASI's
// functions as the canonical ABI of components has them
// (https://github.com/WebAssembly/component-model/blob/main/design/mvp/CanonicalABI.md).
package main

import (
	"structs"
	"unsafe"
)

type handle int32

// A result or option of something that takes 4 bytes.
type either struct {
	_     structs.HostLayout
	which uint8
	value handle
}

type optionalText struct {
	_      structs.HostLayout
	isSome uint8
	text   list
}

// Where a list is, and of how many bytes.
type list struct {
	_       structs.HostLayout
	address uint32
	length  uint32
}

// Result of a read: a list of bytes, or, if isError, its cause. Cause 1 is the end.
type read struct {
	_       structs.HostLayout
	isError uint8
	piece   list
}

// A result in a result in an option, none of which has to be looked at if all is well.
type trailers struct {
	_         structs.HostLayout
	isSome    uint64
	isTaken   uint64
	isError   uint64
	hasFields uint8
	fields    handle
	_         [24]byte
}

//go:wasmimport wasi:http/types@0.2.10 [method]incoming-request.path-with-query
func requestPathWithQuery(request handle, out *optionalText)

//go:wasmimport wasi:http/types@0.2.10 [method]incoming-request.consume
func requestConsume(request handle, body *either)

//go:wasmimport wasi:http/types@0.2.10 [method]incoming-body.stream
func incomingBodyStream(body handle, stream *either)

//go:wasmimport wasi:http/types@0.2.10 [static]incoming-body.finish
func incomingBodyFinish(body handle) handle

//go:wasmimport wasi:http/types@0.2.10 [method]future-trailers.subscribe
func futureTrailersSubscribe(future handle) handle

//go:wasmimport wasi:http/types@0.2.10 [method]future-trailers.get
func futureTrailersGet(future handle, out *trailers)

//go:wasmimport wasi:http/types@0.2.10 [constructor]fields
func newFields() handle

//go:wasmimport wasi:http/types@0.2.10 [constructor]outgoing-response
func newOutgoingResponse(fields handle) handle

//go:wasmimport wasi:http/types@0.2.10 [method]outgoing-response.body
func responseBody(response handle, body *either)

//go:wasmimport wasi:http/types@0.2.10 [static]response-outparam.set
func responseOutparamSet(out, isError, response, _ int32, _ int64, _, _, _, _ int32)

//go:wasmimport wasi:http/types@0.2.10 [method]outgoing-body.write
func outgoingBodyWrite(body handle, stream *either)

//go:wasmimport wasi:http/types@0.2.10 [static]outgoing-body.finish
func outgoingBodyFinish(body handle, hasTrailers int32, trailers handle, result *[5]uint64)

//go:wasmimport wasi:io/poll@0.2.10 [method]pollable.block
func pollableBlock(pollable handle)

//go:wasmimport wasi:io/poll@0.2.10 [resource-drop]pollable
func pollableDrop(pollable handle)

//go:wasmimport wasi:io/streams@0.2.10 [method]input-stream.blocking-read
func inputStreamBlockingRead(stream handle, length uint64, out *read)

//go:wasmimport wasi:io/streams@0.2.10 [resource-drop]input-stream
func inputStreamDrop(stream handle)

//go:wasmimport wasi:io/streams@0.2.10 [method]output-stream.blocking-write-and-flush
func outputStreamBlockingWriteAndFlush(stream handle, bytes unsafe.Pointer, length uint32, result *[3]uint32)

//go:wasmimport wasi:io/streams@0.2.10 [resource-drop]output-stream
func outputStreamDrop(stream handle)

// Memory for arguments from the host. Nothing is allocated for them, because the collector would read the time, and a guest
// must not call the host while it receives arguments.
var (
	arena [8192]uint64
	used  uint32
)

// By this name what imports return is put here, and nothing else: the adapter needs memory before Go has begun, and takes
// what is called cabi_realloc.
//
//go:wasmexport cabi_import_realloc
func reallocate(_ unsafe.Pointer, _, _, size uint32) unsafe.Pointer {
	words := (size + 7) / 8
	if words > uint32(len(arena))-used {
		panic("the host hands in too much at once")
	}
	used += words
	return unsafe.Pointer(&arena[used-words])
}

func (of list) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(uintptr(of.address))), of.length)
}

//go:wasmexport wasi:http/incoming-handler@0.2.10#handle
func handleRequest(request, out handle) {
	path := new(optionalText)
	requestPathWithQuery(request, path)
	target := ""
	if path.isSome != 0 {
		target = string(path.text.bytes())
	}
	switch target {
	case "/fail":
		panic("as it was told to")
	case "/echo":
		echo(request, out)
	default:
		body, output := begin(out)
		write(output, []byte("Hello from Go! You asked for "+target+"\n"))
		outputStreamDrop(output)
		outgoingBodyFinish(body, 0, 0, new([5]uint64))
	}
}

func echo(request, out handle) {
	content, input, piece := new(either), new(either), new(read)
	requestConsume(request, content)
	incomingBodyStream(content.value, input)
	body, output := begin(out)
	before := used
	for {
		inputStreamBlockingRead(input.value, 4096, piece)
		if piece.isError != 0 {
			break
		}
		write(output, piece.piece.bytes())
		used = before
	}
	inputStreamDrop(input.value)
	outputStreamDrop(output)
	// The trailers report a regular end.
	future := incomingBodyFinish(content.value)
	pollable := futureTrailersSubscribe(future)
	pollableBlock(pollable)
	pollableDrop(pollable)
	end := new(trailers)
	futureTrailersGet(future, end)
	if uint8(end.isError) != 0 {
		panic("the content is not whole")
	}
	outgoingBodyFinish(body, int32(end.hasFields), end.fields, new([5]uint64))
}

func begin(out handle) (handle, handle) {
	response := newOutgoingResponse(newFields())
	body, stream := new(either), new(either)
	responseBody(response, body)
	responseOutparamSet(int32(out), 0, int32(response), 0, 0, 0, 0, 0, 0)
	outgoingBodyWrite(body.value, stream)
	return body.value, stream.value
}

func write(stream handle, bytes []byte) {
	// A stream takes 4096 bytes at a time.
	for len(bytes) > 0 {
		piece := bytes[:min(len(bytes), 4096)]
		outputStreamBlockingWriteAndFlush(stream, unsafe.Pointer(unsafe.SliceData(piece)), uint32(len(piece)), new([3]uint32))
		bytes = bytes[len(piece):]
	}
}

// A library has no beginning of its own.
func main() {}
