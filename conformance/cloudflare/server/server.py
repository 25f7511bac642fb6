# A stand-in for the control server of Cloudflare's sandbox image, which no registry of
# packages has: the routes that examples/cloudflare uses, as the SDK's HTTP transport
# calls them. Sessions keep no state: each command is a shell of its own.
import json
import os
import subprocess
import time
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WORKSPACE = "/workspace"


def now():
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def write(body):
    path = os.path.join(WORKSPACE, body["path"])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(body["content"])
    return {"path": path}


def execute(body):
    begun = time.monotonic()
    env = {**os.environ, **{k: v for k, v in (body.get("env") or {}).items() if v is not None}}
    done = subprocess.run(
        ["sh", "-c", body["command"]], cwd=body.get("cwd") or WORKSPACE, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=body["timeoutMs"] / 1000 if body.get("timeoutMs") else None,
    )
    return {
        "success": done.returncode == 0, "exitCode": done.returncode, "stdout": done.stdout, "stderr": done.stderr,
        "command": body["command"], "duration": int(1000 * (time.monotonic() - begun)), "sessionId": body.get("sessionId"),
    }


def create_session(body):
    return {"data": {"id": body.get("id")}, "containerPlacementId": None}


POST = {"/api/write": write, "/api/execute": execute, "/api/session/create": create_session}
GET = {
    "/api/ping": lambda: {"status": "healthy", "message": "pong"},
    "/api/health": lambda: {"status": "healthy"},
    "/api/version": lambda: {"version": os.environ.get("SANDBOX_VERSION", "unknown")},
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status, body):
        data = json.dumps({"success": status == 200, "timestamp": now(), **body}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def fail(self, status, code, message):
        self.answer(status, {"code": code, "message": message, "context": {}, "httpStatus": status})

    def do_GET(self):
        path = self.path.split("?")[0]
        if path not in GET:
            return self.fail(404, "UNKNOWN_ERROR", "this stand-in has no GET " + path)
        self.answer(200, GET[path]())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.path not in POST:
            return self.fail(404, "UNKNOWN_ERROR", "this stand-in has no POST " + self.path)
        try:
            self.answer(200, POST[self.path](body))
        except subprocess.TimeoutExpired as e:
            self.fail(500, "COMMAND_EXECUTION_ERROR", f"Command timeout after {body['timeoutMs']}ms: {e}")
        except OSError as e:
            self.fail(500, "FILESYSTEM_ERROR", str(e))

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


os.makedirs(WORKSPACE, exist_ok=True)
Server(("0.0.0.0", 3000), Handler).serve_forever()
