package main

import (
	"os"
	"strings"
	"testing"

	"github.com/cayhq/cay/examples/workflow/crashtest"
)

func TestMain(m *testing.M) { os.Exit(crashtest.Main(m, main)) }

// The first program of the manual is this one.
func TestWelcome_Documented(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/workflow.md")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(doc), "```go\n")
	shown, _, _ := strings.Cut(rest, "```")
	_, code, _ := strings.Cut(string(program), "package main\n")
	if shown != "package main\n"+code {
		t.Errorf("docs/workflow.md begins with another program:\n%s", shown)
	}
}

func TestWelcome_Killed(t *testing.T) {
	t.Chdir(t.TempDir())
	p := crashtest.Start(t)
	p.Expect("greeting Ada")
	p.Kill()
	if got := crashtest.Start(t).Wait(); !strings.HasSuffix(got, "Hello, Ada. Welcome!") {
		t.Errorf("it printed:\n%s", got)
	}
}
