"""What clients for Python do with every provider: the table of ../cases.mjs, as far
as these clients differ from those for JavaScript. It writes a line of JSON for each
case, for the Go test that started it."""

import itertools
import json
import os
import re
import sys
import threading
import time
import traceback
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from clients import CLIENTS, WORLD

CLIENT = CLIENTS[os.environ["CAY_CLIENT"]]
WEATHER = {"weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}
PLACE = {
    "type": "object", "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"], "additionalProperties": False,
}
PIXEL = b"\x89PNG\r\n\x1a\n" + bytes(60)
PDF = b"%PDF-1.4\n%%EOF\n"
PARIS, OSLO = {"city": "Paris", "days": 3}, {"city": 'Oslo, "Norge" – øst', "days": 1}
serial = itertools.count()


def same(got, want):
    assert got == want, f"{got!r} and not {want!r}"


def marker():
    return f"python {os.getpid()}.{next(serial)}"


def refused(call, what="it"):
    try:
        answer = call()
    except Exception as e:  # whatever the client makes of it
        return e
    raise AssertionError(f"{what} was answered: {answer.text!r}")


def seen(verb, **query):
    with urllib.request.urlopen(f"{WORLD['control']}/{verb}?{urllib.parse.urlencode(query)}") as r:
        return json.load(r)


def text(c, dialect, stream):
    deltas = []
    a = c.talk(f"{dialect}/text").say("Hi", stream=stream, on_delta=lambda: deltas.append(1))
    same((a.text, a.finish, a.calls, a.usage), ("Hello from the provider.", "stop", [], (40, 12)))
    same(len(deltas) > 1, stream)


def settings(c, dialect, stream):
    e = json.loads(c.talk(f"{dialect}/echo", system="Be brief.", max_tokens=123).say("Grüße 👋", stream=stream).text)
    same((e["system"], e["turns"], e["maxTokens"]), ("Be brief.", [{"role": "user", "text": "Grüße 👋"}], 123))


def conversation(c, dialect, stream):
    talk = c.talk(f"{dialect}/echo")
    first = talk.say("One", stream=stream).text
    e = json.loads(talk.say("Two", stream=stream).text)
    same([(t["role"], t["text"]) for t in e["turns"]], [("user", "One"), ("assistant", first), ("user", "Two")])


def files(c, dialect, stream):
    e = json.loads(c.talk(f"{dialect}/echo").say("Look", ("image/png", PIXEL), ("application/pdf", PDF), stream=stream).text)
    same([(f["type"], f["bytes"]) for f in e["turns"][0]["files"]], [("image/png", len(PIXEL)), ("application/pdf", len(PDF))])


def tools(c, dialect, stream):
    talk = c.talk(f"{dialect}/tools", tools=WEATHER)
    a = talk.say("Weather in Paris and Oslo?", stream=stream)
    same((a.text, a.finish, [call[1:] for call in a.calls]), ("I look it up.", "tool-calls", [("weather", PARIS), ("weather", OSLO)]))
    b = talk.results([(a.calls[0], "sun"), (a.calls[1], "snow")], stream=stream)
    assert re.match("2 results: .*sun.* and .*snow", b.text), b.text


def structured(c, dialect, stream):
    a = c.talk(f"{dialect}/json", schema=PLACE).say("Where is it warm?", stream=stream)
    same((json.loads(a.text), a.finish), ({"city": "Paris", "degrees": 21}, "stop"))


def reasoning(c, dialect, stream):
    talk = c.talk(f"{dialect}/think", tools=WEATHER)
    a = talk.say("Weather?", stream=stream)
    same((a.reasoning, [call[2] for call in a.calls]), ("The user wants the weather.", [PARIS]))
    same(talk.results([(a.calls[0], "sun")], stream=stream).text, "The signature came back.")


def finish_reasons(c, dialect, stream):
    same(c.talk(f"{dialect}/long").say("Talk", stream=stream).finish, "length")
    same(c.talk(f"{dialect}/filtered").say("Talk", stream=stream).finish, "content-filter")


def errors(c, dialect, stream):
    for model, statuses in {"fail-rejected": [400], "fail-rate-limited": [429], "fail-server-error": [500, 502, 503]}.items():
        err = refused(lambda: c.talk(f"{dialect}/{model}").say(marker(), stream=stream), model)
        assert getattr(err, "status_code", None) in statuses, f"{model}: {err!r}"
        if model == "fail-rate-limited":
            same(err.response.headers["retry-after"], "1")
    err = refused(lambda: CLIENT("cgk_nobody").talk(f"{dialect}/text").say("Hi", stream=stream))
    assert isinstance(err, c.module.AuthenticationError), repr(err)
    err = refused(lambda: c.talk(f"{dialect}/nothing").say("Hi", stream=stream))
    assert isinstance(err, c.module.NotFoundError), repr(err)


def breaks_off(c, dialect, stream):
    for model in ["fail-cut", "fail-short"] + ["fail-error-in-stream"] * stream:
        refused(lambda: c.talk(f"{dialect}/{model}").say(marker(), stream=stream), model)


def abort(c, dialect, stream):
    if not stream:
        return

    class Enough(Exception):
        pass

    def stop():
        raise Enough

    mark = marker()
    assert isinstance(refused(lambda: c.talk(f"{dialect}/slow").say(mark, stream=True, on_delta=stop)), Enough)
    same(seen("end", model=f"{dialect}/slow", text=mark)["canceled"], True)


CASES = [text, settings, conversation, files, tools, structured, reasoning, finish_reasons, errors, breaks_off, abort]


def main():
    wanted = re.compile(os.environ.get("CAY_CASES") or "")
    client, lock = CLIENT(), threading.Lock()

    def run(case):
        dialect, stream, f = case
        name = f"{dialect} {'streamed ' if stream else ''}{f.__name__}"
        if not wanted.search(name):
            return
        begun, out = time.monotonic(), {"name": name, "ok": True}
        try:
            f(client, dialect, stream)
        except Exception:  # it is the case's outcome
            out.update(ok=False, error=traceback.format_exc())
        out["ms"] = round((time.monotonic() - begun) * 1000)
        with lock:
            print(json.dumps(out), flush=True)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, itertools.product(WORLD["dialects"], [False, True], CASES)))


if __name__ == "__main__":
    sys.exit(main())
