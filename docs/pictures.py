#!/usr/bin/env python3
"""Draws docs/rooms.svg from the build's own lines, and docs/micro-batch.svg.

    docs/pictures.py            # writes both beside itself
    docs/pictures.py --check    # fails where they are not what it would write
"""
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bench"))
from svg import document, text  # noqa: E402

# Rooms by (share of the width, level from the top), with a line each.
ROOMS = {
    "cli": (0.5, 0, "one file per subcommand"),
    "planner": (0.34, 1, "dry runs, simulation"),
    "train": (0.34, 2, "runtime, trainer, evaluation"),
    "launch": (0.8, 2, "hosts, restarts"),
    "report": (0.34, 3, "metrics, plots, traces"),
    "config": (0.5, 4, "schema, plan, memory"),
    "serve": (0.82, 4, "completions over HTTP"),
    "parallel": (0.28, 5, "mesh, engine, pipeline, gossip"),
    "generate": (0.82, 5, "sampling with a KV cache"),
    "model": (0.2, 6, "units, layers, gpt"),
    "optim": (0.46, 6, "optimizers, schedules"),
    "ops": (0.12, 7, "kernels: reference, cpu, cuda"),
    "comm": (0.37, 7, "collectives: threads, MPI, NCCL"),
    "data": (0.62, 7, "tokenizers, files, batches"),
    "checkpoint": (0.87, 7, "safetensors, manifest, store"),
    "core": (0.5, 8, "errors, tensors, Philox, files, logs"),
}
WIDTH, ROW, BOX, HIGH = 960, 78, 212, 46


def direct_links():
    """{room: rooms that its library names}."""
    build = (HERE.parent / "CMakeLists.txt").read_text()
    links = {}
    for name, used in re.findall(r"shoal_room\((\w+)(?:/\w+)? .*USES (.*)\)", build):
        links.setdefault(name, set()).update(set(re.findall(r"shoal_([a-z]+)", used)) - {name})
    return {room: {other for other in used if other in ROOMS} for room, used in links.items()}


def draw_rooms():
    place = {room: (WIDTH * across, 24 + level * ROW) for room, (across, level, _) in ROOMS.items()}
    parts = ['<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
             'orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#8a94a6"/></marker></defs>']
    for room, used in direct_links().items():
        x, y = place[room]
        for other in sorted(used):
            to_x, to_y = place[other]
            parts.append(f'<line x1="{x:.0f}" y1="{y + HIGH:.0f}" x2="{to_x + (x - to_x) * 0.12:.0f}" y2="{to_y - 2:.0f}" '
                         'stroke="#8a94a6" stroke-width="1.3" marker-end="url(#tip)"/>')
    for room, (x, y) in place.items():
        parts.append(f'<rect x="{x - BOX / 2:.0f}" y="{y:.0f}" width="{BOX}" height="{HIGH}" rx="6" fill="#eef3fb" '
                     'stroke="#2b6cb0"/>')
        parts.append(text(x, y + 19, room, size=15, anchor="middle"))
        parts.append(text(x, y + 36, ROOMS[room][2], size=11.5, anchor="middle", colour="#555555"))
    return document(WIDTH, 24 + ROW * 9, parts)


# The way of a micro-batch: who does a step, and what happens.
STEPS = [
    ("data", "BatchLoader reads tokens and targets ahead, addressed by (seed, step, sample)"),
    ("parallel/pipeline", "Pipeline follows its schedule: forward and backward passes of each micro-batch"),
    ("parallel/data", "WeightStore gives a unit's weights: there already, or gathered from the shards (ZeRO 3)"),
    ("model", "Gpt computes the unit; tensor ranks exchange activations in every block"),
    ("ops", "kernels of the backend: ours, and on a GPU products by cuBLASLt"),
    ("model", "the head computes loss and logits' gradient chunk by chunk; the backward pass returns"),
    ("parallel/data", "GradientReducer reduces a unit's gradient as soon as its last pass is done"),
    ("parallel/data", "GradientNorm adds sums of blocks in a fixed order: the same bits in every layout"),
    ("optim", "Optimizer updates this rank's shard; weights for products are gathered again"),
    ("parallel/gossip", "with several workers, Mixer averages with the round's group before the update"),
]


def draw_micro_batch():
    colours = {"data": "#b7791f", "parallel/pipeline": "#6b46c1", "parallel/data": "#2b6cb0", "model": "#2f855a",
               "ops": "#c05621", "optim": "#97266d", "parallel/gossip": "#2c7a7b"}
    parts = []
    for i, (room, what) in enumerate(STEPS):
        y = 20 + i * 44
        if i + 1 < len(STEPS):
            parts.append(f'<line x1="110" y1="{y + 32}" x2="110" y2="{y + 44}" stroke="#8a94a6" stroke-width="2"/>')
        parts.append(f'<rect x="20" y="{y}" width="180" height="32" rx="6" fill="{colours[room]}"/>')
        parts.append(text(110, y + 21, room, size=13, anchor="middle", colour="#ffffff"))
        parts.append(text(216, y + 21, what, size=13))
    return document(860, 30 + 44 * len(STEPS), parts)


def main():
    stale = []
    for name, picture in (("rooms.svg", draw_rooms()), ("micro-batch.svg", draw_micro_batch())):
        file = HERE / name
        if "--check" not in sys.argv:
            file.write_text(picture)
        elif file.read_text() != picture:
            stale.append(name)
    if stale:
        sys.exit(f"{', '.join(stale)} in docs/ is not up to date: run docs/pictures.py")


if __name__ == "__main__":
    main()
