#!/usr/bin/env python3
"""OpenAI's client against `shoal serve`: openai_client.py PATH_TO_SHOAL

Trains a tiny model, serves it, and asks as a program of that client would. Needs openai; the lines of its output are
bench/results/ecosystem_openai.txt.
"""
import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import urllib.request

import openai
from comparison import SHOAL, check, end
from runs import Runs

CLIENTS = 64


def error_of(call):
    try:
        call()
    except openai.APIError as error:
        return error
    return None


def sampled(folder, prompt, seed, tokens, count):
    out = subprocess.run([SHOAL, "sample", "--checkpoint", "runs/tiny", "--prompt", prompt, "--seed", str(seed), "--samples",
                          str(count), "--max-tokens", str(tokens), "--temperature", "1", "--top-k", "0", "--json"],
                         cwd=folder, capture_output=True, text=True, check=True).stdout
    return [json.loads(line)["text"] for line in out.splitlines()]


def ask(client, folder, server):
    def complete(**fields):
        return client.completions.create(**{"model": "tiny", "prompt": "the ", "max_tokens": 24, "seed": 5, **fields})

    check("models.list", [model.id for model in client.models.list()] == ["tiny"])
    check("models.retrieve", client.models.retrieve("tiny").owned_by == "shoal")
    check("another model is not found", isinstance(error_of(lambda: client.models.retrieve("gpt-4")), openai.NotFoundError))

    whole = complete(n=3)
    texts = [choice.text for choice in whole.choices]
    check("completions are the texts of shoal sample", texts == sampled(folder, "the ", 5, 24, 3))
    check("usage", (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (4, 72))
    parts, usage = ["", "", ""], None
    for chunk in complete(n=3, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            parts[choice.index] += choice.text
        usage = chunk.usage or usage
    check("a stream adds up to the same texts", parts == texts and usage == whole.usage)

    several = complete(prompt=["the ", [1, 2, 3]])
    check("several prompts, texts and tokens", [choice.index for choice in several.choices] == [0, 1] and
          several.choices[0].text == texts[0])
    stop = texts[0][10:13]
    ended = complete(stop=[stop]).choices[0]
    check("stop strings", ended.text == texts[0][:texts[0].find(stop)] and ended.finish_reason == "stop")
    check("extensions of vLLM", complete(extra_body={"top_k": 1}).choices[0].text == complete(temperature=0).choices[0].text)

    scored = complete(prompt="the king", echo=True, max_tokens=0, logprobs=2).choices[0]
    check("echo with logprobs scores the prompt", scored.text == "the king" and "".join(scored.logprobs.tokens) == "the king" and
          scored.logprobs.token_logprobs[0] is None and all(value < 0 for value in scored.logprobs.token_logprobs[1:]) and
          scored.logprobs.text_offset == list(range(8)))

    wrong = error_of(lambda: complete(temperature=3))
    check("a wrong field is a BadRequestError", isinstance(wrong, openai.BadRequestError) and wrong.param == "temperature",
          wrong.message)
    wrong = error_of(lambda: complete(prompt="a" * 1000))
    check("a prompt that is too long", isinstance(wrong, openai.BadRequestError) and wrong.code == "context_length_exceeded",
          wrong.message)
    wrong = error_of(lambda: complete(prompt="a" * 50_000_000))
    check("a body that is too large", isinstance(wrong, openai.APIStatusError) and wrong.status_code == 413, str(wrong))

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(lambda seed: complete(seed=seed).choices[0].text, range(CLIENTS)))
    check(f"{CLIENTS} clients at once get the texts that each gets alone",
          answers == [complete(seed=seed).choices[0].text for seed in range(CLIENTS)])

    stream = complete(max_tokens=2_000_000, stream=True)
    next(iter(stream))
    stream.close()
    check("a stream that is closed is forgotten", complete().choices[0].text == texts[0])
    def idle():
        metrics = urllib.request.urlopen(str(client.base_url).removesuffix("/v1/") + "/metrics").read().decode()
        return "shoal_texts_running 0" in metrics and "shoal_requests_running 1" in metrics

    for _ in range(100):  # a request is counted as running until its answer is sent
        if idle():
            break
        time.sleep(0.05)
    check("metrics", idle())

    late = error_of(lambda: complete(max_tokens=2_000_000))
    check("an answer that takes too long is an InternalServerError", isinstance(late, openai.InternalServerError), late.message)
    stream = complete(max_tokens=2_000_000, stream=True)
    late = error_of(lambda: [None for _ in stream])
    check("a stream that takes too long raises an error", late is not None, late.message if late else "")

    stream = complete(max_tokens=5000, stream=True)
    text = next(stream).choices[0].text
    server.send_signal(signal.SIGTERM)
    text += "".join(chunk.choices[0].text for chunk in stream)
    check("SIGTERM lets a stream end", len(text) == 5000 and server.wait(30) == 0)


def main():
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(SHOAL, folder)
        runs.train("tiny", "train.steps=20")
        server = subprocess.Popen([SHOAL, "serve", "--checkpoint", "runs/tiny", "--name", "tiny", "--port", "0", "--timeout", "3",
                                   "--max-tokens", "2000000"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  text=True, env={**os.environ, "SHOAL_API_KEY": "secret"})
        try:
            url = server.stdout.readline().split()[-1]
            print(f"openai {openai.__version__}")
            refused = error_of(lambda: openai.OpenAI(base_url=url, api_key="wrong").models.list())
            check("a wrong key is an AuthenticationError", isinstance(refused, openai.AuthenticationError))
            ask(openai.OpenAI(base_url=url, api_key="secret", max_retries=0), pathlib.Path(folder), server)
        finally:
            server.kill()
            server.wait()
    end()


main()
