//go:build !race && !fuzz

// The Examples run against a real daemon. It does not work in a binary built with
// cgo, as the race detector needs it, nor instrumented for fuzzing (make fuzz).

package sandbox_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/sandbox"
)

func TestMain(m *testing.M) {
	gvisor.HandleReexec()
	flag.Parse()
	os.Exit(func() int {
		stop, err := testenv.Examples()
		if err != nil {
			fmt.Fprintln(os.Stderr, "the Examples are not run:", err)
			flag.Set("test.run", "^(Test|Fuzz)")
			return m.Run()
		}
		defer stop()
		return m.Run()
	}())
}

func Example() {
	ctx := context.Background()
	var c sandbox.Client // CAY_URL and CAY_TOKEN, or the daemon of this machine

	sb, err := c.Create(ctx, sandbox.CreateParams{Runtime: "python3.13"})
	if err != nil {
		log.Fatal(err)
	}
	box := c.Sandbox(sb.ID)
	defer box.Delete(ctx)

	code := []byte("print(sum(n * n for n in range(10)))\n")
	if err := box.WriteFile(ctx, "squares.py", code, 0); err != nil {
		log.Fatal(err)
	}
	result, err := box.Run(ctx, sandbox.CommandParams{Argv: []string{"python3", "squares.py"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("exit code %d\n%s", result.Exit.Code, result.Stdout)
	// Output:
	// exit code 0
	// 285
}

// A handler outside the sandbox answers the requests of a program in the sandbox to a
// host that does not exist, while the sandbox reaches nothing else.
func ExampleClient_ServeOutbound() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var c sandbox.Client

	sb, err := c.Create(ctx, sandbox.CreateParams{
		Network: sandbox.Network{Mode: sandbox.DenyAll, Handled: []string{"vault.internal"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	box := c.Sandbox(sb.ID)
	defer box.Delete(context.WithoutCancel(ctx))

	answer := func(ctx context.Context, o sandbox.Outbound) (sandbox.Handling, func(net.Conn)) {
		return sandbox.HandlePlain, func(conn net.Conn) { // nil: the program has ended it
			if conn == nil {
				return
			}
			defer conn.Close()
			if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				body := "the secret of " + r.Host + r.URL.Path
				fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			}
		}
	}
	ready := make(chan struct{})
	go c.ServeOutbound(ctx, sb.ID, answer, func() { close(ready) })
	<-ready

	result, err := box.Run(ctx, sandbox.CommandParams{Argv: []string{"curl", "-sS", "https://vault.internal/db"}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", result.Stdout)
	// Output: the secret of vault.internal/db
}

// A Cmd reads and writes the given readers and writers, like a Cmd of os/exec.
func ExampleHandle_Command() {
	ctx := context.Background()
	var c sandbox.Client
	sb, err := c.Create(ctx, sandbox.CreateParams{})
	if err != nil {
		log.Fatal(err)
	}
	box := c.Sandbox(sb.ID)
	defer box.Delete(ctx)

	cmd := box.Command(ctx, "sort", "-n")
	cmd.Stdin = strings.NewReader("10\n9\n100\n")
	cmd.Stdout = os.Stdout
	if err := cmd.Run(); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 9
	// 10
	// 100
}

// Output arrives as it is written, stdout and stderr separately.
func ExampleClient_Exec() {
	ctx := context.Background()
	var c sandbox.Client
	sb, err := c.Create(ctx, sandbox.CreateParams{})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Delete(ctx, sb.ID)

	out, err := c.Exec(ctx, sb.ID, sandbox.CommandParams{
		Argv: []string{"sh", "-c", "echo to stdout; sleep 0.1; echo to stderr >&2; exit 3"},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer out.Close()
	for {
		ev, err := out.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			log.Fatal(err)
		}
		switch {
		case ev.Data != nil:
			fmt.Printf("%s: %s", ev.Stream, ev.Data)
		case ev.Exit != nil:
			fmt.Println("exit code", ev.Exit.Code)
		}
	}
	// Output:
	// stdout: to stdout
	// stderr: to stderr
	// exit code 3
}

// Errors have a code, the same in process and over the wire.
func ExampleClient_errors() {
	ctx := context.Background()
	var c sandbox.Client
	_, err := c.Get(ctx, "no-such-sandbox")
	fmt.Println(cay.CodeOf(err), errors.Is(err, &cay.Error{Code: cay.NotFound}))

	_, err = c.Create(ctx, sandbox.CreateParams{MemoryMB: 1})
	fmt.Println(err)
	// Output:
	// not_found true
	// memory_mb 1 is less than 128
}
