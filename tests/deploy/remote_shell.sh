#!/bin/sh
# remote_shell.sh HOST COMMAND...: what ssh is elsewhere, for the hosts that lib.sh makes. A host whose cable is
# pulled does not answer.
while [ "${1#-}" != "$1" ]; do shift; done  # options of ssh's
host=$1
shift
if ! ip -n "$host" link show lan 2>/dev/null | grep -q LOWER_UP; then
  echo "connect to host $host: No route to host" >&2
  exit 255
fi
# shellcheck disable=SC2016  # expanded on the host; /sys shows its network, and what it showed of cgroups
exec nsenter --net="/run/netns/$host" unshare --uts --mount bash -c '
  mount -t sysfs sysfs /sys && mount --rbind "$SHOAL_TEST_FOLDER/cgroup" /sys/fs/cgroup && hostname "$0" && eval "$1"
' "$host" "$*"
