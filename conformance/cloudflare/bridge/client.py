"""The Cloudflare client of the OpenAI Agents SDK for Python, unmodified, against the
bridge at CAY_BRIDGE. Each step is a line: "ok NAME" or "not ok NAME: why"."""

import asyncio
import io
import os
import re
import sys
import tarfile
import tempfile
from pathlib import Path

from agents.extensions.sandbox.cloudflare import CloudflareSandboxClient, CloudflareSandboxClientOptions
from agents.sandbox import ExecTimeoutError, LocalSnapshotSpec, Manifest, SandboxError, WorkspaceReadNotFoundError
from agents.sandbox.entries import Dir, File

options = CloudflareSandboxClientOptions(worker_url=os.environ["CAY_BRIDGE"], api_key=os.environ["CAY_TOKEN"])
os.environ["CLOUDFLARE_SANDBOX_API_KEY"] = os.environ["CAY_TOKEN"]  # which resume uses
client = CloudflareSandboxClient()
snapshots = LocalSnapshotSpec(base_path=Path(tempfile.mkdtemp(dir=os.environ["HOME"])))
manifest = Manifest(
    entries={"notes/hello.txt": File(content=b"from the manifest\n"), "empty": Dir(children={"a": File(content=b"a")})},
    environment={"value": {"GREETING": "hi", "ODD": "it's $HOME"}},
)
steps = []


def step(name):
    def add(f):
        steps.append((name, f))
        return f

    return add


class Box:
    session = None
    archive = b""
    state = None


async def run(session, *command, **more):
    r = await session.exec(*command, **more)
    return r.exit_code, r.stdout, r.stderr


@step("create and start")
async def _():
    Box.session = await client.create(snapshot=snapshots, manifest=manifest, options=options)
    assert re.fullmatch("[a-z2-7]{26}", Box.session.state.sandbox_id), Box.session.state
    await Box.session.start()
    assert await Box.session.running()


@step("exec")
async def _():
    got = await run(Box.session, 'echo "$GREETING $ODD from $(pwd)"; cat notes/hello.txt empty/a; uname -r; id -un')
    assert got[0] == 0 and got[1].startswith(b"hi it's $HOME from /workspace\nfrom the manifest\na4.19.0-gvisor\nroot\n"), got


@step("exec of a program")
async def _():
    got = await run(Box.session, "printf", "%s|", "it's", "$HOME", "a b", "", shell=False)
    assert got == (0, b"it's|$HOME|a b||", b""), got


@step("exec that fails")
async def _():
    got = await run(Box.session, "echo out; echo err >&2; exit 3")
    assert got == (3, b"out\n", b"err\n"), got
    assert (await run(Box.session, "no-such-program", shell=False))[0] == 127


@step("bytes")
async def _():
    got = await run(Box.session, r"printf '\000\377\342\202'; sleep 0.2; printf '\254\n'")
    assert got == (0, b"\x00\xff\xe2\x82\xac\n", b""), got


@step("programs")
async def _():
    got = await run(Box.session, 'python3 -c "print(6*7)" && node -e "console.log(6*7)"')
    assert got == (0, b"42\n42\n", b""), got


@step("exec that takes too long")
async def _():
    try:
        got = await run(Box.session, "sleep 600", timeout=0.5)
    except ExecTimeoutError:
        return
    assert got[0] == 124, got


@step("much output")
async def _():
    got = await run(Box.session, "head -c 3000000 /dev/zero | tr '\\0' x")
    assert got[0] == 0 and got[1] == b"x" * 3000000, (got[0], len(got[1]))


@step("calls at once")
async def _():
    got = await asyncio.gather(*(run(Box.session, f"echo {i}") for i in range(10)))
    assert got == [(0, b"%d\n" % i, b"") for i in range(10)], got


@step("files")
async def _():
    s, content = Box.session, bytes(range(256)) * 1000
    await s.write(Path("deep/er/raw bytes #1.bin"), io.BytesIO(content))
    assert (await s.read(Path("deep/er/raw bytes #1.bin"))).read() == content
    await s.mkdir(Path("made/by/mkdir"), parents=True)
    await s.mv(Path("deep/er/raw bytes #1.bin"), Path("made/raw"))
    assert sorted(Path(e.path).name for e in await s.ls(Path("made")) if Path(e.path).name not in (".", "..")) == ["by", "raw"]
    await s.rm(Path("made"), recursive=True)
    assert (await run(s, "ls -A deep/er; test ! -e made"))[:2] == (0, b"")
    await s.write(Path("data: x"), io.BytesIO(b"data: {\"type\":\"none\"}\n"))
    assert (await s.read(Path("data: x"))).read() == b"data: {\"type\":\"none\"}\n"


@step("files that are missing")
async def _():
    try:
        await Box.session.read(Path("missing.txt"))
    except WorkspaceReadNotFoundError:
        return
    raise AssertionError("it was read")


@step("files outside of the workspace")
async def _():
    await Box.session.exec("ln -s /etc/passwd out")
    for path in ("/etc/passwd", "../etc/passwd", "out"):
        try:
            await Box.session.read(Path(path))
        except Exception:
            continue
        raise AssertionError(path + " was read")


@step("apply_patch")
async def _():
    s = Box.session
    await s.apply_patch({"type": "create_file", "path": "src/a.txt", "diff": "+one\n+two\n"})
    await s.apply_patch({"type": "update_file", "path": "src/a.txt", "diff": "@@\n one\n-two\n+three\n"})
    assert (await s.read(Path("src/a.txt"))).read().rstrip() == b"one\nthree"
    await s.apply_patch({"type": "delete_file", "path": "src/a.txt"})
    assert (await run(s, "test -e src/a.txt"))[0] == 1


@step("extract")
async def _():
    b = io.BytesIO()
    with tarfile.open(fileobj=b, mode="w") as t:
        info = tarfile.TarInfo("in/side.txt")
        info.size, info.mode = 4, 0o755
        t.addfile(info, io.BytesIO(b"side"))
    b.seek(0)
    await Box.session.extract("unpacked/a.tar", b)
    assert (await run(Box.session, "cat unpacked/in/side.txt"))[1] == b"side"


@step("terminal")
async def _():
    s = Box.session
    first = await s.pty_exec_start('tty; read -r line; echo "got:$line"; stty size', tty=True, yield_time_s=2)
    assert first.process_id is not None, first
    seen = first.output + (await s.pty_write_stdin(session_id=first.process_id, chars="ping\n", yield_time_s=2)).output
    for _ in range(10):
        if b"24 80" in seen:
            break
        seen += (await s.pty_write_stdin(session_id=first.process_id, chars="", yield_time_s=1)).output
    assert b"/dev/pts/" in seen and b"got:ping" in seen and b"24 80" in seen, seen
    last = await s.pty_write_stdin(session_id=first.process_id, chars="exit 5\n", yield_time_s=5)
    for _ in range(10):
        if last.exit_code is not None:
            break
        last = await s.pty_write_stdin(session_id=first.process_id, chars="", yield_time_s=1)
    assert last.exit_code == 5, last


@step("persist_workspace")
async def _():
    await Box.session.exec("mkdir -p d && echo kept > d/kept.txt && ln -s kept.txt d/link && chmod 755 d/kept.txt; rm -f out")
    Box.archive = (await Box.session.persist_workspace()).read()
    with tarfile.open(fileobj=io.BytesIO(Box.archive)) as t:
        names = {m.name.removeprefix("./") for m in t}
    assert {"d/kept.txt", "d/link", "notes/hello.txt"} <= names, names


@step("hydrate_workspace in another sandbox")
async def _():
    async with await client.create(options=options) as other:
        await other.hydrate_workspace(io.BytesIO(Box.archive))
        got = await run(other, "cat d/link notes/hello.txt; stat -c %a d/kept.txt")
        assert got == (0, b"kept\nfrom the manifest\n755\n", b""), got


@step("resume of a sandbox that runs")
async def _():
    Box.state = client.serialize_session_state(Box.session.state)
    again = await client.resume(client.deserialize_session_state(Box.state))
    await again.start()
    assert again.state.sandbox_id == Box.session.state.sandbox_id
    got = await run(again, "cat d/link")
    assert got == (0, b"kept\n", b""), got


@step("stop, delete, and resume from the snapshot")
async def _():
    await Box.session.exec("echo after > after.txt")
    await Box.session.stop()
    Box.state = client.serialize_session_state(Box.session.state)
    await client.delete(Box.session)
    again = await client.resume(client.deserialize_session_state(Box.state))
    await again.start()
    got = await run(again, 'cat after.txt d/link; echo "$GREETING"')
    assert got == (0, b"after\nkept\nhi\n", b""), got
    await again.shutdown()
    gone = await client.resume(client.deserialize_session_state(Box.state))
    assert not await gone.running()


@step("a wrong key")
async def _():
    wrong = CloudflareSandboxClientOptions(worker_url=os.environ["CAY_BRIDGE"], api_key="wrong")
    try:
        await client.create(options=wrong)
    except SandboxError as e:
        assert "401" in repr(e) or "nauthorized" in repr(e) or "401" in repr(getattr(e, "context", "")), e
        return
    raise AssertionError("it made a sandbox")


async def main():
    failed = False
    for name, f in steps:
        try:
            await f()
            print("ok " + name, flush=True)
        except Exception as e:
            failed = True
            why = f"{type(e).__name__} {e} {getattr(e, 'context', '')} {getattr(e, 'cause', '')}"
            print(f"not ok {name}: " + why.replace("\n", " "), flush=True)
    return failed


sys.exit(1 if asyncio.run(main()) else 0)
