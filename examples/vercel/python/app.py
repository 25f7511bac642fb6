"""A program for the Python client: the same, in a sandbox that has a name."""

import os
import subprocess
from urllib.parse import urlsplit
from urllib.request import urlopen
from uuid import uuid4

from vercel.api import session
from vercel.sandbox import NetworkPolicyTransform, SnapshotSource
from vercel.sandbox import sync as sandbox
from vercel.sandbox.sync import NetworkPolicy, NetworkPolicyRule

API = os.environ.get("API_URL", "https://api.github.com/user")
ENV = {name: os.environ[name] for name in ("NPM_CONFIG_REGISTRY",) if name in os.environ}
SERVER = """
import { createServer } from 'node:http';
import ms from 'ms';
createServer((_, res) => res.end('two days are ' + ms('2 days') + ' ms')).listen(3000, () => console.log('listening'));
"""


def run(box, *argv):
    done = box.run_process(argv[0], list(argv[1:]), capture_output=True)
    print(f"{' '.join(argv)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")


def serve(box):
    process = box.create_process("node", ["server.mjs"], stderr=subprocess.STDOUT)
    for line in process.stdout:
        if "listening" in line:
            return
    raise RuntimeError("the server has ended")


def preview(box):
    url = next(route.url for route in box.routes if route.port == 3000)
    with urlopen(url) as response:
        return response.read().decode()


def main():
    with sandbox.create_sandbox(name=f"example-{uuid4().hex[:8]}", ports=[3000], env=ENV) as box:
        print(f"created {box.name}")
        box.fs.write_text("server.mjs", SERVER)
        run(box, "npm", "install", "--no-audit", "--no-fund", "ms@2.1.3")

        serve(box)
        print("preview:", preview(box))

        snapshot = box.snapshot()  # it stops, and the next call starts it again
        run(box, "ls", "node_modules")

        with sandbox.create_sandbox(source=SnapshotSource(snapshot_id=snapshot.id), ports=[3000]) as restored:
            serve(restored)
            print("preview of what was restored:", preview(restored))

        box.update_network_policy(NetworkPolicy.deny_all())
        run(box, "curl", "-sS", "--max-time", "10", API)

        # The key is put on requests outside of the sandbox, which never has it.
        key = NetworkPolicyTransform(headers={"authorization": "Bearer a-key-that-is-not-in-the-sandbox"})
        host = urlsplit(API).hostname
        box.update_network_policy(NetworkPolicy.custom({host: [NetworkPolicyRule(transform=[key])]}))
        run(box, "curl", "-sS", API)


with session():
    main()
