package gvisor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/pages"
)

// saveOver saves f's disk, with an earlier save as its base. It returns the directory, and
// how many bytes no other directory has.
func (f *forkable) saveOver(t *testing.T, base string) (dir string, added int64) {
	t.Helper()
	p := f.params(t)
	p.Base = base
	if _, err := f.Instance.SaveDisk(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(p.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(p.Dir, file.Name()), &st); err != nil {
			t.Fatal(err)
		}
		if st.Nlink == 1 {
			added += st.Size
		}
	}
	return p.Dir, added
}

// A save writes what has changed since its base, and has all files nevertheless, also when
// the base is gone, and in a machine that was started from it.
func TestSaveDisk_Base(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	sh := func(script string) string {
		t.Helper()
		out, code := f.root(t, script)
		if code != 0 {
			t.Fatal(out)
		}
		return out
	}
	sh("mkdir /many; cd /many; for i in $(seq 64); do head -c 1000000 /dev/urandom > $i; done")
	sums := ""
	dir, added := f.saveOver(t, "")
	if added < 64_000_000 {
		t.Errorf("the first save adds %d bytes", added)
	}
	for i := range 20 {
		sums = sh(fmt.Sprintf("cd /many; head -c 1000000 /dev/urandom > %d; echo %[1]d >> /tmp/log; rm -f /tmp/of-*; echo x > /tmp/of-%[1]d; cksum /many/* /tmp/*", 1+3*i))
		next, added := f.saveOver(t, dir)
		if added > 3_500_000 { // the changed blocks, and a part that is written again
			t.Errorf("save %d adds %d bytes", i, added)
		}
		if _, err := machine.VerifyState(t.Context(), next); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if dir = next; i%7 != 6 {
			continue
		}
		spec := f.another()
		in, err := f.runtime.StartFrom(t.Context(), spec, dir)
		if err != nil {
			t.Fatal(err)
		}
		f.box = f.own(t, in)
		if got := sh("cksum /many/* /tmp/*"); got != sums {
			t.Errorf("the machine of save %d has\n%s\nwant\n%s", i, got, sums)
		}
		same := func(dir string) bool {
			t.Helper()
			again, _ := f.saveOver(t, dir)
			same, err := f.runtime.SameDisk(t.Context(), dir, again)
			if err != nil {
				t.Fatal(err)
			}
			return same
		}
		began, _ := f.saveOver(t, dir) // a start changes files of its own
		if !same(began) {
			t.Errorf("the machine of save %d has other files, and has changed none", i)
		}
		sh("cp -p /many/64 /tmp/was; printf x | dd of=/many/64 bs=1 seek=500000 conv=notrunc; touch -r /tmp/was /many/64; rm /tmp/was; touch -d @1 /tmp")
		if same(began) {
			t.Errorf("the machine of save %d has the same files, and has changed one", i)
		}
		sums = ""
	}
}

// A base that cannot be read, or is elsewhere, costs space, and no file.
func TestSaveDisk_BaseDamaged(t *testing.T) {
	t.Parallel()
	f := openForkable(t, nil)
	if out, code := f.root(t, "head -c 3000000 /dev/urandom > /big"); code != 0 {
		t.Fatal(out)
	}
	for name, damage := range map[string]func(dir string) error{
		"gone":   os.RemoveAll,
		"no map": func(dir string) error { return os.Remove(filepath.Join(dir, pages.MapName)) },
		"a map of noise": func(dir string) error {
			info, err := os.Stat(filepath.Join(dir, pages.MapName))
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, pages.MapName), make([]byte, info.Size()), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			base, _ := f.saveOver(t, "")
			if err := damage(base); err != nil {
				t.Fatal(err)
			}
			dir, added := f.saveOver(t, base)
			if added < 3_000_000 {
				t.Errorf("only %d bytes were saved", added)
			}
			if _, err := machine.VerifyState(t.Context(), dir); err != nil {
				t.Error(err)
			}
		})
	}
}
