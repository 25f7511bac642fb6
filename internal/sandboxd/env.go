package sandboxd

import (
	"maps"
	"strings"
)

// runtimeDir is where language runtimes are mounted in a guest.
const runtimeDir = "/vercel/runtimes/"

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// baseEnv returns the environment that an image and a runtime define: the image's,
// overridden by the runtime's, with the runtime's programs first in PATH.
func baseEnv(image, runtime []string, runtimeName string) map[string]string {
	env := make(map[string]string)
	for _, list := range [][]string{image, runtime} {
		for _, kv := range list {
			if k, v, ok := strings.Cut(kv, "="); ok && k != "" && !(k == "PATH" && env[k] != "") {
				env[k] = v
			}
		}
	}
	if runtimeName != "" {
		path := env["PATH"]
		if path == "" {
			path = defaultPath
		}
		env["PATH"] = runtimeDir + runtimeName + "/bin:" + path
	}
	return env
}

// mergeEnv merges environments; later ones override earlier ones.
func mergeEnv(layers ...map[string]string) map[string]string {
	env := make(map[string]string)
	for _, l := range layers {
		maps.Copy(env, l)
	}
	return env
}
