"""What the client for Python does, against the daemon that the environment names."""

import io
import json
import os
import signal
import subprocess
import urllib.request
from urllib.parse import urlsplit
from datetime import timedelta

from runner import WORLD, api, case, each, entered, fails, main, now, unique

TWO_DAYS = 2 * 24 * 3600


async def sh(box, line, **params):
    done = await now(box.run_process("sh", ["-c", line], capture_output=True, check=True, **params))
    return done.stdout


# Sandboxes.


@case
async def create_and_destroy(here):
    name = unique("all")
    async with entered(
        api.create_sandbox(
            name=name,
            image="vercel/sandbox/universal:latest",
            ports=[3000, 8080],
            execution_time_limit=timedelta(minutes=10),
            resources=api.SandboxResources(vcpus=4),
            persistent=True,
            network_policy=api.NetworkPolicy.allow_all(),
            env={"A": "1"},
            tags={"a": "b"},
            snapshot_expiration=api.SnapshotExpiration(TWO_DAYS),
            snapshot_retention=api.SnapshotRetention(count=3, expiration=TWO_DAYS, delete_evicted=False),
        )
    ) as box:
        assert (box.name, box.status, box.persistent, box.tags) == (name, api.SandboxStatus.RUNNING, True, {"a": "b"})
        assert (box.vcpus, box.memory, box.region, box.cwd) == (4, 8192, "iad1", "/vercel/sandbox")
        assert box.project_id == WORLD["projectId"]
        assert box.execution_time_limit == timedelta(minutes=10)
        assert box.network_policy.mode == "allow-all" and box.network_id is None and not box.mounts and not box.failover_regions
        assert box.snapshot_expiration == timedelta(days=2)
        kept = box.snapshot_retention
        assert (kept.count, kept.delete_evicted) == (3, False), kept
        assert sorted(r.port for r in box.routes) == [3000, 8080]
        assert box.image and box.raw["name"] == name and box.current_snapshot_id is None
        assert 0 < box.created_at <= box.updated_at and box.status_updated_at >= box.created_at
        assert box.current_session.id == box.current_session_id
        assert await sh(box, "echo $A") == "1\n"
    assert box.status == api.SandboxStatus.STOPPED
    error = await fails(api.SandboxApiError, lambda: api.get_sandbox(name=name))
    assert (error.status_code, error.code) == (404, "not_found"), error.data


@case
async def create_and_only_stop(here):
    name = unique("kept")
    here.made.append(name)
    async with entered(api.create_sandbox(name=name, destroy=False)) as box:
        await now(box.fs.write_text("file", "kept"))
    again = await now(api.get_sandbox(name=name, include_system_routes=True))
    assert again.status == api.SandboxStatus.STOPPED and again.current_snapshot_id
    async with entered(api.resume_sandbox(name=name)) as again:
        assert await now(again.fs.read_text("file")) == "kept"
    again = await now(api.resume_sandbox(name=name))
    assert again.status == api.SandboxStatus.RUNNING


@case
async def get_or_create(here):
    name = unique("either")
    here.made.append(name)
    box, created = await now(api.get_or_create_sandbox(name=name, env={"A": "1"}))
    assert created and await sh(box, "echo $A; echo kept > file") == "1\n"
    same, created = await now(api.get_or_create_sandbox(name=name))
    assert not created and same.current_session_id == box.current_session_id
    await now(box.stop())
    stopped, created = await now(api.get_or_create_sandbox(name=name, resume=False))
    assert not created and stopped.status == api.SandboxStatus.STOPPED
    resumed, created = await now(api.get_or_create_sandbox(name=name))
    assert not created and resumed.status == api.SandboxStatus.RUNNING
    assert await sh(resumed, "cat file") == "kept\n"
    # One whose snapshot is gone is made anew.
    await now(resumed.stop())
    for snapshot in await now(resumed.list_snapshots()):
        await now(snapshot.delete())
    anew, created = await now(api.get_or_create_sandbox(name=name))
    assert created and "file" not in [e.path for e in await now(anew.fs.listdir("."))]


@case
async def update(here):
    box = await here.fresh()
    first = box.current_session_id
    await now(
        box.update(
            ports=[4000],
            execution_time_limit=900,
            resources=api.SandboxResources(vcpus=1),
            persistent=True,
            network_policy=api.NetworkPolicy.deny_all(),
            env={"B": "2"},
            tags={"c": "d"},
            snapshot_expiration=0,
            snapshot_retention=api.SnapshotRetention(count=2),
        )
    )
    box = await now(api.get_sandbox(name=box.name))
    assert (box.vcpus, box.tags, [r.port for r in box.routes]) == (1, {"c": "d"}, [4000])
    assert box.execution_time_limit == timedelta(minutes=15) and box.snapshot_expiration == timedelta(0)
    assert box.network_policy.mode == "deny-all" and box.snapshot_retention.count == 2
    await now(box.update(snapshot_retention=None, tags={}, ports=[]))
    assert box.snapshot_retention is None and not box.tags and not box.routes
    await now(box.stop())
    assert await sh(box, "echo $B") == "2\n"
    assert box.current_session_id != first


@case
async def extend_and_policies(here):
    box = await here.fresh()
    before = box.current_session.execution_time_limit
    await now(box.extend_execution_time_limit(60))
    assert box.current_session.execution_time_limit == before + timedelta(minutes=1)
    running = await now(box.session())
    await now(running.extend_execution_time_limit(timedelta(minutes=1)))
    assert running.execution_time_limit == before + timedelta(minutes=2)
    error = await fails(api.SandboxApiError, lambda: box.extend_execution_time_limit(timedelta(days=30)))
    assert (error.status_code, error.code) == (400, "sandbox_timeout_invalid"), error.data

    M, KV = api.NetworkPolicyMatcher, api.NetworkPolicyKeyValueMatcher
    matcher = api.NetworkPolicyRequestMatcher(
        method=["GET"],
        path=M("starts_with", "/python"),
        headers=[KV(key=M("exact", "x-asked"), value=M("regex", "^y"))],
    )
    rule = api.NetworkPolicyRule(match=matcher, transform=[api.NetworkPolicyTransform(headers={"X-Key": "secret"})])
    policy = api.NetworkPolicy.custom(
        {"api.example.com": [rule], "*.example.org": []},
        subnets=api.NetworkPolicySubnets(allow=["192.0.2.0/24"], deny=["198.51.100.0/24"]),
    )
    await now(box.update_network_policy(policy))
    got = box.current_session.network_policy
    assert got.mode == "custom" and set(got.allowed_domains) == {"api.example.com", "*.example.org"}, got
    assert got.subnets == policy.subnets, got
    told = got.injection_rules[0]
    assert told.domain == "api.example.com" and [n.lower() for n in told.header_names] == ["x-key"], told

    path = f"/{unique('python')}"
    await sh(box, f"curl -sS -H 'x-asked: yes' https://api.example.com{path}")
    with urllib.request.urlopen(f"{WORLD['control']}/requests?path={path}") as answer:
        seen = json.load(answer)
    assert "secret" in json.dumps(seen), seen
    await now(running.update_network_policy(api.NetworkPolicy.deny_all()))
    assert running.network_policy.mode == "deny-all"
    done = await now(box.run_process("curl", ["-sS", "-m", "10", "https://api.example.com/"], capture_output=True))
    assert done.returncode != 0


@case
async def previews(here):
    box = await here.fresh(ports=[3000], persistent=False)
    process = await now(box.create_process("python3", ["-u", "-m", "http.server", "3000"], stderr=subprocess.STDOUT))
    await for_line(process)
    url = next(r.url for r in box.routes if r.port == 3000)
    request = urllib.request.Request(url)
    if "CAY_BASE_URL" in os.environ:  # not every resolver knows the names below localhost
        request = urllib.request.Request(WORLD["url"], headers={"Host": urlsplit(url).netloc})
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200 and "Directory listing" in answer.read().decode()
    await now(process.kill())


# Sources.


@case
async def sources(here):
    box = await here.fresh(
        source=api.GitSource(url="https://git.example.com/private/project.git", depth=1, revision="side",
                             username="x-access-token", password="open-sesame"),
        persistent=False,
    )
    assert "from the side" in await sh(box, "cat greeting.txt || cat */greeting.txt")
    box = await here.fresh(source=api.TarballSource(url="https://archive.example.com/project.tar.gz"), persistent=False)
    assert await sh(box, "cat sub/file.txt") == "in the archive\n"


# Processes.


@case
async def run_process(here):
    box = await here.box()
    out, err = io.StringIO(), io.StringIO()
    done = await now(
        box.run_process("sh", ["-c", "echo $A $SHARED; pwd; id -u; echo no >&2; exit 3"],
                        cwd="/tmp", env={"A": "1"}, sudo=True, stdout=out, stderr=err)
    )
    assert (done.returncode, out.getvalue(), err.getvalue()) == (3, "1 by all\n/tmp\n0\n", "no\n"), done
    assert done.id and done.name == "sh" and done.args[0] == "sh" and done.cwd == "/tmp" and done.started_at > 0
    done = await now(box.run_process("sh", ["-c", "echo a; echo b >&2"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    assert sorted(done.stdout) == sorted("a\nb\n") and done.stderr is None
    assert (await now(box.run_process("true", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))).stdout is None
    done = await now(box.run_process("sleep", ["600"], kill_after=1, capture_output=True))
    assert done.returncode == 137, done
    await fails(subprocess.CalledProcessError, lambda: box.run_process("false", check=True, capture_output=True))
    error = await fails(api.SandboxApiError, lambda: box.run_process("no-such-program", capture_output=True))
    assert (error.status_code, error.code) == (400, "executable_not_found"), error.data


@case
async def run_process_much_output(here):
    done = await now((await here.box()).run_process("seq", ["200000"], capture_output=True))
    assert done.stdout == "".join(f"{i}\n" for i in range(1, 200001))


async def for_line(process):
    """The first line that a process writes."""
    if hasattr(process.stdout, "__aiter__"):
        async for line in process.stdout:
            return line
    for line in process.stdout:
        return line


@case
async def create_process(here):
    box = await here.box()
    process = await now(box.create_process("sh", ["-c", "echo out; echo err >&2; exit 4"], cwd="/tmp", env={"A": "1"}))
    assert process.returncode is None and process.stdin is None and process.cwd == "/tmp"
    assert await now(process.communicate()) == ("out\n", "err\n")
    assert (process.returncode, process.status) == (4, api.ProcessStatus.EXITED)
    assert (process.name, process.args[0], process.session_id) == ("sh", "-c", box.current_session_id)
    await fails(ValueError, lambda: process.communicate(input="x"))

    merged = await now(box.create_process("sh", ["-c", "echo a; echo b >&2"], stderr=subprocess.STDOUT))
    out, err = await now(merged.communicate())
    assert sorted(out) == sorted("a\nb\n") and err is None
    dropped = await now(box.create_process("echo", ["a"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    assert await now(dropped.communicate()) == (None, None)
    limited = await now(box.create_process("sleep", ["600"], kill_after=timedelta(seconds=1)))
    assert await now(limited.wait()) == 137
    error = await fails(api.SandboxApiError, lambda: box.create_process("no-such-program"))
    assert error.code == "executable_not_found", error.data


@case
async def signals(here):
    box = await here.box()
    line = "trap 'echo got-int; exit 5' INT; trap 'echo got-term; exit 6' TERM; echo ready; while :; do sleep 0.1; done"
    process = await now(box.create_process("sh", ["-c", line], sudo=True))
    assert await for_line(process) == "ready\n"
    await now(process.send_signal("INT"))
    assert await now(process.wait()) == 5
    process = await now(box.create_process("sh", ["-c", line]))
    assert await for_line(process) == "ready\n"
    await now(process.terminate())
    assert await now(process.stdout.read()) == "got-term\n" and await now(process.wait()) == 6
    process = await now(box.create_process("sleep", ["600"]))
    await now(process.refresh())
    assert process.status == api.ProcessStatus.RUNNING
    await now(process.kill())
    assert await now(process.wait()) == 137
    process = await now(box.create_process("sleep", ["600"]))
    await now(process.send_signal(signal.SIGHUP))
    assert await now(process.wait()) == 129


@case
async def find_processes(here):
    box = await here.box()
    process = await now(box.create_process("sh", ["-c", "echo found; exit 7"]))
    assert process.id in [p.id for p in await now(box.query_processes())]
    found = await now(box.get_process(process.id, wait=True))
    assert (found.returncode, found.started_at) == (7, process.started_at)
    assert await now(found.stdout.read()) == "found\n"
    assert (await now(box.get_process(process.id))).returncode == 7
    error = await fails(api.SandboxApiError, lambda: box.get_process("cmd_none"))
    assert (error.status_code, error.code) == (404, "not_found"), error.data


# Sessions.


@case
async def sessions(here):
    box = await here.fresh()
    async with entered(box.session()) as running:
        assert (running.status, running.sandbox_name, running.project_id) == (
            api.SandboxStatus.RUNNING, box.name, WORLD["projectId"])
        assert (running.vcpus, running.memory, running.region, running.cwd) == (2, 4096, "iad1", "/vercel/sandbox")
        assert running.requested_at <= running.started_at and running.stopped_at is None
        assert running.network_policy.mode == "allow-all" and running.network_id is None
        assert (await now(running.run_process("echo", ["a"], capture_output=True))).stdout == "a\n"
        process = await now(running.create_process("echo", ["b"]))
        assert (await now(running.get_process(process.id, wait=True))).returncode == 0
        assert len(await now(running.query_processes())) == 2
        await now(running.fs.write_text("file", "kept"))
        await now(running.refresh(include_system_routes=True))
    assert running.status == api.SandboxStatus.STOPPED and running.stopped_at >= running.started_at
    error = await fails(api.SandboxApiError, lambda: running.run_process("true", capture_output=True))
    assert (error.status_code, error.code) == (410, "sandbox_stopped"), error.data

    # Any other call resumes the sandbox.
    assert await now(box.fs.read_text("file")) == "kept"
    second = await now(box.session())
    assert second.id != running.id
    assert [s.id for s in await now(box.list_sessions())] == [second.id, running.id]
    assert [s.id for s in await now(box.list_sessions(sort_order="asc", page_size=1))] == [running.id]
    found = await each(api.query_sessions(name=box.name, sort_order="asc", page_size=1))
    assert [s.id for s in found] == [running.id, second.id]
    await now(second.stop())
    await now(box.stop())  # once more is no error


# Snapshots.


@case
async def snapshots(here):
    box = await here.fresh()
    await now(box.fs.write_text("file", "one"))
    first = await now(box.snapshot(expiration=TWO_DAYS))
    assert (first.status, first.region, first.source_session_id) == ("created", "iad1", box.current_session_id)
    assert first.regions == ("iad1",) and first.size_bytes > 0 and first.creation_method == "manual" and first.parent_id is None
    assert abs(first.expires_at - first.created_at - TWO_DAYS * 1000) < 60_000
    assert first.updated_at >= first.created_at
    await now(box.fs.write_text("file", "two"))
    running = await now(box.session())
    second = await now(running.snapshot(expiration=0))
    assert second.parent_id == first.id and second.expires_at is None
    assert [s.id for s in await now(box.list_snapshots())] == [second.id, first.id]
    found = await each(api.query_snapshots(name=box.name, page_size=1, sort_order="asc"))
    assert [s.id for s in found] == [first.id, second.id]

    restored = await here.fresh(source=api.SnapshotSource(snapshot_id=first.id), persistent=False)
    assert await now(restored.fs.read_text("file")) == "one"
    await now(box.update(current_snapshot_id=first.id))
    assert box.current_snapshot_id == first.id and await now(box.fs.read_text("file")) == "one"

    same = await now(api.get_snapshot(snapshot_id=first.id))
    assert same.last_used_at >= same.created_at
    await now(same.delete())
    assert same.status == "deleted"
    error = await fails(api.SandboxApiError, lambda: api.create_sandbox(source=api.SnapshotSource(snapshot_id=first.id)))
    assert (error.status_code, error.code) == (410, "snapshot_not_found"), error.data
    error = await fails(api.SandboxApiError, lambda: api.get_snapshot(snapshot_id="snap_none"))
    assert (error.status_code, error.code) == (404, "not_found"), error.data


# Forks and drives.


@case
async def forks(here):
    box = await here.fresh(env={"A": "1"}, tags={"of": "fork"})
    await now(box.fs.write_text("file", "kept"))
    await now(box.stop())
    name = unique("fork")
    async with entered(api.fork_sandbox(source_sandbox=box.name, name=name, tags={"b": "2"})) as copy:
        assert (copy.name, copy.tags) == (name, {"b": "2"})
        assert await sh(copy, "echo $A; cat file") == "1\nkept"
    error = await fails(api.SandboxApiError, lambda: api.fork_sandbox(source_sandbox="nowhere"))
    assert (error.status_code, error.code) == (404, "not_found"), error.data


@case
async def drives(here):
    name = unique("drive")
    drive, created = await now(api.get_or_create_drive(name=name, max_size_bytes=64 << 20))
    assert created and (drive.name, drive.project_id, drive.region, drive.max_size_bytes) == (name, WORLD["projectId"], "iad1", 64 << 20)
    assert drive.parent_drive_id is None and drive.root_drive_id in (None, drive.id) and 0 < drive.created_at <= drive.updated_at
    same, created = await now(api.get_or_create_drive(name=name))
    assert not created and same.id == drive.id
    box = await here.fresh(mounts={"/data": drive}, persistent=False)
    await sh(box, "echo kept > /data/file")
    held = await now(api.get_drive(name_or_id=name))
    assert (held.current_sandbox_name, held.current_session_id) == (box.name, box.current_session_id)
    await now(box.stop())
    copy = await now(drive.fork(name=f"{name}-copy"))
    assert copy.parent_drive_id == drive.id and copy.root_drive_id is None  # the root is not told
    other = await now(api.fork_drive(source=name, name=f"{name}-other"))
    reader = await here.fresh(mounts={"/data": copy.snapshot()}, persistent=False)
    assert [m.mode for m in reader.mounts.values()] == ["snapshot"]
    assert await sh(reader, "cat /data/file") == "kept\n"
    await now(reader.stop())
    found = await each(api.query_drives(query=api.DriveQueryByName(name_prefix=name, sort_order="asc"), page_size=1))
    assert [d.id for d in found] == [drive.id, copy.id, other.id]
    await now(copy.delete())
    await now(other.delete())
    await now(api.delete_drive(name=name))
    error = await fails(api.SandboxApiError, lambda: api.get_drive(name_or_id=name))
    assert error.status_code == 404, error.data


# Users and terminals.


@case
async def users(here):
    box = await here.fresh(persistent=False)
    running = await now(box.session())
    for owner, name in ((box, "ada"), (running, "grace")):
        user = await now(owner.create_user(name))
        assert (user.username, await sh(user, "id -un; pwd")) == (name, f"{name}\n/home/{name}\n")
        await now(user.fs.write_text("note", "mine"))
        assert await sh(box, f"sudo stat -c %U /home/{name}/note") == f"{name}\n"
        assert await sh(owner.as_user(name), "cat note") == "mine"
        await fails(api.SandboxUserAlreadyExistsError, lambda: owner.create_user(name))
    assert await sh(box.as_user("root"), "id -u") == "0\n"


@case
async def terminals(here):
    box = await here.fresh(persistent=False)
    running = await now(box.session())
    for owner in (box, running):
        async with entered(owner.open_interactive("/bin/bash", ["--norc"], cols=100, rows=30)) as pty:
            await now(pty.resize(120, 40))
            stream, line = pty.stream, b"stty size; exit 7\n"
            if hasattr(stream, "send"):
                await stream.send(line)
                await fails(NotImplementedError, stream.send_eof)
            else:
                assert stream.readable() and stream.writable() and stream.write(line) == len(line)
            seen = b""
            while b"40 120" not in seen:
                part = await stream.receive() if hasattr(stream, "receive") else stream.read(65536)
                assert part, seen
                seen += part
            assert await now(pty.wait()) == 7 and pty.returncode == 7
            for end in (stream, pty):
                await now((end.aclose if hasattr(end, "aclose") else end.close)())


# Lists.


@case
async def lists(here):
    prefix = unique("list")
    tag = api.TagFilter(key="of", value=prefix)
    for i in range(3):
        await here.fresh(name=f"{prefix}-{i}", tags={"of": prefix}, persistent=False)
    by_name = api.SandboxQueryByName(sort_order="asc", name_prefix=prefix)
    assert [b.name[-1] for b in await each(api.query_sandboxes(query=by_name, page_size=2))] == ["0", "1", "2"]
    newest = api.SandboxQueryByCreatedAt(tag=tag)
    assert [b.name[-1] for b in await each(api.query_sandboxes(query=newest, page_size=1))] == ["2", "1", "0"]
    await now((await now(api.get_sandbox(name=f"{prefix}-0"))).stop())
    changed = await each(api.query_sandboxes(query=api.SandboxQueryByStatusUpdatedAt()))
    assert [b.name[-1] for b in changed if b.name.startswith(prefix)] == ["0", "2", "1"]
    assert len(await each(api.query_sandboxes(query=api.SandboxQueryByCurrentSnapshotId()))) >= 3
    error = await fails(api.SandboxApiError, lambda: each(api.query_sandboxes(cursor="none")))
    assert error.status_code == 400, error.data


# Files.


@case
async def files(here):
    box, dir = await here.box(), await here.dir()
    fs = box.fs
    await now(fs.write_text("a.txt", "text ä", cwd=dir, encoding="latin-1", mode=0o600))
    assert await now(fs.read_bytes(f"{dir}/a.txt")) == "text ä".encode("latin-1")
    assert await now(fs.read_text("a.txt", cwd=dir, encoding="latin-1")) == "text ä"
    assert await sh(box, f"stat -c %a {dir}/a.txt") == "600\n"
    await now(fs.write_bytes(f"{dir}/deep/er/b", bytes(range(256))))
    assert await now(fs.read_bytes("b", cwd=f"{dir}/deep/er")) == bytes(range(256))
    await now(fs.mkdir("one/two", cwd=dir))
    await now(fs.mkdir("one/two", cwd=dir, recursive=True))
    await fails(api.SandboxPathNotFoundError, lambda: fs.mkdir("no/parent", cwd=dir, recursive=False))
    await sh(box, "ln -s a.txt link", cwd=dir)
    entries = {(e.path, e.kind) for e in await now(fs.listdir(dir))}
    assert entries == {("a.txt", "file"), ("deep", "directory"), ("one", "directory"), ("link", "symlink")}, entries
    assert await now(fs.exists("a.txt", cwd=dir)) and not await now(fs.exists("none", cwd=dir))
    assert await now(fs.is_file(f"{dir}/a.txt")) and not await now(fs.is_file(dir))
    assert await now(fs.is_dir(dir)) and not await now(fs.is_dir(f"{dir}/a.txt"))
    await now(fs.rename("a.txt", "c.txt", cwd=dir))
    assert await now(fs.exists(f"{dir}/c.txt"))
    await now(fs.remove("c.txt", cwd=dir))
    await now(fs.remove("deep", cwd=dir, recursive=True))
    await now(fs.remove("none", cwd=dir, missing_ok=True))
    await fails(api.SandboxFilesystemCommandError, lambda: fs.remove("none", cwd=dir))
    await fails(api.SandboxFilesystemCommandError, lambda: fs.listdir(f"{dir}/none"))
    error = await fails(api.SandboxPathNotFoundError, lambda: fs.read_bytes(f"{dir}/none"))
    assert error.path == f"{dir}/none"
    await fails(api.SandboxFilesystemWriteError, lambda: fs.write_text("/proc/version", "no"))


@case
async def files_in_a_batch(here):
    box, dir = await here.box(), await here.dir()
    async with entered(box.fs.batch(cwd=dir)) as batch:
        batch.write_text("a", "one")
        batch.write_bytes("deep/b", b"two", mode=0o755)
    assert await sh(box, "cat a deep/b; stat -c ' %a' deep/b", cwd=dir) == "onetwo 755\n"


@case
async def open_files(here):
    box, dir = await here.box(), await here.dir()
    fs = box.fs
    part = bytes(range(256)) * 4096
    async with entered(fs.open("big", "wb", cwd=dir, size=8 * len(part), permissions=0o640)) as f:
        assert f.writable() and not f.readable() and not f.seekable() and f.mode == "wb" and not f.closed
        for _ in range(4):
            assert await now(f.write(part)) == len(part)
        await now(f.writelines([part] * 4))
        await now(f.flush())
    assert f.closed and await sh(box, "stat -c '%s %a' big", cwd=dir) == f"{8 * len(part)} 640\n"
    async with entered(fs.open(f"{dir}/big", "rb")) as f:
        assert f.name.endswith("big") and await now(f.read(10)) == part[:10]
        buffer = bytearray(6)
        assert await now(f.readinto(buffer)) == 6 and bytes(buffer) == part[10:16]
        assert await now(f.readline()) == part[16 : part.index(b"\n", 16) + 1]
        rest = await now(f.read())
        assert len(rest) > 7 * len(part) and rest[-256:] == part[-256:]
    async with entered(fs.open("unsized", "wb", cwd=dir)) as f:
        await now(f.write(part))
    assert await now(fs.read_bytes("unsized", cwd=dir)) == part

    async with entered(fs.open("text", "w", cwd=dir, newline="\n")) as f:
        await now(f.write("ä one\n"))
        await now(f.writelines(["two\n", "three\n"]))
        await now(f.flush())
    async with entered(fs.open("text", "r", cwd=dir)) as f:
        assert await now(f.readline()) == "ä one\n"
        assert await now(f.read(2)) == "tw"
        assert await each(f) == ["o\n", "three\n"]
    async with entered(fs.open("text", "rb", cwd=dir)) as f:
        assert len(await each(f)) == 3
    for mode in ("r", "rb"):
        error = await fails(api.SandboxPathNotFoundError, lambda: read_all(fs.open(f"{dir}/none", mode)))
        assert error.path
    await fails(api.SandboxUploadSizeMismatchError, lambda: write_short(fs.open("short", "wb", cwd=dir, size=10)))
    for kind in ("w", "wb"):
        f = fs.open("closed", kind, cwd=dir)
        async with entered(f):
            await now(f.write("" if kind == "w" else b""))
        await now(f.close() if hasattr(f, "close") else f.aclose())  # once more is no error


async def read_all(handle):
    async with entered(handle) as f:
        return await now(f.read())


async def write_short(handle):
    async with entered(handle) as f:
        await now(f.write(b"short"))


# Errors.


@case
async def errors(here):
    box = await here.box()
    error = await fails(api.SandboxApiError, lambda: api.create_sandbox(name=box.name))
    assert (error.status_code, error.code) == (400, "bad_request"), error.data
    assert "already exists" in str(error), error
    for wrong in ({"ports": [70000]}, {"resources": api.SandboxResources(vcpus=3)}, {"image": "vercel/sandbox/arch"}):
        error = await fails(api.SandboxApiError, lambda: api.create_sandbox(**wrong))
        assert (error.status_code, error.code) == (400, "bad_request"), error.data
    for call in (api.get_sandbox, api.resume_sandbox):
        error = await fails(api.SandboxApiError, lambda: call(name="nowhere"))
        assert (error.status_code, error.code) == (404, "not_found"), error.data


main()
