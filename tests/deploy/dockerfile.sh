#!/usr/bin/env bash
# Runs the commands of a Dockerfile on fresh minimal Debians, one for each stage, without Docker:
#
#   tests/deploy/dockerfile.sh [--keep FOLDER] deploy/Dockerfile [STAGE [COMMAND]]
#
# --keep keeps the stages that others copy from in FOLDER, and takes those that are there.
# STAGE (default: the last) is run after the stages that it copies from; then COMMAND in it (default: shoal doctor). It knows the
# instructions that deploy/Dockerfile has, and images debian:SUITE-slim. Needs root and debootstrap (fresh_debian.sh).
set -euo pipefail
unset CDPATH  # cd would look there first, and print
keep=
if [ "${1:-}" = --keep ]; then
  mkdir -p "${2:?}" && keep=$(realpath "$2") && shift 2
fi
file=$(realpath "${1:?usage: $0 [--keep FOLDER] DOCKERFILE [STAGE [COMMAND]]}")
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(mktemp -d /var/tmp/shoal-dockerfile-XXXXXX)
end() {
  jobs -pr | xargs -r kill || true
  wait
  rm -rf "$folder"
}
trap end EXIT
trap 'exit 130' INT HUP TERM
made=${keep:-$folder/made}
mkdir -p "$made"
die() { echo "dockerfile: $*" >&2; exit 1; }

# For each stage: its suite, the stages that it copies from, and its instructions as a script.
declare -A suite needs script
stage=
last=
while IFS= read -r line; do
  instruction=${line%% *} rest=${line#* }
  case $instruction in
    FROM)
      read -r image _ stage <<<"$rest"
      stage=${stage:-final} last=$stage
      if [[ $image =~ ^debian:([a-z]+)-slim$ ]]; then
        suite[$stage]=${BASH_REMATCH[1]} needs[$stage]='' script[$stage]='set -e; cd /'
      elif [ -n "${suite[$image]:-}" ]; then
        suite[$stage]=${suite[$image]} needs[$stage]=${needs[$image]} script[$stage]=${script[$image]}
      else
        die "$image is neither debian:SUITE-slim nor a stage above"
      fi
      ;;
    ARG) script[$stage]+=$'\n'"export $rest" ;;
    WORKDIR) script[$stage]+=$'\n'"mkdir -p $rest && cd $rest" ;;
    RUN) script[$stage]+=$'\n'"echo '== RUN' >&2; sh -c $(printf %q "$rest")" ;;
    COPY)
      read -r from to <<<"$rest"
      if [[ $from == --from=* ]]; then
        read -r source to <<<"$to"
        needs[$stage]+=" ${from#--from=}"
        script[$stage]+=$'\n'"mkdir -p $to && cp -a ~/${from#--from=}$source/. $to"
      else
        script[$stage]+=$'\n'"mkdir -p $to && cp -a ~/shoal/$from/. $to"
      fi
      ;;
    USER | ENTRYPOINT | CMD) ;;
    *) die "unknown instruction: $line" ;;
  esac
done < <(sed -e '/^ *#/d' -e '/^$/d' "$file" | sed -e ':join' -e '/\\$/{N;s/\\\n */ /;b join' -e '}')

# Runs a stage after those that it needs, whose changed files are then in ~/STAGE.
run_stage() {
  local name=$1 command=$2 needed beside=()
  for needed in ${needs[$name]}; do
    [ -d "$made/$needed" ] || {
      run_stage "$needed" true
      mv "$folder/$needed/changes" "$made/$needed"
    }
    beside+=(--beside "$made/$needed")
  done
  # In the background, since only a shell that waits acts on a signal at once.
  "$tests/fresh_debian.sh" --keep "$folder/$name" "${beside[@]}" "${suite[$name]}" "${script[$name]}"$'\n'"$command" <&0 &
  wait $!
}
wanted=${2:-$last}
[ -n "${suite[$wanted]:-}" ] || die "there is no stage $wanted"
run_stage "$wanted" "${3:-shoal doctor}"
