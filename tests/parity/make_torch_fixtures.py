#!/usr/bin/env python3
"""What PyTorch computes for tiny GPT-2s, for torch_parity_test.cpp: make_torch_fixtures.py [FOLDER]

Everything is computed in float64, so that the fixtures are the exact answer for the purposes of float32, and stored as
safetensors: parameters, logits, gradients and the parameters' change in all steps as float32, losses and norms as
float64. Needs torch and safetensors.
"""
import math
import pathlib
import sys
import types

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

STEPS, LR, CLIP = 10, 1e-3, 1.0
CONFIGS = {
    "bias_tanh": dict(n_layer=2, n_head=2, n_embd=32, block_size=16, vocab_size=61, batch=3, bias=True, gelu="tanh",
                      ignored=0),
    "plain_erf": dict(n_layer=3, n_head=3, n_embd=48, block_size=24, vocab_size=97, batch=2, bias=False, gelu="none",
                      ignored=5),
    "untied_erf": dict(n_layer=2, n_head=2, n_embd=32, block_size=12, vocab_size=53, batch=2, bias=True, gelu="none",
                       ignored=3, untied=True),
    "muon": dict(n_layer=2, n_head=2, n_embd=32, block_size=12, vocab_size=53, batch=2, bias=True, gelu="tanh", ignored=0,
                 optimizer="muon"),
}


def parameter_shapes(c):
    width, shapes = c["n_embd"], {}

    def add(name, *shape):
        shapes[f"transformer.{name}.weight"] = shape
        if c["bias"] and name not in ("wte", "wpe"):
            shapes[f"transformer.{name}.bias"] = shape[:1]

    add("wte", c["vocab_size"], width)
    add("wpe", c["block_size"], width)
    for layer in range(c["n_layer"]):
        add(f"h.{layer}.ln_1", width)
        add(f"h.{layer}.attn.c_attn", 3 * width, width)
        add(f"h.{layer}.attn.c_proj", width, width)
        add(f"h.{layer}.ln_2", width)
        add(f"h.{layer}.mlp.c_fc", 4 * width, width)
        add(f"h.{layer}.mlp.c_proj", width, 4 * width)
    add("ln_f", width)
    if c.get("untied"):
        shapes["lm_head.weight"] = (c["vocab_size"], width)
    return shapes


def make_parameters(c, generator):
    """Values that no term can hide behind: gains away from 1, biases away from 0, and products that amplify as those
    of a fresh GPT-2 do (0.02 at width 768). They are bfloat16 numbers: both precisions then start from the same model,
    and what is compared is the computation."""
    parameters, stddev = {}, 0.02 * math.sqrt(768 / c["n_embd"])
    for name, shape in parameter_shapes(c).items():
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        is_gain = ".ln_" in name and name.endswith("weight")
        values = 1 + 0.3 * values if is_gain else stddev * values
        parameters[name] = values.bfloat16().double().requires_grad_()
    return parameters


def logits_of(p, c, tokens):
    batch, positions = tokens.shape
    width, heads = c["n_embd"], c["n_head"]

    def norm(x, name):
        return F.layer_norm(x, (width,), p[f"{name}.weight"], p.get(f"{name}.bias"), eps=1e-5)

    def linear(x, name):
        return F.linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))

    causal = torch.ones(positions, positions).tril().bool()
    x = p["transformer.wte.weight"][tokens] + p["transformer.wpe.weight"][:positions]
    for layer in range(c["n_layer"]):
        h = f"transformer.h.{layer}"
        q, k, v = (part.view(batch, positions, heads, width // heads).transpose(1, 2)
                   for part in linear(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn").split(width, dim=2))
        scores = (q @ k.transpose(2, 3)) / math.sqrt(width // heads)
        answers = scores.masked_fill(~causal, -math.inf).softmax(dim=3) @ v
        x = x + linear(answers.transpose(1, 2).reshape(batch, positions, width), f"{h}.attn.c_proj")
        hidden = F.gelu(linear(norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc"), approximate=c["gelu"])
        x = x + linear(hidden, f"{h}.mlp.c_proj")
    return norm(x, "transformer.ln_f") @ p.get("lm_head.weight", p["transformer.wte.weight"]).T


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def optimizers_of(p, c):
    muon = [name for name, v in p.items() if c.get("optimizer") == "muon" and ".h." in name and v.dim() == 2]
    others = [v for name, v in p.items() if name not in muon]
    optimizers = [torch.optim.AdamW([{"params": [v for v in others if v.dim() >= 2], "weight_decay": 0.1},
                                     {"params": [v for v in others if v.dim() < 2], "weight_decay": 0.0}],
                                    lr=LR, betas=(0.9, 0.95), eps=1e-8)]
    if muon:
        optimizers.append(torch.optim.Muon([p[name] for name in muon], lr=LR, weight_decay=0.1,
                                           adjust_lr_fn="match_rms_adamw"))
        # PyTorch's iteration is in bfloat16 whatever the parameters are: here it is exact, too.
        module = sys.modules["torch.optim._muon"]
        module.torch = types.SimpleNamespace(**{**vars(torch), "bfloat16": torch.float64})
    return optimizers


def make_fixture(c, seed):
    generator = torch.Generator().manual_seed(seed)
    p = make_parameters(c, generator)
    shape = (STEPS, c["batch"], c["block_size"])
    tokens = torch.randint(c["vocab_size"], shape, generator=generator)
    targets = torch.randint(c["vocab_size"], shape, generator=generator)
    for step in range(STEPS):
        targets[step].view(-1)[torch.randperm(targets[step].numel(), generator=generator)[:c["ignored"]]] = -1
    tensors = {name: value.detach().float() for name, value in p.items()}
    tensors |= {"tokens": tokens.int(), "targets": targets.int()}

    optimizers = optimizers_of(p, c)
    losses, norms = [], []
    for step in range(STEPS):
        for value in p.values():
            value.grad = None
        logits = logits_of(p, c, tokens[step])
        loss = loss_of(logits, targets[step])
        loss.backward()
        if step == 0:
            tensors["logits"] = logits.detach().float()
            tensors |= {f"grad.{name}": value.grad.float() for name, value in p.items()}
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(p.values(), CLIP).item())
        for optimizer in optimizers:
            optimizer.step()
    assert min(norms) > 1.2 * CLIP, "clipping must act"
    tensors |= {f"change.{name}": (value.detach() - tensors[name].double()).float() for name, value in p.items()}
    tensors |= {"losses": torch.tensor(losses, dtype=torch.float64), "norms": torch.tensor(norms, dtype=torch.float64)}
    return {name: tensor.clone().contiguous() for name, tensor in tensors.items()}


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "fixtures")
    for seed, (name, c) in enumerate(CONFIGS.items()):
        tensors = make_fixture(c, seed)
        save_file(tensors, folder / f"{name}.safetensors",
                  metadata={key: str(value) for key, value in c.items()} | {"torch": torch.__version__})
        print(name, "losses", tensors["losses"].tolist(), "norms", tensors["norms"].tolist())


if __name__ == "__main__":
    main()
