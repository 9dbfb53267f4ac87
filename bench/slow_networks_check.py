#!/usr/bin/env python3
"""What the network of bench/slow_networks.sh is: slow_networks_check.py HOSTS prints, as JSON, the time of a round trip
between the first two hosts, and what one TCP stream and one from every host to the next one at a time carry in Mbit/s.
Hosts are network namespaces h1, h2, ... with the addresses 10.98.0.1, 10.98.0.2, ..."""
import ctypes
import json
import os
import socket
import statistics
import sys
import threading
import time

LIBC = ctypes.CDLL(None, use_errno=True)
SECONDS = 2.0


def enter(host):
    """A socket is of the namespace in which it was made."""
    space = os.open(f"/run/netns/h{host}", os.O_RDONLY)
    if LIBC.setns(space, 0x40000000) != 0:
        raise OSError(ctypes.get_errno(), f"setns to h{host}")
    os.close(space)


def connection(sender, receiver):
    """The two ends of a stream."""
    enter(receiver)
    listener = socket.create_server((f"10.98.0.{receiver}", 0))
    enter(sender)
    out = socket.create_connection(listener.getsockname())
    end, _ = listener.accept()
    for each in (out, end):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return out, end


def round_trip_ms():
    there, back = connection(1, 2)
    times = []
    for _ in range(12):
        begin = time.perf_counter()
        there.sendall(b"x")
        back.recv(1)
        back.sendall(b"y")
        there.recv(1)
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times[2:])


def streams_mbit(pairs, slow_start):
    """What each carries, the mean, after its slow start of so many seconds."""
    ends = [connection(*pair) for pair in pairs]
    stop, received = threading.Event(), [0] * len(pairs)

    def send(out):
        block = bytes(1 << 16)
        while not stop.is_set():
            try:
                out.send(block)
            except OSError:
                return

    def receive(end, i):
        while not stop.is_set():
            received[i] += len(end.recv(1 << 18))

    threads = [threading.Thread(target=send, args=(out,), daemon=True) for out, _ in ends]
    threads += [threading.Thread(target=receive, args=(end, i), daemon=True) for i, (_, end) in enumerate(ends)]
    for thread in threads:
        thread.start()
    time.sleep(slow_start)
    before, begin = sum(received), time.perf_counter()
    time.sleep(SECONDS)
    rate = (sum(received) - before) * 8e-6 / (time.perf_counter() - begin) / len(pairs)
    stop.set()
    for out, _ in ends:
        out.close()
    return rate


def main():
    hosts = int(sys.argv[1])
    round_trip = round_trip_ms()
    slow_start = 1 + 0.03 * round_trip  # thirty round trips, and Linux's growing buffers
    print(json.dumps({"round_trip_ms": round(round_trip, 3),
                      "one_mbit": round(streams_mbit([(1, 2)], slow_start), 2),
                      "all_mbit": round(streams_mbit([(i, i % hosts + 1) for i in range(1, hosts + 1)], slow_start), 2)}))


if __name__ == "__main__":
    main()
