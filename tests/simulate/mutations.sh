#!/usr/bin/env bash
# Puts one fault at a time into a copy of Shoal and looks whether shoal-simulate finds it:
# [ONLY=REGEX] tests/simulate/mutations.sh [SEEDS [FOLDER]]. Exits 0 when each, or each whose name matches, is found within so many
# seeds (1000). The copy and its build stay in FOLDER (build/mutations), for the next time.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
seeds=${1:-1000}
copy=$(realpath -m "${2:-$root/build/mutations}")

# NAME|FILE|a sed expression that changes it.
mutations=(
  "no fsync of a shard|src/checkpoint/output_file.cpp|/sync_file(file_, path_);/d"
  "no fsync of a folder before its rename|src/checkpoint/writer.cpp|/sync_directory(partial_);/d"
  "no fsync of a new run's folders|src/checkpoint/store.cpp|/sync_path_to(root_);/d"
  "the manifest after the rename|src/checkpoint/writer.cpp|/^  write_text(partial_ \/ kManifestName/d; s@^  const auto replaced = rename_partial();@&\n  write_text(target_ / kManifestName, to_json_text(manifest));@"
  "rank 0 does not wait for a shard|src/checkpoint/writer.cpp|s@while (!fs::exists(record) \&\& !fs::exists(failure))@while (rank == 0 \&\& !fs::exists(record) \&\& !fs::exists(failure))@"
  "a save is settled when this rank's is|src/train/saver.cpp|s@over = counts\[0\] + counts\[1\] == 0;@over = done;@"
  "no wait for gathered weights|src/parallel/data/weight_store.cpp|/^  place.coming.wait();$/{N;s/^.*\n\(  place.used\)/\1/}"
  "no wait for a neighbour's weights|src/parallel/gossip/mixer.cpp|/^  request.wait();$/d"
  "no wait for a save in memory|src/train/trainer.cpp|s@if (memory) memory->wait();\$@(void)this;@"
  "one tag for all groups|src/comm/messages/piece_scheduler.cpp|s@const int first = operation.group->id \* kTagsPerGroup;@const int first = 0;@"
)

mkdir -p "$copy"
cd "$copy"
rm -rf source
git -C "$root" ls-files -co --exclude-standard | tar -C "$root" -cf - -T - | (mkdir source && tar -C source -xmf -)
cmake -S source -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DSHOAL_CUDA=OFF -DSHOAL_MPI=OFF -DSHOAL_BENCH=OFF >configure.log
build() { ninja -C build shoal-simulate >build.log 2>&1 || { tail -20 build.log; exit 1; }; }
build
build/shoal-simulate --seeds "1:$seeds" --fail-fast >unchanged.log || { cat unchanged.log; exit 1; }
echo "unchanged: $(grep " seeds in " unchanged.log)"

missed=0
for mutation in "${mutations[@]}"; do
  IFS='|' read -r name file change <<<"$mutation"
  [[ $name =~ ${ONLY:-.} ]] || continue
  cp "source/$file" kept
  sed -i "$change" "source/$file"
  ! cmp -s kept "source/$file" || { echo "$name: $file has no such place"; exit 1; }
  build
  if build/shoal-simulate --seeds "1:$seeds" --fail-fast >found.log; then
    echo "$name: NOT FOUND"
    missed=1
  elif grep -q '^seed ' found.log; then
    echo "$name: $(grep -m1 -o '^seed [0-9]*' found.log) ($(grep -o '^[0-9]* seeds in [0-9.]* s' found.log))"
  else
    echo "$name: a run without faults fails"
  fi
  cp kept "source/$file"
done
exit $missed
