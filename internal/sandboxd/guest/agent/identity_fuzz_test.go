package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/cayhq/cay/internal/sandboxd/guest"
)

// All lines equal to from are replaced, and no other line.
func FuzzReplaceLine(f *testing.F) {
	f.Add([]byte("a\nb\na"), "a", "c")
	f.Add([]byte("ab\n\na \n"), "a", "b")
	f.Fuzz(func(t *testing.T, content []byte, from, to string) {
		if from == "" || bytes.ContainsAny([]byte(from+to), "\n") {
			t.Skip()
		}
		before, after := bytes.Split(content, []byte("\n")), bytes.Split(replaceLine(content, from, to), []byte("\n"))
		if len(before) != len(after) {
			t.Fatalf("%q became %q", before, after)
		}
		for i, line := range before {
			want := string(line)
			if want == from {
				want = to
			}
			if string(after[i]) != want {
				t.Errorf("line %q became %q", line, after[i])
			}
		}
	})
}

// A machine starts from any saved files, and at the next start the files that users edit
// do not change.
func FuzzBoot(f *testing.F) {
	f.Add([]byte(`{"sandbox":"a","hostname":"one","machine_id":"","nameserver":"192.0.2.1"}`), []byte("127.0.1.1\tone\n"), []byte("one\n"))
	f.Add([]byte(`{"hostname":"`+"\\n"+`"}`), []byte("\n"), []byte("two\x00"))
	f.Add([]byte(`[]`), []byte(""), []byte(""))
	f.Fuzz(func(t *testing.T, record, hosts, hostname []byte) {
		root := t.TempDir()
		files := map[string][]byte{guest.IdentityFile: record, "/etc/hosts": hosts, "/etc/hostname": hostname}
		if err := os.MkdirAll(root+filepath.Dir(guest.IdentityFile), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, content := range files {
			if err := os.WriteFile(root+name, content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		boot := func() {
			s, err := New(Config{Root: root, SetHostname: func(name string) error {
				if name == "" || len(name) > 64 {
					t.Errorf("called %q", name)
				}
				return nil
			}})
			if err != nil {
				t.Fatal(err)
			}
			s.Boot(guest.Identity{Sandbox: "b", Hostname: "two", Nameserver: "192.0.2.2"})
			if p := s.self().problem; p != nil {
				t.Error(p)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		boot()
		once := map[string]string{}
		for _, name := range []string{"/etc/hosts", "/etc/hostname", "/etc/machine-id", "/etc/resolv.conf"} {
			b, err := os.ReadFile(root + name)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			once[name] = string(b)
		}
		boot()
		for name, want := range once {
			if b, err := os.ReadFile(root + name); err == nil && string(b) != want {
				t.Errorf("%s was %q, and is %q", name, want, b)
			}
		}
	})
}
