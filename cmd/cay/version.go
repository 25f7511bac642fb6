package main

import (
	"context"
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
)

type versionInfo struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func newVersionCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "version", Short: "Print the version of this program",
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(context.Context, []string) error {
		v := versionInfo{cay.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH}
		return a.show(v, func(w io.Writer) { fmt.Fprintf(w, "cay %s %s %s/%s\n", v.Version, v.Go, v.OS, v.Arch) })
	})
}
