"""Runs cases for the asynchronous or the synchronous face of the client.

Cases are written once, for the asynchronous one: now() and each() take what the
other one gives as well. An outcome is a line of JSON: {name, ok, skip, ms, error}.
"""

import asyncio
import inspect
import json
import os
import sys
import time
import traceback
import uuid
from contextlib import asynccontextmanager

WORLD = json.loads(os.environ["CAY_WORLD"])
SYNC = os.environ["CAY_FACE"] == "sync"

from vercel.api import session  # noqa: E402

if SYNC:
    from vercel.sandbox import sync as api  # noqa: E402
else:
    from vercel import sandbox as api  # noqa: E402

_cases = []
_calls = set()


def case(run):
    """Registers a case, which is given its surroundings."""
    _cases.append(run)
    return run


async def now(value):
    """What a call returned, or what its awaitable does."""
    return await value if inspect.isawaitable(value) else value


async def each(items):
    """A list of what an iterator gives."""
    if hasattr(items, "__aiter__"):
        return [item async for item in items]
    return list(items)


@asynccontextmanager
async def entered(manager):
    """Either kind of context manager."""
    if SYNC:
        with manager as value:
            yield value
    else:
        async with manager as value:
            yield value


async def fails(kind, value):
    """The error, of one kind, that a call ends with: a function without arguments."""
    try:
        got = await now(value())
    except kind as error:
        return error
    raise AssertionError(f"it was done: {got!r}")


def unique(prefix):
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def _record(owner, name, label):
    original = inspect.getattr_static(owner, name)
    inner = original.fget if isinstance(original, property) else original

    def recorded(*args, **kwargs):
        _calls.add(label)
        return inner(*args, **kwargs)

    setattr(owner, name, property(recorded) if isinstance(original, property) else recorded)


def _members(public):
    """The public functions, methods and properties of what programs hold."""
    for name in public.__all__:
        value = getattr(public, name)
        if inspect.isfunction(value):
            yield public, name, name
        elif inspect.isclass(value) and not issubclass(value, BaseException) and value.__module__.rpartition(".")[2] in (
            "async_runtime",
            "sync_runtime",
            "async_filesystem_handle",
            "sync_filesystem_handle",
        ):
            for owner in value.__mro__:
                if not owner.__module__.startswith("vercel.sandbox"):
                    continue
                for member, what in vars(owner).items():
                    if not member.startswith("_") and (inspect.isfunction(what) or isinstance(what, property)):
                        yield owner, member, f"{owner.__name__}.{member}"


class Surroundings:
    def __init__(self):
        self.shared = None
        self.made = []

    async def box(self):
        """One sandbox for all the cases that leave no trace outside of a directory."""
        if self.shared is None:
            self.shared = await self.fresh(persistent=False, env={"SHARED": "by all"})
        return self.shared

    async def fresh(self, **params):
        """A sandbox of the case's own, which ends with the program."""
        params.setdefault("name", unique("python"))
        box = await now(api.create_sandbox(**params))
        self.made.append(box.name)
        return box

    async def dir(self):
        path = f"/tmp/{unique('case')}"
        await now((await self.box()).fs.mkdir(path))
        return path

    async def close(self):
        for name in self.made:
            try:
                box = await now(api.get_sandbox(name=name))
                await now(box.destroy())
            except api.SandboxApiError as error:
                if error.status_code != 404:
                    raise


async def _run(name, run, *args):
    began = time.monotonic()
    error = None
    try:
        await run(*args)
    except Exception as e:
        error = "".join(traceback.format_exception(e))
        if isinstance(e, api.SandboxApiError):
            error += f"status {e.status_code} of {e.response.url}: {e.data}"
    line = {"name": name, "ok": error is None, "ms": round((time.monotonic() - began) * 1000), "error": error}
    print(json.dumps(line), flush=True)


async def _unused(labels):
    unused = sorted(labels - _calls)
    assert not unused, f"no case uses {unused}"


def main(*modules):
    labels = set()
    for owner, name, label in list(_members(api)):
        if label not in labels:
            labels.add(label)
            _record(owner, name, label)

    options = None
    if os.environ.get("CAY_BASE_URL"):
        credentials = api.SandboxCredentials(
            token=WORLD["token"], team_id=WORLD["teamId"], project_id=WORLD["projectId"]
        )

        async def factory():
            return credentials

        options = [
            api.SandboxServiceOptions(
                base_url=os.environ["CAY_BASE_URL"],
                credentials_factory=(lambda: credentials) if SYNC else factory,
            )
        ]

    async def all_cases():
        async with entered(session(service_options=options)):
            here = Surroundings()
            for run in _cases:
                if os.environ.get("CAY_CASES", "") in run.__name__:
                    await _run(run.__name__, run, here)
            await _run("close", here.close)
        if not os.environ.get("CAY_CASES"):
            await _run("every_public_function_was_used", _unused, labels)

    asyncio.run(all_cases())
    sys.stdout.flush()
