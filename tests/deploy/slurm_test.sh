#!/usr/bin/env bash
# A real Slurm of two nodes, a and b, from the system's packages: deploy/slurm's batch files run on it, are told that
# their time is up, lose a node, and end where threads of one process end.
. "$(dirname "$0")/lib.sh"
need munged slurmctld slurmd sbatch srun mpirun.openmpi
enter_namespaces
make_hosts a b
batch_files=$(realpath "$tests/../../deploy/slurm")

cat >slurm.conf <<END
ClusterName=test
SlurmctldHost=a
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$PWD/munge.socket
StateSaveLocation=$PWD/state
SlurmdSpoolDir=$PWD/spool-%n
SlurmctldPidFile=$PWD/slurmctld.pid
SlurmdPidFile=$PWD/slurmd-%n.pid
SlurmctldLogFile=$PWD/slurmctld.log
SlurmdLogFile=$PWD/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,sched_min_interval=0
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
TmpFS=$PWD/tmp-%n
MailProg=/bin/true
GresTypes=gpu
NodeName=a,b CPUs=8 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES
END
touch gpu0 gpu1  # in the place of devices
echo "NodeName=a,b Name=gpu File=$PWD/gpu[0-1]" >gres.conf
export SLURM_CONF=$PWD/slurm.conf
mkdir state spool-a spool-b tmp-a tmp-b

# Waits until both nodes have nothing to do; fails where that takes too long.
until_idle() {
  for _ in $(seq 600); do
    [ "$(on a sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] && return
    sleep 0.1
  done
  return 1
}

start_slurm() {
  (umask 077 && head -c 1024 /dev/urandom >munge.key)
  chmod 755 .  # munge refuses a socket that others cannot reach
  on a munged --key-file="$PWD/munge.key" --socket="$PWD/munge.socket" --pid-file="$PWD/munged.pid" \
    --log-file="$PWD/munged.log" --seed-file="$PWD/munged.seed"
  on a slurmctld && on a slurmd -N a && on b slurmd -N b || true
  ! until_idle || return 0
  tail -n 20 slurmctld.log slurmd-*.log >&2
  die "Slurm did not start"
}

# Waits for job $1 to be in state $2.
wait_for() {
  local state=
  for _ in $(seq 1000); do
    state=$(on a scontrol -o show job "$1" | grep -o 'JobState=[A-Z]*' | cut -d= -f2)
    [ "$state" = "$2" ] && return
    [ "$state" = FAILED ] && break
    sleep 0.1
  done
  cat ./*-"$1".log slurmctld.log >&2
  die "job $1 is $state, not $2"
}

# Waits until $run has made step $1.
until_step() {
  for _ in $(seq 1000); do
    grep -qs "\"step\":$1," "runs/$run/metrics.jsonl" && return
    sleep 0.1
  done
  die "$run does not get to step $1: $(on a sinfo; on a squeue; tail -n 20 slurmctld.log)"
}

# Starts a job that is queued again, which would wait for two minutes.
start_now() {
  sleep 1.5  # the credential of its first start is revoked in this second
  on a scontrol update "JobId=$1" StartTime=now
}

submit() {
  on a SHOAL="$shoal" OMP_WAIT_POLICY=passive sbatch --parsable --cpus-per-task=1 "$@" "run.name=$run"
}

start_slurm
make_run
"$shoal" train tiny.toml run.name=threads --ranks 4 >threads.log 2>&1 || die "$(cat threads.log)"

# Two nodes; when a few steps are done, the time is up.
run=two-nodes
settings=(lr_schedule.name=constant eval.interval=300 checkpoint.interval=300)
make_endless
job=$(submit --ntasks-per-node=2 "$batch_files/many-nodes.sbatch" open.toml "${settings[@]}")
until_step 10
pkill -USR1 -o -f slurm_script  # what slurmd does of --signal=B:USR1@300 when it is time
wait_for "$job" PENDING
end_in "$run" 50
start_now "$job"
wait_for "$job" COMPLETED
grep -q "stopped by SIGUSR1 after step" "shoal-$job.log" || die "the run was not stopped: $(cat "shoal-$job.log")"
grep -q "resumed from" "shoal-$job.log" || die "the run did not go on: $(cat "shoal-$job.log")"
"$shoal" train open.toml run.name=whole "${settings[@]}" --ranks 2 >threads.log 2>&1 || die "$(cat threads.log)"
same_result two-nodes whole
[ "$(received b)" -gt 1000000 ] || die "the nodes have not exchanged gradients"
echo "two nodes, stopped and queued again: ok"

# A mistake of the user's ends the job, on however many nodes. One start may die before: Open MPI 4 has crashed while it
# started, and such a job is queued again. The one that reads the mistake is the last.
run=mistaken job=$(submit --ntasks-per-node=2 "$batch_files/many-nodes.sbatch" tiny.toml optim.nokey=1)
wait_for "$job" FAILED
{ on a scontrol -o show job "$job" | grep -q " ExitCode=2:0" && [ "$(grep -c "unknown key optim.nokey" "shoal-$job.log")" = 1 ]; } ||
  die "$(cat "shoal-$job.log"; on a scontrol -o show job "$job")"
until_idle || die "a node does not come back from a mistake: $(on a sinfo; tail -n 20 slurmctld.log)"
echo "a mistake: ok"

# A node dies under a run: slurmd and all other processes there are gone. Until Slurm knows, the next jobs run on the other
# node.
run=dying
settings=(lr_schedule.name=constant eval.interval=300 checkpoint.interval=5)
make_endless
dying=$(submit --ntasks-per-node=2 "$batch_files/many-nodes.sbatch" open.toml "${settings[@]}")
until_step 20
ip netns pids b | xargs -r kill -9 || true  # some may have ended meanwhile

run=one-node job=$(submit --ntasks=4 "$batch_files/one-node.sbatch" tiny.toml)
wait_for "$job" COMPLETED
same_result one-node threads
echo "one node: ok"

# A name on the command line names another run, which begins anew, with an attempt of which nothing was saved put aside.
run=other
mkdir -p runs/other
echo '{"step":1,"loss":9}' >runs/other/metrics.jsonl
job=$(submit --ntasks=4 "$batch_files/one-node.sbatch" tiny.toml)
wait_for "$job" COMPLETED
same_result other threads
# Submitted again, it goes on.
job=$(submit --ntasks=2 "$batch_files/one-node.sbatch" tiny.toml train.steps=50)
wait_for "$job" COMPLETED
grep -q "runs/other/checkpoints/step-00000040: 40 of 50 steps are done" "shoal-$job.log" || die "the run did not go on: $(cat "shoal-$job.log")"
echo "another name, submitted again: ok"

# Slurm is told, as by a check of the nodes' health, and queues the first one again. It goes on when another node is in
# its place, with empty folders.
on a scontrol update NodeName=b State=DOWN Reason="it does not answer"
wait_for "$dying" PENDING
grep -q "requeue job JobId=$dying due to failure of node b" slurmctld.log || die "Slurm has not missed the node: $(cat slurmctld.log)"
rm -r spool-b/* tmp-b/*
on b slurmd -N b
end_in dying 50
start_now "$dying"
wait_for "$dying" COMPLETED
grep -q "resumed from" "shoal-$dying.log" || die "the run did not go on: $(cat "shoal-$dying.log")"
"$shoal" train open.toml run.name=alive "${settings[@]}" --ranks 2 >threads.log 2>&1 || die "$(cat threads.log)"
same_result dying alive
echo "a node that dies: ok"

# Nodes with GPUs, as many tasks as GPUs; the ranks compute on CPUs, since there are none.
run=gpus
job=$(SHOAL_MANY_NODES=$batch_files/many-nodes.sbatch submit --gres=gpu:2 --ntasks-per-node=2 "$batch_files/gpu-nodes.sbatch" \
  tiny.toml train.backend=cpu)
on a scontrol -o show job "$job" >job.txt
wait_for "$job" COMPLETED
grep -qE 'TresPerNode=gres[:/]gpu:2' job.txt || die "the job was not given two GPUs per node: $(cat job.txt)"
same_result gpus threads
echo "GPUs: ok"
