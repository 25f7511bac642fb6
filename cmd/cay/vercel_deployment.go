package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/cayhq/cay"
)

// derivedID is the prefix of deployment ids that cay derives, to distinguish them from ids
// that a user has set.
const derivedID = "dpl_cay"

var (
	deploymentIDs = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)
	// devCommand matches an argument such as dev, start:dev or --mode=dev.
	devCommand = regexp.MustCompile(`^([^/]*[:=_.-])?dev([:=_.-][^/]*)?$`)
)

// buildFiles are files in the output of the builders of apps with workflows: for each
// builder, the files that differ between two builds.
var buildFiles = [][]string{
	{".next/BUILD_ID"},
	{".output/nitro.json"}, // Nitro and Nuxt; it has the time of the build
	{".svelte-kit/output/client/_app/version.json"},
	// "workflow build", the 4.8 line and the 5.0 line
	{".well-known/workflow/v1/flow.js", ".well-known/workflow/v1/step.js", ".well-known/workflow/v1/flow.mjs"},
}

// workflowVariables returns the environment variables for programs of the Workflow SDK,
// besides credentials. argv is the command to run, nil if unknown. Values that the user has
// set stay. Users who have chosen another World get no variables.
func (o *vercelOptions) workflowVariables(argv []string) ([]variable, error) {
	switch os.Getenv("WORKFLOW_TARGET_WORLD") {
	case "", "vercel", "@workflow/world-vercel":
	default:
		if o.deployment != "" {
			return nil, &exitError{exitUsage, cay.Errorf(cay.Invalid, "--deployment has no effect while WORKFLOW_TARGET_WORLD is %q", os.Getenv("WORKFLOW_TARGET_WORLD")).
				WithHint("unset it, or set it to vercel")}
		}
		return nil, nil
	}
	id, err := o.deploymentID(argv)
	if err != nil {
		return nil, err
	}
	return []variable{
		{"VERCEL_DEPLOYMENT_ID", id},
		{"WORKFLOW_TARGET_WORLD", cmp.Or(os.Getenv("WORKFLOW_TARGET_WORLD"), "vercel")},
		// The other transport, a WebSocket, cannot be directed at a daemon.
		{"WORKFLOW_EVENTS_TRANSPORT", cmp.Or(os.Getenv("WORKFLOW_EVENTS_TRANSPORT"), "http")},
	}, nil
}

// deploymentID returns the id of the build in the working directory: the id that the user
// has set, else an id derived from the build, else from the directory. A command for
// development does not run the build, and gets the directory's id.
func (o *vercelOptions) deploymentID(argv []string) (string, error) {
	from, id := "--deployment", o.deployment
	if id == "" {
		from, id = "CAY_DEPLOYMENT", os.Getenv("CAY_DEPLOYMENT")
	}
	if id != "" {
		if !deploymentIDs.MatchString(id) {
			return "", &exitError{exitUsage, cay.Errorf(cay.Invalid, "%s is %q; it takes letters, digits, _, . and -, at most 128", from, id)}
		}
		return id, nil
	}
	if id := os.Getenv("VERCEL_DEPLOYMENT_ID"); id != "" && !strings.HasPrefix(id, derivedID) {
		return id, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	if !isDevelopment(argv) {
		for _, files := range buildFiles {
			if id, err := buildID(dir, files); id != "" || err != nil {
				return id, err
			}
		}
	}
	host, err := os.Hostname()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n%s\n", host, dir)
	return derivedID + "dev" + shortSum(sum), nil
}

// isDevelopment reports whether a command starts a development server.
func isDevelopment(argv []string) bool {
	for _, arg := range argv {
		if devCommand.MatchString(arg) {
			return true
		}
	}
	return false
}

// buildID returns an id of the files of a build and of the package in a directory, "" if
// there is no such build.
func buildID(dir string, files []string) (string, error) {
	sum, found := sha256.New(), false
	for _, name := range files {
		f, err := os.Open(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		found = true
		fmt.Fprintf(sum, "%s\n", name)
		_, err = io.Copy(sum, f)
		if err := errors.Join(err, f.Close()); err != nil {
			return "", err
		}
	}
	if !found {
		return "", nil
	}
	var module struct {
		Name string `json:"name"`
	}
	// Another app of the same repository may have the same build id: a revision of the
	// repository.
	if text, err := os.ReadFile(filepath.Join(dir, "package.json")); err == nil && json.Unmarshal(text, &module) == nil {
		fmt.Fprintf(sum, "%s\n", module.Name)
	}
	return derivedID + shortSum(sum), nil
}

func shortSum(sum hash.Hash) string { return hex.EncodeToString(sum.Sum(nil)[:10]) }
