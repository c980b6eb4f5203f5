// Runs http-wasm's own test suite for hosts (its TCK) against a server: its guest is the module, its backend the next handler.
package tck

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/http-wasm/http-wasm-host-go/tck"
)

func TestHost(t *testing.T) {
	backend := tck.StartBackend("127.0.0.1:0")
	t.Cleanup(backend.Close)
	for _, reset := range []string{"fresh", "memory", "none"} {
		url := start(t, reset, strings.TrimPrefix(backend.URL, "http://"))
		t.Run("h1/"+reset, func(t *testing.T) { tck.Run(t, &http.Client{Transport: &http.Transport{}}, url) })
		var h2c http.Protocols
		h2c.SetUnencryptedHTTP2(true)
		transport := &http.Transport{Protocols: &h2c, TLSClientConfig: &tls.Config{}}
		t.Run("h2c/"+reset, func(t *testing.T) { tck.Run(t, &http.Client{Transport: transport}, url) })
	}
}

// start starts the server that TAILCOAT names, until the test ends; its URL.
func start(t *testing.T, reset, backend string) string {
	directory := t.TempDir()
	guest := filepath.Join(directory, "tck.wasm")
	if err := os.WriteFile(guest, tck.GuestWASM, 0o600); err != nil {
		t.Fatal(err)
	}
	// Its guest does not ask for the request to be buffered, though it reads it before it passes the request on.
	config := fmt.Sprintf(`
server { workers 1; pin-workers off }
modules { compiled off }
site {
    listen "127.0.0.1:0"
    module "*" %q { reset %s }
    forward "http://%s" { forwarded-headers none }
}
`, guest, reset, backend)
	file := filepath.Join(directory, "tailcoat.kdl")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(os.Getenv("TAILCOAT"), "run", "-c", file)
	output, err := server.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if _, address, found := strings.Cut(lines.Text(), "listening on "); found {
			host, port, err := net.SplitHostPort(strings.TrimSpace(address))
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				for lines.Scan() {
					t.Log(lines.Text())
				}
			}()
			return "http://" + net.JoinHostPort(host, port)
		}
	}
	t.Fatal("the server did not start")
	return ""
}
