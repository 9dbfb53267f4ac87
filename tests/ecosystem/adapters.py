#!/usr/bin/env python3
"""Adapters that Shoal and peft make, each read by the other: adapters.py PATH_TO_SHOAL

A tiny random GPT-2 of transformers is tuned by Shoal on all its linear layers. peft loads the adapters beside the same GPT-2, and its
logits are those of the merged weights that Shoal exports, to 1e-5. peft makes adapters, and what Shoal merges or trains on from them
has peft's logits. Needs torch, transformers, peft and safetensors; the lines of its output are
bench/results/ecosystem_adapters.txt.
"""
import json
import os
import tempfile
import warnings

import peft
import torch
import transformers
from comparison import check, end, shoal

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
LAYERS = ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]


def logits(model, tokens):
    with torch.no_grad():
        return model.eval()(tokens).logits.double()


def compare(what, one, other):
    distance = (one - other).abs().max().item()
    check(what, distance < 1e-5, f"logits differ by {distance:.1e} at most")


def load(folder):
    return transformers.GPT2LMHeadModel.from_pretrained(folder)


def tune(*settings):
    shoal("train", "tune.toml", "init.from=hf:base", f"lora.targets={','.join(LAYERS)}", "lora.rank=4", "lora.alpha=8", *settings)


os.chdir(tempfile.mkdtemp())
print(f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}")
shoal("prepare", "synthetic", "--size", "20000", "--out", "data")
with open("data/meta.json") as file:
    vocabulary = json.load(file)["vocab_size"]
torch.manual_seed(1)
base = transformers.GPT2LMHeadModel(transformers.GPT2Config(
    n_layer=2, n_head=2, n_embd=32, n_positions=16, vocab_size=vocabulary, bos_token_id=0, eos_token_id=0))
base.save_pretrained("base")
with open("tune.toml", "w") as file:
    file.write('data.dir = "data"\ntrain = {global_batch = 4, micro_batch = 2, steps = 20, threads = 1}\n'
               'eval = {interval = 20, batches = 2}\nlog.tensorboard = false\noptim.lr = 1e-2\n')
tokens = torch.randint(vocabulary, (8, 16))

tune("run.name=tuned", "--ranks", "2", "parallel.zero=3")
shoal("export", "--checkpoint", "runs/tuned", "--format", "peft", "--out", "adapters")
shoal("export", "--checkpoint", "runs/tuned", "--out", "merged")
theirs = peft.PeftModel.from_pretrained(load("base"), "adapters")
tuned = logits(theirs, tokens)
check("adapters change the model", (tuned - logits(base, tokens)).abs().max().item() > 1e-2)
compare("peft with Shoal's adapters, and Shoal's merged weights", tuned, logits(load("merged"), tokens))
compare("the same, merged by peft", logits(theirs.merge_and_unload(), tokens), logits(load("merged"), tokens))
shoal("export", "--checkpoint", "hf:merged", "--adapter", "adapters", "--unmerge", "--out", "unmerged")
compare("taken out again", logits(load("unmerged"), tokens), logits(base, tokens))

config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=LAYERS, fan_in_fan_out=True, task_type="CAUSAL_LM")
own = peft.get_peft_model(load("base"), config)
for name, parameter in own.named_parameters():
    if "lora_" in name:
        torch.nn.init.normal_(parameter, std=0.1)
own.save_pretrained("theirs")
expected = logits(own, tokens)
shoal("export", "--checkpoint", "hf:base", "--adapter", "theirs", "--out", "merged-theirs")
compare("peft's adapters, merged by Shoal", logits(load("merged-theirs"), tokens), expected)
tune("run.name=on", "lora.from=theirs", "train.steps=1", "optim.lr=1e-60")
shoal("export", "--checkpoint", "runs/on", "--out", "on")
compare("peft's adapters, trained on from", logits(load("on"), tokens), expected)
end()
