package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const program = `package main

import (
	"context"
	"fmt"
	"time"

	"example.com/shop/clock"
	"github.com/cayhq/cay/workflow"
)

var order = workflow.Define("order", func(ctx workflow.Context, n int) (int, error) {
	fmt.Println(time.Now())
	_ = clock.Stamp()
	return workflow.Do(ctx, "step", func(context.Context) (int, error) { return time.Now().Second(), nil })
})

func main() { fmt.Println(order.Name(), time.Now()) }
`

const helper = `package clock

import "time"

func Stamp() time.Time { return time.Now() }
`

// go vet runs cay-vet over a user's module, with facts of other packages.
func TestGoVet(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"go.mod":         "module example.com/shop\n\ngo 1.26\n\nrequire github.com/cayhq/cay v0.0.0\n\nreplace github.com/cayhq/cay => " + root + "\n",
		"go.sum":         string(sums),
		"main.go":        program,
		"clock/clock.go": helper,
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tool := filepath.Join(t.TempDir(), "cay-vet")
	if out, err := exec.Command("go", "build", "-o", tool, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	want := []string{
		`main\.go:13:\d+: fmt\.Println in a workflow`,
		`main\.go:13:\d+: time\.Now in a workflow`,
		`main\.go:14:\d+: a workflow calls clock\.Stamp, which calls time\.Now`,
	}
	for name, args := range map[string][]string{
		"GoVet": {"go", "vet", "-mod=mod", "-vettool=" + tool, "./..."},
		"Alone": {tool, "./..."},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -mod=mod", "GOPROXY=off", "GOWORK=off")
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Error("it found nothing wrong")
			}
			found := 0
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, ".go:") {
					found++
				}
			}
			for _, w := range want {
				if !regexp.MustCompile(w).Match(out) {
					t.Errorf("it did not report %q, but:\n%s", w, out)
				}
			}
			if found != len(want) {
				t.Errorf("it reported %d things, want %d:\n%s", found, len(want), out)
			}
		})
	}
}
