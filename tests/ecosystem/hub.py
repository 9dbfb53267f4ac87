#!/usr/bin/env python3
"""A model that Shoal fetches from a hub, read from the same cache by huggingface_hub and transformers: hub.py PATH_TO_SHOAL

The hub is a server on this machine that answers as the real one does: the API names the files, large ones are redirected to another
address with their SHA-256, and a download breaks half way once. Needs torch, transformers and huggingface_hub; the lines of its
output are bench/results/ecosystem_hub.txt.
"""
import hashlib
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

import huggingface_hub
import torch
import transformers

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
SHOAL = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/release/shoal")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "someone/tiny-gpt2"
failures = 0


def check(what, good, note=""):
    global failures
    failures += not good
    print("ok   " if good else "WRONG", f"{what}{'  ' if note else ''}{note}")


class Hub(http.server.BaseHTTPRequestHandler):
    files, requests, broken = {}, [], False

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, body):
        Hub.requests.append(f"{self.command} {self.path}")
        parts = self.path.split("/")
        name = parts[-1]
        headers = {}
        if self.path == f"/api/models/{NAME}/revision/main":
            data = json.dumps({"sha": COMMIT, "siblings": [{"rfilename": file} for file in Hub.files]}).encode()
        elif self.path.startswith(f"/{NAME}/resolve/{COMMIT}/") and name in Hub.files:
            data = Hub.files[name]
            headers["X-Repo-Commit"] = COMMIT
            if name.endswith(".safetensors"):
                headers |= {"X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Linked-Size": str(len(data)),
                            "Location": f"/storage/{name}", "Content-Length": "0"}
                return self.send(302, headers, b"")
            headers["ETag"] = f'"{hashlib.sha1(b"blob %d" % len(data) + bytes(1) + data).hexdigest()}"'
        elif parts[1] == "storage":
            data = Hub.files[name]
        else:
            return self.send(404, {"Content-Length": "0"}, b"")
        status, start = 200, 0
        if "Range" in self.headers:
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            status = 206
        rest = data[start:]
        headers["Content-Length"] = str(len(rest))
        if body and parts[1] == "storage" and not Hub.broken:
            Hub.broken = True
            rest = rest[:len(rest) // 2]
        self.send(status, headers, rest if body else b"")

    def send(self, status, headers, body):
        self.send_response(status)
        for header in headers.items():
            self.send_header(*header)
        self.end_headers()
        self.wfile.write(body)


def main():
    folder = pathlib.Path(tempfile.mkdtemp())
    torch.manual_seed(1)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=16, vocab_size=61))
    model.save_pretrained(folder / "model")
    Hub.files = {path.name: path.read_bytes() for path in (folder / "model").iterdir()}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = os.environ | {"HF_HOME": str(folder / "home"), "no_proxy": "127.0.0.1",
                                "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}

    def export(out):
        return subprocess.run([SHOAL, "export", "--checkpoint", f"hf:{NAME}", "--out", str(folder / out)], env=environment,
                              capture_output=True, text=True)

    print(f"huggingface_hub {huggingface_hub.__version__}, transformers {transformers.__version__}")
    first = export("first")
    check("a download that breaks is an error", first.returncode == 2, first.stderr.strip().split(": ")[-1][:60])
    second = export("second")
    check("the next call resumes it", second.returncode == 0 and "resuming the download" in second.stderr)
    asked = len(Hub.requests)
    third = export("third")
    check("then nobody is asked", third.returncode == 0 and len(Hub.requests) == asked)
    server.shutdown()

    cache = folder / "home" / "hub"
    found = huggingface_hub.snapshot_download(NAME, cache_dir=cache, local_files_only=True)
    check("huggingface_hub finds the snapshot", found == str(cache / "models--someone--tiny-gpt2" / "snapshots" / COMMIT))
    scan = huggingface_hub.scan_cache_dir(cache)
    repositories = [(repository.repo_id, repository.nb_files) for repository in scan.repos]
    check("its scan of the cache has no complaint", not scan.warnings and repositories == [(NAME, len(Hub.files))], str(repositories))
    again = transformers.GPT2LMHeadModel.from_pretrained(NAME, cache_dir=cache, local_files_only=True)
    check("transformers reads the model from it",
          all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values())))
    exported = transformers.GPT2LMHeadModel.from_pretrained(folder / "third")
    check("Shoal read the same bits",
          all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), exported.state_dict().values())))
    return failures > 0


sys.exit(main())
