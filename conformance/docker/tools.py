"""Two programs that run code in containers, unmodified, against a socket of cay:
Testcontainers, without its reaper, and llm-sandbox. Exits with 1 if one fails."""

import pathlib
import sys
import tempfile
import traceback
import urllib.request

from llm_sandbox import SandboxSession
from testcontainers.core.container import DockerContainer
from testcontainers.core.wait_strategies import HttpWaitStrategy, LogMessageWaitStrategy


def testcontainers():
    script = "cd /tmp; echo served >x; echo ready; exec python3 -m http.server 8000"
    box = DockerContainer("python3.13").with_command(["sh", "-c", script]).with_exposed_ports(8000).with_env("A", "1")
    with box.waiting_for(LogMessageWaitStrategy("ready")) as c:
        at = f"http://{c.get_container_host_ip()}:{c.get_exposed_port(8000)}/x"
        HttpWaitStrategy(8000, "/x").wait_until_ready(c)
        assert urllib.request.urlopen(at).read() == b"served\n"
        for _ in range(20):  # docker-py loses output that comes with the header; see cases.py
            code, out = c.exec(["sh", "-c", "echo $A; uname -r; exit 3"])
            if out:
                break
        assert code == 3 and b"gvisor" in out, (code, out)
        stdout, _ = c.get_logs()
        assert b"ready" in stdout, stdout


def llm_sandbox():
    with SandboxSession(
        lang="python", image="python3.13", keep_template=True, skip_environment_setup=True, runtime_configs={"command": "sleep infinity"}
    ) as s:
        r = s.run("print(6 * 7)")
        assert r.exit_code == 0 and r.stdout.strip() == "42", r
        r = s.run("import platform, sys; sys.stderr.write(platform.release()); sys.exit(3)")
        assert r.exit_code == 3 and "gvisor" in r.stderr, r
        with tempfile.TemporaryDirectory() as d:
            here = pathlib.Path(d)
            (here / "in").write_text("content")
            s.copy_to_runtime(str(here / "in"), "/tmp/in")
            r = s.run("open('/tmp/out', 'w').write(open('/tmp/in').read().upper())")
            assert r.exit_code == 0, r
            s.copy_from_runtime("/tmp/out", str(here / "out"))
            assert (here / "out").read_text() == "CONTENT"


failed = 0
for case in (testcontainers, llm_sandbox):
    try:
        case()
        print(f"ok {case.__name__}", flush=True)
    except Exception:
        failed += 1
        print(f"FAILED {case.__name__}\n{traceback.format_exc()}", flush=True)
sys.exit(failed > 0)
