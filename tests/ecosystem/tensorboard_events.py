#!/usr/bin/env python3
"""Reads runs' TensorBoard events by TensorBoard's own package and compares every value with metrics.jsonl.

    pip install tensorboard
    tests/ecosystem/tensorboard_events.py build/release/shoal
"""
import pathlib
import sys
import tempfile

import tensorboard
from runs import Runs, number, records_of, same
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import wandb_sync  # noqa: E402  (the fields of metrics.jsonl under TensorBoard's tags)

FLOAT_ROUNDING = 2.0 ** -24  # events hold float32
ONLY_IN_JSON = {"eval/entropy_floor"}


def compare(run):
    events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    wanted = {}
    for record in records_of(run):
        for tag, value in wandb_sync.tagged(record).items():
            if tag not in ONLY_IN_JSON:
                wanted.setdefault(tag, []).append((record["step"], number(value)))
    assert set(events.Tags()["scalars"]) == set(wanted), (events.Tags()["scalars"], sorted(wanted))
    values = 0
    for tag, points in wanted.items():
        found = [(event.step, event.value) for event in events.Scalars(tag)]
        assert [step for step, _ in found] == [step for step, _ in points], tag
        for (step, value), (_, expected) in zip(found, points):
            assert same(value, expected, FLOAT_ROUNDING) or value == expected, (tag, step, value, expected)
        values += len(points)
    return f"{len(wanted)} tags, {values} values, all equal in float32"


def main(shoal):
    print(f"tensorboard {tensorboard.__version__}")
    with tempfile.TemporaryDirectory() as folder, Runs(shoal, folder) as runs:
        print("a finished run:", compare(runs.train("whole")))
        print("resumed, in a second file:", compare(runs.train("whole", "init.from=resume", "train.steps=260")))
        gossip = runs.train("gossip", "--ranks", "4", "parallel.engine=gossip", "train.micro_batch=2", "train.steps=60")
        print("gossip, with consensus distances:", compare(gossip))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
