#!/usr/bin/env python3
"""Writes tests/fuzz/corpus, small whole files of every format from which the fuzzers begin. Needs torch and safetensors."""
import collections
import gzip
import io
import json
import lzma
import pathlib
import pickle
import shutil
import struct
import sys
import tarfile
import zipfile

import torch
from safetensors.torch import save_file

corpus = pathlib.Path(__file__).parent / "corpus"


def folder(name):
    path = corpus / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def state_dict(bias):
    width, shapes = 2, {"transformer.wte.weight": (3, 2), "transformer.wpe.weight": (2, 2)}
    for name, rows, columns in [("ln_1", width, 0), ("attn.c_attn", 3 * width, width), ("attn.c_proj", width, width),
                                ("ln_2", width, 0), ("mlp.c_fc", 4 * width, width), ("mlp.c_proj", width, 4 * width)]:
        shapes[f"transformer.h.0.{name}.weight"] = (rows, columns) if columns else (rows,)
        if bias:
            shapes[f"transformer.h.0.{name}.bias"] = (rows,)
    shapes["transformer.ln_f.weight"] = (width,)
    if bias:
        shapes["transformer.ln_f.bias"] = (width,)
    state = collections.OrderedDict((name, torch.zeros(shape)) for name, shape in shapes.items())
    state["lm_head.weight"] = state["transformer.wte.weight"]
    return state


torch_files = folder("torch")
for bias, protocol in ((True, 2), (False, 4)):
    torch.save(dict(model=state_dict(bias), iter_num=1, best_val_loss=torch.tensor(1.0), config=dict(lr=1e-3, compile=None),
                    model_args=dict(n_layer=1, n_head=1, n_embd=2, block_size=2, bias=bias, vocab_size=3, dropout=0.0)),
               torch_files / f"ckpt-{protocol}.pt", pickle_protocol=protocol)
torch.save(dict(a=torch.zeros(2, 3), b=torch.ones(4, dtype=torch.float16), c=torch.zeros(1, dtype=torch.bool)), torch_files / "state.bin")

pickles = folder("pickle")
values = dict(model_args=dict(a=1, b=-2.5, c=True, d=None), text=["é", ("x", 2**40), b"bytes"], order=collections.OrderedDict(k=1))
for protocol in range(6):
    (pickles / f"{protocol}.pkl").write_bytes(pickle.dumps(values, protocol))

tensors = folder("safetensors")
save_file(dict(a=torch.zeros(2, 3), b=torch.ones(4, dtype=torch.bfloat16)), tensors / "two.safetensors", metadata=dict(format="pt"))

models = folder("llmc")
for version, size in ((3, 4), (5, 2)):
    header = struct.pack("<8i", 20240326, version, 1, 1, 1, 1, 1, 2).ljust(1024, b"\0")
    (models / f"{version}.bin").write_bytes(header + bytes(size * (2 + 1 + 25 + 2)))

config = dict(model_type="gpt2", n_layer=1, n_head=1, n_embd=1, n_positions=1, vocab_size=1, activation_function="gelu_new",
              layer_norm_epsilon=1e-05, tie_word_embeddings=True)
names = [name.replace("transformer.", "") for name in state_dict(True) if name != "lm_head.weight"]
index = dict(metadata=dict(total_size=1), weight_map={name: "a.safetensors" for name in names})
(folder("hugging_face") / "folder").write_text(json.dumps(config) + "\0" + json.dumps(index))

# The alphabet of byte-level BPE, two merges and a special token.
plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
letters = [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]
vocabulary = {token: i for i, token in enumerate([*letters, "th", "the", "<|endoftext|>"])}
(folder("bpe") / "folder").write_text(json.dumps(vocabulary, ensure_ascii=False) + "\0#version: 0.2\nt h\nth e\n")

# Datasets: characters, and their ids.
meta = dict(dataset="text", vocab_size=3, dtype="uint16", splits={name: dict(tokens=2, xxh64="0") for name in ("train", "val")},
            split_rule="", seed=1, sources=["a.txt"], tokenizer=dict(name="char", vocabulary="\naé"))
(folder("dataset") / "chars").write_bytes(json.dumps(meta, ensure_ascii=False).encode() + bytes([0, 1, 0, 2, 0]))
tokens = folder("token_folder")
(tokens / "gpt2.bin").write_bytes(struct.pack("<3i", 20240520, 1, 2).ljust(1024, b"\0") + struct.pack("<2H", 0, 50256))
(tokens / "llama.bin").write_bytes(struct.pack("<3i", 20240801, 7, 2).ljust(1024, b"\0") + struct.pack("<2I", 0, 128000))
characters = folder("nanogpt_meta")
for protocol in range(6):
    letters = dict(enumerate("\naé"))
    (characters / f"{protocol}.pkl").write_bytes(
        pickle.dumps(dict(vocab_size=3, itos=letters, stoi={letter: i for i, letter in letters.items()}), protocol))

documents = folder("documents")
lines = b'{"text": "one"}\n{"id": 1, "text": "tw\\u00f6"}\n'
(documents / "lines").write_bytes(lines)
(documents / "lines.gz").write_bytes(gzip.compress(lines, mtime=0))
(documents / "lines.xz").write_bytes(lzma.compress(lines))
for kind in ("", "gz"):
    with tarfile.open(documents / f"two.tar{kind}", f"w:{kind}") as archive:
        for name in ("a.txt", "b.jsonl"):
            entry = tarfile.TarInfo(name)
            entry.size = len(lines)
            archive.addfile(entry, io.BytesIO(lines))
with zipfile.ZipFile(documents / "two.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    for name in ("a.txt", "b.jsonl"):
        archive.writestr(zipfile.ZipInfo(name), lines)

# An adapter of one layer.
header = {}
for at, factor, shape in ((0, "A", [4, 8]), (128, "B", [24, 4])):
    size = 4 * shape[0] * shape[1]
    header[f"base_model.model.transformer.h.0.attn.c_attn.lora_{factor}.weight"] = dict(
        dtype="F32", shape=shape, data_offsets=[at, at + size])
text = json.dumps(header).encode()
settings = dict(peft_type="LORA", r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["c_attn"], bias="none", use_dora=False)
(folder("peft") / "layer").write_bytes(json.dumps(settings).encode() + b"\0" + struct.pack("<Q", len(text)) + text + bytes(128 + 384))
tasks = folder("task")
(tasks / "hellaswag").write_text(json.dumps(dict(activity_label="a", ctx_a="B [x] c.", ctx_b="dE", endings=[" f [title] g", "h"], label="1")))
(tasks / "lambada").write_text('{"text": "one two"}\n{"text": "three"}\n')
(tasks / "own").write_text('{"context": "a", "choices": ["b", "c"], "answer": 1}\n')
(folder("completions") / "all").write_text(json.dumps(dict(
    model="tiny", prompt=["a", "b"], max_tokens=4, temperature=0.5, top_p=0.9, n=2, logprobs=2, echo=True, stop=["x"],
    presence_penalty=0.1, frequency_penalty=0.1, seed=1, stream=True, top_k=3, min_p=0.1, repetition_penalty=1.1)))
(folder("completions") / "tokens").write_text('{"prompt": [[1, 2], [3]]}')
print(*sorted(f"{path.relative_to(corpus)} {path.stat().st_size}" for path in corpus.rglob("*") if path.is_file()), sep="\n", file=sys.stderr)
