#!/usr/bin/env bash
# Checks and measures the CUDA backend on a machine that has a GPU but not what Shoal is built with.
#   bench/gpu.sh pack        here: builds for sm_90 into build/gpu, and gathers programs, libraries and data ($TEXT: the corpus
#                            of pretrain) in build/gpu/pack.tar.gz
#   bench/gpu.sh run [PART]  there, with that file carried along: all parts, or some of
#     machine tests sanitizer layouts ops steps large memory compile peers before planned decode generation characters pretrain
#   PART+PART are run beside each other, which suits what is not timed.
# pack takes llm.c's train_gpt2cu along where $LLMC names one that was built for that machine, and for `before` an older
# build of this program where $BEFORE names its folder, such as build/gpu. pretrain goes on where it stopped, $LIMIT
# seconds at a time. Full output goes to $OUT (default out/gpu) as one archive, a report to the terminal.
# peers needs PyTorch in $PYTHON (python3). $SHOAL_DATA_DIR holds tinyshakespeare.txt.
set -uo pipefail
unset CDPATH  # cd would look there first, and print
cd "$(dirname "$0")/.."
pack=build/gpu/pack
programs=(test_ops_cuda bench_backend_ops bench_train_step bench_decode shoal)
modules=(libshoal_cuda.so libbench_gpu_kernels.so)

pack() {
  set -e
  cmake -S . -B build/gpu -G Ninja -DCMAKE_BUILD_TYPE=Release -DSHOAL_CUDA=ON -DSHOAL_MPI=OFF \
    -DCMAKE_CUDA_ARCHITECTURES=90-real >/dev/null
  cmake --build build/gpu --target "${programs[@]}" shoal_cuda bench_gpu_kernels -- -j "${JOBS:-2}"
  rm -rf "$pack"
  mkdir -p "$pack/lib"
  for program in "${programs[@]}" "${modules[@]}"; do
    built=$(find build/gpu -name "$program" -type f -not -path "*/pack/*" -not -path "*/pages/*" -print -quit)
    strip --strip-unneeded -o "$pack/$program" "$built"
    # CUDA's own libraries and the C library are there already.
    ldd "$pack/$program" | awk '$3 ~ /^\// {print $3}' |
      grep -vE 'libcu(da|blas)|libnv|/lib(c|m|dl|rt|pthread|util|resolv|stdc\+\+|gcc_s)\.so|ld-linux' | xargs -r cp -Lnt "$pack/lib" || true
  done
  strip --strip-unneeded "$pack"/lib/* 2>/dev/null || true
  [ -z "${LLMC:-}" ] || cp "$LLMC" "$pack/llmc"
  if [ -n "${BEFORE:-}" ]; then
    mkdir "$pack/before"
    strip --strip-unneeded -o "$pack/before/bench_train_step" "$BEFORE/bench/bench_train_step"
    strip --strip-unneeded -o "$pack/before/libshoal_cuda.so" "$BEFORE/libshoal_cuda.so"
  fi
  export SHOAL_DATA_DIR=${SHOAL_DATA_DIR:-$PWD/../shared/data}
  "$pack/shoal" prepare shakespeare-char --out "$pack/shakespeare-char"
  "$pack/shoal" prepare text "${TEXT:-$SHOAL_DATA_DIR/wikitext-2}" --tokenizer gpt2 --out "$pack/text"
  tar -czf "$pack.tar.gz" -C "$(dirname "$pack")" pack
  du -h "$pack.tar.gz"
  echo "there: bench/gpu.sh run"
}

# Where the machine keeps cuBLASLt, cuDNN and the compiler that cuDNN uses: the toolkit's folder, or PyTorch's packages.
cuda_libraries() {
  local name folder folders=""
  for name in libcublasLt.so.13 libcudnn.so.9 libnvrtc.so.13; do
    for folder in /usr/local/cuda*/lib64 /usr/local/cuda*/lib /opt/*/.venv/lib/python3*/site-packages/nvidia/*/lib \
                  /usr/lib/x86_64-linux-gnu; do
      [ -e "$folder/$name" ] && folders+=":$folder" && break
    done
  done
  echo "${folders#:}"
}

out=${OUT:-out/gpu}  # an archive of all output comes here
work=${WORK:-/tmp/shoal-gpu}  # logs, runs, and the choices of products: kept from one command to the next
logs=$work/logs
failed() { echo "$1" >>"$work/failed"; }
# title, log, lines, command...: runs it, keeps all of its output, shows the last lines.
part() {
  local title=$1 log=$2 lines=$3
  shift 3
  printf '\n== %s\n' "$title"
  local begin=$SECONDS status=0
  if [ "$(type -t "$1")" = function ]; then "$@"; else timeout "${LIMIT:-120}" "$@"; fi >"$logs/$log" 2>&1 || status=$?
  tail -n "$lines" "$logs/$log"
  echo "-- status $status, $((SECONDS - begin)) s"
  [ $status -eq 0 ] || failed "$title"
}

machine() {
  part "machine" machine.txt 12 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit --format=csv
  part "libraries" libraries.txt 60 "$pack/shoal" doctor
}

# One suite of tests, once more with blocking launches if it fails: an illegal address fails all that follows it in a process,
# and is reported by a later call.
suite() {
  local log=$logs/test-${1//[^A-Za-z0-9]/-}
  timeout 200 "$pack/test_ops_cuda" --gtest_brief=1 "--gtest_filter=$1*" >"$log.txt" 2>&1 && return
  CUDA_LAUNCH_BLOCKING=1 timeout 100 "$pack/test_ops_cuda" --gtest_brief=1 "--gtest_filter=$1*" >"$log-blocking.txt" 2>&1
  echo "$1: $(grep -c '^\[  FAILED' "$log.txt") lines of failures, $log.txt"
  return 1
}
# The smaller shapes of a suite under a tool of compute-sanitizer.
checked() {
  local tool=${1%% *} suite=${1#* } status=0
  local log=$logs/$tool-${suite//[^A-Za-z0-9]/-}.txt
  timeout "${LIMIT:-100}" compute-sanitizer --tool "$tool" --error-exitcode 9 "$pack/test_ops_cuda" --gtest_brief=1 \
    "--gtest_filter=$suite*/0:$suite*/1:$suite*/2:$suite*/9:$suite*/10:-*RealModels*:*TheSameBits*:*FastAndPlain*" >"$log" 2>&1 || status=$?
  # Reports of cuBLASLt's kernels alone: it does not know how their copies are awaited.
  [ "$tool" != racecheck ] || [ $status -ne 9 ] || grep -q 'access at .*shoal' "$log" || status=0
  [ $status -eq 0 ] || echo "$tool of $suite: status $status, $(grep -c '^========= ' "$log") lines of it, $log"
  return $status
}
suites() { "$pack/test_ops_cuda" --gtest_list_tests | grep '^[^ ].*\.' | sed 's/  #.*//'; }
# Suites beside each other: most of their time is the oracle's.
tests() {
  local begin=$SECONDS
  printf '\n== tests of ops, models and layouts on the GPU\n'
  # shellcheck disable=SC2016
  suites | tr '\n' '\0' | xargs -0 -n 1 -P "${JOBS:-10}" bash -c 'suite "$0"' || failed tests
  cat "$logs"/test-*.txt | grep -v blocking | awk '/PASSED/ {n += $4} /SKIPPED.*tests/ {s += $4}
    END {print n " passed, " s + 0 " skipped"}'
  echo "-- $((SECONDS - begin)) s"
}
# Memory errors, races and reads of memory that nothing wrote. $TOOLS: some of the tools; $SUITES: a pattern of suites.
sanitizer() {
  local begin=$SECONDS tool name
  printf '\n== compute-sanitizer\n'
  # The tests of layouts are of the host, and those of products of the library.
  # shellcheck disable=SC2016
  for tool in ${TOOLS:-memcheck racecheck initcheck}; do
    suites | grep -vE 'Layout|CudaRuns|Linear' | grep -E "${SUITES:-.}" | while read -r name; do printf '%s %s\0' "$tool" "$name"; done
  done | xargs -0 -n 1 -P "${JOBS:-10}" bash -c 'checked "$0"' || failed sanitizer
  cat "$logs"/*check-*.txt | grep "ERROR SUMMARY\|RACECHECK SUMMARY" | sort | uniq -c
  echo "-- $((SECONDS - begin)) s"
}
# The same run by one rank and by several on one GPU, and in two parts: the same bytes.
layouts() {
  local name options
  local train=("$pack/shoal" train configs/shakespeare-char.toml train.backend=cuda train.dtype=bfloat16 train.steps=20
    train.global_batch=32 train.micro_batch=8 eval.batches=2 eval.interval=10 run.deterministic=layout
    "data.dir=$pack/shakespeare-char" "run.dir=$work/runs")
  while read -r name options; do
    # shellcheck disable=SC2086
    part "layout: $name" "layout-$name.txt" 1 "${train[@]}" "run.name=layout-$name" $options
    [ "$name" = one ] || "$pack/shoal" checkpoint compare "$work/runs/layout-one" "$work/runs/layout-$name" 2>&1 | tail -2
  done <<'LAYOUTS'
one
eager train.graph=false
two --ranks 2
zero --ranks 4 parallel.zero=3
pipeline --ranks 2 parallel.pipeline=2
offload parallel.offload=host
LAYOUTS
  part "layout: resumed" layout-half.txt 1 "${train[@]}" run.name=layout-resumed checkpoint.interval=10
  rm -r "$work"/runs/layout-resumed/checkpoints/step-00000020
  part "layout: resumed" layout-resumed.txt 1 "${train[@]}" run.name=layout-resumed init.from=resume
  "$pack/shoal" checkpoint compare "$work/runs/layout-one" "$work/runs/layout-resumed" 2>&1 | tail -2
}
ops() {
  part "ops of GPT-2 124M, 64 x 1024, bfloat16" ops-gpt2.txt 80 "$pack/bench_backend_ops" cuda
  part "ops of the character model, 64 x 256, bfloat16" ops-char.txt 70 "$pack/bench_backend_ops" cuda --model char384
}
# Where the time of a step goes.
kernels() {
  local steps=5 name=$1
  shift
  export CUDA_INJECTION64_PATH=$PWD/$pack/libbench_gpu_kernels.so KERNELS=$logs/kernels-$name.txt STEPS=$((steps + 3))
  part "kernels, $name" "kernels-$name.log" 1 "$pack/bench_train_step" "$@" $steps --backend cuda
  unset CUDA_INJECTION64_PATH
  head -40 "$KERNELS" | cut -c1-150
  tail -1 "$KERNELS"
}
# layers heads width vocabulary batch positions dropout type steps
steps() {
  local gpt2=(12 12 768 50257 64 1024 0 bfloat16 20 --backend cuda) char=(6 6 384 65 64 256 0.2 bfloat16 200 --backend cuda)
  part "124M, 64 x 1024" step-124m.txt 1 "$pack/bench_train_step" "${gpt2[@]}"
  part "the same, every kernel launched" step-124m-eager.txt 1 "$pack/bench_train_step" "${gpt2[@]}" --eager
  part "characters 6/6/384, 64 x 256, dropout 0.2" step-char.txt 1 "$pack/bench_train_step" "${char[@]}"
  part "the same, every kernel launched" step-char-eager.txt 1 "$pack/bench_train_step" "${char[@]}" --eager
  kernels 124m "${gpt2[@]:0:8}"
  kernels char "${char[@]:0:8}"
}

large() {
  part "124M, 16 x 1024, float32" step-124m-f32.txt 1 "$pack/bench_train_step" 12 12 768 50257 16 1024 0 float32 5 --backend cuda
  part "355M, 32 x 1024" step-355m.txt 1 "$pack/bench_train_step" 24 16 1024 50257 32 1024 0 bfloat16 10 --backend cuda
  part "774M, 16 x 1024" step-774m.txt 1 "$pack/bench_train_step" 36 20 1280 50257 16 1024 0 bfloat16 8 --backend cuda
  part "1558M, 8 x 1024" step-1558m.txt 1 "$pack/bench_train_step" 48 25 1600 50257 8 1024 0 bfloat16 8 --backend cuda
}

# command...: runs it, and says the most that the GPU's memory held meanwhile.
watched() {
  local sampler
  nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -lms 100 >"$work/used" & sampler=$!
  "$@"
  kill "$sampler"
  echo "most memory of the GPU in use: $(sort -n "$work/used" | tail -1) MiB"
}
# A run of 124M and its size as `shoal size` says it.
gpt2() {
  local name=$1
  shift
  settings=(configs/gpt2-124m.toml train.backend=cuda train.global_batch=64 train.steps=24 lr_schedule.warmup_steps=0
    eval.interval=24 eval.sequences=64 log.interval=4 "data.dir=$pack/text" "run.dir=$work/runs" "run.name=$name" "$@")
}
memory() {
  local level settings
  for level in none gelu light block; do
    gpt2 "memory-$level" train.micro_batch=64 "train.recompute=$level"
    watched part "124M, 64 x 1024, recompute $level" "memory-$level.txt" 1 "$pack/shoal" train "${settings[@]}"
    "$pack/shoal" size "${settings[@]}" | grep "on the GPU"
  done
}
# The layout that the planner chooses, and its prediction beside the run, with and without recomputation, and with
# state on the host. $LEVELS: some of these.
planned() {
  local level key settings best
  sed '/^micro_batch/d' configs/gpt2-124m.toml >"$work/any-micro-batch.toml"
  for level in ${LEVELS:-none light block host}; do
    key=train.recompute
    [ $level != host ] || key=parallel.offload
    gpt2 "planned-$level" "$key=$level"
    settings[0]=$work/any-micro-batch.toml
    part "plans of 124M, 64 x 1024, $key $level" "plan-$level.txt" 14 "$pack/shoal" plan "${settings[@]}"
    best=$(sed -n 's/^best: //p' "$logs/plan-$level.txt")
    # shellcheck disable=SC2206
    settings+=($best)
    watched part "the best: $best" "planned-$level.txt" 1 "$pack/shoal" train "${settings[@]}"
    "$pack/shoal" size "${settings[@]}" | grep "on the GPU"
    part "the prediction of its step" "planned-$level-check.txt" 12 "$pack/shoal" plan --check "$work/runs/planned-$level"
  done
}
# Steps of generation: layers heads width vocabulary prompt texts tokens type
decode() {
  local name texts sizes
  while read -r -u 3 name texts sizes; do
    # shellcheck disable=SC2086
    part "tokens of $name, $texts texts" "decode-$name-$texts.txt" 1 "$pack/bench_decode" $sizes $texts 200 bfloat16 --backend cuda
  done 3<<'SIZES'
124M 1 12 12 768 50257 512
124M 8 12 12 768 50257 512
1558M 1 48 25 1600 50257 512
1558M 8 48 25 1600 50257 512
SIZES
  part "the first, every kernel launched" decode-eager.txt 1 "$pack/bench_decode" 12 12 768 50257 512 1 200 bfloat16 --backend cuda --eager
}
generation() {
  decode
  part "200 tokens by 124M" generation.txt 3 "$pack/shoal" sample --checkpoint "$work/runs/planned-none" --prompt "The king" --max-tokens 200
}

# Lines of name, layers, heads, width and batch; $SIZES: some of the names.
sizes() {
  local line
  while read -r line; do
    [[ " ${SIZES:-124M} " != *" ${line%% *} "* ]] || echo "$line"
  done <<'SIZES'
124M  12 12 768 64
355M  24 16 1024 32
774M  36 20 1280 16
1558M 48 25 1600 8
SIZES
}
torch_steps() {
  timeout "${LIMIT:-120}" env LD_LIBRARY_PATH="$own_path" "${PYTHON:-python3}" bench/peers/torch_gpt.py "$layers" "$heads" "$width" 50257 "$batch" 1024 0 \
    bfloat16 "$1" 4 --device cuda --tf32 --compile --pad 64
}
# torch.compile's kernels, so that peers does not wait for them.
compile() {
  local name layers heads width batch
  while read -r -u 3 name layers heads width batch; do
    torch_steps 1 >"$logs/compile-$name.txt" 2>&1
  done 3< <(sizes)
}
# The same steps by PyTorch and by llm.c, interleaved with ours.
peers() {
  local name layers heads width batch round
  # llm.c reads tokens from a file: a header of 256 numbers, then two bytes each.
  [ ! -x "$pack/llmc" ] || "${PYTHON:-python3}" -c "
import numpy
tokens = numpy.random.default_rng(1).integers(0, 50257, 1 << 21, dtype=numpy.uint16)
with open('$work/random.bin', 'wb') as file:
    numpy.array([20240520, 1, tokens.size] + [0] * 253, dtype=numpy.int32).tofile(file)
    tokens.tofile(file)"
  while read -r -u 3 name layers heads width batch; do
    for round in $(seq "${ROUNDS:-2}"); do
      watched part "Shoal, $name, $batch x 1024" "peer-$name-shoal-$round.txt" 1 \
        "$pack/bench_train_step" "$layers" "$heads" "$width" 50257 "$batch" 1024 0 bfloat16 20 --backend cuda
      watched part "the same, its residual stream and gradients in bfloat16, as llm.c's" "peer-$name-narrow-$round.txt" 1 \
        "$pack/bench_train_step" "$layers" "$heads" "$width" 50257 "$batch" 1024 0 bfloat16 20 --backend cuda --narrow
      part "PyTorch, compiled" "peer-$name-torch-$round.txt" 1 torch_steps 20
      # Without evaluation, samples or checkpoints; GELU in the products' epilogues, as ours.
      [ ! -x "$pack/llmc" ] || watched part "llm.c" "peer-$name-llmc-$round.txt" 2 "$pack/llmc" -i "$work/random.bin" -j "$work/random.bin" \
        -e "d$layers" -b "$batch" -t 1024 -x 20 -v 1000000000 -m 0 -s 0 -n 0 -r "${LLMC_RECOMPUTE:-0}" -ge 2
    done
  done 3< <(sizes)
}
# The same steps by an older build and by this one, interleaved.
before() {
  local name layers heads width batch round narrow
  while read -r -u 3 name layers heads width batch; do
    for round in $(seq "${ROUNDS:-2}"); do
      for narrow in "" --narrow; do
        # shellcheck disable=SC2086
        set -- "$layers" "$heads" "$width" 50257 "$batch" 1024 0 bfloat16 20 --backend cuda $narrow
        part "before, $name $narrow" "before-$name-old$narrow-$round.txt" 1 \
          env SHOAL_CUDA_MODULE="$PWD/$pack/before/libshoal_cuda.so" "$pack/before/bench_train_step" "$@"
        part "now, $name $narrow" "before-$name-new$narrow-$round.txt" 1 "$pack/bench_train_step" "$@"
      done
    done
  done 3< <(sizes)
}
# Workload W2: best validation loss 1.47 +- 0.01, and how long that takes.
characters() {
  LIMIT=400 part "characters of Shakespeare, 5000 steps" characters.txt 4 "$pack/shoal" train configs/shakespeare-char.toml \
    train.backend=cuda train.dtype=bfloat16 "data.dir=$pack/shakespeare-char" "run.dir=$work/runs" run.name=characters
  grep -h "Val loss" "$logs/characters.txt" | sed 's/.*Step/Step/' | sort -t: -k2 -g | head -1
}

# 124M from scratch on whatever text is in the pack, in three layouts of one GPU whose curves are to be the same.
pretrain() {
  local ranks limit=${LIMIT:-180}
  for ranks in 1 2 4; do
    local run="pretrain-$ranks" from=scratch
    [ ! -d "$work/runs/$run" ] || from=resume
    LIMIT=$limit part "124M on $ranks ranks of one GPU" "pretrain-$ranks.txt" 3 timeout -s INT $((limit - 20)) \
      "$pack/shoal" train configs/gpt2-124m.toml train.backend=cuda train.dtype=bfloat16 run.deterministic=layout \
      train.micro_batch=16 "data.dir=$pack/text" "run.dir=$work/runs" "run.name=$run" "init.from=$from" --ranks "$ranks"
  done
  "$pack/shoal" plot "$out"/runs/pretrain-* -o "$logs/pretrain.svg"
}

case ${1:-} in
  pack) pack ;;
  run)
    mkdir -p "$out" "$logs" && rm -f "$work/failed"
    [ "$pack" -nt "$pack.tar.gz" ] || { tar -xzmf "$pack.tar.gz" -C "$(dirname "$pack")" && touch "$pack"; }
    own_path=${LD_LIBRARY_PATH:-}
    found=$(cuda_libraries)
    export LD_LIBRARY_PATH="$PWD/$pack/lib:$found:$own_path" XDG_CACHE_HOME=$work/cache
    export -f suite checked
    export logs pack
    parts=("${@:2}")
    [ ${#parts[@]} -gt 0 ] || parts=(machine tests+sanitizer+layouts+compile ops steps large memory peers planned generation characters)
    for names in "${parts[@]}"; do
      for name in ${names//+/ }; do "$name" & done
      wait
    done
    tar -czf "$out/gpu-$(date +%s).tar.gz" -C "$work" logs
    [ ! -e "$work/failed" ] || { sed 's/^/failed: /' "$work/failed"; exit 1; }
    ;;
  *) sed -n '2,11p' "$0"; exit 2 ;;
esac
