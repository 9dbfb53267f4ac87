#!/usr/bin/env python3
"""Fits the times of blocks in configs/clusters/a100.toml to steps that others measured.

    bench/fit_a100.py STEPS.csv ALL_REDUCE.csv [--half 0|1] > blocks.toml
    bench/fit_a100.py STEPS.csv ALL_REDUCE.csv --rows 0|1 > half.csv

Steps without pipeline stages, of one width, tensor group and micro-batch, are

    micro-batches * (ends + layers * block) + update + all-reduce of the gradients

so that a line through the measured steps of different depths and batches has the time of a block as its slope, and of
embedding and head as its offset. The all-reduces inside a block, two each of the forward, recomputed and backward pass, are
subtracted. A workload is (gpus, global batch, model); --half takes every other one.
"""
import csv
import sys
from collections import defaultdict

BYTES, CLASSES, UPDATE_MS = 2, 50304, 0.021e-6  # of an activation; padded vocabulary; per parameter


def rows(path):
    with open(path, newline="") as file:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]


def workload(row):
    return tuple(int(row[k]) for k in ("gpus", "global_batch", "n_embd", "n_layer"))


def all_reduce(curves, ranks, size):
    """Milliseconds, on a line through the measured sizes."""
    if ranks == 1:
        return 0
    points = curves[ranks]
    if size >= points[-1][0]:
        return points[-1][1] * size / points[-1][0]
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        if size <= x1:
            return y0 + (y1 - y0) * max(0.0, size - x0) / (x1 - x0)
    raise AssertionError


def fit(group, curves, width):
    """Least squares of (ends, block), relative to the measured times; None where the depths do not tell them apart."""
    a = b = c = d = e = 0.0
    for row in group:
        count = row["global_batch"] / row["micro_batch"] / row["data"]
        parameters = (12 * width**2 * row["n_layer"] + (CLASSES + row["block_size"]) * width) / row["tensor"]
        rest = row["step_ms"] - UPDATE_MS * parameters - all_reduce(curves, int(row["data"]), BYTES * parameters)
        x, y, z = count / row["step_ms"], count * row["n_layer"] / row["step_ms"], rest / row["step_ms"]
        a, b, c, d, e = a + x * x, b + x * y, c + y * y, d + x * z, e + y * z
    determinant = a * c - b * b
    if len(group) < 2 or determinant < 1e-9 * a * c:
        return None
    return (c * d - b * e) / determinant, (a * e - b * d) / determinant


def main():
    steps, curves = rows(sys.argv[1]), defaultdict(list)
    for row in rows(sys.argv[2]):
        curves[int(row["gpus"])].append((row["bytes"], row["in_place_us"] / 1e3))
    for points in curves.values():
        points.sort()
    for option in ("--half", "--rows"):
        if option in sys.argv:
            half = int(sys.argv[sys.argv.index(option) + 1])
            taken = {w for i, w in enumerate(sorted({workload(r) for r in steps})) if i % 2 == half}
            steps = [r for r in steps if workload(r) in taken]
    if "--rows" in sys.argv:
        print(",".join(steps[0]))
        for row in steps:
            print(",".join(f"{value:.15g}" for value in row.values()))
        return
    groups = defaultdict(list)
    for row in steps:
        if row["pipeline"] == 1:
            groups[tuple(int(row[k]) for k in ("n_embd", "n_head", "block_size", "tensor", "micro_batch"))].append(row)
    for (width, heads, tokens, tensor, batch), group in sorted(groups.items()):
        found = fit(group, curves, width)
        if not found:
            continue
        ends, block = found
        block -= 6 * all_reduce(curves, tensor, BYTES * batch * tokens * width)
        print(f"  {{ n_embd = {width}, n_head = {heads}, block_size = {tokens}, tensor = {tensor}, micro_batch = {batch}, "
              f"block_us = {1e3 * block:.0f}, ends_us = {1e3 * max(ends, 0):.0f} }},")


main()
