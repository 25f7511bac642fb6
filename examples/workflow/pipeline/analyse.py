"""Analyses numbers, which takes a while, and notes how often it was started."""

import pathlib
import statistics
import sys
import time

with open("starts", "a") as f:
    f.write("started\n")
numbers = [n * n % 1009 for n in range(int(sys.argv[1]))]
time.sleep(float(sys.argv[2]))
starts = len(pathlib.Path("starts").read_text().splitlines())
pathlib.Path("report.txt").write_text(
    f"{len(numbers)} numbers, mean {statistics.mean(numbers):.2f}, analysed by {starts} start(s)\n"
)
