package sandbox_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// Values that JSON cannot carry, or that a request body cannot hold, are tested
// here; the daemon's behaviour suite tests the rest.
func TestValidate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		err  error
		says string // part of the message; empty: valid
	}{
		{"Create", sandbox.CreateParams{}.Validate(), ""},
		{"NaN", sandbox.CreateParams{VCPUs: math.NaN()}.Validate(), "NaN"},
		{"Inf", sandbox.CreateParams{VCPUs: math.Inf(1)}.Validate(), "Inf"},
		{"EnvNotUTF8", sandbox.CreateParams{Env: map[string]string{"A": "\xff"}}.Validate(), `"A"`},
		{"EnvSecret", sandbox.CreateParams{Env: map[string]string{"A": "hunter2\x00"}}.Validate(), "NUL"},
		{"TagNotUTF8", sandbox.CreateParams{Tags: map[string]string{"\xff": ""}}.Validate(), `\xff`},
		{"KeySpace", sandbox.CreateParams{IdempotencyKey: "a b"}.Validate(), "a b"},
		{"Command", sandbox.CommandParams{Argv: []string{"true", ""}}.Validate(), ""},
		{"NoArgv", sandbox.CommandParams{}.Validate(), "argv"},
		{"EmptyProgram", sandbox.CommandParams{Argv: []string{""}}.Validate(), "argv"},
		{"ArgvLong", sandbox.CommandParams{Argv: slices.Repeat([]string{strings.Repeat("x", 64<<10-9)}, 33)}.Validate(), "2162688"},
		{"ArgvMost", sandbox.CommandParams{Argv: slices.Repeat([]string{strings.Repeat("x", 64<<10-9)}, 32)}.Validate(), ""},
		{"ArgvMany", sandbox.CommandParams{Argv: slices.Repeat([]string{"x"}, 209_716)}.Validate(), "209716 strings"},
		{"ArgLimit", sandbox.CommandParams{Argv: []string{"x", strings.Repeat("x", 128<<10-1)}}.Validate(), ""},
		{"ArgLong", sandbox.CommandParams{Argv: []string{"x", strings.Repeat("x", 128<<10)}}.Validate(), "argv[1] is 131072 bytes long"},
		{"EnvLimit", sandbox.CommandParams{Argv: []string{"x"}, Env: map[string]string{"A": strings.Repeat("x", 128<<10-3)}}.Validate(), ""},
		{"EnvLong", sandbox.CommandParams{Argv: []string{"x"}, Env: map[string]string{"A": strings.Repeat("x", 128<<10-2)}}.Validate(), `"A" is 131072 bytes long`},
		{"ArgvNotUTF8", sandbox.CommandParams{Argv: []string{"echo", "\xff"}}.Validate(), "argv[1]"},
		{"ShortTimeout", sandbox.CommandParams{Argv: []string{"x"}, Timeout: sandbox.Duration(time.Millisecond)}.Validate(), "1ms"},
		{"UserNewline", sandbox.CommandParams{Argv: []string{"x"}, User: "a\nb"}.Validate(), "user"},
		{"UserGroup", sandbox.CommandParams{Argv: []string{"x"}, User: "1000:1000"}.Validate(), ""},
		{"Write", sandbox.WriteParams{Size: -1, Mode: 0o7777}.Validate(), ""},
		{"WriteSize", sandbox.WriteParams{Size: -2}.Validate(), "-2"},
		{"ReadOffset", sandbox.ReadParams{Offset: -1}.Validate(), "-1"},
		{"ReadLength", sandbox.ReadParams{Length: -1}.Validate(), "-1"},
		{"MkdirMode", sandbox.MkdirParams{Mode: 0o20000}.Validate(), "020000"},
		{"ReadDirLimit", sandbox.ReadDirParams{Limit: 10001}.Validate(), "10001"},
		{"ExtractBytes", sandbox.ExtractParams{MaxBytes: -1}.Validate(), "-1"},
		{"ExtractOwners", sandbox.ExtractParams{KeepOwner: true, ContentOnly: true}.Validate(), "keep owner"},
		{"ExtractFormat", sandbox.ExtractParams{Format: "zip"}.Validate(), "zip"},
		{"Cursor", sandbox.OutputParams{Cursor: -1}.Validate(), "-1"},
		{"Signal", sandbox.Signal(0).Validate(), "0"},
		{"Size", sandbox.WindowSize{Cols: 10001, Rows: 1}.Validate(), "10001"},
		{"Path", sandbox.CheckPath("path", strings.Repeat("x", 4096)), ""},
		{"PathLong", sandbox.CheckPath("path", strings.Repeat("x", 4097)), "4097"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.says == "" {
				if c.err != nil {
					t.Fatalf("got %v, want no error", c.err)
				}
				return
			}
			if cay.CodeOf(c.err) != cay.Invalid || !strings.Contains(c.err.Error(), c.says) {
				t.Fatalf("got %v (%s), want invalid with %q", c.err, cay.CodeOf(c.err), c.says)
			}
			if strings.Contains(c.err.Error(), "hunter2") {
				t.Fatalf("%v shows the value of a variable", c.err)
			}
		})
	}
}
