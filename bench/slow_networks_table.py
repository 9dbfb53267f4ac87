#!/usr/bin/env python3
"""The table and the picture of bench/slow_networks.sh: slow_networks_table.py RESULTS TABLE.md PICTURE.svg, where
RESULTS/setting-*/ hold what was set, measured and predicted. Facts of the run are read from standard input."""
import glob
import json
import math
import os
import sys

from svg import document, text

SCHEMES = [("all-reduce", "all-reduce, direct", "#444444"), ("zero-1", "ZeRO 1, direct", "#999999"),
           ("complete", "gossip, complete", "#56B4E9"), ("ring", "gossip, ring", "#009E73"),
           ("exp", "gossip, exp", "#E69F00"), ("alternating-exp-ring", "gossip, alternating-exp-ring", "#D55E00")]
TOGETHER = {scheme: name for scheme, name, _ in SCHEMES[:2]}
WIDTH, LEFT, TOP, PANEL, GAP, ROW, ROW_GAP = 1040, 62, 100, 300, 34, 230, 74


class Setting:
    def __init__(self, folder):
        def load(name):
            return json.load(open(f"{folder}/{name}"))

        self.__dict__.update(load("setting"))
        self.check = load("check")
        self.relay = open(f"{folder}/network").read().strip()  # what it says of itself
        self.measured = {}
        for line in open(f"{folder}/measured"):
            record = json.loads(line)
            if "scheme" in record:
                self.measured[record["scheme"]] = record
        self.predicted = {}
        for scheme in self.measured:
            schemes = load(f"predicted-{scheme}")["schemes"]
            self.predicted[scheme] = next((s for s in schemes if s["name"] == TOGETHER.get(scheme)), schemes[0])

    def even(self):
        return not self.uneven_compute() and "at(" not in self.bandwidth and "exp(" not in self.delay

    def uneven_compute(self):
        return not self.compute.isdigit()

    def speedup(self, scheme):
        return self.measured["all-reduce"]["step_ms"] / self.measured[scheme]["step_ms"]

    def error(self, scheme):
        return self.predicted[scheme]["step_ms"] / self.measured[scheme]["step_ms"] - 1


def rows(settings, more, cell):
    """A table of the schemes in the settings, with more columns: (heading, cell of a setting)."""
    schemes = list(settings[0].measured)
    heads = [s.replace(",", ", ").replace("=", " ") for s in schemes] + [h for h, _ in more]
    lines = ["| hosts | bandwidth | delay | compute, ms | " + " | ".join(heads) + " |", "|---" * (4 + len(heads)) + "|"]
    for s in settings:
        cells = [str(s.hosts), s.bandwidth, s.delay, s.compute, *(cell(s, name) for name in schemes), *(f(s) for _, f in more)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def measured_table(settings):
    ours = "alternating-exp-ring"
    more = [(f"{ours} : all-reduce", lambda s: f"{s.speedup(ours):.2f} x")] if ours in settings[0].measured else []
    return rows(settings, more, lambda s, scheme: f"{s.measured[scheme]['step_ms']:.0f}")


def outer_table(settings):
    return rows(settings, [], lambda s, scheme: f"{s.measured[scheme]['step_ms']:.0f} ({s.speedup(scheme):.1f} x)")


def predicted_table(settings):
    return rows(settings, [], lambda s, scheme: f"{s.predicted[scheme]['step_ms']:.0f} ({s.error(scheme):+.1%})")


def idle_table(settings):
    return rows(settings, [], lambda s, scheme: f"{s.measured[scheme]['idle']:.0%}")


def network_table(settings):
    lines = ["| hosts | bandwidth | delay | round trip, ms | one stream, Mbit/s | a stream from each host, Mbit/s | the relay |",
             "|---|---|---|---|---|---|---|"]
    for s in settings:
        lines.append(f"| {s.hosts} | {s.bandwidth} | {s.delay} | {s.check['round_trip_ms']} | {s.check['one_mbit']} | "
                     f"{s.check['all_mbit']} | {s.relay} |")
    return lines


class Panel:
    """Step times of some settings side by side: lines and dots as measured, crosses as predicted."""

    def __init__(self, x, y, low, high, columns):
        self.x, self.y, self.low, self.high, self.columns = x, y, low, high, columns

    def at(self, column, value):
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.x + PANEL * (column + 0.5) / len(self.columns), self.y + ROW * (1 - share)

    def draw(self, title, labelled):
        parts = [text(self.x, self.y - 10, title, 13)]
        tick = 10 ** math.floor(math.log10(self.low))
        for value in [tick * f * 10**e for e in range(4) for f in (1, 2, 5)]:
            if self.low <= value <= self.high:
                _, y = self.at(0, value)
                parts.append(f'<path d="M{self.x:.1f} {y:.1f}h{PANEL}" stroke="#e8eaed"/>')
                if labelled:
                    parts.append(text(self.x - 6, y + 4, f"{value / 1000:g} s", 11, "end", "#6b7280"))
        for i, (name, _) in enumerate(self.columns):
            x, _ = self.at(i, self.low)
            parts.append(text(x, self.y + ROW + 18, name, 11, "middle", "#6b7280"))
        for scheme, _, colour in SCHEMES:
            if any(scheme not in setting.measured for _, setting in self.columns):
                continue
            points = [self.at(i, setting.measured[scheme]["step_ms"]) for i, (_, setting) in enumerate(self.columns)]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
            for i, (_, setting) in enumerate(self.columns):
                x, y = self.at(i, setting.predicted[scheme]["step_ms"])
                parts.append(f'<path d="M{x + 6:.1f} {y - 4:.1f}l8 8m0 -8l-8 8" stroke="{colour}" stroke-width="1.5"/>')
        return parts


def panels(settings):
    """[(title, [(column, setting)])]"""
    even = [s for s in settings if s.even()]
    fast = min((s.delay for s in even), key=lambda d: float(d[:-2]))
    by_bandwidth = [(f"{s.mbit} Mbit/s", s) for s in sorted(even, key=lambda s: s.mbit) if s.delay == fast]
    by_delay = [(s.delay, s) for s in sorted(even, key=lambda s: float(s.delay[:-2])) if s.mbit == 100]
    uneven = [(name, s) for name, matches in (("even", lambda s: s.even() and s.mbit == 100 and s.delay == "10ms"),
                                              ("jitter", lambda s: "lognormal" in s.compute),
                                              ("slow host", lambda s: "at(" in s.bandwidth))
              for s in settings if matches(s)]
    found = [(f"bandwidth, at {fast} delay", by_bandwidth), ("delay, at 100 Mbit/s", by_delay), ("jitter, at 100 Mbit/s", uneven)]
    return [(title, columns) for title, columns in found if columns]


def picture(settings):
    parts = [text(LEFT, 28, "Time of a step on slow networks (dots: measured, crosses: predicted)", 17)]
    x = LEFT
    for scheme, _, colour in SCHEMES:
        parts.append(f'<path d="M{x} 52h22" stroke="{colour}" stroke-width="3"/>' + text(x + 28, 56, scheme, 12))
        x += 56 + 7 * len(scheme)
    times = [t["step_ms"] for s in settings for t in [*s.measured.values(), *s.predicted.values()]]
    low, high = min(times) / 1.15, max(times) * 1.15
    rows = sorted({s.hosts for s in settings})
    for row, hosts in enumerate(rows):
        for column, (title, columns) in enumerate(panels([s for s in settings if s.hosts == hosts])):
            panel = Panel(LEFT + column * (PANEL + GAP), TOP + row * (ROW + ROW_GAP), low, high, columns)
            parts += panel.draw(f"{hosts} hosts: {title}", column == 0)
    height = TOP + len(rows) * (ROW + ROW_GAP) - 20
    return document(WIDTH, height, parts)


def main():
    results, out, svg = sys.argv[1:]
    settings = [Setting(folder) for folder in sorted(glob.glob(results + "/setting-*"))]
    errors = [abs(s.error(scheme)) for s in settings for scheme in s.measured]
    within = sum(error <= 0.15 for error in errors)
    outer = any("interval=" in scheme for scheme in settings[0].measured)
    lines = ["# Outer optimizers on slow networks" if outer else "# Training on slow networks", "",
             "Network, exchanges and engine are real, the computing is a timed sleep (bench/slow_network.cpp); two workers on each host.",
             "The time of a step, ms, and how many times as fast as all-reduce" + (" it is:" if outer else " alternating-exp-ring is:"), "",
             *(outer_table(settings) if outer else measured_table(settings)), "",
             "As `shoal gossip simulate` predicts it, ms, and by how much it is off. "
             f"{within} of {len(errors)} are within 15 %, the worst is {max(errors):.1%} off:", "", *predicted_table(settings), "",
             "The share of the time in which workers wait:", "", *idle_table(settings), "",
             "The network, without training; TCP carries 0.95 of the bandwidth in packets of 1500 bytes, at 10 Mbit/s, and 0.99 in",
             "those of 9000:", "", *network_table(settings), "",
             *([] if outer else [f"![step times]({os.path.relpath(svg, os.path.dirname(out))})", ""]), *sys.stdin.read().splitlines()]
    with open(out, "w") as file:
        file.write("\n".join(lines) + "\n")
    if not outer:
        with open(svg, "w") as file:
            file.write(picture(settings))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
