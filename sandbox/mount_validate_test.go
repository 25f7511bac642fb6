package sandbox_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cayhq/cay/sandbox"
)

func TestMounts_Validate(t *testing.T) {
	t.Parallel()
	at := func(paths ...string) (mounts []sandbox.Mount) {
		for i, p := range paths {
			mounts = append(mounts, sandbox.Mount{Path: p, Drive: fmt.Sprint("d", i)})
		}
		return mounts
	}
	for name, c := range map[string]struct {
		mounts []sandbox.Mount
		says   []string // parts of the error; empty: valid
	}{
		"none":             {nil, nil},
		"one":              {at("/data"), nil},
		"an id":            {[]sandbox.Mount{{Path: "/data", Drive: "drv_0123456789abcdefghjk", Mode: sandbox.MountReadOnly}}, nil},
		"all modes":        {[]sandbox.Mount{{Path: "/a", Drive: "d", Mode: sandbox.MountReadWrite}, {Path: "/b", Drive: "d", Mode: sandbox.MountReadOnly}, {Path: "/c", Drive: "d", Mode: sandbox.MountCopy}}, nil},
		"in the home":      {at("/vercel/sandbox/data", "/vercel/sandbox/cache"), nil},
		"like reserved":    {at("/devices", "/process", "/vercel/runtimes2", "/.cayman"), nil},
		"like another":     {at("/data", "/data2", "/data-3"), nil},
		"odd name":         {at("/a b/ünï"), nil},
		"eight":            {at("/1", "/2", "/3", "/4", "/5", "/6", "/7", "/8"), nil},
		"nine":             {at("/1", "/2", "/3", "/4", "/5", "/6", "/7", "/8", "/9"), []string{"9 mounts", "more than 8"}},
		"no path":          {at("/ok", ""), []string{"mounts[1].path is empty"}},
		"relative":         {at("data"), []string{`mounts[0].path "data"`, "not absolute"}},
		"root":             {at("/"), []string{"mounts[0].path is /"}},
		"trailing slash":   {at("/data/"), []string{"shortest form", `"/data"`}},
		"way out":          {at("/data/../../etc"), []string{"shortest form", `"/etc"`}},
		"double slash":     {at("//data"), []string{"shortest form"}},
		"NUL":              {at("/da\x00ta"), []string{"NUL"}},
		"not UTF-8":        {at("/da\xffta"), []string{"UTF-8"}},
		"long":             {at("/" + strings.Repeat("x", 5000)), []string{"more than 4096"}},
		"proc":             {at("/proc"), []string{"/proc is the sandbox's own"}},
		"below sys":        {at("/sys/fs/cgroup"), []string{"/sys is the sandbox's own"}},
		"below dev":        {at("/dev/shm"), []string{"/dev is the sandbox's own"}},
		"runtimes":         {at("/vercel/runtimes"), []string{"/vercel/runtimes"}},
		"a runtime":        {at("/vercel/runtimes/node24"), []string{"/vercel/runtimes"}},
		"over runtimes":    {at("/vercel"), []string{"/vercel/runtimes is the sandbox's own"}},
		"guest program":    {at("/.cay"), []string{"/.cay is the sandbox's own"}},
		"in guest program": {at("/.cay/x"), []string{"/.cay"}},
		"same path":        {at("/a", "/b", "/a"), []string{"mounts[0] and mounts[2]", `"/a"`}},
		"nested":           {at("/data", "/data/cache"), []string{`mounts[0] at "/data"`, `mounts[1] at "/data/cache"`}},
		"nested, reversed": {at("/data/cache/x", "/data"), []string{`mounts[0] at "/data/cache/x"`, `mounts[1] at "/data"`}},
		"no drive":         {[]sandbox.Mount{{Path: "/data"}}, []string{"mounts[0].drive is empty"}},
		"drive of another": {[]sandbox.Mount{{Path: "/data", Drive: "../other"}}, []string{`mounts[0].drive "../other"`}},
		"long drive":       {[]sandbox.Mount{{Path: "/data", Drive: strings.Repeat("d", 65)}}, []string{"1 to 64"}},
		"unknown mode":     {[]sandbox.Mount{{Path: "/data", Drive: "d", Mode: "rw"}}, []string{`mounts[0].mode "rw"`, "read-write, read-only, snapshot"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			invalid(t, sandbox.CreateParams{Mounts: c.mounts}.Validate(), c.says...)
			invalid(t, sandbox.UpdateParams{Mounts: c.mounts}.Validate(), c.says...)
		})
	}
}

func FuzzMount_Validate(f *testing.F) {
	f.Add("/data", "d", "read-write")
	f.Add("/vercel/runtimes/../x", "drv_x", "")
	f.Fuzz(func(t *testing.T, path, drive, mode string) {
		m := sandbox.Mount{Path: path, Drive: drive, Mode: sandbox.MountMode(mode)}
		if m.Validate() != nil {
			return
		}
		for _, bad := range []string{"/proc", "/sys", "/dev", "/.cay", "/vercel/runtimes"} {
			if strings.HasPrefix(path+"/", bad+"/") {
				t.Errorf("%q is accepted", path)
			}
		}
		if path[0] != '/' || strings.Contains(path+"/", "/../") || strings.Contains(path+"/", "/./") || strings.Contains(path, "//") || path == "/" {
			t.Errorf("%q is accepted", path)
		}
	})
}

func TestCreateDriveParams_Validate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		p    sandbox.CreateDriveParams
		says []string
	}{
		"a name":      {sandbox.CreateDriveParams{Name: "data_1-x"}, nil},
		"all":         {sandbox.CreateDriveParams{Name: strings.Repeat("n", 64), MaxMB: 16, From: "drv_0123456789abcdefghjk", ProjectID: "prj_1"}, nil},
		"no name":     {sandbox.CreateDriveParams{}, []string{`name ""`}},
		"like an id":  {sandbox.CreateDriveParams{Name: "drv_data"}, []string{"begins like an id"}},
		"odd name":    {sandbox.CreateDriveParams{Name: "a b"}, []string{`name "a b"`}},
		"small":       {sandbox.CreateDriveParams{Name: "d", MaxMB: 15}, []string{"max_mb 15", "16"}},
		"negative":    {sandbox.CreateDriveParams{Name: "d", MaxMB: -1}, []string{"max_mb -1"}},
		"odd source":  {sandbox.CreateDriveParams{Name: "d", From: "a/b"}, []string{`from "a/b"`}},
		"odd project": {sandbox.CreateDriveParams{Name: "d", ProjectID: strings.Repeat("p", 65)}, []string{"project_id"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			invalid(t, c.p.Validate(), c.says...)
		})
	}
	if got := (sandbox.CreateDriveParams{}).WithDefaults().MaxMB; got != 1024 {
		t.Errorf("a drive has %d MiB by default, want 1024", got)
	}
	if got := (sandbox.CreateDriveParams{From: "x"}).WithDefaults().MaxMB; got != 0 {
		t.Errorf("a clone has %d MiB by default, want those of what it is cloned from", got)
	}
}
