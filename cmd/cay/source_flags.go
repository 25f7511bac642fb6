package main

import (
	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// sourceFlags are the flags of the source that fills a new sandbox's working
// directory.
type sourceFlags struct {
	git, tarball  string
	revision, dir string
	depth         int
	user          string
}

func (f *sourceFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.git, "git", "", "clone that repository (http or https) into the working directory")
	fl.StringVar(&f.revision, "revision", "", "branch, tag or commit to check out (default what the repository says)")
	fl.IntVar(&f.depth, "depth", 0, "fetch only so many commits (default all)")
	fl.StringVar(&f.user, "git-user", "", "user to clone as; the password is in $CAY_GIT_PASSWORD")
	fl.StringVar(&f.tarball, "tarball", "", "unpack the archive at that URL (http or https) in the working directory")
	fl.StringVar(&f.dir, "source-dir", "", "put it there instead")
}

// params returns the source, nil if there is none.
func (f *sourceFlags) params(lookup func(string) (string, bool)) (*sandbox.Source, error) {
	switch {
	case f.git != "" && f.tarball != "":
		return nil, cay.Errorf(cay.Invalid, "--git and --tarball do not go together")
	case f.git != "":
		s := &sandbox.Source{Type: sandbox.GitSource, URL: f.git, Dir: f.dir, Depth: f.depth, Revision: f.revision, Username: f.user}
		if f.user != "" {
			s.Password, _ = lookup("CAY_GIT_PASSWORD") // it may have none
		}
		return s, nil
	case f.depth != 0 || f.revision != "" || f.user != "":
		return nil, cay.Errorf(cay.Invalid, "--depth, --revision and --git-user are for --git")
	case f.tarball != "":
		return &sandbox.Source{Type: sandbox.TarballSource, URL: f.tarball, Dir: f.dir}, nil
	case f.dir != "":
		return nil, cay.Errorf(cay.Invalid, "--source-dir is for --git and --tarball")
	}
	return nil, nil
}
