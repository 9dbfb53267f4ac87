#!/usr/bin/env python3
"""Uploads runs by scripts/wandb_sync.py in W&B's offline mode, reads its files back, and compares every value with metrics.jsonl.

    pip install wandb
    tests/ecosystem/wandb_offline.py build/release/shoal
"""
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import time

import wandb
from runs import Runs, number, records_of, same
from wandb.proto import wandb_internal_pb2

SYNC = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "wandb_sync.py"
sys.path.insert(0, str(SYNC.parent))
import wandb_sync  # noqa: E402

HEADER, BLOCK = 7, 32768


def messages(file):
    """The records of a .wandb file, which is a log as LevelDB writes it behind a header of its own."""
    data, at, message = file.read_bytes(), HEADER, b""
    assert data[:4] == b":W&B", file
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:  # no room for a header: padding
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        message = (message if kind in (3, 4) else b"") + data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(message)


def uploads_of(run):
    """The rows of history of all uploads of a run, oldest first, and the ids of their runs."""
    rows, ids = [], set()
    for file in sorted(run.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime):
        for record in messages(file):
            if record.WhichOneof("record_type") == "run":
                ids.add(record.run.run_id)
            if record.WhichOneof("record_type") != "history":
                continue
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            rows.append({key: float(value) for key, value in items.items() if not key.startswith("_")})
    return rows, ids


def compare(run):
    rows, ids = uploads_of(run)
    records = records_of(run)
    assert len(ids) == 1, ids
    assert len(rows) == len(records), f"{len(rows)} rows of {len(records)} records"
    values = 0
    for row, record in zip(rows, records):
        tags = wandb_sync.tagged(record)
        assert row.pop("step") == record["step"]
        assert row.keys() == tags.keys(), (row.keys(), tags.keys())
        for tag, value in tags.items():
            assert same(row[tag], number(value)), (record["step"], tag, row[tag], value)
        values += len(tags)
    return f"{len(rows)} rows, {values} values, all equal; one run there"


def sync(run, *options):
    subprocess.run([sys.executable, str(SYNC), str(run), *options], check=True, capture_output=True,
                   env={**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"})


def main(shoal):
    print(f"wandb {wandb.__version__}, offline")
    with tempfile.TemporaryDirectory() as folder, Runs(shoal, folder) as runs:

        run = runs.train("whole")
        sync(run)
        print("a finished run:", compare(run))
        sync(run)
        print("uploaded again, nothing is sent twice:", compare(run))
        runs.train("whole", "init.from=resume", "train.steps=260")
        sync(run)
        print("trained on and uploaded again:", compare(run))

        run = runs.train("diverged", "optim.lr=1e30", "train.grad_clip=0", "train.on_bad_step=skip", "train.steps=30")
        assert any(None in record.values() for record in records_of(run))
        sync(run)
        print("a run with losses that are not finite:", compare(run))

        training = runs.start("train", "tiny.toml", "run.name=killed", "train.steps=1000000", "checkpoint.interval=20")
        run = runs.path("killed")
        while not (run / "checkpoints/latest").exists():
            time.sleep(0.1)
        follower = subprocess.Popen([sys.executable, str(SYNC), str(run), "--follow"], stdout=subprocess.PIPE, text=True,
                                    env={**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"})
        assert "records" in follower.stdout.readline()
        training.send_signal(signal.SIGKILL)
        training.wait()
        assert follower.wait(60) == 0
        last = records_of(run)[-1]["step"]
        # The resumed run repeats the steps behind its checkpoint, with the same values but for times.
        uploaded = {(record["step"], wandb_sync.kind_of(record)): record for record in records_of(run)}
        runs.train("killed", "init.from=resume", f"train.steps={last + 40}", "checkpoint.interval=20")
        sync(run)
        rows, ids = uploads_of(run)
        records = records_of(run)
        assert len(ids) == 1 and len(rows) == len(records), (ids, len(rows), len(records))
        for row, record in zip(rows, records):
            wanted = wandb_sync.tagged(uploaded.get((record["step"], wandb_sync.kind_of(record)), record))
            assert row == {"step": record["step"], **wanted}, (row, wanted)
        print(f"followed until kill -9 at step {last}, resumed, uploaded again: {len(rows)} rows, one for each record")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
