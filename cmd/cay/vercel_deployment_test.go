package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// @cayhq/world derives the id of a build as the command line does, so that an app may change
// between them.
func TestDeploymentID_AsInJavaScript(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is missing")
	}
	module, err := filepath.Abs("../../sdk/js/world/dist/deployment.js")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"CAY_DEPLOYMENT", "VERCEL_DEPLOYMENT_ID", "NODE_ENV", "NODE_OPTIONS"} {
		t.Setenv(name, "")
	}
	for name, c := range map[string]struct {
		files map[string]string
		env   []string // a name and its value
	}{
		"Next":       {files: map[string]string{".next/BUILD_ID": "abc", "package.json": `{"name":"shop"}`}},
		"Workflow":   {files: map[string]string{".well-known/workflow/v1/flow.mjs": "1", ".well-known/workflow/v1/flow.js": "2"}},
		"Nothing":    {},
		"Set":        {files: map[string]string{".next/BUILD_ID": "abc"}, env: []string{"CAY_DEPLOYMENT", "v1.2"}},
		"SetThere":   {files: map[string]string{".next/BUILD_ID": "abc"}, env: []string{"VERCEL_DEPLOYMENT_ID", "dpl_1"}},
		"DerivedOld": {files: map[string]string{".output/nitro.json": "{}"}, env: []string{"VERCEL_DEPLOYMENT_ID", "dpl_cay0"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range c.files {
				if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if c.env != nil {
				t.Setenv(c.env[0], c.env[1])
			}
			t.Chdir(dir)
			want, err := new(vercelOptions).deploymentID(nil)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), node, "--input-type=module", "-e", `
				const { deploymentId } = await import(process.argv[1]);
				process.stdout.write(deploymentId());`, module)
			got, err := cmd.Output()
			if err != nil || string(got) != want {
				t.Errorf("in JavaScript it is %q, want %q: %v", got, want, err)
			}
		})
	}
}
