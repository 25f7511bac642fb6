"""Runs in the sandbox. It knows where the API is, and no key."""
import os
import subprocess
import urllib.error
import urllib.request

api = os.environ["API"]


def get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return f"{answer.status} {answer.read().decode().strip()}"
    except urllib.error.HTTPError as e:
        return f"{e.code} {e.read().decode().strip()}"
    except OSError as e:
        return f"failed: {e}"


print("GET /v1/answer:  ", get(api + "/v1/answer"))
print("GET /admin:      ", get(api + "/admin"))
print("another name:    ", get("https://evil.example.com/"))

found = subprocess.run(
    ["sudo", "grep", "-rlsI", "sk-" + "demo-", "/etc", "/home", "/root", "/run", "/tmp", "/var", "/vercel/sandbox", "/proc/self/environ", "/proc/1/environ"],
    capture_output=True, text=True).stdout.split()
print("the key is in:   ", found or "no file and no environment")
