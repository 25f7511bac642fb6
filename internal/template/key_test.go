package template

import (
	"io/fs"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

// drawTemplate draws a template with steps that run and steps that copy, and the
// files of the latter.
func drawTemplate(t *rapid.T) (*Template, [][]copied) {
	word := rapid.StringMatching(`[a-c]{1,2}`)
	env := rapid.MapOfN(word, word, 0, 2)
	tmpl := &Template{Env: env.Draw(t, "env"), User: word.Draw(t, "user")}
	var copies [][]copied
	for range rapid.IntRange(1, 4).Draw(t, "steps") {
		if rapid.Bool().Draw(t, "run") {
			tmpl.Steps = append(tmpl.Steps, Step{Run: rapid.SliceOfN(word, 1, 3).Draw(t, "argv"), Env: env.Draw(t, "step env"), User: word.Draw(t, "step user")})
			copies = append(copies, nil)
			continue
		}
		c := copied{Dir: word.Draw(t, "dir")}
		for range rapid.IntRange(0, 3).Draw(t, "files") {
			c.Files = append(c.Files, file{Name: word.Draw(t, "name"), Mode: fs.FileMode(rapid.IntRange(0, 0o777).Draw(t, "mode")), Sum: word.Draw(t, "sum")})
		}
		tmpl.Steps = append(tmpl.Steps, Step{Copy: texts{"x"}})
		copies = append(copies, []copied{c})
	}
	return tmpl, copies
}

func chain(t interface{ Fatal(...any) }, tmpl *Template, base string, copies [][]copied) []key {
	k, err := tmpl.baseKey(base)
	if err != nil {
		t.Fatal(err)
	}
	keys := []key{k}
	for i, s := range tmpl.Steps {
		if k, err = tmpl.stepKey(k, s, copies[i], ""); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k)
	}
	return keys
}

// Two templates have the same keys up to their first difference, and different
// keys after it.
func TestKey_Chain(t *testing.T) {
	t.Parallel()
	seedtest.Check(t, func(t *rapid.T) {
		tmpl, copies := drawTemplate(t)
		keys := chain(t, tmpl, "base", copies)
		if !slices.Equal(keys, chain(t, tmpl, "base", copies)) {
			t.Fatal("equal templates have different keys")
		}
		if slices.ContainsFunc(chain(t, tmpl, "another", copies), func(k key) bool { return slices.Contains(keys, k) }) {
			t.Fatal("another base, and a key is the same")
		}
		i := rapid.IntRange(0, len(tmpl.Steps)-1).Draw(t, "changed")
		changed := *tmpl
		changed.Steps = slices.Clone(tmpl.Steps)
		changedCopies := slices.Clone(copies)
		if s := &changed.Steps[i]; len(s.Run) > 0 {
			switch rapid.IntRange(0, 3).Draw(t, "how") {
			case 0:
				s.Run = append(slices.Clone(s.Run), "")
			case 1:
				s.Env = maps.Clone(s.Env)
				if s.Env == nil {
					s.Env = map[string]string{}
				}
				s.Env["new"] = ""
			case 2:
				s.User += "x"
			case 3:
				s.WorkDir += "x"
			}
		} else {
			c := copies[i][0]
			c.Files = slices.Clone(c.Files)
			switch f := rapid.IntRange(0, 4).Draw(t, "how"); {
			case f == 0:
				s.User += "x"
			case f == 1:
				c.Dir += "x"
			case f == 2 || len(c.Files) == 0:
				c.Files = append(c.Files, file{Name: "new\xff"})
			case f == 3:
				c.Files[0].Sum += "x"
			default:
				c.Files[0].Mode ^= 0o100
			}
			changedCopies[i] = []copied{c}
		}
		other := chain(t, &changed, "base", changedCopies)
		if !slices.Equal(keys[:i+1], other[:i+1]) {
			t.Fatal("a later step changed an earlier key")
		}
		for j := i + 1; j < len(keys); j++ {
			if slices.Contains(keys, other[j]) {
				t.Fatalf("key %d does not depend on step %d", j, i)
			}
		}
	})
}

func TestKey(t *testing.T) {
	t.Parallel()
	run := Step{Run: Command{"make"}}
	of := func(tmpl Template, s Step, copies ...copied) key {
		tmpl.Steps = []Step{s}
		return chain(t, &tmpl, "base", [][]copied{copies})[1]
	}
	policy := func(secret, name string) Template {
		return Template{Network: network{sandbox.Network{Allow: []sandbox.Domain{{Name: name, Rules: []sandbox.Rule{{
			SetHeaders: map[string]string{"authorization": secret},
		}}}}}}}
	}
	for _, c := range []struct {
		name string
		a, b key
		same bool
	}{
		{"how long it may take", of(Template{}, run), of(Template{}, Step{Run: run.Run, Timeout: time.Hour}), true},
		{"vCPUs and memory", of(Template{}, run), of(Template{Resources: Resources{VCPUs: 4, Memory: config.GiB}}, run), true},
		{"disk", of(Template{}, run), of(Template{Resources: Resources{Disk: config.GiB}}, run), false},
		{"name and output", of(Template{}, run), of(Template{Name: "x", Output: Memory}, run), true},
		{"env of both", of(Template{Env: map[string]string{"A": "b"}}, run), of(Template{}, Step{Run: run.Run, Env: map[string]string{"A": "b"}}), true},
		{"a rotated secret", of(policy("one", "example.org"), run), of(policy("two", "example.org"), run), true},
		{"another policy", of(policy("one", "example.org"), run), of(policy("one", "example.com"), run), false},
		{"the policy of a sandbox, said or not", of(Template{}, run), of(Template{Network: network{sandbox.Network{Mode: sandbox.AllowAll}}}, run), true},
		{"workdir", of(Template{}, run), of(Template{WorkDir: "/a"}, run), false},
		{"user", of(Template{}, run), of(Template{User: "a"}, run), false},
		{"a word and two", of(Template{}, Step{Run: Command{"a", "b"}}), of(Template{}, Step{Run: Command{"a b"}}), false},
		{"names that are not text", of(Template{}, Step{Copy: texts{"x"}}, copied{Files: []file{{Name: "\xff"}}}),
			of(Template{}, Step{Copy: texts{"x"}}, copied{Files: []file{{Name: "\xfe"}}}), false},
		{"what lies where", of(Template{}, Step{Copy: texts{"x"}}, copied{Dir: "a", Files: []file{{Name: "b/c"}}}),
			of(Template{}, Step{Copy: texts{"x"}}, copied{Dir: "a/b", Files: []file{{Name: "c"}}}), false},
	} {
		if (c.a == c.b) != c.same {
			t.Errorf("%s: same is %v, want %v", c.name, c.a == c.b, c.same)
		}
	}
}
