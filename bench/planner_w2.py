#!/usr/bin/env python3
"""GPT-2 124M on four ranks: the best plan that nnScaler's planner can express, and those that it cannot (docs/planner.md).

    bench/planner_w2.py SHOAL [--rounds 2]

Its plans are cut over all ranks of an instance, by tensors and by stages with 1F1B; the data-parallel degree, the micro-batch,
ZeRO and recomputation are given by hand. Each search frees one more of them. Found layouts are trained in turn.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile

GIVEN = ("parallel.zero=0 train.recompute=none parallel.schedule=1f1b parallel.sequence=false train.micro_batch=1 "
         "plan.instance_ranks=4")
FREED = [("as nnScaler's planner", ""), ("micro-batch free", "train.micro_batch"), ("data-parallel degree free", "plan.instance_ranks"),
         ("schedule and sequence parallelism free", "parallel.schedule parallel.sequence"),
         ("ZeRO and recomputation free", "parallel.zero train.recompute")]
CONFIG = """
[data]
dir = "{folder}/data"
[model]
preset = "gpt2"
block_size = 256
[train]
global_batch = 8
steps = 5
[log]
interval = 1
tensorboard = false
[eval]
at_start = false
interval = -1
[checkpoint]
interval = 0
best = false
"""


def run(*arguments):
    return subprocess.run(arguments, check=True, capture_output=True, text=True).stdout


def main():
    options = argparse.ArgumentParser()
    options.add_argument("shoal")
    options.add_argument("--rounds", type=int, default=2)
    options = options.parse_args()
    temporary = tempfile.TemporaryDirectory()  # removed when the program ends
    folder = temporary.name
    config = os.path.join(folder, "gpt2.toml")
    with open(config, "w") as file:
        file.write(CONFIG.format(folder=folder))
    run(options.shoal, "prepare", "synthetic", "--out", os.path.join(folder, "data"))
    given, found = GIVEN.split(), []
    for name, keys in FREED:
        given = [setting for setting in given if setting.split("=")[0] not in keys.split()]
        best = json.loads(run(options.shoal, "plan", config, "--ranks", "4", "model.vocab_size=50257", "--json", *given))["plans"][0]
        found.append((name, best["layout"], best["step_seconds"], best["memory_bytes"]))
    seen = {layout: [] for _, layout, _, _ in found}
    for _ in range(options.rounds):
        for layout in seen:
            run(options.shoal, "train", config, "--ranks", "4", "model.vocab_size=50257", f"run.dir={folder}/runs", "run.name=r", *layout.split())
            with open(f"{folder}/runs/r/metrics.jsonl") as file:
                rows = [json.loads(line) for line in file]
            seen[layout].append(statistics.median([row["ms_per_step"] for row in rows if "ms_per_step" in row][2:]))
            shutil.rmtree(f"{folder}/runs")
    print("| search | layout | predicted | measured | memory per rank |\n|---|---|---|---|---|")
    for name, layout, seconds, memory in found:
        print(f"| {name} | {layout} | {seconds:.2f} s | {statistics.median(seen[layout]) / 1e3:.2f} s | {memory / 2**30:.1f} GiB |")


main()
