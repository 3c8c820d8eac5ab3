#!/usr/bin/env python3
"""Reads what the two programs report, in MiB/s, and compares.

    figure.py rdma_bw REPORT.json       prints one number
    figure.py ib_send_bw OUTPUT         prints one number
    figure.py table FILE                lines of "SIZE OURS,OURS,… THEIRS,THEIRS,…": medians and ratios

A run without a figure prints "none"; a table with one is an error.
"""
import json
import statistics
import sys


def rdma_bw(path):
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    results = report["results"]
    return (results[0] if isinstance(results, list) else results)["BW_average"]


def ib_send_bw(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            fields = line.split()
            if len(fields) == 5 and fields[0].isdigit():
                return float(fields[3])
    raise ValueError("no row of figures")


def table(path):
    figures = {}
    for line in open(path, encoding="utf-8"):
        size, *sides = line.split()
        ours, theirs = (statistics.median(map(float, side.split(","))) for side in sides)
        ratio = ours / theirs
        figures[f"verbs.rxe.send.{size}"] = {"rdma_bw_mib_s": ours, "ib_send_bw_mib_s": theirs, "ratio": round(ratio, 3)}
        print(f"{size:>6} B  rdma_bw {ours:8.2f} MiB/s  ib_send_bw {theirs:8.2f} MiB/s  ratio {ratio:.2f}")
    print("figures: " + json.dumps(figures))


if __name__ == "__main__":
    what, file_name = sys.argv[1:]
    if what == "table":
        table(file_name)
    else:
        try:
            print(round({"rdma_bw": rdma_bw, "ib_send_bw": ib_send_bw}[what](file_name), 3))
        except (OSError, ValueError, KeyError) as error:
            print(f"{what}: {error}", file=sys.stderr)
            print("none")
