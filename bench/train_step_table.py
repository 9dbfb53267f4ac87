#!/usr/bin/env python3
"""The table of bench/train_step.sh, from its raw lines (name, variant, phase, printed line) and, on standard input, its
rows (the last two fields are the share of the peak and the ratio to reach)."""
import re
import statistics
import sys


def main():
    medians, shares, phases = {}, {}, {}
    for line in open(sys.argv[1]):
        name, variant, phase, printed = line.rstrip("\n").split("\t")
        if not phase.startswith("round"):
            continue
        medians.setdefault((name, variant), []).append(float(re.search(r"median ([\d.]+)", printed)[1]))
        phases[name, variant] = phase.removeprefix("round").strip()
        if share := re.search(r"= ([\d.]+) % of", printed):
            shares.setdefault(name, []).append(float(share[1]))
    form = "{:<16} {:>9} {:>6} {:>6} {:>18} {:>18} {:>6} {:>6}"
    print("Medians over rounds of the median ms per step; the share of the peak is measured in the same process.")
    print(form.format("row", "shoal", "share", "goal", "eager", "compiled", "ratio", "goal"))
    for row in sys.stdin.read().splitlines():
        name, *_, share_goal, ratio_goal = row.split(";")
        if (name, "shoal") not in medians:
            continue
        shoal, eager, compiled = (statistics.median(medians[name, way]) for way in ("shoal", "eager", "compile"))
        print(form.format(name, f"{shoal:.1f}", f"{statistics.median(shares[name]):.1f}%", f"{share_goal}%",
                          f"{eager:.1f} {phases[name, 'eager']}", f"{compiled:.1f} {phases[name, 'compile']}",
                          f"{min(eager, compiled) / shoal:.2f}x", f"{ratio_goal}x"))


if __name__ == "__main__":
    main()
