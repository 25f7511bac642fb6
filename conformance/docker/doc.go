// Package docker runs official clients of the Docker Engine API, unmodified,
// against a socket of cay with real sandboxes.
//
//	cases.py      docker-py, as locked in requirements.txt
//	cli.sh        docker's command line, where the machine has it
//	tools.py      Testcontainers and llm-sandbox, which run code in containers
//
// "make conformance-docker-deps" in the root installs docker-py and the tools.
package docker
