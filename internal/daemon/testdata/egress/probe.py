"""Asks for URLs as a guest program would and says what came of each.

The first argument says with what to ask, python or curl; the second is a list of
probes, as JSON. Writes a list of results.
"""

import http.client
import json
import os
import socket
import ssl
import struct
import subprocess
import sys
import time
import urllib.parse

TIMEOUT = 10  # seconds
LOST = 3  # seconds after which a datagram is


def by_curl(p):
    cmd = ["curl", "-sS", "-m", str(TIMEOUT), "-D", "/tmp/head", "-o", "/tmp/body", "-w", "%{json}\n%{certs}"]
    cmd += ["--http2"] if p.get("proto") == "h2" else ["--http1.1"]
    if p.get("method"):
        cmd += ["-X", p["method"]]
    for k, v in p.get("headers", {}).items():
        cmd += ["-H", f"{k}: {v}"]
    if "body" in p:
        cmd += ["--data-binary", p["body"]]
    if p.get("at"):
        cmd += ["--connect-to", f"::{p['at']}:"]
    for f in ("/tmp/head", "/tmp/body"):
        open(f, "w").close()
    done = subprocess.run(cmd + [p["url"]], capture_output=True, text=True)
    report, _, certs = done.stdout.partition("\n")
    out = {"status": 0, "body": open("/tmp/body", errors="replace").read(), "headers": {}}
    for line in open("/tmp/head"):
        k, colon, v = line.partition(":")
        if colon:
            out["headers"][k.lower()] = v.strip()
    out["trailer"] = out["headers"].get("x-sum")
    report = json.loads(report)
    out["proto"] = {"2": "h2", "1.1": "h1"}.get(report["http_version"], "")
    out["status"] = report["http_code"]
    for line in certs.splitlines():
        if line.startswith("Issuer:"):
            out["issuer"] = line[len("Issuer:"):]
            break
    if done.returncode != 0:
        out["error"] = f"curl {done.returncode}: {done.stderr.strip()}"
        out["status"] = 0
    return out


def by_python(p):
    u = urllib.parse.urlsplit(p["url"])
    port = u.port or {"http": 80, "https": 443}[u.scheme]
    sock = socket.create_connection((p.get("at") or u.hostname, port), TIMEOUT)
    out = {"proto": "h1"}
    with sock:
        if u.scheme == "https":
            sock = ssl.create_default_context().wrap_socket(sock, server_hostname=u.hostname)
            out["issuer"] = str(sock.getpeercert()["issuer"])
        c = http.client.HTTPConnection(u.netloc)
        c.sock = sock
        path = (u.path or "/") + (f"?{u.query}" if u.query else "")
        headers = dict(p.get("headers", {}))
        body = p.get("body")
        c.request(p.get("method") or ("POST" if body is not None else "GET"), path,
                  body.encode() if body is not None else None, headers)
        r = c.getresponse()
        out["status"] = r.status
        out["headers"] = {k.lower(): v for k, v in r.getheaders()}
        out["body"] = r.read().decode(errors="replace")
    return out


def converse(sock, p):
    """Sends the body and reads until as much has come, or until the end."""
    data = p.get("body", "").encode()
    if data:
        sock.sendall(data)
    got = b""
    want = p.get("read", len(data))
    while len(got) < want:
        piece = sock.recv(65536)
        if not piece:
            break
        got += piece
    return {"body": got.decode(errors="replace"), "status": 0, **({} if got else {"error": "the connection ended"})}


def by_socket(p):
    u = urllib.parse.urlsplit(p["url"])
    host = p.get("at") or u.hostname
    if u.scheme == "udp":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(LOST)
            s.connect((host, u.port))
            return converse(s, p)
    with socket.create_connection((host, u.port), TIMEOUT) as s:
        if u.scheme == "pg":
            s.sendall(struct.pack(">II", 8, 80877103))
            answer = s.recv(1)
            if answer != b"S":
                raise OSError(f"SSLRequest answered with {answer!r}")
        if u.scheme in ("tls", "pg"):
            with ssl.create_default_context().wrap_socket(s, server_hostname=u.hostname) as t:
                return converse(t, p)
        return converse(s, p)


RCODES = {0: "NOERROR", 1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 5: "REFUSED"}
TYPES = {"A": 1, "AAAA": 28, "HTTPS": 65, "TXT": 16}


def by_dns(p):
    """dns://server/name?TYPE asks by UDP, dns+tcp:// by TCP."""
    u = urllib.parse.urlsplit(p["url"])
    labels = u.path.strip("/").split(".")
    q = struct.pack(">HHHHHH", os.getpid() & 0xFFFF, 0x0100, 1, 0, 0, 0)
    q += b"".join(bytes([len(l)]) + l.encode() for l in labels) + b"\0" + struct.pack(">HH", TYPES[u.query or "A"], 1)
    where = (u.hostname, u.port or 53)
    if u.scheme == "dns+tcp":
        with socket.create_connection(where, TIMEOUT) as s:
            s.sendall(struct.pack(">H", len(q)) + q)
            a = s.recv(65536)[2:]
    else:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(TIMEOUT)
            s.connect(where)
            s.send(q)
            a = s.recv(65536)
    _, flags, _, answers, _, _ = struct.unpack(">HHHHHH", a[:12])
    rcode = RCODES.get(flags & 15, str(flags & 15))
    found = f" {a[-4]}.{a[-3]}.{a[-2]}.{a[-1]}" if answers and (u.query or "A") == "A" else ""
    return {"status": 0, "body": f"{rcode} {answers} answers{found}"}


def main():
    client, probes = sys.argv[1], json.loads(sys.argv[2])
    results = []
    for p in probes:
        scheme = urllib.parse.urlsplit(p["url"]).scheme
        ask = by_dns if scheme.startswith("dns") else by_socket if scheme not in ("http", "https") \
            else by_curl if client == "curl" else by_python
        begun = time.monotonic()
        try:
            results.append(ask(p))
        except Exception as e:
            results.append({"status": 0, "error": f"{type(e).__name__}: {e}"})
        results[-1]["seconds"] = time.monotonic() - begun
    json.dump(results, sys.stdout)


main()
