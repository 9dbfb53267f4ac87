#!/usr/bin/env python3
"""Trains layouts here and prints their measured steps beside the predictions (docs/planner.md).

    bench/planner_here.py SHOAL OUT.csv [--only NAME]

In every round the machine is measured anew, and each layout is trained for some steps right after what its prediction needs
was measured, since the speed of a shared machine changes within minutes. A layout's error is the median over the rounds of
predicted over measured time; its time for the regret is the median of the measured ones. Steps behind the first two count.
"""
import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

MODELS = {  # of 0.8, 10 and 124 million parameters
    "0.8M": "model.preset=gpt-micro model.block_size=128 model.vocab_size=65 train.global_batch=16",
    "10M": "model.n_layer=6 model.n_head=6 model.n_embd=384 model.block_size=256 model.vocab_size=65 train.global_batch=16",
    "124M": "model.preset=gpt2 model.block_size=256 model.vocab_size=50257 train.global_batch=4",
}
STEPS = {"0.8M": 24, "10M": 6, "124M": 4}
PIPE, TENSOR = "parallel.pipeline=2", "parallel.tensor=2"
LAYOUTS = {  # of both types
    1: ["train.micro_batch=1", "train.micro_batch=4", "train.micro_batch=4 train.recompute=block"],
    2: ["train.micro_batch=2", "train.micro_batch=2 parallel.zero=3", f"{TENSOR} train.micro_batch=2",
        f"{TENSOR} train.micro_batch=4 parallel.sequence=true", f"{PIPE} train.micro_batch=1"],
    4: ["train.micro_batch=1", "train.micro_batch=1 parallel.zero=2", f"{TENSOR} train.micro_batch=2",
        f"{PIPE} train.micro_batch=1", f"{PIPE} {TENSOR} train.micro_batch=1"],
}
FEW = {1: LAYOUTS[1][:1], 2: LAYOUTS[2][:3], 4: LAYOUTS[4][2:4]}  # of the largest model
ROUNDS = {"0.8M": 4, "10M": 2, "124M": 2}
BASE = ("eval.at_start=false eval.interval=0 checkpoint.interval=0 checkpoint.best=false log.interval=1 log.tensorboard=false "
        "optim.lr=1e-4 lr_schedule.warmup_steps=0")


def run(arguments, **more):
    done = subprocess.run(arguments, capture_output=True, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout


def config_of(folder, text, dtype, name):
    sections = {}
    for argument in (text + " " + BASE).split():
        key, value = argument.split("=")
        section, key = key.split(".")
        sections.setdefault(section, []).append((key, value))
    sections["train"] += [("dtype", dtype), ("steps", str(STEPS[name]))]
    sections["data"] = [("dir", os.path.join(folder, "data"))]
    path = os.path.join(folder, f"{name}-{dtype}.toml")
    with open(path, "w") as file:
        for section, values in sections.items():
            file.write(f"[{section}]\n")
            for key, value in values:
                plain = value.replace(".", "").replace("-", "").replace("e", "").isdigit() or value in ("true", "false")
                file.write(f"{key} = {value if plain else json.dumps(value)}\n")
    return path


def seconds_of_step(shoal, folder, config, ranks, layout):
    out = os.path.join(folder, "runs")
    shutil.rmtree(out, ignore_errors=True)
    run([shoal, "train", config, "--ranks", str(ranks), f"run.dir={out}", "run.name=r", *layout.split()])
    with open(os.path.join(out, "r", "metrics.jsonl")) as file:
        rows = [json.loads(line) for line in file]
    return statistics.median([row["ms_per_step"] for row in rows if "ms_per_step" in row][2:]) / 1e3


def constraints(layout):
    """The layout's keys, and the others at their defaults."""
    rest = {"recompute": "train.recompute=none", "zero": "parallel.zero=0", "sequence": "parallel.sequence=false",
            "pipeline": "parallel.pipeline=1", "tensor": "parallel.tensor=1", "schedule": "parallel.schedule=1f1b"}
    return layout.split() + [setting for word, setting in rest.items() if word not in layout]


def measure(shoal, folder, name, text, dtype, ranks):
    """The median of measured seconds, and of predicted over measured ones, of every layout of a case."""
    config = config_of(folder, text, dtype, name)
    layouts = (FEW if name == "124M" else LAYOUTS)[ranks]
    seen, ratios = {layout: [] for layout in layouts}, {layout: [] for layout in layouts}
    for number in range(ROUNDS[name]):
        cache = {**os.environ, "XDG_CACHE_HOME": os.path.join(folder, f"cache-{name}-{dtype}-{ranks}-{number}")}
        for layout in layouts:
            plan = run([shoal, "plan", config, "--json", "--ranks", str(ranks), *constraints(layout)], env=cache)
            predicted = json.loads(plan)["plans"][0]["step_seconds"]
            seen[layout].append(seconds_of_step(shoal, folder, config, ranks, layout))
            ratios[layout].append(predicted / seen[layout][-1])
    return {layout: (statistics.median(seen[layout]), statistics.median(ratios[layout])) for layout in layouts}


def main():
    options = argparse.ArgumentParser()
    options.add_argument("shoal")
    options.add_argument("out")
    options.add_argument("--only", default="", help="cases whose name, as in '10M bfloat16', has this in it")
    options = options.parse_args()
    folder = tempfile.mkdtemp()
    run([options.shoal, "prepare", "synthetic", "--out", os.path.join(folder, "data")])
    errors, regrets = [], []
    with open(options.out, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["model", "dtype", "ranks", "layout", "measured_ms", "error_percent"])
        for name, text in MODELS.items():
            for dtype in ("float32", "bfloat16"):
                for ranks in LAYOUTS:
                    if options.only not in f"{name} {dtype}":
                        continue
                    case = measure(options.shoal, folder, name, text, dtype, ranks)
                    for layout, (measured, ratio) in case.items():
                        error = ratio - 1
                        errors.append(abs(error))
                        table.writerow([name, dtype, ranks, layout, f"{1e3 * measured:.3f}", f"{100 * error:.1f}"])
                        print(f"{name:>5} {dtype:>8} {ranks} ranks  {1e3 * measured:9.2f} ms measured  {100 * error:+6.1f} %  "
                              f"{layout}", flush=True)
                    chosen = min(case.values(), key=lambda times: times[0] * times[1])[0]
                    regrets.append(chosen / min(times[0] for times in case.values()) - 1)
                    file.flush()
    errors.sort()
    print(f"{len(errors)} layouts: median error {100 * statistics.median(errors):.1f} %, 90th percentile "
          f"{100 * errors[int(0.9 * (len(errors) - 1))]:.1f} %; regret of {len(regrets)} cases: mean "
          f"{100 * statistics.mean(regrets):.1f} %, worst {100 * max(regrets):.1f} %")
    shutil.rmtree(folder)


main()
