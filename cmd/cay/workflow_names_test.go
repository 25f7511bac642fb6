package main

import (
	"testing"

	"github.com/cayhq/cay/internal/workflowd/protocol"
)

func TestFunctionOf(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"workflow//./workflows/order//placeOrder":         "placeOrder",
		"step//./workflows/order//placeOrder/charge":      "charge",
		"step//@vercel/sandbox@3.5.0//Sandbox#runCommand": "Sandbox#runCommand",
		"workflow//./workflows/order//default":            "order",
		"workflow//@shop/orders@1.2.3//__default":         "orders",
		"order":                  "order",
		"charge card":            "charge card",
		"https://example.com//x": "https://example.com//x",
		"step//":                 "step//",
		"":                       "",
	} {
		if got := functionOf(name); got != want {
			t.Errorf("%q is called %q, want %q", name, got, want)
		}
	}
}

func TestSpanName(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"step//./workflows/order//charge": "charge",
		"charge":                          "step_1 charge",
		"":                                "step_1",
	} {
		if got := spanName(&protocol.Span{Kind: "step", ID: "step_1", Name: name}, nil); got != want {
			t.Errorf("a step with the name %q is called %q, want %q", name, got, want)
		}
	}
}
