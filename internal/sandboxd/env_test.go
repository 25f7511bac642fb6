package sandboxd

import (
	"maps"
	"testing"
)

func TestBaseEnv(t *testing.T) {
	for _, c := range []struct {
		name           string
		image, runtime []string
		runtimeName    string
		want           map[string]string
	}{
		{"Image", []string{"A=1", "PATH=/x", "broken", "=y"}, nil, "", map[string]string{"A": "1", "PATH": "/x"}},
		{"Runtime", []string{"A=1", "PATH=/x"}, []string{"A=2", "B=3", "PATH=/ignored"}, "node24",
			map[string]string{"A": "2", "B": "3", "PATH": "/vercel/runtimes/node24/bin:/x"}},
		{"NoPath", nil, nil, "node24", map[string]string{"PATH": "/vercel/runtimes/node24/bin:" + defaultPath}},
		{"Nothing", nil, nil, "", map[string]string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := baseEnv(c.image, c.runtime, c.runtimeName); !maps.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}
