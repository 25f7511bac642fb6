package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
)

// newBenchCommand returns the hidden command that tells where the benchmark went. The
// benchmark was a command of cay before version 0.1.0.
func newBenchCommand(a *app) *cobra.Command {
	c := &cobra.Command{
		Use: "bench", Short: "Measure this machine", Hidden: true,
		DisableFlagParsing: true, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(context.Context, []string) error {
		return &exitError{exitUsage, cay.Errorf(cay.NotSupported, "the benchmark is the program cay-bench: run make bench, or make cay-bench and bin/cay-bench, in cay's sources")}
	})
}
