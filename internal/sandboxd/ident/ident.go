// Package ident makes ids, names and secrets of sandboxes, sessions, snapshots,
// drives and ports, and tells ids from names. It knows nothing of what they name.
package ident

import (
	"crypto/rand"
	"encoding/base32"
	mathrand "math/rand/v2"
	"strings"
)

// SandboxPrefix begins every sandbox id, and no name.
const SandboxPrefix = "sbx_"

var idEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// NewSandbox returns an id of 100 random bits.
func NewSandbox() string { return SandboxPrefix + Text(20) }

// SessionPrefix begins every session id, and with it every machine's.
const SessionPrefix = "ses_"

// NewSession returns an id of 100 random bits.
func NewSession() string { return SessionPrefix + Text(20) }

// SnapshotPrefix begins the id of every snapshot, and no name of one.
const SnapshotPrefix = "snap_"

// NewSnapshot returns an id of 100 random bits.
func NewSnapshot() string { return SnapshotPrefix + Text(20) }

// DrivePrefix begins every drive's id, and no drive's name.
const DrivePrefix = "drv_"

// NewDrive returns an id of 100 random bits.
func NewDrive() string { return DrivePrefix + Text(20) }

// LabelLength is that of every label of a port, in characters.
const LabelLength = 24

// NewLabel returns a label of 115 random bits.
func NewLabel() string { return "p" + Text(LabelLength-1) }

// NewToken returns the daemon's secret towards one guest.
func NewToken() string { return rand.Text() + rand.Text() }

// Text returns n of 32 letters and digits that are hard to confuse.
func Text(n int) string {
	b := make([]byte, n*5/8+1)
	rand.Read(b) // never fails
	return idEncoding.EncodeToString(b)[:n]
}

// NewName returns a name people can read and tell apart: adjective-noun-xxxx,
// one of some 3 billion.
func NewName() string {
	return pick(adjectives) + "-" + pick(nouns) + "-" + Text(4)
}

func pick(words []string) string { return words[mathrand.N(len(words))] }

var (
	adjectives = strings.Fields(`able agile amber azure bold brave breezy bright brisk calm candid clear clever cool coral
		crisp deft dewy eager early fair fleet fond free fresh gentle glad golden grand green happy hardy honest ivory
		jolly keen kind light lively lucid lucky mellow merry mild misty noble opal open patient placid plucky polite
		proud quick quiet ready rosy sandy sharp shiny silver sleek smooth snug solid spry steady still sunny swift
		tidy vivid warm wise witty young`)
	nouns = strings.Fields(`anchor atoll bay beacon breaker breeze brook buoy cape clam cliff cloud cod coral cove crab
		creek crest current delta dock dolphin drift dune eddy eel egret fathom ferry fjord gale gull harbor heron inlet
		island jetty kelp key lagoon ledge lobster marlin marsh mast moon mussel oar ocean osprey otter oyster palm pearl
		pelican petrel pier plover pond prawn puffin quay rapid ray reef ripple river sail salmon sand seal shell shoal
		shore skiff sloop spray squid star stern storm strait surf swell tern tide trout turtle wave whale wharf wind`)
)

// Hostname makes a host name of a sandbox's name.
func Hostname(name string) string {
	h := strings.Trim(strings.ReplaceAll(strings.ToLower(name), "_", "-"), "-")
	if len(h) > 63 {
		h = strings.TrimRight(h[:63], "-")
	}
	if h == "" {
		return "sandbox"
	}
	return h
}
