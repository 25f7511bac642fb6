package sandboxd_test

import (
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/internal/secret"
	"github.com/cayhq/cay/sandbox"
)

// A sandbox's environment and its guest's token cannot be read in the database, even if
// an earlier version has written them.
func TestSealed(t *testing.T) {
	t.Parallel()
	h, _ := startFake(t)
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Env: map[string]string{"KEY": "first"}, Persistent: new(true)}))(t)
	checktest.Must(h.Update(ctx, s.ID, sandbox.UpdateParams{Env: map[string]string{"KEY": "second"}}))(t)
	columns := func() (all []string) {
		t.Helper()
		var env, next, token string
		if err := h.Config.DB.QueryRow(t.Context(), `SELECT env, next, guest_token FROM sandboxes WHERE id = ?`, s.ID).Scan(&env, &next, &token); err != nil {
			t.Fatal(err)
		}
		return []string{env, next, token}
	}
	sealed := func() {
		t.Helper()
		for i, text := range columns() {
			if !strings.HasPrefix(text, "sealed:") {
				t.Errorf("column %d of env, next, guest_token is %q", i, text)
			}
		}
	}
	sealed()

	err := h.Config.DB.Write(t.Context(), func(tx *db.Tx) error {
		_, err := tx.Exec(t.Context(), `UPDATE sandboxes SET env = '{"KEY":"plain"}', next = '{"env":{"KEY":"next"}}' WHERE id = ?`, s.ID)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	h.Restart(t)
	sealed()
	for _, want := range []string{"plain", "next"} {
		out := checktest.Must(h.Exec(ctx, s.ID, sandbox.CommandParams{Argv: []string{"sh", "-c", "echo $KEY"}}))(t)
		if text := sandboxtest.ReadText(t, out); text != want+"\n" {
			t.Errorf("KEY is %q, want %q", text, want)
		}
		checktest.Must(h.Engine.Stop(ctx, s.ID))(t)
	}
	if kept := columns(); !strings.HasPrefix(kept[0], "sealed:") || !strings.HasPrefix(kept[2], "sealed:") {
		t.Errorf("env, next, guest_token are %q", kept)
	}
}

// With another key the sealed columns are lost, and errors say so; the rest can be read.
func TestSealed_OtherKey(t *testing.T) {
	t.Parallel()
	h, _ := startFake(t)
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Name: "old", Env: map[string]string{"KEY": "x"}, Persistent: new(true)}))(t)
	checktest.Must(h.Engine.Stop(ctx, s.ID))(t)
	mine := h.Config.Secrets
	other, err := secret.Open(t.TempDir() + "/key")
	if err != nil {
		t.Fatal(err)
	}
	h.Config.Secrets = other
	h.Restart(t)
	if page := checktest.Must(h.List(ctx, sandbox.ListParams{}))(t); len(page.Items) != 1 || page.Items[0].Env != nil {
		t.Errorf("the list is %+v", page.Items)
	}
	if _, err := h.Resume(ctx, s.ID, sandbox.ResumeParams{}); cay.CodeOf(err) != cay.Internal {
		t.Errorf("a resume ended with %v", err)
	}
	h.Config.Secrets = mine
	h.Restart(t)
	out := checktest.Must(h.Exec(sandboxtest.As(t.Context(), sandboxtest.Default), s.ID, sandbox.CommandParams{Argv: []string{"sh", "-c", "echo $KEY"}}))(t)
	if text := sandboxtest.ReadText(t, out); text != "x\n" {
		t.Errorf("KEY is %q", text)
	}
}
