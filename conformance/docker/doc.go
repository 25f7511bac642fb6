// Package docker runs official clients of the Docker Engine API, unmodified,
// against a socket of cay with real sandboxes.
//
//	cases.py      docker-py, as locked in requirements.txt
//	cli.sh        docker's command line, where the machine has it
//
// "make conformance-docker-deps" in the root installs docker-py.
package docker
