#!/usr/bin/env bash
# Mutation testing: tests/mutate.sh N|again [--seed S] [--all] [--folder DIR]
#
# Puts N faults into src, one at a time: an operator, a constant, a dropped call, swapped arguments (tests/mutation_points.py). Each is
# built and its room's tests run. Prints each fault with the test that noticed it, and the survivors at the end; exits 0 when at least
# 95 of 100 are noticed. With --all what its room's tests let pass is tried with all tests, which takes a quarter of an hour where they
# do, too. `again` tries the survivors of the last time, but for those in files that have changed since. A fault that does not compile
# is replaced by another. Code that needs a GPU is left out. Works in as many copies of the tree as there are cores, in DIR
# (build/mutate), which the next time finds there. A fault takes about a minute of a core.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
usage() { sed -n '2s/^# //p' "$0" >&2; exit 2; }
count='' again='' seed=1 all='' folder=$root/build/mutate
while [ $# -gt 0 ]; do
  case $1 in
    --seed) seed=${2:?} && shift 2 ;;
    --all) all=1 && shift ;;
    --folder) folder=$(realpath -m "${2:?}") && shift 2 ;;
    again) again=1 && shift ;;
    [1-9]*) count=$1 && shift ;;
    *) usage ;;
  esac
done
[ -n "$count$again" ] || usage
jobs=$(nproc)

# tests SECONDS ARGUMENT...: what ctest says of tests that take so many seconds as the tree is. A process that runs many tests is one
# test to ctest: it is named with the first that failed in it.
tests() {
  local code=0 name inside
  timeout "$((60 + 4 * jobs * $1))" ctest --test-dir source/build/release -LE deploy --stop-on-failure --output-on-failure "${@:2}" >tests.log 2>&1 || code=$?
  case $code in
    0) echo survived ;;
    124) echo "noticed by tests that do not end" ;;
    *)
      name=$(sed -n 's/.*Test *#[0-9]*: \([^ ]*\) .*\*\*\*.*/\1/p' tests.log | head -1)
      inside=$(sed -n 's/^\[  FAILED  \] \([^ ,]*\.[^ ,]*\).*/\1/p' tests.log | head -1)
      [[ $name = *"$inside" ]] || name+=" ($inside)"
      echo "noticed by $name"
      ;;
  esac
}

# try FILE OFFSET LENGTH TEXT: prints "noticed by TEST" or "survived"; fails where it does not compile.
try() {
  local file=source/$1 room=${1#src/} outcome
  room=${room%%/*}
  cp "$file" kept
  { head -c "$2" kept; printf %s "$4"; tail -c "+$(($2 + $3 + 1))" kept; } >"$file"
  if ninja -C source/build/release -j 1 "test_$room" >build.log 2>&1; then
    outcome=$(tests "$(<"$folder/$room.seconds")" -R "^$room\.")
    if [ "$outcome" = survived ] && [ -n "$all" ] && ninja -C source/build/release -j 1 >build.log 2>&1; then
      outcome=$(tests "$(awk '{ sum += $1 } END { print sum }' "$folder"/*.seconds)" -E "^($room|house)\.")
    fi
    echo "$outcome"
  else
    grep -q 'error: ' build.log || echo "noticed by tests that do not start"
  fi
  cp kept "$file"
  ! grep -q 'error: ' build.log
}

# work JOB: its share of the faults, from the points that are its own
work() {
  local job=$1 done=0 place offset length text kind share outcome line
  share=$(((count + jobs - 1 - job) / jobs))
  cd "$folder/$job"
  : >outcomes
  : >survivors
  while [ "$done" -lt "$share" ] && IFS=$'\t' read -r -u 3 place offset length text kind; do
    outcome=$(try "${place%:*}" "$offset" "$length" "$text") || continue
    done=$((done + 1))
    [ "$outcome" != survived ] || printf '%s\t%s\t%s\t%s\t%s\n' "$place" "$offset" "$length" "$text" "$kind" >>survivors
    line=$(sed -n "${place#*:}{s/^ *//;p}" "source/${place%:*}")
    echo "$outcome: $place, $kind: $(tail -c "+$((offset + 1))" "source/${place%:*}" | head -c "$length") -> ${text:-nothing} in $line" |
      tee -a outcomes
  done 3< <(awk -v jobs="$jobs" -v job="$job" 'NR % jobs == job' "$folder/points")
}

# A copy of the tree, built. What has not changed since the last time keeps its age, and so its objects.
prepare() {
  local file
  mkdir -p "$folder/$1/source"
  cd "$folder/$1"
  git -C "$root" ls-files -co --exclude-standard | while read -r file; do
    cmp -s "$root/$file" "source/$file" || install -D "$root/$file" "source/$file"
  done
  find source -path source/build -prune -o -type f -print | while read -r file; do
    [ -e "$root/${file#source/}" ] || rm "$file"
  done
  cmake --preset release -S source -DSHOAL_CUDA=OFF -DSHOAL_BENCH=OFF >configure.log
  ninja -C source/build/release >build.log 2>&1 || { grep -m 20 'error' build.log; exit 1; }
}

mkdir -p "$folder"
cd "$root"
if [ -n "$again" ]; then
  cat "$folder"/*/survivors | while IFS= read -r point; do
    file=${point%%:*}
    if cmp -s "$file" "$folder/0/source/$file"; then echo "$point"; else echo "changed since: ${point%%$'\t'*}" >&2; fi
  done >"$folder/points"
  count=$(wc -l <"$folder/points")
else
  git ls-files 'src/*.cpp' 'src/*.h' | grep -v -e cuda -e nccl -e '^src/[^/]*$' | xargs tests/mutation_points.py "$seed" >"$folder/points"
fi
for ((job = 0; job < jobs; ++job)); do prepare "$job"; done
cd "$root"
echo 1000 >/proc/self/oom_score_adj # a fault may ask for all memory: its test is what is ended then
export SHOAL_DATA_DIR=${SHOAL_DATA_DIR:-$root/../shared/data}
rooms=$(cut -d/ -f2 "$folder/points" | sort -u)
[ -z "$all" ] || rooms=$(printf '%s\n' src/*/ | cut -d/ -f2)
for room in $rooms; do
  SECONDS=0
  ctest --test-dir "$folder/0/source/build/release" -j "$jobs" -R "^$room\." >"$folder/$room.log" || { tail -20 "$folder/$room.log"; exit 1; }
  echo "$SECONDS" >"$folder/$room.seconds"
done
rm -f "$folder"/*/outcomes "$folder"/*/survivors # of a machine with more cores
workers=()
for ((job = 0; job < jobs; ++job)); do
  work "$job" &
  workers+=($!)
done
for worker in "${workers[@]}"; do wait "$worker" || { echo "a worker failed" >&2; exit 1; }; done

tried=$(cat "$folder"/*/outcomes | grep -cE '^(survived|noticed)' || true) # the text of a fault may have several lines
survivors=$(cat "$folder"/*/outcomes | grep -c '^survived' || true)
echo
cat "$folder"/*/outcomes | grep '^survived' || true
echo "$((tried - survivors)) of $tried faults noticed (seed $seed)"
[ "$tried" -eq "$count" ] || echo "$((count - tried)) of $count were not tried: they do not compile, or there are no more" >&2
[ "$tried" -gt 0 ] && [ $((100 * survivors)) -le $((5 * tried)) ]
