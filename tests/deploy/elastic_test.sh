#!/usr/bin/env bash
# elastic_test.sh SHOAL-BINARY [SERIES [SEED]]: runs on three hosts of a watched file lose hosts and get them back, at
# random: a cable is pulled and all processes of a host are killed, it answers again, its line is removed and added, a
# rank dies. Mesh, ZeRO stage and checkpoints in memory are drawn, too. Each run must end with the bytes and the losses of
# an undisturbed one. Series N draws from SEED + N - 1; when an event strikes is a matter of steps, so the same seed
# strikes a moment earlier or later. One series takes 20 s or so on two cores.
. "$(dirname "$0")/lib.sh"
need mpirun.openmpi
series=${2:-1} seed=${3:-1}
enter_namespaces "$series" "$seed"
make_hosts a b c
make_run
export OMPI_MCA_oob_tcp_keepalive_time=1 OMPI_MCA_oob_tcp_keepalive_intvl=1 OMPI_MCA_oob_tcp_keepalive_probes=2
export PRTE_MCA_oob_tcp_keepalive_time=1 PRTE_MCA_oob_tcp_keepalive_intvl=1 PRTE_MCA_oob_tcp_keepalive_probes=2

length=(train.steps=300 eval.interval=150 checkpoint.interval=5)
declare -A ranks=([a]=1 [b]=2 [c]=1) listed up

# One of the words, into $drawn: a subshell would not go on with RANDOM's sequence.
draw() { local words=("$@"); drawn=${words[RANDOM % $#]}; }

write_hosts() {
  local host
  for host in a b c; do
    [ "${listed[$host]}" = no ] || echo "$host:${ranks[$host]}"
  done >hosts.new
  mv hosts.new hosts.txt
}

# Waits until the host and a reach each other: they refuse what nobody listens to; without a route nobody refuses.
set_up() {
  local try
  ip link set "to-$1" up
  for try in $(seq 50); do
    [[ "$(ip netns exec a bash -c "</dev/tcp/$1/9" 2>&1)" != *refused* ]] ||
      [[ "$(ip netns exec "$1" bash -c "</dev/tcp/a/9" 2>&1)" != *refused* ]] || break
    [ "$try" -lt 50 ] || die "host $1 does not come back"
    sleep 0.1
  done
  up[$1]=yes
}
take_down() {
  ip link set "to-$1" down
  ip netns pids "$1" | xargs -r kill -9 || true  # some may have ended meanwhile
  rm -rf /dev/shm/shoal-*/"$1"
  up[$1]=no
}

# One more loss or return; the launcher's host, a, stays.
event() {
  local host what=lose
  draw b c; host=$drawn
  if [ "${up[$host]}" = no ]; then
    what="return"
  elif [ "${listed[$host]}" = no ]; then
    what=add
  else
    draw lose lose remove kill; what=$drawn
  fi
  case $what in
    lose) take_down "$host" ;;
    return) set_up "$host" ;;
    add) listed[$host]=yes; write_hosts ;;
    remove) listed[$host]=no; write_hosts ;;
    kill) pgrep -f "^$shoal_pattern train" | grep -Fxf <(ip netns pids "$host") | tail -n 1 | xargs -r kill -9 || what=none ;;
  esac
  events+=" $what-$host"
}

# Waits until the run has made step $2, has ended, or waits for hosts, which it gets then.
until_step() {
  local try step
  for try in $(seq 1200); do
    kill -0 "$launch" 2>/dev/null || return 1
    step=$(last_step "$1")
    [ "${step:-0}" -lt "$2" ] || return 0
    if tail -n 1 "$1.log" 2>/dev/null | grep -q "waiting for hosts"; then
      set_up b; set_up c; listed[b]=yes listed[c]=yes; write_hosts
      events+=" return-all"
    fi
    [ "$try" -lt 1200 ] || break
    sleep 0.05
  done
  die "$1 does not get to step $2 (events:$events): $(cat "$1.log")"
}

# Waits until the launcher has restarted for the Nth time.
after_restart() {
  local try
  for try in $(seq 200); do
    [ "$(grep -c "; restart" "$run.log")" -lt "$1" ] || return 0
    kill -0 "$launch" 2>/dev/null || return 1
    [ "$try" -lt 200 ] || break
    sleep 0.05
  done
}

one_series() {
  RANDOM=$1
  local run=series-$1 mesh zero memory number at=20
  draw parallel.data=0 parallel.data=4 parallel.pipeline=2 parallel.tensor=2; mesh=$drawn
  draw 0 1 2 3; zero=$drawn
  draw true false; memory=$drawn
  [ "$mesh" != parallel.pipeline=2 ] || zero=$((zero % 2))
  events=""
  for host in a b c; do set_up "$host"; listed[$host]=yes; done
  write_hosts
  on a "$shoal" launch --mpirun mpirun.openmpi --remote-shell "$SHOAL_TEST_FOLDER/remote_shell" --hosts-file hosts.txt --watch 0.3 \
    --max-wait 120 --max-restarts 3 -- train tiny.toml "${length[@]}" "run.name=$run" "parallel.zero=$zero" \
    "checkpoint.memory=$memory" "$mesh" 2>"$run.log" &
  launch=$!
  for number in 1 2 3; do
    until_step "$run" "$at" || break
    event
    after_restart "$number" || break
    draw 40 50 60 70 80; at=$(($(last_step "$run") + drawn))
  done
  wait "$launch" || die "$run ended with code $? (events:$events): $(cat "$run.log")"
  local reference=undisturbed
  [ "$mesh" != parallel.tensor=2 ] || reference=undisturbed-tensor
  same_result "$run" $reference
  grep -q "; restart" "$run.log" || die "$run was not disturbed (events:$events): $(cat "$run.log")"
  local kills counted
  kills=$(grep -o kill- <<<"$events" | wc -l) || true
  counted=$(grep -c "; restart . of 3" "$run.log") || true
  [ "$counted" -le "$kills" ] || die "$counted restarts were counted for $kills ranks that died: $(cat "$run.log")"
  echo "seed $1: ok, $mesh zero=$zero memory=$memory,$events: $(grep -c '; restart' "$run.log") restarts"
}

"$shoal" train tiny.toml "${length[@]}" run.name=undisturbed --ranks 2 >threads.log 2>&1 || die "$(cat threads.log)"
"$shoal" train tiny.toml "${length[@]}" run.name=undisturbed-tensor --ranks 2 parallel.tensor=2 >threads.log 2>&1 || die "$(cat threads.log)"
for number in $(seq "$series"); do one_series $((seed + number - 1)); done
