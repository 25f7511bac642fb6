// Command packaging makes what a release consists of: packages for Debian and RPM, tarballs,
// images for container runtimes, lists of components (SBOM), the changelog and checksums, for
// amd64 and arm64. "make dist" runs it at the root of the repository.
//
// The same commit gives the same bytes: times are the commit's, paths are trimmed, archives
// are sorted, and nothing names the machine. "make dist-test" compares two runs.
//
// It is a module of its own, so that nothing that only makes packages is linked into cay, and
// go.mod of cay does not list it. It knows cay by its program alone: manual pages, shell
// completions and the commented settings are made from the output of the hidden command
// "describe" and of "completion".
package main
