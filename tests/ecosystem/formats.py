#!/usr/bin/env python3
"""Models that PyTorch and transformers make, read and written by Shoal: formats.py PATH_TO_SHOAL

Every model is tiny and random. PyTorch computes its loss over a split in float64, and `shoal eval` its own from the file; the
relative error of a float32 model's loss is below 1e-5. What Shoal exports is loaded by the program that it is for, and compared
bit by bit. Needs torch, transformers and safetensors; the lines of its output are bench/results/ecosystem_formats.txt.
"""
import copy
import io
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import warnings

import numpy
import safetensors
import torch
import transformers
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
SHOAL = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/release/shoal")
VOCABULARY, BLOCK, LAYERS, HEADS, WIDTH = 61, 16, 2, 2, 32
SIZES = dict(n_layer=LAYERS, n_head=HEADS, n_embd=WIDTH, vocab_size=VOCABULARY)
failures = 0


def report(what, ok, detail=""):
    global failures
    failures += not ok
    print(f"{'ok  ' if ok else 'FAIL'}  {what}{'  ' + detail if detail else ''}", flush=True)


def shoal(*arguments, code=0):
    result = subprocess.run([SHOAL, *map(str, arguments)], capture_output=True, text=True)
    if result.returncode != code:
        raise SystemExit(f"shoal {' '.join(map(str, arguments))}: {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout if code == 0 else result.stderr


class Block(nn.Module):
    """A block of nanoGPT's model, by the names of its parameters."""

    def __init__(self, bias):
        super().__init__()
        linear = lambda a, b: nn.Linear(a, b, bias=bias)
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH, bias=bias), nn.LayerNorm(WIDTH, bias=bias)
        self.attn, self.mlp = nn.Module(), nn.Module()
        self.attn.c_attn, self.attn.c_proj = linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH)
        self.mlp.c_fc, self.mlp.c_proj = linear(WIDTH, 4 * WIDTH), linear(4 * WIDTH, WIDTH)

    def forward(self, x, gelu):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, HEADS, c // HEADS).transpose(1, 2) for part in
                   self.attn.c_attn(self.ln_1(x)).split(WIDTH, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn.c_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate=gelu))


class NanoGpt(nn.Module):
    """The state dict of nanoGPT's GPT, with a tied head."""

    def __init__(self, bias, gelu="none"):
        super().__init__()
        self.gelu = gelu
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(VOCABULARY, WIDTH), wpe=nn.Embedding(BLOCK, WIDTH),
            h=nn.ModuleList(Block(bias) for _ in range(LAYERS)), ln_f=nn.LayerNorm(WIDTH, bias=bias)))
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.2)

    def forward(self, ids):
        x = self.transformer.wte(ids) + self.transformer.wpe(torch.arange(ids.shape[1]))
        for block in self.transformer.h:
            x = block(x, self.gelu)
        return self.lm_head(self.transformer.ln_f(x))


def loss_of(logits_of, model, ids):
    """The mean loss over a split as Shoal takes it, windows of BLOCK tokens, in float64."""
    model, total, count = copy.deepcopy(model).double().eval(), 0.0, 0
    with torch.no_grad():
        for begin in range(0, len(ids) - 1, BLOCK):
            end = min(begin + BLOCK, len(ids) - 1)
            logits = logits_of(model, ids[None, begin:end])[0]
            total += F.cross_entropy(logits, ids[begin + 1:end + 1], reduction="sum").item()
            count += end - begin
    return total / count


def shoals_loss(where, *settings):
    text = shoal("eval", "--checkpoint", where, "data.dir=data", "train.threads=1", "train.backend=reference", *settings)
    return float(re.search(r"loss +([\d.]+)", text)[1])


def check_loss(what, where, expected, *settings):
    got = shoals_loss(where, *settings)
    report(f"{what}: loss", abs(got - expected) < 1e-5 * expected + 5e-7, f"PyTorch {expected:.6f}, Shoal {got:.6f}")


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def same_states(got, expected):
    return got.keys() == expected.keys() and all(same(got[name].contiguous(), expected[name].contiguous()) for name in expected)


def same_files(a, b):
    return pathlib.Path(a).read_bytes() == pathlib.Path(b).read_bytes()


def write_data():
    rng = numpy.random.default_rng(1)
    ids = rng.integers(0, VOCABULARY, 1000).astype(numpy.uint16)
    os.mkdir("data")
    for split in ("train", "val"):
        ids.tofile(f"data/{split}.bin")
    characters = [chr(ord("A") + i) for i in range(VOCABULARY)]
    import pickle
    with open("data/meta.pkl", "wb") as file:
        pickle.dump(dict(vocab_size=VOCABULARY, itos=dict(enumerate(characters)),
                         stoi={c: i for i, c in enumerate(characters)}), file)
    return torch.from_numpy(ids.astype(numpy.int64))


def train_nothing(start, run):
    """A run from weights whose learning rate is zero in float32, on two ranks that share every layer."""
    pathlib.Path("tune.toml").write_text("""
data.dir = "data"
train = {global_batch = 4, micro_batch = 2, steps = 1, threads = 1}
optim.lr = 1e-60
eval.interval = -1
log.tensorboard = false
""")
    shoal("train", "tune.toml", f"init.from={start}", f"run.name={run}", "--ranks", "2", "parallel.tensor=2")


def check_nanogpt(ids):
    for bias in (True, False):
        name = f"nanoGPT {'with' if bias else 'without'} biases"
        model = NanoGpt(bias)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
        logits = model(ids[None, :BLOCK])
        loss = F.cross_entropy(logits[0, :-1], ids[1:BLOCK])
        loss.backward()
        optimizer.step()
        checkpoint = dict(model=model.state_dict(), optimizer=optimizer.state_dict(),
                          model_args=dict(block_size=BLOCK, bias=bias, dropout=0.0, **SIZES), iter_num=1,
                          best_val_loss=loss.detach(), config=dict(dataset="x", learning_rate=1e-3, init_from="scratch"))
        torch.save(checkpoint, "ckpt.pt")
        expected = loss_of(lambda m, x: m(x), model, ids)
        check_loss(f"{name}, ckpt.pt", "nanogpt:ckpt.pt", expected)
        for protocol in (3, 4, 5):
            torch.save(checkpoint, "protocol.pt", pickle_protocol=protocol)
            check_loss(f"{name}, pickle protocol {protocol}", "protocol.pt", expected)
        checkpoint["model"] = {f"_orig_mod.{key}": value for key, value in model.state_dict().items()}
        torch.save(checkpoint, "compiled.pt")
        check_loss(f"{name}, compiled", "nanogpt:compiled.pt", expected)
        train_nothing("nanogpt:ckpt.pt", f"nano-{bias}")
        out = f"nano-{bias}.safetensors"
        shoal("export", "--checkpoint", f"runs/nano-{bias}", "--format", "nanogpt-safetensors", "--out", out)
        fresh = NanoGpt(bias)
        fresh.load_state_dict(load_file(out))
        report(f"{name}, exported: load_state_dict takes it, the same bits", same_states(fresh.state_dict(), model.state_dict()))
        with safetensors.safe_open(out, "pt") as file:
            arguments = json.loads(file.metadata()["model_args"])
        report(f"{name}, exported: model_args", arguments == dict(block_size=BLOCK, bias=bias, dropout=0.0, **SIZES))
        shoal("export", "--checkpoint", f"nanogpt:{out}", "--format", "nanogpt-safetensors", "--out", "again")
        report(f"{name}, exported, read and exported: the same file", same_files("again", out))
        os.remove("again")
        text = shoal("sample", "--checkpoint", "nanogpt:ckpt.pt", "--max-tokens", "4", code=2)
        report(f"{name}, no vocabulary: said so", "meta.pkl" in text)


def check_hugging_face(ids):
    for gelu in ("gelu_new", "gelu"):
        config = transformers.GPT2Config(n_positions=BLOCK, activation_function=gelu, bos_token_id=0, eos_token_id=0, **SIZES)
        model = transformers.GPT2LMHeadModel(config)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.2)
        expected = loss_of(lambda m, x: m(x).logits, model, ids)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            typed = copy.deepcopy(model).to(dtype)
            kind = str(dtype).removeprefix("torch.")
            folder = pathlib.Path(f"hf-{gelu}-{kind}")
            typed.save_pretrained(folder)
            pickled = pathlib.Path(f"{folder}-bin")
            pickled.mkdir()
            (pickled / "config.json").write_text((folder / "config.json").read_text())
            state = typed.state_dict()
            for layer in range(LAYERS):  # the masks of older versions
                state[f"transformer.h.{layer}.attn.bias"] = torch.tril(torch.ones(BLOCK, BLOCK)).bool()[None, None]
                state[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
            torch.save(state, pickled / "pytorch_model.bin")
            shards = pathlib.Path(f"{folder}-shards")
            shards.mkdir()
            (shards / "config.json").write_text((folder / "config.json").read_text())
            places = {name: f"pytorch_model-{1 + i % 2:05}-of-00002.bin" for i, name in enumerate(state)}
            for shard in set(places.values()):
                torch.save({name: state[name] for name in state if places[name] == shard}, shards / shard)
            (shards / "pytorch_model.bin.index.json").write_text(json.dumps(dict(metadata={}, weight_map=places)))
            expected_here = loss_of(lambda m, x: m(x).logits, typed, ids)
            for what, where in (("safetensors", folder), ("pytorch_model.bin", pickled), ("two .bin shards", shards)):
                check_loss(f"transformers, {gelu}, {kind}, {what}", where, expected_here)
                out = f"{where}-out"
                shoal("export", "--checkpoint", where, "--out", out, "--dtype", kind)
                again = transformers.GPT2LMHeadModel.from_pretrained(out, dtype=dtype)
                report(f"transformers, {gelu}, {kind}, {what}, exported: from_pretrained, the same bits",
                       same_states(again.state_dict(), typed.state_dict()))
        train_nothing(f"hf:hf-{gelu}-float32-bin", f"hf-{gelu}")
        shoal("export", "--checkpoint", f"runs/hf-{gelu}", "--out", f"hf-{gelu}-trained")
        report(f"transformers, {gelu}, read on two ranks and exported: the same bits",
               same_states(load_file(f"hf-{gelu}-trained/model.safetensors"), load_file(f"hf-{gelu}-float32-out/model.safetensors")))
    untied = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_positions=BLOCK, tie_word_embeddings=False,
                                                                  bos_token_id=0, eos_token_id=0, **SIZES))
    untied.save_pretrained("untied")
    check_loss("transformers, untied head", "untied", loss_of(lambda m, x: m(x).logits, untied, ids))
    shoal("export", "--checkpoint", "untied", "--out", "untied-out")
    again = transformers.GPT2LMHeadModel.from_pretrained("untied-out")
    report("transformers, untied head, exported: from_pretrained, the same bits",
           same_states(again.state_dict(), untied.state_dict()))


def llmc_bytes(model, version):
    """The file that llm.c's train_gpt2.py writes for a model of [out, in] layers, from the format's description."""
    rows = (VOCABULARY + 127) // 128 * 128
    header = struct.pack("<8i", 20240326, version, BLOCK, VOCABULARY, LAYERS, HEADS, WIDTH, rows)
    out = io.BytesIO()
    out.write(header.ljust(1024, b"\0"))

    def put(tensor):
        tensor = tensor.detach()
        out.write((tensor.float().numpy() if version == 3 else tensor.bfloat16().view(torch.int16).numpy()).tobytes())

    state = model.state_dict()
    put(F.pad(state["transformer.wte.weight"], (0, 0, 0, rows - VOCABULARY)))
    put(state["transformer.wpe.weight"])
    for part in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"):
        for kind in ("weight", "bias"):
            for layer in range(LAYERS):
                put(state[f"transformer.h.{layer}.{part}.{kind}"])
    put(state["transformer.ln_f.weight"])
    put(state["transformer.ln_f.bias"])
    return out.getvalue()


def check_llmc(ids):
    model = NanoGpt(bias=True, gelu="tanh")
    for version, kind in ((3, "float32"), (5, "bfloat16")):
        typed = copy.deepcopy(model)
        if version == 5:
            typed.load_state_dict({name: value.bfloat16().float() for name, value in model.state_dict().items()})
        path = pathlib.Path(f"llmc-{version}.bin")
        path.write_bytes(llmc_bytes(typed, version))
        check_loss(f"llm.c, version {version}", f"llmc:{path}", loss_of(lambda m, x: m(x), typed, ids))
        train_nothing(f"llmc:{path}", f"llmc-{version}")
        shoal("export", "--checkpoint", f"runs/llmc-{version}", "--format", "llmc", "--dtype", kind, "--out", "again")
        report(f"llm.c, version {version}, read on two ranks and exported: the same file", same_files("again", path))
        os.remove("again")
        shoal("export", "--checkpoint", path, "--out", f"llmc-{version}-hf")
        hf = transformers.GPT2LMHeadModel.from_pretrained(f"llmc-{version}-hf")
        with torch.no_grad():
            distance = (hf.double().eval()(ids[None, :BLOCK]).logits - copy.deepcopy(typed).double()(ids[None, :BLOCK])).abs().max()
        report(f"llm.c, version {version}, to transformers: the same logits", distance.item() < 1e-12, f"{distance.item():.1e} apart")


def check_refusals():
    refused = []

    def refuse(what, *words, save=None, **arguments):
        if save:
            save()
        text = shoal("eval", "--checkpoint", "nanogpt:bad.pt", "data.dir=data", code=2)
        report(f"refused: {what}", all(word in text for word in words), text.strip().splitlines()[-1])
        refused.append(text)

    model = NanoGpt(True)
    arguments = dict(block_size=BLOCK, bias=True, dropout=0.0, **SIZES)
    save = lambda **values: torch.save(dict(dict(model=model.state_dict(), model_args=arguments), **values), "bad.pt")

    class Command:
        def __reduce__(self):
            return os.system, ("touch executed",)

    refuse("code", "system", "no code is executed", save=lambda: save(config=Command()))
    report("nothing was executed", not os.path.exists("executed"))
    refuse("a whole module", "__main__.NanoGpt", save=lambda: save(model=model))
    refuse("the old format", "before PyTorch 1.6",
           save=lambda: torch.save(dict(model=model.state_dict()), "bad.pt", _use_new_zipfile_serialization=False))
    transposed = dict(model.state_dict())
    transposed["transformer.h.0.attn.c_attn.weight"] = torch.zeros(WIDTH, 3 * WIDTH).t()
    refuse("a transposed view", "h.0.attn.c_attn.weight", ".contiguous()", save=lambda: save(model=transposed))
    untied = {name: value.clone() for name, value in model.state_dict().items()}
    untied["lm_head.weight"] += 1
    refuse("an untied head", "lm_head.weight", "is not the same", save=lambda: save(model=untied))
    save()
    whole = pathlib.Path("bad.pt").read_bytes()
    pathlib.Path("bad.pt").write_bytes(whole[:len(whole) // 2])
    refuse("half a file", "bad.pt", "cut off or damaged")


def main():
    torch.manual_seed(1)
    print(f"PyTorch {torch.__version__}, transformers {transformers.__version__}, safetensors {safetensors.__version__}, "
          f"{shoal('--version').strip()}")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        ids = write_data()
        check_nanogpt(ids)
        check_hugging_face(ids)
        check_llmc(ids)
        check_refusals()
        os.chdir("/")
    print("all well" if failures == 0 else f"{failures} FAILED")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
