package main

import (
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/sandbox"
)

func TestParseSpan(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want time.Duration
		back string // as shown; empty: refused
	}{
		{"never", 0, "never"},
		{"0", 0, "never"},
		{"90m", 90 * time.Minute, "1h30m0s"},
		{"24h", day, "1d"},
		{"7d", 7 * day, "7d"},
		{"0d", 0, "never"},
		{"-1h", 0, ""},
		{"-1d", 0, ""},
		{"1.5d", 0, ""},
		{"99999d", 0, ""},
		{"7 days", 0, ""},
		{"", 0, ""},
	} {
		got, err := parseSpan(tt.text)
		if (err != nil) != (tt.back == "") || time.Duration(got) != tt.want {
			t.Errorf("%q: got %v, %v, want %v", tt.text, got, err, tt.want)
		}
		if err == nil && spanText(got) != tt.back {
			t.Errorf("%q is shown as %q, want %q", tt.text, spanText(got), tt.back)
		}
	}
}

func TestParseRetention(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want sandbox.Retention
		ok   bool
	}{
		{"1", sandbox.Retention{Keep: 1}, true},
		{"5,30d", sandbox.Retention{Keep: 5, MaxAge: sandbox.Duration(30 * day)}, true},
		{"5,never", sandbox.Retention{Keep: 5}, true},
		{"default", sandbox.Retention{}, true},
		{"all", sandbox.Retention{All: true}, true},
		{"all,30d", sandbox.Retention{All: true, MaxAge: sandbox.Duration(30 * 24 * time.Hour)}, true},
		{"none", sandbox.Retention{}, false},
		{"0", sandbox.Retention{}, false},
		{"101", sandbox.Retention{}, false},
		{"5,1s", sandbox.Retention{}, false},
		{"5,", sandbox.Retention{}, false},
		{"few", sandbox.Retention{}, false},
		{",7d", sandbox.Retention{}, false},
	} {
		got, err := parseRetention(tt.text)
		if (err == nil) != tt.ok || tt.ok && got != tt.want {
			t.Errorf("%q: got %+v, %v, want %+v", tt.text, got, err, tt.want)
		}
	}
}

func TestParseMount(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text string
		want sandbox.Mount
		says string // part of the error; empty: none
	}{
		{"data:/data", sandbox.Mount{Drive: "data", Path: "/data", Mode: sandbox.MountReadWrite}, ""},
		{"data:/data:rw", sandbox.Mount{Drive: "data", Path: "/data", Mode: sandbox.MountReadWrite}, ""},
		{"data:/data:ro", sandbox.Mount{Drive: "data", Path: "/data", Mode: sandbox.MountReadOnly}, ""},
		{"data:/data:copy", sandbox.Mount{Drive: "data", Path: "/data", Mode: sandbox.MountCopy}, ""},
		{"data:/a:b:ro", sandbox.Mount{Drive: "data", Path: "/a:b", Mode: sandbox.MountReadOnly}, ""},
		{"data:/a:b", sandbox.Mount{}, `"b" is not one of ro, copy, rw`},
		{"data", sandbox.Mount{}, `"data" is not NAME:PATH`},
		{":/data", sandbox.Mount{}, "not NAME:PATH"},
		{"data:", sandbox.Mount{}, "not NAME:PATH"},
		{"data:rel", sandbox.Mount{}, `"rel" is not absolute`},
		{"da ta:/data", sandbox.Mount{}, `"da ta"`},
	} {
		got, err := parseMount(tt.text)
		if tt.says != "" {
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%q: got %v, want an error with %q", tt.text, err, tt.says)
			}
			continue
		}
		if err != nil || got != tt.want {
			t.Errorf("%q: got %+v, %v, want %+v", tt.text, got, err, tt.want)
		}
	}
}

func TestFamilyTree_Draw(t *testing.T) {
	t.Parallel()
	snap := func(id, name string) sandbox.Snapshot {
		return sandbox.Snapshot{ID: "snap_" + id, Name: name, Kind: sandbox.FilesystemSnapshot, SandboxName: "web", SandboxID: "sbx_0", SizeBytes: 3 << 20, CreatedAt: time.Now().Add(-50 * time.Hour)}
	}
	node := func(s sandbox.Snapshot, count int, siblings ...sandbox.Snapshot) sandbox.SnapshotNode {
		return sandbox.SnapshotNode{Snapshot: s, Count: count, Siblings: siblings}
	}
	stopped, gone, elsewhere := snap("b", ""), snap("c", ""), snap("d", "bad\x1b[2J")
	stopped.Automatic, gone.Status, gone.Kind = true, sandbox.SnapshotDeleted, sandbox.MemorySnapshot
	elsewhere.SandboxID, elsewhere.SandboxName = "", ""
	for _, tt := range []struct {
		name string
		tree familyTree
		want string
	}{
		{"Alone", familyTree{Anchor: node(snap("a", "ready"), 1)}, `
●  snap_a   ready   filesystem   web   3.0 MiB   2 days ago
`},
		{"Family", familyTree{
			Older: "snap_z", Newer: "snap_e",
			Ancestors:   []sandbox.SnapshotNode{node(stopped, 2, snap("x", "")), node(snap("a", "base"), 1)},
			Anchor:      node(gone, 14, snap("y", "")),
			Descendants: []sandbox.SnapshotNode{node(elsewhere, 1), node(snap("e", ""), 1)},
		}, `
┆  older ones: cay snapshot tree snap_z
○  snap_a      base         filesystem               web          3.0 MiB   2 days ago
├─ snap_x      -            filesystem               web          3.0 MiB   2 days ago
○  snap_b      -            filesystem (automatic)   web          3.0 MiB   2 days ago
├─ snap_y      -            filesystem               web          3.0 MiB   2 days ago
├─ … 12 more
●  snap_c      -            memory (deleted)         web          3.0 MiB   2 days ago
○  snap_d      bad\x1b[2J   filesystem               (imported)   3.0 MiB   2 days ago
○  snap_e      -            filesystem               web          3.0 MiB   2 days ago
┆  newer ones: cay snapshot tree snap_e
`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var b strings.Builder
			tt.tree.draw(&b)
			if got := "\n" + trimLines(b.String()); got != tt.want {
				t.Errorf("got%swant%s", got, tt.want)
			}
		})
	}
}

// trimLines takes white space off the ends of lines.
func trimLines(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " ")
	}
	return strings.Join(lines, "\n")
}
