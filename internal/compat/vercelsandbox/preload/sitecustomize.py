"""Points the Python clients of Vercel Sandbox at a cay daemon, without a change to programs:

    export CAY_VERCEL_URL=http://127.0.0.1:7070 PYTHONPATH=/path/of/this/directory

The address is a constant of theirs, which is replaced when the module that has it is imported.
A sitecustomize that is further down the path runs, too.
"""

import os
import sys


def _base_url():
    url = os.environ.get("CAY_VERCEL_URL", "")
    if not url.startswith(("http://", "https://")):
        raise ImportError(
            f"cay: CAY_VERCEL_URL is {url!r}; set it to the address of a cay daemon, such as http://127.0.0.1:7070"
        )
    return url.rstrip("/") + "/api"


def _replace(module, name, value):
    if not hasattr(module, name):
        raise ImportError(f"cay: {module.__name__} has no {name}: this version of the client is not known")
    setattr(module, name, value)


def _current(module):
    _replace(module, "DEFAULT_SANDBOX_API_BASE_URL", _base_url())


def _before_the_split(module):
    # vercel 0.x: the default of an argument of both clients.
    for client in (module.SyncSandboxOpsClient, module.AsyncSandboxOpsClient):
        client.__init__.__kwdefaults__["host"] = _base_url()


def _localhost(socket):
    # Previews of a daemon on this machine are names below localhost, which not
    # every resolver knows (RFC 6761).
    original = socket.getaddrinfo

    def getaddrinfo(host, *args, **kwargs):
        name = host.decode("ascii", "replace") if isinstance(host, bytes) else host
        if isinstance(name, str) and name.lower().rstrip(".").endswith(".localhost"):
            host = "localhost"
        return original(host, *args, **kwargs)

    socket.getaddrinfo = getaddrinfo


_MODULES = {
    "socket": _localhost,
    "vercel.sandbox._internal.options": _current,
    "vercel._internal.unstable.sandbox.options": _current,
    "vercel._internal.sandbox.core": _before_the_split,
}


class _Finder:
    """Has modules found by the others, and changes them once they have run."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        change = _MODULES.get(name)
        if change is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is _Finder else finder.find_spec(name, path, target)
            if spec is not None:
                run = spec.loader.exec_module

                def exec_module(module):
                    run(module)
                    change(module)

                spec.loader.exec_module = exec_module
                return spec
        return None


def _next_sitecustomize():
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    others = [p for p in sys.path if os.path.abspath(p) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.meta_path.insert(0, _Finder)
if "socket" in sys.modules:
    _localhost(sys.modules["socket"])
_next_sitecustomize()
