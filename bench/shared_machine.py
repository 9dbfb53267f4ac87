#!/usr/bin/env python3
"""Training beside processes that keep cores busy, as a share of the speed alone (docs/design.md):

    bench/shared_machine.py BUILD OUT.md [--peer PYTHON] [--before BUILD] [--rounds 3] [--nice 0]

PYTHON has torch. --before is the build folder of an earlier version, for comparison; --nice is the busy processes' own. A round
measures everything alone, beside one busy process and beside four, all programs in turn; figures are medians over the rounds. The
fair share is what two threads among all get of the machine's cores. Nothing else should run.
"""
import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys

MODELS = {"char 6/6/384, 8 x 256": ("6 6 384 65 8 256 0", 5), "char 4/4/128, 12 x 64": ("4 4 128 65 12 64 0", 100)}
RIVALS = [0, 1, 4]
CORES = len(os.sched_getaffinity(0))


@contextlib.contextmanager
def rivals(count, nice):
    running = [subprocess.Popen(["nice", "-n", str(nice), sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def step_ms(command):
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"median ([0-9.]+)", done.stdout)
    if done.returncode != 0 or not found:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return float(found[1])


def main():
    options = argparse.ArgumentParser()
    options.add_argument("build")
    options.add_argument("out")
    options.add_argument("--peer")
    options.add_argument("--before")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--nice", type=int, default=0)
    options = options.parse_args()
    here = os.path.dirname(os.path.abspath(__file__))
    program = os.path.join(options.build, "bench", "bench_train_step")
    cases = []  # model, name, command
    for model, (shape, steps) in MODELS.items():
        arguments = [*shape.split(), "float32", str(steps)]
        cases.append((model, "2 threads", [program, *arguments, "2"]))
        for ranks in CORES, 2 * CORES:
            cases.append((model, f"{ranks} ranks of 1 thread", [program, *arguments, "1", "--ranks", str(ranks)]))
        if options.before:
            before = os.path.join(options.before, "bench", "bench_train_step")
            cases.append((model, "2 threads, before", [before, *arguments, "2"]))
        if options.peer:
            cases.append((model, "PyTorch, 2 threads", [options.peer, os.path.join(here, "peers", "torch_gpt.py"), *arguments, "2"]))
    times = {}
    for _ in range(options.rounds):
        for count in RIVALS:
            with rivals(count, options.nice):
                for model, name, command in cases:
                    ms = step_ms(command)
                    times.setdefault((model, name, count), []).append(ms)
                    print(f"{model}, {name}, {count} busy: {ms:.1f} ms", file=sys.stderr, flush=True)
    lines = ["| model | program | alone, ms | beside 1 | of its speed alone | beside 4 | of its speed alone |", "|---|---|---|---|---|---|---|"]
    for model, name, _ in cases:
        alone, one, four = (statistics.median(times[model, name, count]) for count in RIVALS)
        lines.append(f"| {model} | {name} | {alone:.1f} | {one:.1f} | {100 * alone / one:.0f} % | {four:.1f} | {100 * alone / four:.0f} % |")
    shares = [100 * min(1, CORES / (CORES + count)) for count in RIVALS[1:]]
    lines.append(f"| | a fair share | | | {shares[0]:.0f} % | | {shares[1]:.0f} % |")
    with open(options.out, "w") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines))


main()
