package main

import (
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// networkFlags are the flags of a network policy: a mode, a list made of
// --allow and --deny, or a file.
type networkFlags struct {
	allow, deny []string
	file        string
}

func (f *networkFlags) register(c *cobra.Command, fileFlag string) {
	fl := c.Flags()
	fl.StringArrayVar(&f.allow, "allow", nil, "reach only this: a name, *.name, name:port, or an address range")
	fl.StringArrayVar(&f.deny, "deny", nil, "never reach this address range; without --allow, reach everything else")
	fl.StringVar(&f.file, fileFlag, "", "take the policy from a JSON file, - for standard input")
}

// network returns the policy of the flags with a mode, which may be empty;
// given is false if the flags set no policy.
func (f *networkFlags) network(stdin io.Reader, mode sandbox.NetworkMode, fileFlag string) (n sandbox.Network, given bool, err error) {
	lists := len(f.allow)+len(f.deny) > 0
	ways := 0
	for _, way := range []bool{mode != "", lists, f.file != ""} {
		if way {
			ways++
		}
	}
	switch {
	case ways > 1:
		return n, true, cay.Errorf(cay.Invalid, "a mode, --%s, and --allow with --deny are three ways to say the same", fileFlag).
			WithHint("use one of them")
	case f.file != "":
		n, err = readPolicy(stdin, f.file)
	case lists:
		n, err = parsePolicy(f.allow, f.deny)
	default:
		n.Mode = mode
	}
	if err == nil {
		err = n.Validate()
	}
	return n, ways > 0, err
}

// parsePolicy makes a policy of names, name:port, and address ranges.
func parsePolicy(allow, deny []string) (sandbox.Network, error) {
	n := sandbox.Network{Mode: sandbox.Custom}
	index := make(map[string]int) // of a name in n.Allow
	for _, text := range allow {
		if isRange(text) {
			n.AllowCIDRs = append(n.AllowCIDRs, text)
			continue
		}
		name, port, limited := strings.Cut(text, ":")
		i, known := index[name]
		if !known {
			i = len(n.Allow)
			index[name] = i
			n.Allow = append(n.Allow, sandbox.Domain{Name: name})
		}
		d := &n.Allow[i]
		switch {
		case !limited:
			d.Ports = nil // every port, whatever else was said
		case !known || len(d.Ports) > 0:
			p, err := strconv.ParseUint(port, 10, 16)
			if err != nil || p == 0 {
				return n, cay.Errorf(cay.Invalid, "--allow %q: %q is not a port", text, port).WithHint("write a name alone, or name:443")
			}
			d.Ports = append(d.Ports, uint16(p))
		}
	}
	for _, text := range deny {
		if !isRange(text) {
			return n, cay.Errorf(cay.Invalid, "--deny %q is not an address range", text).
				WithHint("names are denied unless they are allowed; ranges are written as 203.0.113.0/24")
		}
		n.DenyCIDRs = append(n.DenyCIDRs, text)
	}
	if len(allow) == 0 {
		n.AllowCIDRs = []string{"0.0.0.0/0"}
	}
	return n, nil
}

// isRange reports whether text is an address or a range of addresses.
func isRange(text string) bool {
	if _, err := netip.ParsePrefix(text); err == nil {
		return true
	}
	_, err := netip.ParseAddr(text)
	return err == nil
}

// readPolicy reads a policy as the API takes it.
func readPolicy(stdin io.Reader, file string) (n sandbox.Network, err error) {
	in, name := stdin, "standard input"
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return n, cay.Errorf(cay.Invalid, "cannot read the policy: %w", err)
		}
		defer f.Close()
		in, name = f, file
	}
	d := json.NewDecoder(in)
	d.DisallowUnknownFields()
	if err := d.Decode(&n); err != nil {
		return n, cay.Errorf(cay.Invalid, "%s is not a network policy: %w", name, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return n, cay.Errorf(cay.Invalid, "%s holds more than one network policy", name)
	}
	return n, nil
}

// parsePort reads PORT or PORT:private.
func parsePort(text string) (sandbox.PortParams, error) {
	number, access, _ := strings.Cut(text, ":")
	port, err := strconv.Atoi(number)
	if err != nil {
		return sandbox.PortParams{}, cay.Errorf(cay.Invalid, "%q is neither PORT nor PORT:private", text)
	}
	return sandbox.PortParams{Port: port, Access: sandbox.PortAccess(access)}, nil
}
