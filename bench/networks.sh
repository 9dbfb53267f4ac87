# Slow networks between hosts that are network namespaces, for benchmarks: netem's where the kernel has it, else those of
# bench/network_relay.cpp. To be sourced by a script that has sourced tests/deploy/lib.sh and entered its namespaces; needs
# $BUILD, and for network_up $hosts, $mbit, $slow (the rate of h1, or -), $delay, $bandwidth and $mtu.

[ -n "${NETWORK:-}" ] || { tc qdisc add dev lo root netem delay 1ms 2>/dev/null && NETWORK=netem || NETWORK=relay; }
tc qdisc del dev lo root 2>/dev/null || true

addresses() {  # of the devices called slow
  local host
  for ((host = 1; host <= $1; ++host)); do
    ip -n "h$host" address add "10.98.0.$host/24" dev slow
    ip -n "h$host" link set slow mtu "$mtu" up
    # Exchanges come in bursts; Linux would begin each anew as slowly as a new connection.
    ip netns exec "h$host" sysctl -qw net.ipv4.tcp_slow_start_after_idle=0
    ip netns exec "h$host" sysctl -qw net.ipv4.tcp_congestion_control=cubic 2>/dev/null ||  # forbidden where it is not
      ip netns exec "h$host" sysctl -qw net.ipv4.tcp_congestion_control=reno                # the system's default
  done
}
rate_of() { [ "$1" = 1 ] && [ "$slow" != - ] && echo "$slow" || echo "$mbit"; }

# Makes the network of $hosts, $mbit, $slow and $delay, and forgets it.
network_up() {
  local host names=()
  for ((host = 1; host <= hosts; ++host)); do names+=("h$host"); done
  if [ "$NETWORK" = netem ] && [[ "$delay" != *exp* ]]; then
    ip link add slow-net type bridge
    ip link set slow-net up
    for ((host = 1; host <= hosts; ++host)); do
      ip link add "slow-$host" type veth peer name slow netns "h$host"
      ip link set "slow-$host" master slow-net mtu "$mtu" up
      ip -n "h$host" link set slow gso_max_segs 1
    done
    ip link set slow-net mtu "$mtu"
    addresses "$hosts"
    for ((host = 1; host <= hosts; ++host)); do
      tc -n "h$host" qdisc add dev slow root netem delay "$delay" rate "$(rate_of "$host")mbit" limit 1000
      tc qdisc add dev "slow-$host" root netem rate "$(rate_of "$host")mbit" limit 1000
    done
    return
  fi
  "$BUILD/bench/bench_network_relay" "$bandwidth" "$delay" "${names[@]}" >relay.log 2>&1 &
  relay=$!
  until grep -q ready relay.log; do
    kill -0 "$relay" 2>/dev/null || die "the relay: $(cat relay.log)"
    sleep 0.05
  done
  addresses "$hosts"
  for ((host = 1; host <= hosts; ++host)); do
    local rate
    rate=$(rate_of "$host")
    tc -n "h$host" qdisc add dev slow root tbf rate "${rate}mbit" burst $((2 * mtu + rate * 20)) limit $((1000 * mtu))
  done
}
network_down() {
  if [ -n "${relay:-}" ]; then
    kill "$relay"
    wait "$relay" || true
    relay=
    tail -1 relay.log
  else
    ip link del slow-net
    for ((host = 1; host <= hosts; ++host)); do ip link del "slow-$host"; done
    echo "netem"
  fi
}

# mpirun_on_hosts RANKS_PER_HOST ARGUMENTS...: Open MPI's mpirun on h1 for ranks on all $hosts, over the slow network.
mpirun_on_hosts() {
  local per_host=$1 list
  shift
  list=$(printf "h%s:$per_host," $(seq "$hosts"))
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm_rsh_agent=$SHOAL_TEST_FOLDER/remote_shell \
    on h1 mpirun.openmpi -n $((hosts * per_host)) --oversubscribe --bind-to none --host "${list%,}" \
    --mca btl self,vader,tcp --mca btl_tcp_if_include 10.98.0.0/24 \
    -x "SHOAL_MPI_MODULE=$BUILD/libshoal_mpi_openmpi.so" "$@"
}
