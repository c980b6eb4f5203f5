// Notes each request that it sees (port, method, target), and says in X-Saw what it answers.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
)

func main() {
	seen, err := os.OpenFile(os.Args[2], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	handler := func(response http.ResponseWriter, request *http.Request) {
		_, port, _ := net.SplitHostPort(request.RemoteAddr)
		fmt.Fprintf(seen, "%s %s %s\n", port, request.Method, request.RequestURI)
		io.Copy(io.Discard, request.Body)
		response.Header().Set("X-Saw", request.Method+" "+request.RequestURI)
		io.WriteString(response, "ok")
	}
	panic(http.ListenAndServe("127.0.0.1:"+os.Args[1], http.HandlerFunc(handler)))
}
