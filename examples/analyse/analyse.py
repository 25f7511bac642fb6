"""Analyse monthly temperatures: coverage, climate, trend and the oddest months."""

import csv
import json
import statistics as st
from collections import defaultdict

MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()


def load(path):
    """Return {station: {(year, month): celsius or None}}."""
    data = defaultdict(dict)
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            value = float(row["celsius"]) if row["celsius"] else None
            data[row["station"]][int(row["year"]), int(row["month"])] = value
    return data


def analyse(series):
    known = {k: v for k, v in series.items() if v is not None}
    normal = [st.fmean(v for (_, m), v in known.items() if m == month) for month in range(1, 13)]
    odd = {k: v - normal[k[1] - 1] for k, v in known.items()}
    by_year = defaultdict(list)
    for (year, _), anomaly in odd.items():
        by_year[year].append(anomaly)
    years = sorted(by_year)
    trend = st.linear_regression(years, [st.fmean(by_year[y]) for y in years]).slope
    (year, month), extreme = max(odd.items(), key=lambda kv: abs(kv[1]))
    return {
        "months": len(series),
        "missing": len(series) - len(known),
        "mean": round(st.fmean(known.values()), 2),
        "coldest": MONTHS[normal.index(min(normal))],
        "warmest": MONTHS[normal.index(max(normal))],
        "trend_per_decade": round(10 * trend, 2),
        "oddest": f"{MONTHS[month - 1]} {year} ({extreme:+.1f})",
    }


report = {station: analyse(series) for station, series in load("temperatures.csv").items()}

with open("report.json", "w") as f:
    json.dump(report, f, indent=2)

columns = ["months", "missing", "mean", "coldest", "warmest", "trend_per_decade", "oddest"]
with open("report.md", "w") as f:
    print("| station |", " | ".join(c.replace("_", " ") for c in columns), "|", file=f)
    print("|---" * (len(columns) + 1) + "|", file=f)
    for station, r in report.items():
        print(f"| {station} |", " | ".join(str(r[c]) for c in columns), "|", file=f)

print(f"analysed {sum(r['months'] for r in report.values())} months of {len(report)} stations")
