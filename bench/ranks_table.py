#!/usr/bin/env python3
"""The tables of bench/ranks.sh, from its raw lines: row, variant, printed line."""
import re
import statistics
import sys


def main():
    runs = {}  # row -> variant -> [(ms, tokens/s, share of the peak or None)], in the order of appearance
    for line in open(sys.argv[1]):
        row, variant, printed = line.rstrip("\n").split("\t")
        share = re.search(r"= ([\d.]+) % of", printed)
        runs.setdefault(row, {}).setdefault(variant, []).append(
            (float(re.search(r"median ([\d.]+)", printed)[1]), float(re.search(r"tokens/s (\d+)", printed)[1]),
             float(share[1]) if share else None))
    print("# Parallel modes: two ranks of one thread, one rank of two threads, PyTorch\n")
    print("GPT-2 124M, 256 positions, the same global batch in every row of a table; forward, backward, clipping by the\n"
          "whole model's norm, AdamW. Medians over rounds of each process's median step. The share is of the peak that all\n"
          "ranks measure at once in the same process. \"layout\" adds gradients in the order that no layout changes.")
    for row, variants in runs.items():
        _, batch, dtype = row.split("-")
        print(f"\n## {batch} sequences, {dtype}\n")
        print("| | ms per step | tokens/s | share of peak | of 1 rank |\n|---|---|---|---|---|")
        middle = {variant: [statistics.median(column) if column[0] is not None else None for column in zip(*values)]
                  for variant, values in variants.items()}
        one = middle.get("1 rank")
        for variant, (ms, rate, share) in middle.items():
            print(f"| {variant} | {ms:.0f} | {rate:.0f} | {f'{share:.0f} %' if share else ''} | "
                  f"{f'{one[0] / ms:.3f}' if one else ''} |")
        peers = [values[0] for variant, values in middle.items() if variant.startswith("PyTorch")]
        ours = [values[0] for variant, values in middle.items() if variant.startswith("threads")]
        if peers and ours:
            print(f"\nThe fastest of PyTorch takes {min(peers) / min(ours):.2f} times the step of Shoal's fastest two ranks.")


if __name__ == "__main__":
    main()
