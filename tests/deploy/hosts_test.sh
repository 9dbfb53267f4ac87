#!/usr/bin/env bash
# Three hosts on one network: `shoal launch` over TCP between them ends with the bytes of threads of one process, names
# a host that does not answer, and goes on without one whose cable is pulled.
. "$(dirname "$0")/lib.sh"
need mpirun.openmpi ssh
enter_namespaces
make_hosts a b c
folder="it's \$HOME, ü"  # which goes through a shell to the other hosts
mkdir "$folder"
cd "$folder"
make_run
unplug() { ip link set "to-$1" down; }
plug_in() { ip link set "to-$1" up; }
# A shell lets what it starts in the background ignore Ctrl-C.
launch() { on a env --default-signal=INT "$shoal" launch --mpirun mpirun.openmpi --remote-shell "$SHOAL_TEST_FOLDER/remote_shell" "$@"; }

"$shoal" train tiny.toml run.name=threads --ranks 5 >threads.log 2>&1 || die "$(cat threads.log)"

before=$(received b)
launch --hosts a:2,b:2,c:1 -- train tiny.toml run.name=hosts 2>hosts.log || die "$(cat hosts.log)"
grep -q "5 ranks on 3 hosts" hosts.log || die "not on three hosts: $(cat hosts.log)"
same_result hosts threads
[ $(($(received b) - before)) -gt 1000000 ] || die "the hosts have not exchanged gradients"
echo "three hosts: ok"

# Ctrl-C reaches the ranks of all hosts, which save and end well.
launch --hosts a:1,b:1,c:1 -- train tiny.toml train.steps=1000000 eval.interval=0 log.interval=100 run.name=stopped 2>stopped.log &
stopped=$!
for _ in $(seq 200); do
  [ -e runs/stopped/checkpoints/latest ] && break
  sleep 0.05
done
pkill -INT -f "^$shoal_pattern launch"
wait "$stopped" || die "a stopped run ended with code $?: $(cat stopped.log)"
grep -q "everything is saved" stopped.log || die "the run was not stopped well: $(cat stopped.log)"
"$shoal" checkpoint verify runs/stopped >verify.log 2>&1 || die "$(cat verify.log)"
echo "Ctrl-C: ok"

# A host that does not answer, by a remote shell that says so and by ssh on a network where nobody has the address.
expect_refusal() {
  local words=$1 code=0
  shift
  SECONDS=0
  "$@" 2>refusal.log || code=$?
  [ "$code" -eq 2 ] || die "exit code $code, not 2: $(cat refusal.log)"
  grep -q "^shoal: error: $words" refusal.log || die "not '$words': $(cat refusal.log)"
  [ "$(wc -l <refusal.log)" -eq 1 ] || die "more than one line: $(cat refusal.log)"
  [ "$SECONDS" -le 12 ] || die "it took $SECONDS seconds"
  [ ! -e runs/refused ] || die "a run was started"
}
unplug c
expect_refusal "host c does not answer (connect to host c: No route to host)" \
  launch --hosts a:2,c:2 -- train tiny.toml run.name=refused
expect_refusal "host 10.99.0.77 does not answer" on a "$shoal" launch --hosts 10.99.0.77:2 -- train tiny.toml run.name=refused
plug_in c
echo "unreachable hosts: ok"

# A host dies with its memory, and no checkpoint is on the disk: the others go on from the copies of its state.
export OMPI_MCA_oob_tcp_keepalive_time=1 OMPI_MCA_oob_tcp_keepalive_intvl=1 OMPI_MCA_oob_tcp_keepalive_probes=2
export PRTE_MCA_oob_tcp_keepalive_time=1 PRTE_MCA_oob_tcp_keepalive_intvl=1 PRTE_MCA_oob_tcp_keepalive_probes=2
lose() {
  unplug "$1"
  ip netns pids "$1" | xargs -r kill -9 || true  # some may have ended meanwhile
}
settings=(lr_schedule.name=constant eval.interval=75)
make_endless
launch --hosts a:2,b:2,c:1 --min-ranks 3 -- train open.toml "${settings[@]}" checkpoint.interval=0 checkpoint.best=false \
  checkpoint.memory=true run.name=copied 2>copied.log &
copied=$!
for _ in $(seq 400); do
  grep -qs '"step":20,' runs/copied/metrics.jsonl && break
  sleep 0.05
done
lose b
end_in copied 50
rm -r /dev/shm/shoal-*/b
last=$(grep -c '"loss"' runs/copied/metrics.jsonl)
wait "$copied" || die "$(cat copied.log)"
grep -q "host b does not answer" copied.log || die "host b was not missed: $(cat copied.log)"
grep -q "restart, on 3 ranks, from" copied.log || die "no restart on three ranks: $(cat copied.log)"
grep -q "with copies on another host" copied.log || die "no copies were made: $(cat copied.log)"
from=$(sed -n 's/.*the state after step \([0-9]*\) was in the memory.*/\1/p' copied.log)
[ -n "$from" ] && [ "$from" -ge $((last - 1)) ] || die "from step $from after step $last: $(cat copied.log)"
"$shoal" train open.toml "${settings[@]}" run.name=undisturbed --ranks 2 >threads.log 2>&1 || die "$(cat threads.log)"
same_result copied undisturbed
echo "a host that dies with its memory: ok"
