#!/usr/bin/env python3
"""Uploads a run's metrics and config to Weights & Biases, once or while the run goes on.

    pip install wandb
    scripts/wandb_sync.py runs/quickstart                      # uploads what is there
    scripts/wandb_sync.py runs/quickstart --follow             # and what comes, until the run ends
    WANDB_MODE=offline scripts/wandb_sync.py runs/quickstart   # without a network; `wandb sync` uploads it later

The script keeps RUN/wandb_sync.json: the id of the run there, and the last record that was uploaded. Started again, it goes on
behind that record. A training run that resumes from a checkpoint repeats some steps with the same values, so these are left
out as well. Names are those of the run's TensorBoard events.
"""
import argparse
import fcntl
import json
import math
import os
import pathlib
import re
import sys
import time
import tomllib

SECONDS_BETWEEN_LOOKS = 5
STATE_FILE = "wandb_sync.json"
# The fields of metrics.jsonl under the names of TensorBoard's tags.
STEP_TAGS = {
    "loss": "train/loss", "lr": "train/lr", "grad_norm": "train/grad_norm", "tokens": "train/tokens",
    "tokens_per_s": "speed/tokens_per_s", "ms_per_step": "speed/ms_per_step", "peak_share": "speed/peak_share",
    "memory_per_rank": "memory/bytes_per_rank",
}
KINDS = ("step", "eval", "test")  # in the order in which records of one step are written


def kind_of(record):
    return "eval" if "val_loss" in record else "test" if "test_loss" in record else "step"


def position_of(record):
    return record["step"], KINDS.index(kind_of(record))


def tagged(record):
    """The record as W&B shows it. A null is a value that is not finite."""
    is_step = kind_of(record) == "step"
    shown = {}
    for key, value in record.items():
        if key == "step":
            continue
        task = re.fullmatch("task_(.*)_accuracy", key)
        if isinstance(value, dict):  # the losses of a mixture's sources: "val_losses"
            shown |= {f"eval/{key.removesuffix('es')}/{source}": math.nan if loss is None else loss
                      for source, loss in value.items()}
        elif is_step:
            shown[STEP_TAGS.get(key, key)] = math.nan if value is None else value
        else:
            shown[f"eval/task/{task[1]}" if task else f"eval/{key}"] = math.nan if value is None else value
    return shown


def read_records(file):
    """The whole lines of a file that may be growing."""
    lines = file.read_bytes().split(b"\n")[:-1]
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            record["step"] + 0
        except (ValueError, TypeError, KeyError):
            sys.exit(f"{file}:{number}: not a metrics record; the file is damaged here")
        yield record


def in_use(run):
    """Whether a process holds the run's lock."""
    try:
        with open(run / ".lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def read_config(run):
    try:
        with open(run / "config.toml", "rb") as file:
            return tomllib.load(file)
    except FileNotFoundError:
        return {}


def read_state(run):
    try:
        return json.loads((run / STATE_FILE).read_text())
    except FileNotFoundError:
        return {}
    except ValueError:
        sys.exit(f"{run / STATE_FILE} is damaged; remove it, and the run is uploaded as a new one")


def keep_state(run, state):
    partial = run / f".{STATE_FILE}.partial"
    partial.write_text(json.dumps(state) + "\n")
    os.replace(partial, run / STATE_FILE)


def upload_new(upload, metrics, state):
    """Uploads the records behind the position state["last"], which goes along; returns their number."""
    count = 0
    for record in read_records(metrics):
        position = position_of(record)
        if position <= tuple(state["last"]):
            continue
        upload.log({"step": record["step"], **tagged(record)})
        state["last"] = position
        count += 1
    return count


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path, help="the folder of a run")
    parser.add_argument("--follow", action="store_true", help="go on until the run ends")
    parser.add_argument("--project", help="default: that of the last time, or WANDB_PROJECT, or shoal")
    parser.add_argument("--entity", help="the user or team (default: that of the last time, or your own)")
    parser.add_argument("--name", help="the name there (default: the folder's)")
    options = parser.parse_args()
    if not (options.run / "metrics.jsonl").exists():
        parser.error(f"{options.run} has no metrics.jsonl: it is not the folder of a run, or it had log.jsonl=false")
    return options


def main():
    options = parse_arguments()
    try:
        import wandb
    except ImportError:
        sys.exit("wandb_sync.py needs the client of Weights & Biases: pip install wandb")
    run, metrics = options.run, options.run / "metrics.jsonl"
    state = read_state(run)
    project = options.project or state.get("project") or os.environ.get("WANDB_PROJECT", "shoal")
    entity = options.entity or state.get("entity")
    if "id" in state and (project, entity) != (state["project"], state.get("entity") or entity):
        place = "/".join(filter(None, (state.get("entity"), state["project"])))
        sys.exit(f"{run} is in {place} already; remove {run / STATE_FILE} to upload it as a new run")
    upload = wandb.init(project=project, entity=entity, name=options.name or run.resolve().name,
                        id=state.get("id"), resume="allow" if "id" in state else None, config=read_config(run),
                        dir=str(run))
    # Kept at once, and whatever ends an upload: the next one goes on with the same run behind its last record.
    state = {"id": upload.id, "project": project, "entity": entity, "last": state.get("last", (-1, -1))}
    keep_state(run, state)
    # Charts are drawn over the run's own steps. W&B's counter takes no step twice, and an evaluation has the step before it.
    upload.define_metric("step", hidden=True)
    upload.define_metric("*", step_metric="step")
    upload.define_metric("eval/val_loss", step_metric="step", summary="min")
    try:
        while True:
            going_on = in_use(run)  # asked first: the metrics of a run at rest are complete
            try:
                count = upload_new(upload, metrics, state)
            finally:
                keep_state(run, state)
            if count:
                print(f"{count} records, up to step {state['last'][0]}", flush=True)
            if not (options.follow and going_on):
                break
            size = metrics.stat().st_size
            while in_use(run) and metrics.stat().st_size == size:
                time.sleep(SECONDS_BETWEEN_LOOKS)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here")
    finally:
        upload.finish()


if __name__ == "__main__":
    main()
