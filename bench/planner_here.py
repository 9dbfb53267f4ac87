#!/usr/bin/env python3
"""Trains layouts here and prints their measured steps and memory beside the predictions (docs/planner.md).

    bench/planner_here.py SHOAL OUT.csv [--only EXPRESSION]
    bench/planner_here.py SHOAL OUT.csv --launch COMMAND --link NAME [--only EXPRESSION]      # from bench/planner_networks.sh

In every round the machine is measured anew, and each layout is trained for some steps right after what its prediction needs
was measured, since the speed of a shared machine changes within minutes. A layout's error is the median over the rounds of
predicted over measured time. Memory is the most that the program had resident, over its ranks. The regret compares medians: the
measured time of the chosen layout over the least measured one, minus 1. The planner chooses freely among all layouts, once before
the rounds; its choice and the two that it takes to be next are measured too. To tell apart what differs by a few percent, the chosen
layout and those within 10 % of the fastest, over the root of the number of trainings so far, are trained in further rounds. (In a
job of MPI the choice is the layout with the least predicted time.) Steps behind the first two count.
COMMAND starts the four ranks of an MPI job. OUT.csv keeps the rows of cases that are not measured again; the summary is that
of all its rows.
"""
import argparse
import csv
import json
import math
import os
import re
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
ROUNDS = {"0.8M": 4, "10M": 2, "124M": 1}
FURTHER = {"0.8M": 28, "10M": 12, "124M": 5}
BASE = ("eval.at_start=false eval.interval=-1 checkpoint.interval=0 checkpoint.best=false log.interval=1 log.tensorboard=false "
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


def constraints(layout):
    """The layout's keys, and the others at their defaults."""
    rest = {"recompute": "train.recompute=none", "zero": "parallel.zero=0", "sequence": "parallel.sequence=false",
            "pipeline": "parallel.pipeline=1", "tensor": "parallel.tensor=1", "schedule": "parallel.schedule=1f1b",
            "replicate": "parallel.replicate=1", "threads": "train.threads=0"}
    return layout.split() + [setting for word, setting in rest.items() if word not in layout]


def alike(one, other):
    """Whether two texts are the same layout."""
    return set(one.split()) - {"parallel.schedule=1f1b"} == set(other.split()) - {"parallel.schedule=1f1b"}


class Bench:
    def __init__(self, shoal, launch):
        self.temporary = tempfile.TemporaryDirectory()  # removed when the program ends
        self.folder = self.temporary.name
        self.shoal = [launch, shoal] if launch else [shoal]
        self.launch = launch
        # Few tokens: the pages of token files, which the prediction does not count, would be in the measurement.
        run([shoal, "prepare", "synthetic", "--size", "100000", "--out", os.path.join(self.folder, "data")])

    def command(self, name, config, ranks, settings):
        started = [] if self.launch else ["--ranks", str(ranks)]
        return [*self.shoal, name, config, *started, *settings]

    def predict(self, config, ranks, layout, cache):
        """Seconds of a step, and bytes of all ranks."""
        os.environ["XDG_CACHE_HOME"] = cache
        plan = json.loads(run(self.command("plan", config, ranks, ["--json", *constraints(layout)])))["plans"][0]
        return plan["step_seconds"], plan["host_memory_bytes"]

    def best(self, config, ranks, cache):
        """The three layouts that the planner takes to be fastest among all."""
        os.environ["XDG_CACHE_HOME"] = cache
        return [plan["layout"] for plan in json.loads(run(self.command("plan", config, ranks, ["--json"])))["plans"][:3]]

    def train(self, config, ranks, layout):
        """Seconds of a step, and bytes of all ranks, where they are threads."""
        out = os.path.join(self.folder, "runs")
        shutil.rmtree(out, ignore_errors=True)
        command = self.command("train", config, ranks, [f"run.dir={out}", "run.name=r", *layout.split()])
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            sys.exit(f"{' '.join(command)}\n{said}")
        with open(os.path.join(out, "r", "metrics.jsonl")) as file:
            rows = [json.loads(line) for line in file]
        times = [row["ms_per_step"] for row in rows if "ms_per_step" in row]
        return statistics.median(times[2:]) / 1e3, usage.ru_maxrss * 1024

    def case(self, name, dtype, ranks):
        """Medians of every layout: measured seconds, predicted ones, and the latter over the former; and of bytes. The chosen one."""
        config = config_of(self.folder, MODELS[name], dtype, name)
        layouts = (FEW if name == "124M" else LAYOUTS)[ranks]
        chosen = None
        if not self.launch:
            best = self.best(config, ranks, os.path.join(self.folder, f"cache-{name}-{dtype}-{ranks}"))
            layouts = [layout for layout in layouts if not any(alike(layout, other) for other in best)] + best
            chosen = best[0]
        seen = {layout: [] for layout in layouts}
        for number in range(2 if self.launch else ROUNDS[name]):
            cache = os.path.join(self.folder, f"cache-{name}-{dtype}-{ranks}-{number}")
            for layout in layouts:
                predicted, bytes_predicted = self.predict(config, ranks, layout, cache)
                measured, bytes_measured = self.train(config, ranks, layout)
                seen[layout].append((measured, predicted, predicted / measured,
                                     bytes_measured, bytes_predicted, bytes_predicted / bytes_measured))
        medians = {layout: [statistics.median(values) for values in zip(*seen[layout])] for layout in layouts}
        if chosen:
            times = {layout: [row[0] for row in seen[layout]] for layout in layouts}
            for _ in range(FURTHER[name]):
                fastest = min(row[0] for row in medians.values())
                for layout in layouts:
                    near = 1 + 0.1 / math.sqrt(len(times[layout]))
                    if layout == chosen or medians[layout][0] < near * fastest:
                        times[layout].append(self.train(config, ranks, layout)[0])
                        medians[layout][0] = statistics.median(times[layout])
        return medians, chosen or min(layouts, key=lambda layout: medians[layout][1])


def read_rows(file):
    if not os.path.exists(file):
        return {}
    with open(file, newline="") as text:
        return {tuple(row[:5]): row[5:] for row in list(csv.reader(text))[1:]}


def without_case(rows, *case):
    return {key: row for key, row in rows.items() if key[:4] != case}


def write_rows(file, rows):
    with open(file, "w", newline="") as text:
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["link", "model", "dtype", "ranks", "layout", "measured_ms", "predicted_ms", "error_percent",
                        "measured_mib", "predicted_mib", "memory_error_percent", "chosen"])
        table.writerows([*key, *values] for key, values in rows.items())


def summary(rows):
    """A line for each link, model and type, for each number of ranks, and for all."""
    groups = {}
    for key, row in rows.items():
        for name in [key[:3], (f"all with {key[3]} ranks", "", ""), ("all", "", "")]:
            groups.setdefault(name, {}).setdefault(key[:4], []).append([float(value or "nan") for value in row[:6]] + [row[6]])
    lines = ["| ranks | model | type | layouts | median error | 90th percentile | mean regret | worst | memory, median error | worst |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for name, cases in sorted(groups.items(), key=lambda group: (group[0][0].startswith("all"), group[0][0] == "all")):
        errors, memory = (sorted(abs(row[at]) for case in cases.values() for row in case) for at in (2, 5))
        regrets = [100 * (next(row[0] for row in case if row[6]) / min(row[0] for row in case) - 1) for case in cases.values()]
        values = [statistics.median(errors), errors[int(0.9 * (len(errors) - 1))], statistics.mean(regrets), max(regrets),
                  statistics.median(memory), memory[-1]]
        lines.append(f"| {' | '.join(name)} | {len(errors)} | {' | '.join('' if value != value else f'{value:.1f} %' for value in values)} |")
    return "\n".join(lines)


def main():
    options = argparse.ArgumentParser()
    options.add_argument("shoal")
    options.add_argument("out")
    options.add_argument("--only", default="", help="cases whose name, as in '10M bfloat16 4', matches this expression")
    options.add_argument("--launch", help="a command that starts four ranks")
    options.add_argument("--link", default="", help="a name of the network, for the table")
    options = options.parse_args()
    bench = Bench(options.shoal, options.launch)
    cases = [(name, dtype, ranks) for name in MODELS for dtype in ("float32", "bfloat16") for ranks in LAYOUTS
             if re.search(options.only, f"{name} {dtype} {ranks}") and (ranks == 4 or not options.launch)]
    rows = read_rows(options.out)
    for name, dtype, ranks in cases:
        medians, chosen = bench.case(name, dtype, ranks)
        rows = without_case(rows, options.link or "threads", name, dtype, str(ranks))
        for layout, (measured, predicted, ratio, held, counted, share) in medians.items():
            row = [f"{1e3 * measured:.3f}", f"{1e3 * predicted:.3f}", f"{100 * (ratio - 1):+.1f}"]
            # The ranks of a job are processes on several hosts.
            row += ["", "", ""] if options.launch else [f"{held / 2**20:.1f}", f"{counted / 2**20:.1f}", f"{100 * (share - 1):+.1f}"]
            row.append("yes" if layout == chosen else "")
            rows[options.link or "threads", name, dtype, str(ranks), layout] = row
            print(f"{options.link} {name:>5} {dtype:>8} {ranks} ranks  {row[0]:>9} ms measured  {row[2]:>6} %  {row[3]:>7} MiB  "
                  f"{row[5]:>6} %  {layout}{'  chosen' if row[6] else ''}", flush=True)
        write_rows(options.out, rows)
    print(summary(rows))


main()
