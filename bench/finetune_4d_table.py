#!/usr/bin/env python3
"""The table and the picture of bench/finetune_4d.sh: finetune_4d_table.py RUNS OUT writes OUT.md and OUT.svg."""
import json
import math
import os
import sys

from svg import document, text

DTYPES = ["float32", "bfloat16"]
# Each is drawn narrower than the one before, so that curves that coincide are all seen.
LAYOUTS = [("one", "one rank", "#444444", 5), ("1x4", "1 data x 4 tensor", "#0072B2", 3.8),
           ("2x2", "2 data x 2 tensor", "#E69F00", 2.7), ("4x1", "4 data", "#009E73", 1.8),
           ("pipeline", "2 stages x 2 tensor", "#D55E00", 0.8)]
WIDTH, HEIGHT, LEFT, GAP, TOP, ROW = 1000, 690, 66, 78, 96, 250


def read(path):
    """[(step, train loss)], [(step, val loss)]"""
    train, val = [], []
    for line in open(path):
        record = json.loads(line)
        if "val_loss" in record:
            val.append((record["step"], record["val_loss"]))
        else:
            train.append((record["step"], record["loss"]))
    return train, val


def differences(curve, reference):
    """[(step, difference, relative to the reference)]"""
    assert [step for step, _ in curve] == [step for step, _ in reference]
    return [(step, abs(y - one), abs(y - one) / one) for (step, y), (_, one) in zip(curve, reference)]


def table(runs):
    lines = ["| | float32, train loss | float32, val loss | bfloat16, train loss | bfloat16, val loss |",
             "|---|---|---|---|---|"]
    for layout, name, _, _ in LAYOUTS[1:]:
        cells = []
        for dtype in DTYPES:
            for curve in (0, 1):
                found = differences(runs[dtype, layout][curve], runs[dtype, "one"][curve])
                absolute, share = max(d for _, d, _ in found), max(r for _, _, r in found)
                cells.append(f"{absolute:.1e}" if dtype == "float32" else f"{absolute:.1e} = {share:.3%}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


class Panel:
    """A plot at (x, y) with ticks; y may be logarithmic."""

    def __init__(self, x, y, steps, low, high, log):
        self.x, self.y, self.width = x, y, (WIDTH - LEFT - GAP - 24) / 2
        self.steps, self.low, self.high, self.log = steps, low, high, log

    def at(self, step, value):
        scale = math.log10 if self.log else float
        share = (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))
        return self.x + self.width * step / self.steps, self.y + ROW * (1 - share)

    def frame(self, title):
        parts = [text(self.x, self.y - 10, title)]
        if self.log:
            ticks = [10.0**e for e in range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)]
        else:
            ticks = [self.low + i * (self.high - self.low) / 5 for i in range(6)]
        for tick in ticks:
            _, y = self.at(0, tick)
            parts.append(f'<path d="M{self.x:.1f} {y:.1f}h{self.width:.1f}" stroke="#e8eaed"/>')
            label = f"1e{round(math.log10(tick))}" if self.log else f"{tick:.2f}"
            parts.append(text(self.x - 8, y + 4, label, 11, "end", "#6b7280"))
        for i in range(5):
            step = self.steps * i // 4
            x, y = self.at(step, self.low)
            parts.append(text(x, y + 16, step, 11, "middle", "#6b7280"))
        return parts

    def curve(self, points, colour, width, dashes=""):
        kept = [self.at(step, min(max(y, self.low), self.high)) for step, y in points if y > 0]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in kept)
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{dashed}/>'


def picture(runs):
    parts = [text(LEFT, 30, "Fine-tuning in five layouts, curves drawn over each other", 17)]
    x = LEFT
    for _, name, colour, width in LAYOUTS:
        parts.append(f'<path d="M{x} 54h26" stroke="{colour}" stroke-width="{width}"/>' + text(x + 33, 58, name, 12))
        x += 62 + 7 * len(name)
    steps = runs["float32", "one"][0][-1][0]
    losses = [y for train, val in runs.values() for _, y in train + val]
    low, high = math.floor(min(losses) * 10) / 10, math.ceil(max(losses) * 10) / 10
    found = [d for dtype in DTYPES for layout, *_ in LAYOUTS[1:] for curve in (0, 1)
             for _, d, _ in differences(runs[dtype, layout][curve], runs[dtype, "one"][curve]) if d > 0]
    least = 10.0**max(math.floor(math.log10(min(found, default=1e-8))), -9)
    most = 10.0**math.ceil(math.log10(max(found, default=1e-7)))
    for column, dtype in enumerate(DTYPES):
        x = LEFT + column * ((WIDTH - LEFT - GAP - 24) / 2 + GAP)
        panel = Panel(x, TOP, steps, low, high, False)
        parts += panel.frame(f"{dtype}: loss of each step (thin: validation, dashed)")
        for layout, _, colour, width in LAYOUTS:
            train, val = runs[dtype, layout]
            parts.append(panel.curve(train, colour, width))
            parts.append(panel.curve(val, colour, width / 2, "7 5"))
        panel = Panel(x, TOP + ROW + 62, steps, least, most, True)
        parts += panel.frame(f"{dtype}: difference from one rank (dashed: validation)")
        for layout, _, colour, _ in LAYOUTS[1:]:
            for curve, dashes in ((0, ""), (1, "7 5")):
                points = differences(runs[dtype, layout][curve], runs[dtype, "one"][curve])
                parts.append(panel.curve([(step, d) for step, d, _ in points], colour, 1.3, dashes))
    return document(WIDTH, HEIGHT, parts)


def main():
    folder, out = sys.argv[1:]
    runs = {(dtype, layout): read(f"{folder}/{dtype}-{layout}/metrics.jsonl")
            for dtype in DTYPES for layout, *_ in LAYOUTS}
    steps = len(runs["float32", "one"][0])
    lines = ["# Fine-tuning on meshes beside one rank", "",
             "The workload of configs/finetune-shakespeare-4d.toml in small: a GPT of 4 layers, 4 heads and width 128 with GPT-2's",
             "vocabulary, from a folder in Hugging Face's format, dropout 0.1, sequence parallelism, sharded optimizer, sums in the",
             f"default order. The largest difference of the loss from that of one rank, over {steps} steps and "
             f"{len(runs['float32', 'one'][1])} evaluations:", "", *table(runs), "",
             f"![curves]({os.path.basename(out)}.svg)"]
    with open(out + ".md", "w") as file:
        file.write("\n".join(lines) + "\n")
    with open(out + ".svg", "w") as file:
        file.write(picture(runs))


if __name__ == "__main__":
    main()
