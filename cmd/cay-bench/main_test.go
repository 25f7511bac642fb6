package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

// Wrong command lines are refused before anything is started.
func TestRun_Usage(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"turtles":                `there is no suite "turtles"; there are sandbox, network, state, vercel, workflow, workflow-js`,
		"sandbox sandbox":        "one suite at a time",
		"--opponents all":        `--opponents "all" is neither auto nor none`,
		"--n -1":                 "--n -1 is negative",
		"--steps 3":              "--steps 3 is less than 10",
		"sandbox --turtle":       "flag provided but not defined: -turtle",
		"gateway --cpuprofile x": "writes no profile",
		"daemon --turtle":        "flag provided but not defined: -turtle",
	} {
		var out, said bytes.Buffer
		s := streams{strings.NewReader(""), &out, &said}
		if code := s.report(s.run(t.Context(), strings.Fields(line))); code != exitUsage || !strings.Contains(said.String(), want) || out.Len() > 0 {
			t.Errorf("%s: exit code %d, %q and %q; want %q", line, code, out.String(), said.String(), want)
		}
	}
}

func TestRun_Help(t *testing.T) {
	t.Parallel()
	var out, said bytes.Buffer
	s := streams{strings.NewReader(""), &out, &said}
	if code := s.report(s.run(t.Context(), []string{"sandbox", "--help"})); code != 0 || said.Len() > 0 {
		t.Errorf("exit code %d, %q", code, said.String())
	}
	for _, want := range append([]string{"Usage: cay-bench [SUITE]", "-cpuprofile"}, suiteNames...) {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the help has no %q:\n%s", want, out.String())
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	o, err := parse(strings.Fields("--row a state --row=b --n 3 --json --opponents none"), nil)
	if err != nil || !slices.Equal(o.suites, []string{"state"}) || !slices.Equal(o.rows, []string{"a", "b"}) || o.n != 3 || !o.json || o.opponents != "none" {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err := parse(nil, nil); err != nil || !slices.Equal(o.suites, suiteNames) || o.json {
		t.Errorf("%+v, %v", o, err)
	}
}
