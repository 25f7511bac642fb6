package machine_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
)

// sealed writes a state with one file of size bytes.
func sealed(t testing.TB, size int) (string, *machine.State) {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "pages"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(bytes.Repeat([]byte{7}, size)); err != nil {
		t.Fatal(err)
	}
	s := &machine.State{Kind: machine.DiskState, Runtime: "test", Images: map[string]string{"/": "a"}}
	if err := machine.SealState(t.Context(), dir, s, []*os.File{f}); err != nil {
		t.Fatal(err)
	}
	return dir, s
}

func TestState_Sums(t *testing.T) {
	for _, size := range []int{0, 1, machine.SumBlock - 1, machine.SumBlock, machine.SumBlock + 1, 17*machine.SumBlock + 5} {
		dir, _ := sealed(t, size)
		s, err := machine.VerifyState(t.Context(), dir)
		if err != nil || s.Bytes() != int64(size) {
			t.Fatalf("size %d: %+v, %v", size, s, err)
		}
		for _, at := range []int{0, size / 2, size - 1} {
			if size == 0 {
				continue
			}
			data := bytes.Repeat([]byte{7}, size)
			data[at] = 8
			if err := s.Files[0].Verify(t.Context(), bytes.NewReader(data)); cay.CodeOf(err) != cay.Conflict {
				t.Errorf("size %d, damaged at %d: %v", size, at, err)
			}
		}
		if size > 0 {
			short := bytes.NewReader(bytes.Repeat([]byte{7}, size-1))
			if err := s.Files[0].Verify(t.Context(), short); cay.CodeOf(err) != cay.Conflict {
				t.Errorf("size %d, one byte short: %v", size, err)
			}
		}
	}
}

// A part of whole blocks can be checked alone.
func TestStateFile_Check(t *testing.T) {
	_, s := sealed(t, 3*machine.SumBlock+5)
	f, data := s.Files[0], bytes.Repeat([]byte{7}, 3*machine.SumBlock+5)
	for _, c := range []struct {
		from, to int
		want     bool
	}{
		{0, 0, true}, {0, len(data), true}, {machine.SumBlock, 2 * machine.SumBlock, true}, {3 * machine.SumBlock, len(data), true},
		{0, 5, false}, {5, machine.SumBlock, false}, {3 * machine.SumBlock, len(data) - 1, false},
	} {
		if got := f.Check(data[c.from:c.to], int64(c.from)); got != c.want {
			t.Errorf("from %d to %d: %v", c.from, c.to, got)
		}
	}
	if f.Check(append(data, 7), 0) || f.Check(nil, -machine.SumBlock) {
		t.Error("what is outside of the file is intact")
	}
}

func TestState_CheckImages(t *testing.T) {
	s := &machine.State{Images: map[string]string{"/": "a", "/tools": "b"}}
	for _, c := range []struct {
		images map[string]string
		want   cay.Code
	}{
		{map[string]string{"/": "a", "/tools": "b"}, ""},
		{map[string]string{"/": "a", "/tools": "c"}, cay.Conflict},
		{map[string]string{"/": "a"}, cay.Conflict},
		{map[string]string{"/": "a", "/tools": "b", "/more": "c"}, cay.Conflict},
	} {
		if err := s.CheckImages(c.images); cay.CodeOf(err) != c.want {
			t.Errorf("%v: %v", c.images, err)
		}
	}
}

// A parsed manifest is safe to use, and encodes to an equal manifest.
func FuzzParseState(f *testing.F) {
	_, s := sealed(f, machine.SumBlock+1)
	data, err := json.Marshal(s)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	for _, text := range []string{
		``, `{}`, `{"format":3}`, `{"format":1,"kind":"disk"}`, `{"format":1,"kind":"disk","files":[{"name":"../x"}]}`,
		`{"format":1,"kind":"disk","files":[{"name":"state.json"}]}`, `{"format":1,"kind":"disk","files":[{"name":"x","size":9223372036854775807}]}`,
		`{"format":1,"kind":"disk","files":[{"name":"x","size":-1}]}`, `{"format":1,"kind":"disk","files":[{"name":"x"},{"name":"x"}]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := machine.ParseState(data)
		if err != nil {
			if code := cay.CodeOf(err); code != cay.Conflict && code != cay.NotSupported {
				t.Fatal(err)
			}
			return
		}
		for _, file := range s.Files {
			file.Check(make([]byte, min(file.Size, machine.SumBlock)), 0)
			if filepath.Dir(filepath.Join("/dir", file.Name)) != "/dir" {
				t.Fatalf("file %q", file.Name)
			}
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := machine.ParseState(again); err != nil {
			t.Fatal(err)
		}
	})
}
