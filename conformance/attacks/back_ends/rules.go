// A tree of files and a program, as Go's own multiplexer and file server read paths.
package main

import (
	"io"
	"net/http"
	"os"
)

func main() {
	secret := func(response http.ResponseWriter, request *http.Request) {
		io.WriteString(response, "TOP-SECRET")
	}
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir(os.Args[2])))
	mux.HandleFunc("/login.php", secret)
	mux.HandleFunc("/login.php/", secret)
	mux.HandleFunc("/cgi-bin/status", secret)
	panic(http.ListenAndServe("127.0.0.1:"+os.Args[1], mux))
}
