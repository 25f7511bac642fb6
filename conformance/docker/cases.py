"""Some 40 calls of docker-py against a socket of cay. Each function is a case; the
program says which fail, and why, and exits with 1 if one does."""

import io
import os
import pathlib
import socket
import sys
import tarfile
import tempfile
import time
import traceback
import urllib.request

import docker
import docker.errors

client = docker.from_env(timeout=120)


def refused(status, call):
    """The call fails with a status."""
    try:
        call()
    except docker.errors.APIError as e:
        assert e.status_code == status, e
        return str(e)
    raise AssertionError("it is not refused")


def said(want, call):
    """The output is what is wanted. docker-py reads the header of an exec through a
    buffer, and the rest past it: what comes with the header is lost to it, with
    every engine. So a call that lacks output is made again."""
    for _ in range(20):
        got = call()
        if got == want:
            return
    raise AssertionError(f"{got!r} is not {want!r}")


def system():
    assert client.ping()
    assert client.version()["Os"] == "linux"
    assert client.info()["SecurityOptions"] == ["name=gvisor"]
    assert [n.name for n in client.networks.list()] == ["bridge"]
    assert client.volumes.list() == []


def images():
    names = [t for i in client.images.list() for t in i.tags]
    assert "debian:latest" in names, names
    assert client.images.get("debian").attrs["Os"] == "linux"
    refused(404, lambda: client.images.get("no/such:image"))


def run():
    assert client.containers.run("debian", ["echo", "hello"], remove=True) == b"hello\n"
    assert b"gvisor" in client.containers.run("debian", "uname -r", remove=True)
    out = client.containers.run("debian", ["sh", "-c", "echo $A; id -u; pwd"], environment={"A": "1"}, user="1000:1000", working_dir="/tmp", remove=True)
    assert out == b"1\n1000\n/tmp\n", out
    try:
        client.containers.run("debian", ["sh", "-c", "echo no >&2; exit 3"], remove=True)
        raise AssertionError("exit code 3 is no error")
    except docker.errors.ContainerError as e:
        assert e.exit_status == 3 and e.stderr == b"no\n", (e.exit_status, e.stderr)


def life():
    c = client.containers.create("debian", ["sh", "-c", "trap 'exit 9' TERM; echo up; while :; do sleep 0.1; done"], name="life", labels={"k": "v"})
    assert c.status == "created"
    refused(409, lambda: client.containers.create("debian", name="life"))
    c.start()
    c.reload()
    assert c.status == "running" and c.labels == {"k": "v"}
    lines = c.logs(stream=True, follow=True)
    assert next(lines) == b"up\n"
    lines.close()
    assert [x.id for x in client.containers.list(filters={"label": "k=v"})] == [c.id]
    assert client.containers.list(filters={"label": "k=w"}) == []
    assert client.containers.list(all=True, filters={"ancestor": "debian"}) != []
    assert any("sleep" in " ".join(p) or "trap" in " ".join(p) for p in c.top()["Processes"])
    refused(409, c.remove)
    c.stop(timeout=60)
    assert c.wait()["StatusCode"] == 9
    assert c.logs(stderr=False) == b"up\n"
    stamped = c.logs(stderr=False, timestamps=True).split(b" ")
    assert len(stamped) == 2 and stamped[1] == b"up\n" and stamped[0].endswith(b"Z"), stamped
    assert c.logs(since=int(time.time()) + 3600) == b"" and c.logs(until=int(time.time()) - 3600) == b""
    c.rename("other")
    c.start()
    c.restart(timeout=60)
    c.kill()
    assert c.wait()["StatusCode"] == 137
    c.remove()
    refused(404, c.reload)


def execs():
    c = client.containers.run("debian", "sleep 600", detach=True)
    try:
        said(b"out\n", lambda: c.exec_run("echo out").output)
        said((5, (b"out\n", b"err\n")), lambda: tuple(c.exec_run(["sh", "-c", "echo out; echo err >&2; exit 5"], demux=True)))
        said(b"/dev/pts/0\r\n", lambda: c.exec_run("tty", tty=True).output)
        said(b"1\n", lambda: c.exec_run(["sh", "-c", "echo $E"], environment=["E=1"], user="1000").output)
        said(b"a\nb\n", lambda: b"".join(c.exec_run(["sh", "-c", "echo a; echo b"], stream=True).output))
        assert c.exec_run("true", detach=True).exit_code in (None, 0)
        assert c.exec_run("no-such-program").exit_code == 127
        s = c.exec_run("cat", stdin=True, socket=True).output
        s._sock.sendall(b"through\n")
        s._sock.shutdown(socket.SHUT_WR)
        data = b""
        while chunk := s._sock.recv(4096):
            data += chunk
        assert data == b"\x01\0\0\0\0\0\0\x08through\n", data
        refused(400, lambda: c.exec_run("true", privileged=True))
    finally:
        c.remove(force=True)


def pause():
    c = client.containers.run("debian", "sleep 600", detach=True)
    try:
        c.pause()
        c.reload()
        assert c.status == "paused", c.status
        refused(409, c.pause)
        c.unpause()
        c.reload()
        assert c.status == "running", c.status
        refused(409, c.unpause)
        now = c.stats(stream=False)
        assert now["name"] == "/" + c.name and now["memory_stats"]["usage"] > 0 and now["pids_stats"]["current"] > 0, now
        stream = c.stats(stream=True, decode=True)
        first, second = next(stream), next(stream)
        stream.close()
        assert second["precpu_stats"] == first["cpu_stats"], (first, second)
    finally:
        c.remove(force=True)


def build():
    with tempfile.TemporaryDirectory() as d:
        here = pathlib.Path(d)
        (here / "f").write_text("content\n")
        (here / "Dockerfile").write_text("FROM debian\nARG A\nUSER root\nCOPY f /f\nRUN echo $A >/g\nCMD cat /f /g\n")
        img, log = client.images.build(path=d, tag="built:1", buildargs={"A": "given"})
        assert img.tags == ["built:1"], img.tags
        assert any("RUN" in line.get("stream", "") for line in log)
        assert client.containers.run("built:1", remove=True) == b"content\ngiven\n"
        archives(img)
        client.images.remove("built:1")
        (here / "Dockerfile").write_text("FROM debian\nRUN echo said; exit 3\n")
        try:
            client.images.build(path=d, tag="built:2")
            raise AssertionError("a step that fails is no error")
        except docker.errors.BuildError as e:
            assert "status 3" in e.msg, e.msg


def archives(img):
    """Saves an image, loads it, and sends it to a registry and back."""
    saved = b"".join(img.save(named=True))
    client.images.remove("built:1")
    refused(404, lambda: client.images.get("built:1"))
    assert client.images.load(saved)[0].id == img.id
    repository = os.environ["REGISTRY"] + "/team/built"
    assert img.tag(repository, "1")
    lines = list(client.images.push(repository, tag="1", stream=True, decode=True, auth_config={"username": "me", "password": "secret"}))
    pushed = [line["aux"]["Digest"] for line in lines if "aux" in line]
    assert len(pushed) == 1 and not any("error" in line for line in lines), lines
    client.images.remove(repository + ":1")
    assert client.images.pull(repository, tag="1").id == img.id
    assert client.images.pull(repository + "@" + pushed[0]).id == img.id
    client.images.remove(repository + ":1")
    client.images.remove(repository + "@" + pushed[0])


def volumes():
    v = client.volumes.create("data", labels={"k": "v"})
    assert [x.name for x in client.volumes.list(filters={"label": "k=v"})] == ["data"]
    mount = {"data": {"bind": "/mnt", "mode": "rw"}}
    client.containers.run("debian", ["sh", "-c", "echo kept >/mnt/file"], volumes=mount, user="root", remove=True)
    mount["data"]["mode"] = "ro"
    assert client.containers.run("debian", "cat /mnt/file", volumes=mount, remove=True) == b"kept\n"
    v.remove()
    refused(404, v.reload)


def files():
    c = client.containers.create("debian", "true")
    try:
        buf = io.BytesIO()
        with tarfile.open(fileobj=buf, mode="w") as t:
            info = tarfile.TarInfo("a.txt")
            info.size = 5
            t.addfile(info, io.BytesIO(b"hello"))
        assert c.put_archive("/tmp", buf.getvalue())
        chunks, stat = c.get_archive("/tmp/a.txt")
        assert stat["name"] == "a.txt" and stat["size"] == 5, stat
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as t:
            assert t.extractfile("a.txt").read() == b"hello"
        refused(404, lambda: c.get_archive("/none"))
    finally:
        c.remove(force=True)


def ports():
    for address in ("0.0.0.0", "127.0.0.1", "::", "::1"):
        served(address)


def served(address):
    serve = f"cd /tmp; echo served >x; exec python3 -m http.server --bind {address} 8000"
    c = client.containers.run("python3.13", ["sh", "-c", serve], ports={"8000/tcp": None}, detach=True)
    try:
        c.reload()
        settings = c.attrs["NetworkSettings"]
        assert [settings[k] or settings["Networks"]["bridge"][k] for k in ("GlobalIPv6Address", "GlobalIPv6PrefixLen", "IPv6Gateway")] == ["", 0, ""], settings
        at = c.ports["8000/tcp"][0]
        assert at["HostIp"] == "127.0.0.1", at
        for _ in range(100):
            try:
                assert urllib.request.urlopen(f"http://127.0.0.1:{at['HostPort']}/x").read() == b"served\n"
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise AssertionError("nothing is served on " + address)
    finally:
        c.remove(force=True)


def refusals():
    for option, value in {
        "privileged": True,
        "volumes": ["/:/host"],
        "devices": ["/dev/kmsg"],
        "network_mode": "host",
        "ipc_mode": "host",
        "read_only": True,
    }.items():
        assert "cay refuses" in refused(400, lambda: client.containers.create("debian", "true", **{option: value})), option


def events():
    stream = client.events(decode=True, filters={"event": "die"})
    client.containers.run("debian", ["sh", "-c", "exit 0"], remove=True)
    assert next(stream)["Actor"]["Attributes"]["exitCode"] == "0"
    stream.close()


failed = 0
for case in (system, images, run, life, execs, pause, build, volumes, files, ports, refusals, events):
    begun = time.monotonic()
    try:
        case()
        print(f"ok {case.__name__} {time.monotonic() - begun:.1f} s", flush=True)
    except Exception:
        failed += 1
        print(f"FAILED {case.__name__}\n{traceback.format_exc()}", flush=True)
left = client.containers.list(all=True)
print(f"{failed} cases failed, {len(left)} containers are left")
sys.exit(failed > 0 or len(left) > 0)
