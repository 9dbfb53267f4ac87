#!/usr/bin/env python3
"""The table and the picture of bench/decentralised.sh: decentralised_table.py RUNS PICTURE SEED... writes the table to
standard output and the picture to PICTURE."""
import json
import math
import os
import sys

from svg import document, text

METHODS = [("allreduce", "all-reduce, AdamW", "#222222"), ("gossip4", "gossip of 4 workers, AccumAdamW", "#0072B2"),
           ("gossip8", "gossip of 8 workers, AccumAdamW", "#D55E00"),
           ("accum", "all-reduce, AccumAdamW", "#009E73"), ("outer", "bfloat16, 1 / 100", "#CC79A7"),
           ("streaming", "the same in fragments", "#E69F00"), ("nibbles", "int4 in fragments, 1 / 240", "#D55E00"),
           ("rare_nibbles", "int4, 1 / 1,000", "#0072B2"),
           ("thousandth", "bfloat16, 1 / 1,000", "#56B4E9"), ("sparse", "largest, 1 / 1,000", "#009E73"),
           ("neighbours", "with one neighbour, 1 / 90", "#7F4F24"),
           ("alone", "one worker", "#999999")]
DASHES = ["", "7 4", "2 3"]  # of the first seeds, which the picture shows; the others may lack methods
WIDTH, HEIGHT, LEFT, TOP, TALL, SMALL = 1000, 560, 58, 92, 420, 180


def read(path):
    """The evaluations of a run: [{"step", "val_loss", "consensus_distance", ...}]"""
    with open(path) as file:
        return [record for record in map(json.loads, file) if "val_loss" in record]


def difference(run, reference):
    """[(step, val loss over the reference's, less 1)]"""
    assert [r["step"] for r in run] == [r["step"] for r in reference]
    return [(r["step"], r["val_loss"] / one["val_loss"] - 1) for r, one in zip(run, reference)]


def mean(shares):
    """ "+0.43 % ± 0.10 %": the mean of the seeds with its standard error """
    average = sum(shares) / len(shares)
    if len(shares) < 2:
        return f"{average:+.2%}"
    deviation = math.sqrt(sum((share - average) ** 2 for share in shares) / (len(shares) - 1))
    return f"{average:+.2%} ± {deviation / math.sqrt(len(shares)):.2%}"


def table(runs, methods, seeds):
    lines = ["| | " + " | ".join(f"seed {seed}" for seed in seeds) + " | mean | distance of the workers at the end |",
             "|---|" + "---|" * (len(seeds) + 2)]
    for method, name, _ in methods:
        cells, shares, found = [], [], []
        for seed in seeds:
            if (method, seed) not in runs:
                cells.append("")
                continue
            last = runs[method, seed][-1]
            shares.append(difference(runs[method, seed], runs["allreduce", seed])[-1][1])
            if "consensus_distance" in last:
                found.append(last["consensus_distance"])
            cells.append(f"{last['val_loss']:.4f}" + ("" if method == "allreduce" else f" ({shares[-1]:+.2%})"))
        cells.append("" if method == "allreduce" else mean(shares))
        cells.append(f"{min(found):.1e} to {max(found):.1e}" if found else "")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


class Panel:
    """A plot at (x, y) with lines at `ticks`, [(value, label)], the lowest first; `scale` maps values to a line."""

    def __init__(self, x, y, width, height, steps, ticks, scale=float):
        self.x, self.y, self.width, self.height = x, y, width, height
        self.steps, self.ticks, self.scale = steps, ticks, scale

    def at(self, step, value):
        low, high = self.ticks[0][0], self.ticks[-1][0]
        value = min(max(value, low), high)
        share = (self.scale(value) - self.scale(low)) / (self.scale(high) - self.scale(low))
        return self.x + self.width * step / self.steps, self.y + self.height * (1 - share)

    def frame(self, title):
        parts = [text(self.x, self.y - 10, title)]
        for tick, label in self.ticks:
            _, y = self.at(0, tick)
            parts.append(f'<path d="M{self.x:.1f} {y:.1f}h{self.width:.1f}" stroke="#e8eaed"/>')
            parts.append(text(self.x - 8, y + 4, label, 11, "end", "#6b7280"))
        for i in range(5):
            step = self.steps * i // 4
            x, _ = self.at(step, self.ticks[0][0])
            parts.append(text(x, self.y + self.height + 16, step, 11, "middle", "#6b7280"))
        return parts

    def curve(self, points, colour, dashes):
        path = " ".join("{:.1f},{:.1f}".format(*self.at(*point)) for point in points)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"{dashed}/>'


def picture(runs, methods, seeds):
    steps = runs["allreduce", seeds[0]][-1]["step"]
    parts = [text(LEFT, 26, f"Losses beside all-reduce (dashes: seeds {', '.join(seeds[:len(DASHES)])})", 17)]
    x, y = LEFT, 42
    for _, name, colour in methods:
        wide = 46 + 6.6 * len(name)
        if x + wide > WIDTH:
            x, y = LEFT, y + 18
        parts.append(f'<path d="M{x:g} {y}h26" stroke="{colour}" stroke-width="3"/>' + text(x + 33, y + 4, name, 12))
        x += wide
    begun = [r["val_loss"] for run in runs.values() for r in run if r["step"] > 0]  # the start would flatten the rest
    low, high = math.floor(2 * min(begun)) / 2, math.ceil(2 * max(begun)) / 2
    ticks = [(low + i / 2, f"{low + i / 2:g}") for i in range(round(2 * (high - low)) + 1)]
    loss = Panel(LEFT, TOP, 420, TALL, steps, ticks)
    right = LEFT + 420 + 82
    away = [(i / 100, f"{i:+d} %" if i else "0") for i in range(-3, 6)]
    share = Panel(right, TOP, WIDTH - 24 - right, SMALL, steps, away)
    found = [r["consensus_distance"] for run in runs.values() for r in run if r.get("consensus_distance", 0) > 0]
    powers = range(math.floor(math.log10(min(found))), math.ceil(math.log10(max(found))) + 1)
    ticks = [(10.0**e, f"1e{e}") for e in powers]
    apart = Panel(right, TOP + SMALL + 60, WIDTH - 24 - right, SMALL, steps, ticks, math.log10)
    parts += loss.frame("validation loss")
    (_, top), (_, bottom) = share.at(0, 0.01), share.at(0, -0.01)
    parts.append(f'<rect x="{right}" y="{top:.1f}" width="{share.width}" height="{bottom - top:.1f}" fill="#eceef1"/>')
    parts += share.frame("beside all-reduce with the same seed (grey: 1 %)")
    parts += apart.frame("distance of the workers from their mean, relative")
    for method, _, colour in methods:
        for seed, dashes in zip(seeds, DASHES):
            run = runs[method, seed]
            parts.append(loss.curve([(r["step"], r["val_loss"]) for r in run], colour, dashes))
            if method != "allreduce":
                parts.append(share.curve(difference(run, runs["allreduce", seed]), colour, dashes))
            distances = [(r["step"], r["consensus_distance"]) for r in run if r.get("consensus_distance", 0) > 0]
            if distances:
                parts.append(apart.curve(distances, colour, dashes))
    return document(WIDTH, HEIGHT, parts)


def main():
    folder, picture_file, *seeds = sys.argv[1:]
    files = {(method, seed): f"{folder}/{method}-{seed}/metrics.jsonl" for method, *_ in METHODS for seed in seeds}
    runs = {key: read(path) for key, path in files.items() if os.path.exists(path)}
    methods = [m for m in METHODS if all((m[0], seed) in runs for seed in seeds[:len(DASHES)])]
    with open(picture_file, "w") as file:
        file.write(picture(runs, methods, seeds))
    print("\n".join(table(runs, methods, seeds)))


if __name__ == "__main__":
    main()
