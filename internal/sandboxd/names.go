package sandboxd

import (
	"crypto/rand"
	"encoding/base32"
	mathrand "math/rand/v2"
	"strings"
)

// idPrefix begins every sandbox id, and no name.
const idPrefix = "sbx_"

var idEncoding = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// newID returns an id of 100 random bits.
func newID() string { return idPrefix + randomText(20) }

// sessionIDPrefix begins every session id, and with it every machine's.
const sessionIDPrefix = "ses_"

// newSessionID returns an id of 100 random bits.
func newSessionID() string { return sessionIDPrefix + randomText(20) }

// newGuestToken returns the daemon's secret towards one guest.
func newGuestToken() string { return rand.Text() + rand.Text() }

// randomText returns n of 32 letters and digits that are hard to confuse.
func randomText(n int) string {
	b := make([]byte, n*5/8+1)
	rand.Read(b) // never fails
	return idEncoding.EncodeToString(b)[:n]
}

// newName returns a name people can read and tell apart: adjective-noun-xxxx,
// one of some 3 billion.
func newName() string {
	return pick(adjectives) + "-" + pick(nouns) + "-" + randomText(4)
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

// hostname makes a host name of a sandbox's name.
func hostname(name string) string {
	h := strings.Trim(strings.ReplaceAll(strings.ToLower(name), "_", "-"), "-")
	if len(h) > 63 {
		h = strings.TrimRight(h[:63], "-")
	}
	if h == "" {
		return "sandbox"
	}
	return h
}
