// Checks of the results of collectives; see comm/conformance.h.
#pragma once

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "comm/test_values.h"
#include "comm/world.h"

namespace shoal::test {

inline void check_place(World& world, std::int64_t) {
  const auto& group = world.ranks;
  if (group.rank() < 0 || group.rank() >= group.size()) fail("rank {} of {}", group.rank(), group.size());
  if (world.local_rank < 0 || world.local_rank >= world.local_size || world.local_size > group.size()) {
    fail("local rank {} of {}", world.local_rank, world.local_size);
  }
  if (world.cores < 1 || world.where.empty()) fail("{} cores, in '{}'", world.cores, world.where);
}

// A number of elements that makes one whole piece, at `chunk` bytes per rank, and a part of a second.
inline std::int64_t more_than_a_chunk_each(const Communicator& group, std::int64_t chunk, DType dtype) {
  const auto n = chunk / static_cast<std::int64_t>(size_of(dtype));
  return n * group.size() + n / 2 + 13;
}

inline void check_all_reduce(World& world, std::int64_t chunk) {
  auto& group = world.ranks;
  const auto check = [&](DType dtype, std::int64_t count, ReduceOp op) {
    GuardedValues x(dtype, count);
    x.fill([&](std::int64_t i) { return value_of(group.rank(), i); });
    group.all_reduce(x.tensor(), op).wait();
    x.expect("all_reduce", [&](std::int64_t i) { return reduced_value(group.size(), i, op); });
  };
  for_each_reduction(chunk, check);
  check(DType::f64, more_than_a_chunk_each(group, chunk, DType::f64), ReduceOp::sum);
}

// With out in separate memory, and with out as this rank's own part of x.
inline void check_reduce_scatter(World& world, std::int64_t chunk) {
  auto& group = world.ranks;
  for_each_reduction(chunk, [&](DType dtype, std::int64_t count, ReduceOp op) {
    const auto first = count * group.rank();
    const auto wanted = [&](std::int64_t i) { return reduced_value(group.size(), first + i, op); };
    GuardedValues x(dtype, count * group.size()), out(dtype, count);
    x.fill([&](std::int64_t i) { return value_of(group.rank(), i); });
    group.reduce_scatter(out.tensor(), x.tensor(), op).wait();
    out.expect("reduce_scatter", wanted);
    x.fill([&](std::int64_t i) { return value_of(group.rank(), i); });
    group.reduce_scatter(x.part(first, count), x.tensor(), op).wait();
    std::memcpy(out.tensor().data, x.part(first, count).data, out.tensor().bytes());
    out.expect("reduce_scatter in place", wanted);
  });
}

inline void check_all_gather(World& world, std::int64_t chunk) {
  auto& group = world.ranks;
  for_each_copy(chunk, [&](DType dtype, std::int64_t count) {
    const auto wanted = [&](std::int64_t i) { return value_of(static_cast<int>(i / count), i % count); };
    GuardedValues x(dtype, count), out(dtype, count * group.size());
    x.fill([&](std::int64_t i) { return value_of(group.rank(), i); });
    group.all_gather(out.tensor(), x.tensor()).wait();
    out.expect("all_gather", wanted);
    out.fill([&](std::int64_t i) { return i / count == group.rank() ? wanted(i) : 99; });
    group.all_gather(out.tensor(), out.part(count * group.rank(), count)).wait();
    out.expect("all_gather in place", wanted);
  });
}

inline void check_all_to_all(World& world, std::int64_t chunk) {
  auto& group = world.ranks;
  for_each_copy(chunk, [&](DType dtype, std::int64_t count) {
    GuardedValues x(dtype, count * group.size()), out(dtype, count * group.size());
    x.fill([&](std::int64_t i) { return value_of(group.rank(), i); });
    group.all_to_all(out.tensor(), x.tensor()).wait();
    out.expect("all_to_all", [&](std::int64_t i) {
      return value_of(static_cast<int>(i / count), group.rank() * count + i % count);
    });
  });
}

inline void check_broadcast(World& world, std::int64_t chunk) {
  auto& group = world.ranks;
  const auto check = [&](DType dtype, std::int64_t count) {
    const int root = static_cast<int>((count + 1) % group.size());
    GuardedValues x(dtype, count);
    x.fill([&](std::int64_t i) { return value_of(group.rank(), i); });
    group.broadcast(x.tensor(), root).wait();
    x.expect("broadcast", [&](std::int64_t i) { return value_of(root, i); });
  };
  for_each_copy(chunk, check);
  check(DType::f64, more_than_a_chunk_each(group, chunk, DType::f64));
}

// Messages around the ring, two at a time, arrive in order.
inline void check_messages(World& world, std::int64_t chunk) {
  auto& group = world.ranks;
  if (group.size() == 1) return;
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  for_each_copy(chunk, [&](DType dtype, std::int64_t count) {
    GuardedValues first(dtype, count), second(dtype, 5), got_first(dtype, count), got_second(dtype, 5);
    first.fill([&](std::int64_t i) { return value_of(group.rank(), i); });
    second.fill([&](std::int64_t i) { return value_of(group.rank() + 3, i); });
    auto send_first = group.send(first.tensor(), next);
    auto send_second = group.send(second.tensor(), next);
    auto receive_first = group.receive(got_first.tensor(), previous);
    auto receive_second = group.receive(got_second.tensor(), previous);
    receive_second.wait();
    got_second.expect("second message", [&](std::int64_t i) { return value_of(previous + 3, i); });
    receive_first.wait();
    got_first.expect("first message", [&](std::int64_t i) { return value_of(previous, i); });
    send_first.wait();
    send_second.wait();
  });
}

// Messages in both directions between every two ranks at the same time.
inline void check_crossing_messages(World& world, std::int64_t) {
  auto& group = world.ranks;
  std::vector<GuardedValues> sent, got;
  std::vector<Request> requests;
  for (int peer = 0; peer < group.size(); ++peer) {
    sent.emplace_back(DType::i32, 100 + peer + group.rank());
    got.emplace_back(DType::i32, 100 + peer + group.rank());
    sent.back().fill([&](std::int64_t i) { return value_of(group.rank() * 100 + peer, i); });
  }
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == group.rank()) continue;
    requests.push_back(group.send(sent[static_cast<std::size_t>(peer)].tensor(), peer));
    requests.push_back(group.receive(got[static_cast<std::size_t>(peer)].tensor(), peer));
  }
  for (auto& request : requests) request.wait();
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == group.rank()) continue;
    got[static_cast<std::size_t>(peer)].expect(
        "message", [&](std::int64_t i) { return value_of(peer * 100 + group.rank(), i); });
  }
}

inline void check_barriers(World& world, std::int64_t) {
  for (int i = 0; i < 100; ++i) world.ranks.barrier();
}

// 256 + 1 + 1 ... in bfloat16 would stay 256 if every addition were rounded.
inline void check_rounding(World& world, std::int64_t) {
  auto& group = world.ranks;
  for (const std::int64_t count : {1, 33, 1000}) {
    GuardedValues x(DType::bf16, count);
    x.fill([&](std::int64_t) { return group.rank() == 0 ? 256 : 1; });
    group.all_reduce(x.tensor()).wait();
    x.expect("bfloat16 sum", [&](std::int64_t) { return 255 + group.size(); });
  }
}

// Sums that depend on their order have the same bits on every rank and in every call, when ranks arrive at
// different times.
inline void check_same_bits(World& world, std::int64_t chunk) {
  auto& group = world.ranks;
  const auto count = chunk / 4 * 2 + 5;
  const auto n = static_cast<std::size_t>(count);
  std::vector<float> first;
  for (int round = 0; round < 4; ++round) {
    std::vector<float> x(n), all(n * static_cast<std::size_t>(group.size()));
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = 1.0f / static_cast<float>((group.rank() + 2) * 1000 + static_cast<int>(i % 977));
    }
    if (group.size() > 1 && group.rank() == round % group.size()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    const Tensor tensor{x.data(), DType::f32, {count}};
    group.all_reduce(tensor).wait();
    if (round == 0) first = x;
    if (std::memcmp(first.data(), x.data(), n * sizeof(float)) != 0) {
      fail("a repeated sum has other bits");
    }
    group.all_gather({all.data(), DType::f32, {count * group.size()}}, tensor).wait();
    for (int r = 0; r < group.size(); ++r) {
      if (std::memcmp(all.data() + static_cast<std::size_t>(r) * n, x.data(), n * sizeof(float)) != 0) {
        fail("the sum has other bits on rank {}", r);
      }
    }
  }
}

}  // namespace shoal::test
