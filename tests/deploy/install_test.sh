#!/usr/bin/env bash
# Installs a build into a new prefix and uses it from there: tests/deploy/install_test.sh BUILD-FOLDER. The program, its
# modules, configs, pages and completion are found without the build's folder.
set -euo pipefail
unset CDPATH  # cd would look there first, and print
build=$(realpath "${1:?usage: $0 BUILD-FOLDER}")

skip() { echo "SKIPPED: $*"; exit 77; }
die() { echo "FAILED: $*" >&2; exit 1; }
[ -e "$build/pages/made" ] || skip "this build has no pages (SHOAL_PAGES, or: cmake --build $build --target shoal_pages)"
command -v cmake >/dev/null || skip "this machine has no cmake"

folder=$(mktemp -d /tmp/shoal-install-XXXXXX)
trap 'rm -rf "$folder"' EXIT
prefix=$folder/prefix shoal=$folder/prefix/bin/shoal
cmake --install "$build" --prefix "$prefix" >"$folder/log" || die "$(tail -n 5 "$folder/log")"

for file in share/shoal/configs/quickstart.toml share/doc/shoal/README.md share/doc/shoal/docs/ranks.md share/doc/shoal/copyright \
  share/man/man1/shoal.1 share/man/man1/shoal-train.1 share/bash-completion/completions/shoal share/zsh/site-functions/_shoal \
  share/fish/vendor_completions.d/shoal.fish; do
  [ -s "$prefix/$file" ] || die "$file was not installed"
done

cd "$folder"
"$shoal" config --explain optim >config.txt && grep -q '^  lr = ' config.txt || die "shoal config"
"$shoal" doctor >doctor.txt || die "shoal doctor"
"$shoal" prepare synthetic --out data/synthetic --size 20000 >prepare.log 2>&1 || die "$(cat prepare.log)"
tiny=(model.preset= model.n_layer=1 model.n_head=1 model.n_embd=16 model.block_size=16 train.steps=3 train.threads=1)
"$shoal" train "$prefix/share/shoal/configs/quickstart.toml" "${tiny[@]}" >train.log 2>&1 || die "$(cat train.log)"
"$shoal" sample --checkpoint runs/quickstart --max-tokens 5 >sample.txt 2>&1 || die "$(cat sample.txt)"
echo "program, configs, pages, completion: ok"

# Modules: doctor lists the installed ones, and none when they are gone, though the build still has them.
for mpi in openmpi:"Open MPI" mpich:MPICH; do
  module=$prefix/lib/shoal/libshoal_mpi_${mpi%%:*}.so name=${mpi#*:}
  [ -e "$build/libshoal_mpi_${mpi%%:*}.so" ] || continue
  [ -e "$module" ] || die "$module was not installed"
  grep -qE "^  $name +yes" doctor.txt || die "doctor does not find $module: $(grep "$name" doctor.txt)"
  starter=mpirun.${mpi%%:*}
  if command -v "$starter" >/dev/null; then
    run=("$starter" -n 2)
    [ "$name" != "Open MPI" ] || run+=(--allow-run-as-root --oversubscribe --bind-to none)
    "${run[@]}" "$shoal" train "$prefix/share/shoal/configs/quickstart.toml" "${tiny[@]}" run.name="$starter" >"$starter.log" 2>&1 ||
      die "$starter: $(cat "$starter.log")"
    rm "$module"
    code=0
    "${run[@]}" "$shoal" train "$prefix/share/shoal/configs/quickstart.toml" "${tiny[@]}" run.name=none >none.log 2>&1 || code=$?
    [ "$code" -ne 0 ] || die "$starter: a module was found that is not installed"
    grep -qF "$prefix/lib/shoal" none.log || die "the error does not name $prefix/lib/shoal: $(cat none.log)"
    echo "$name: ok"
  fi
done
