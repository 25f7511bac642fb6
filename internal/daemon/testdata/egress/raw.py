"""Sends bytes that no well-behaved client would send.

The only argument is a list, as JSON, of attempts: {"to": host, "port": n, "tls":
server name or absent, "send": [pieces of text, each a byte per character]}.
Writes for each the text that came back until the end.
"""

import json
import socket
import ssl
import sys
from concurrent.futures import ThreadPoolExecutor

TIMEOUT = 10  # seconds


def attempt(a):
    got = b""
    s = None
    try:
        s = socket.create_connection((a["to"], a["port"]), TIMEOUT)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if a.get("tls"):
            s = ssl.create_default_context().wrap_socket(s, server_hostname=a["tls"])
        for piece in a["send"]:
            s.sendall(piece.encode("latin-1"))
        while len(got) < 1 << 20:
            piece = s.recv(65536)
            if not piece:
                break
            got += piece
            if a.get("first"):
                break
    except OSError as e:
        got += f"[{type(e).__name__}: {e}]".encode()
    finally:
        if s:
            s.close()
    return got.decode("latin-1")


with ThreadPoolExecutor(8) as pool:
    json.dump(list(pool.map(attempt, json.loads(sys.argv[1]))), sys.stdout)
