#!/usr/bin/env bash
# Tokens per second of processor time of `shoal prepare openwebtext` beside tiktoken, on one thread and from the same
# archives: a tar of xz-compressed tars of texts, as the corpus is distributed.
#
#   TEXT=FILE PYTHON=PATH [BUILD=build/release] [ROUNDS=5] [MEGABYTES=40] bench/openwebtext.sh
#
# TEXT: any large text; it is cut into documents of about 5 kB until there are MEGABYTES of them. PYTHON has tiktoken and
# numpy. With a validation share of 5 % counting the first documents takes as little of the whole as it does of the corpus.
# SHOAL_DATA_DIR names the folder that holds gpt2/. The numbers of tokens must agree.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
cd "$(dirname "$0")/.."
root=$PWD
build=$(realpath -m "${BUILD:-build/release}")
shoal=$build/shoal python=${PYTHON:-python3} rounds=${ROUNDS:-5}
[ -x "$shoal" ] || { echo "no $shoal: ninja -C $build shoal" >&2; exit 2; }
export SHOAL_DATA_DIR=${SHOAL_DATA_DIR:-$PWD/../shared/data}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 - "${TEXT:?a large text file}" "$work/openwebtext" "${MEGABYTES:-40}" <<'PY'
import pathlib, sys
text = pathlib.Path(sys.argv[1]).read_text()
pages = [text[i:i + 5000] for i in range(0, len(text), 5000)]
for number in range(int(sys.argv[3]) * 200):
    folder = pathlib.Path(sys.argv[2]) / f"subset{number // 400:03}"
    folder.mkdir(parents=True, exist_ok=True)
    # A number, so that no two are the same.
    (folder / f"{number:07}.txt").write_bytes(f"{number}\n{pages[number * 7 % len(pages)]}\n\n\n".encode())
PY
cd "$work/openwebtext"
for subset in subset*; do
  tar -cJf "urlsf_${subset}_data.xz" "$subset"
  rm -r "$subset"
done
cd "$work"
tar -cf openwebtext.tar openwebtext

for ((round = 0; round < rounds; round++)); do
  rm -rf out
  seconds=$({ TIMEFORMAT='%U %S'; time "$shoal" prepare openwebtext --from openwebtext.tar --threads 1 --val-fraction 0.05 --out out >log 2>&1; } 2>&1) ||
    { cat log >&2; exit 1; }
  tokens=$(($(stat -c %s out/train.bin out/val.bin | paste -sd+)))
  awk -v bytes="$tokens" -v cpu="$seconds" 'BEGIN { split(cpu, t, " "); n = bytes / 2
    printf "shoal     %d tokens  %6.2f M tokens/s of processor time\n", n, n / (t[1] + t[2]) / 1e6 }'
  "$python" "$root/bench/peers/tiktoken_openwebtext.py" "$SHOAL_DATA_DIR/gpt2" openwebtext.tar
done
