//go:build !race && !fuzz

package sandbox_test

import (
	"context"
	"fmt"
	"log"
	"slices"
	"strings"

	"github.com/cayhq/cay/sandbox"
)

// A sandbox with a name keeps its files when it stops, and the next call that
// needs it starts it again.
func ExampleHandle_Stop() {
	ctx := context.Background()
	var c sandbox.Client
	sb, err := c.Create(ctx, sandbox.CreateParams{Name: "notes"})
	if err != nil {
		log.Fatal(err)
	}
	box := c.Sandbox(sb.ID)
	defer box.Delete(ctx)

	if err := box.WriteFile(ctx, "note", []byte("remember the milk\n"), 0); err != nil {
		log.Fatal(err)
	}
	stopped, err := box.Stop(ctx)
	if err != nil {
		log.Fatal(err)
	}
	note, err := box.ReadFile(ctx, "note")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, then: %s", stopped.Status, note)
	// Output:
	// stopped, then: remember the milk
}

// The slow setup is done once, and new sandboxes start from its result.
func ExampleHandle_Snapshot() {
	ctx := context.Background()
	var c sandbox.Client
	sb, err := c.Create(ctx, sandbox.CreateParams{})
	if err != nil {
		log.Fatal(err)
	}
	box := c.Sandbox(sb.ID)
	defer box.Delete(ctx)

	if _, err := box.Run(ctx, sandbox.CommandParams{Argv: []string{"sh", "-c", "echo installed > state"}}); err != nil {
		log.Fatal(err)
	}
	snap, err := box.Snapshot(ctx, sandbox.SnapshotParams{})
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		made, err := c.Create(ctx, sandbox.CreateParams{Snapshot: snap.ID})
		if err != nil {
			log.Fatal(err)
		}
		defer c.Delete(ctx, made.ID)
		state, err := c.Sandbox(made.ID).ReadFile(ctx, "state")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s", state)
	}
	// Output:
	// installed
	// installed
	// installed
}

// Copies of a running sandbox continue its processes, each as a separate
// machine.
func ExampleHandle_Fork() {
	ctx := context.Background()
	var c sandbox.Client
	sb, err := c.Create(ctx, sandbox.CreateParams{Name: "agent"})
	if err != nil {
		log.Fatal(err)
	}
	box := c.Sandbox(sb.ID)
	defer box.Delete(ctx)

	started, err := box.Run(ctx, sandbox.CommandParams{Argv: []string{"sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"}})
	if err != nil {
		log.Fatal(err)
	}
	pid := strings.TrimSpace(string(started.Stdout))

	fork, err := box.Fork(ctx, sandbox.ForkParams{Count: 2})
	if err != nil {
		log.Fatal(err)
	}
	var lines []string
	for _, copied := range fork.Sandboxes {
		defer c.Delete(ctx, copied.ID)
		r, err := c.Sandbox(copied.ID).Run(ctx, sandbox.CommandParams{Argv: []string{"sh", "-c", "ps -o comm= -p " + pid + "; hostname"}})
		if err != nil {
			log.Fatal(err)
		}
		lines = append(lines, strings.Join(strings.Fields(string(r.Stdout)), " runs in "))
	}
	slices.Sort(lines)
	fmt.Println(fork.Kind)
	fmt.Println(strings.Join(lines, "\n"))
	// Output:
	// memory
	// sleep runs in agent-1
	// sleep runs in agent-2
}
