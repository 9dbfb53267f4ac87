#!/usr/bin/env python3
"""verify.py SHOAL [--rounds N] [--steps N] [section.key=value ...]: the cost of run.verify for a step.

Trains configs/quickstart.toml on two ranks of one thread, with every step verified and with none, in interleaved rounds. Prints
the median time of a step, and the processor time of both ranks for a step, which hardly depends on other programs.
"""
import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import tempfile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("shoal")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--steps", type=int, default=150)
arguments, settings = parser.parse_known_args()
shoal = str(pathlib.Path(arguments.shoal).resolve())
config = pathlib.Path(__file__).resolve().parent.parent / "configs/quickstart.toml"


def processor_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def train(folder, name, steps, verify):
    """The median milliseconds of a step, and the processor seconds of the run."""
    before = processor_seconds()
    subprocess.run([shoal, "train", config, "data.dir=data", "run.dir=.", f"run.name={name}", f"run.verify={verify}", "--ranks", "2",
                    "train.threads=1", f"train.steps={steps}", "log.interval=1", "log.peak_tflops=1", "eval.interval=-1",
                    "checkpoint.interval=0", *settings], cwd=folder, check=True, capture_output=True)
    records = map(json.loads, open(pathlib.Path(folder, name, "metrics.jsonl")))
    times = [record["ms_per_step"] for record in records if "ms_per_step" in record]
    return statistics.median(times), processor_seconds() - before


with tempfile.TemporaryDirectory() as folder:
    subprocess.run([shoal, "prepare", "synthetic", "--out", "data"], cwd=folder, check=True, capture_output=True)
    print("round  verify  ms/step  processor ms/step")
    results = {0: [], 1: []}
    for number in range(arguments.rounds):
        for verify in (0, 1) if number % 2 == 0 else (1, 0):
            _, start = train(folder, f"start-{number}-{verify}", 1, verify)
            time, seconds = train(folder, f"run-{number}-{verify}", arguments.steps + 1, verify)
            results[verify].append((time, 1e3 * (seconds - start) / arguments.steps))
            print("%5d  %6d  %7.2f  %17.2f" % (number + 1, verify, *results[verify][-1]), flush=True)
    plain, verified = ([statistics.median(column) for column in zip(*results[verify])] for verify in (0, 1))
    more = [100 * (b / a - 1) for a, b in zip(plain, verified)]
    print("medians: verifying costs %+.0f %% of a step's time, %+.0f %% of its processor time" % tuple(more))
