# What stands for hours of installing: a virtual environment with a package of
# our own, and an index of many pages in it.
python3 -m venv venv
site=$(echo venv/lib/python3*/site-packages)
mkdir "$site/pages"
cat >"$site/pages/__init__.py" <<'PY'
import random

def pages(n):
    r = random.Random(1)
    for i in range(n):
        yield i, f"page-{i}", r.randrange(1000)
PY
venv/bin/python3 -m compileall -q "$site/pages"
venv/bin/python3 - <<'PY'
import sqlite3
from pages import pages

db = sqlite3.connect("index.db")
db.execute("create table page (id integer primary key, name text, words integer)")
db.executemany("insert into page values (?, ?, ?)", pages(300_000))
db.execute("create index page_words on page (words)")
db.commit()
PY
