// The conformance suite of communicators: functions that all ranks of a world call together. They throw Error
// for a wrong result and use no test framework, so that a program under mpirun can run them, too. `chunk` is
// the number of bytes at which the implementation splits its work; the checks use sizes around it.
#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/world.h"
#include "core/error.h"

namespace shoal::test {

inline constexpr DType kEveryType[] = {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32};
inline constexpr DType kReducedTypes[] = {DType::f32, DType::bf16, DType::f64, DType::i32};

// The value of element i on rank r before a collective: small integers, whose sums over up to 16 ranks are
// exact in every type and order.
inline int value_of(int rank, std::int64_t i) {
  return static_cast<int>((rank * 5 + i * 3 + (i >> 7) + (i >> 13)) & 15) - 8;
}

// The memory of a tensor, with guard values around it.
class Values {
 public:
  Values(DType dtype, std::int64_t count)
      : dtype_(dtype),
        count_(count),
        bytes_(2 * kGuard + static_cast<std::size_t>(count) * size_of(dtype), kMark) {}

  Tensor tensor() { return part(0, count_); }
  Tensor part(std::int64_t first, std::int64_t count) {
    return {bytes_.data() + kGuard + first * static_cast<std::int64_t>(size_of(dtype_)), dtype_, {count}};
  }

  // Sets every element i to value(i).
  template <typename Value>
  void fill(const Value& value) {
    each([&](auto& element, std::int64_t i) { store(element, value(i)); });
  }
  // Throws unless every element i is value(i) and the guards are unchanged.
  template <typename Value>
  void expect(std::string_view what, const Value& value) {
    each([&](auto& element, std::int64_t i) {
      auto wanted = element;
      store(wanted, value(i));
      if (std::memcmp(&wanted, &element, sizeof element) != 0) {
        fail("{} of {} {}: element {} is not {}", what, count_, name_of(dtype_), i, value(i));
      }
    });
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (bytes_[i] != kMark || bytes_[bytes_.size() - 1 - i] != kMark) {
        fail("{} of {} {}: memory beside the tensor was written", what, count_, name_of(dtype_));
      }
    }
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kMark{0xa5};

  static void store(float& to, int value) { to = static_cast<float>(value); }
  static void store(double& to, int value) { to = value; }
  static void store(std::int32_t& to, int value) { to = value; }
  static void store(bfloat16& to, int value) { to = to_bfloat16(static_cast<float>(value)); }
  static void store(std::uint16_t& to, int value) {
    to = static_cast<std::uint16_t>(value);
  }  // float16's bits

  template <typename T, typename Visit>
  void each_of(const Visit& visit) {
    for (std::int64_t i = 0; i < count_; ++i) visit(*(tensor().as<T>() + i), i);
  }
  template <typename Visit>
  void each(const Visit& visit) {
    switch (dtype_) {
      case DType::f32:
        return each_of<float>(visit);
      case DType::bf16:
        return each_of<bfloat16>(visit);
      case DType::f16:
        return each_of<std::uint16_t>(visit);
      case DType::f64:
        return each_of<double>(visit);
      case DType::i32:
        return each_of<std::int32_t>(visit);
    }
  }

  DType dtype_;
  std::int64_t count_;
  std::vector<std::byte> bytes_;
};

inline std::vector<std::int64_t> counts_around(std::int64_t chunk, DType dtype) {
  const auto n = chunk / static_cast<std::int64_t>(size_of(dtype));
  return {0, 1, 7, n - 1, n, n + 1, 3 * n + 13};
}

inline int reduced_value(int ranks, std::int64_t i, ReduceOp op) {
  int result = value_of(0, i);
  for (int r = 1; r < ranks; ++r) {
    const int value = value_of(r, i);
    result = op == ReduceOp::sum   ? result + value
             : op == ReduceOp::max ? std::max(result, value)
                                   : std::min(result, value);
  }
  return result;
}

// Calls check(dtype, count, op) for all combinations that a reduction takes.
inline void for_each_reduction(std::int64_t chunk,
                               const std::function<void(DType, std::int64_t, ReduceOp)>& check) {
  for (const auto dtype : kReducedTypes) {
    for (const auto count : counts_around(chunk, dtype)) {
      check(dtype, count, ReduceOp::sum);
      check(dtype, count, ReduceOp::max);
      check(dtype, count, ReduceOp::min);
    }
  }
}

inline void for_each_copy(std::int64_t chunk, const std::function<void(DType, std::int64_t)>& check) {
  for (const auto dtype : kEveryType) {
    for (const auto count : counts_around(chunk, dtype)) check(dtype, count);
  }
}

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
    Values x(dtype, count);
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
    Values x(dtype, count * group.size()), out(dtype, count);
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
    Values x(dtype, count), out(dtype, count * group.size());
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
    Values x(dtype, count * group.size()), out(dtype, count * group.size());
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
    Values x(dtype, count);
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
    Values first(dtype, count), second(dtype, 5), got_first(dtype, count), got_second(dtype, 5);
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
  std::vector<Values> sent, got;
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
    Values x(DType::bf16, count);
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

// Collectives of every kind run at the same time, and every rank waits for them in another order.
inline void check_many_requests(World& world, std::int64_t chunk) {
  auto& group = world.ranks;
  constexpr int kRequests = 48;
  const int size = group.size();
  const auto count_of = [&](int k) { return (k % 5 == 0 ? chunk / 2 : 100) + k; };
  const auto value = [&](int k, int rank, std::int64_t i) { return value_of(rank + k, i); };
  std::vector<Values> ins, outs;
  std::vector<Request> requests;
  for (int k = 0; k < kRequests; ++k) {
    const auto count = count_of(k);
    ins.emplace_back(DType::f32, k % 4 == 1 ? count * size : count);
    outs.emplace_back(DType::f32, k % 4 == 2 ? count * size : count);
    ins.back().fill([&](std::int64_t i) { return value(k, group.rank(), i); });
  }
  for (int k = 0; k < kRequests; ++k) {
    const auto in = ins[static_cast<std::size_t>(k)].tensor();
    const auto out = outs[static_cast<std::size_t>(k)].tensor();
    group.set_purpose(fmt::format("request {}", k));
    requests.push_back(k % 4 == 0   ? group.all_reduce(in)
                       : k % 4 == 1 ? group.reduce_scatter(out, in)
                       : k % 4 == 2 ? group.all_gather(out, in)
                                    : group.broadcast(in, k % size));
  }
  for (int j = 0; j < kRequests; ++j) {  // 5 and 48 have no common factor
    const auto k = static_cast<std::size_t>((group.rank() % 2 == 0 ? j * 5 : kRequests - 1 - j) % kRequests);
    requests[k].wait();
  }
  for (int k = 0; k < kRequests; ++k) {
    auto& in = ins[static_cast<std::size_t>(k)];
    auto& out = outs[static_cast<std::size_t>(k)];
    const auto count = count_of(k);
    const auto sum = [&](std::int64_t i) {
      int total = 0;
      for (int r = 0; r < size; ++r) total += value(k, r, i);
      return total;
    };
    if (k % 4 == 0) in.expect("all_reduce in flight", sum);
    if (k % 4 == 1) {
      out.expect("reduce_scatter in flight", [&](std::int64_t i) { return sum(group.rank() * count + i); });
    }
    if (k % 4 == 2) {
      out.expect("all_gather in flight",
                 [&](std::int64_t i) { return value(k, static_cast<int>(i / count), i % count); });
    }
    if (k % 4 == 3) in.expect("broadcast in flight", [&](std::int64_t i) { return value(k, k % size, i); });
  }
}

// Collectives in the rows and columns of a grid with two columns, and in the whole grid, at the same time.
inline void check_grid(World& world, std::int64_t chunk) {
  auto& all = world.ranks;
  const Communicator::SplitKeys row_of = [](int r) { return Communicator::SplitKey{r / 2, r}; };
  const Communicator::SplitKeys column_of = [](int r) { return Communicator::SplitKey{r % 2, r}; };
  const auto row = all.split(row_of);
  const auto column = all.split(column_of);
  const auto in_row = members_of(row_of, all.size(), all.rank());
  const auto in_column = members_of(column_of, all.size(), all.rank());
  if (row->size() != static_cast<int>(in_row.size()) ||
      column->size() != static_cast<int>(in_column.size())) {
    fail("a row of {} and a column of {} ranks", row->size(), column->size());
  }
  const auto sum_over = [](const std::vector<int>& members) {
    return [&members](std::int64_t i) {
      int sum = 0;
      for (int r : members) sum += value_of(r, i);
      return sum;
    };
  };
  for (int round = 0; round < 5; ++round) {
    Values a(DType::f32, chunk / 4 + 3), b(DType::f32, chunk + 1), c(DType::i32, 17);
    for (auto* x : {&a, &b, &c}) x->fill([&](std::int64_t i) { return value_of(all.rank(), i); });
    auto over_row = row->all_reduce(a.tensor());
    auto over_all = all.all_reduce(c.tensor());
    auto over_column = column->all_reduce(b.tensor());
    if (all.rank() % 3 == 0) over_column.wait();
    over_row.wait();
    over_column.wait();
    over_all.wait();
    a.expect("sum over a row", sum_over(in_row));
    b.expect("sum over a column", sum_over(in_column));
    c.expect("sum over all", [&](std::int64_t i) { return reduced_value(all.size(), i, ReduceOp::sum); });
  }
}

// Keys reorder ranks, equal keys keep their order, and a part can be split again.
inline void check_split_order(World& world, std::int64_t) {
  auto& all = world.ranks;
  const auto ranks_in = [&](Communicator& group) {
    std::vector<int> ranks(static_cast<std::size_t>(group.size()));
    int me = all.rank();
    group.all_gather({ranks.data(), DType::i32, {group.size()}}, {&me, DType::i32, {1}}).wait();
    return ranks;
  };
  const Communicator::SplitKeys ways[] = {[](int r) {
                                            return Communicator::SplitKey{0, -r};
                                          },
                                          [](int r) {
                                            return Communicator::SplitKey{r % 3, r / 4 % 2};
                                          },
                                          [](int r) {
                                            return Communicator::SplitKey{-r, 5};
                                          },
                                          [](int r) {
                                            return Communicator::SplitKey{7, (r * 5) % 8};
                                          }};
  for (const auto& keys : ways) {
    const auto group = all.split(keys);
    const auto wanted = members_of(keys, all.size(), all.rank());
    const auto got = ranks_in(*group);
    if (got != wanted || got[static_cast<std::size_t>(group->rank())] != all.rank()) {
      fail("split: ranks {} instead of {}", got, wanted);
    }
    const auto again = group->split([](int r) { return Communicator::SplitKey{0, -r}; });
    auto reversed = ranks_in(*again);
    std::reverse(reversed.begin(), reversed.end());
    if (reversed != wanted) fail("split of a part: ranks {} instead of {}", reversed, wanted);
  }
}

// A request that is destroyed or replaced has been waited for.
inline void check_dropped_requests(World& world, std::int64_t chunk) {
  auto& group = world.ranks;
  const auto wanted = [&](std::int64_t i) { return reduced_value(group.size(), i, ReduceOp::sum); };
  Values x(DType::f32, chunk + 3), y(DType::f32, 9);
  for (auto* v : {&x, &y}) v->fill([&](std::int64_t i) { return value_of(group.rank(), i); });
  { const auto dropped = group.all_reduce(x.tensor()); }
  x.expect("all_reduce whose request was destroyed", wanted);
  auto request = group.all_reduce(y.tensor());
  request = Request();
  y.expect("all_reduce whose request was replaced", wanted);
}

// Rank 0 joins sums of all ranks and of a pair late: only after the others, which continue in groups without
// it, have sent it a message.
inline void check_late_rank(World& world, std::int64_t chunk) {
  auto& group = world.ranks;
  if (group.size() < 3) return;
  const int rank = group.rank(), last = group.size() - 1;
  const auto split = [&](auto&& colour) {
    return group.split([&](int r) { return Communicator::SplitKey{colour(r), r}; });
  };
  const auto all = split([](int) { return 0; }), pair = split([](int r) { return r <= 1 ? 0 : r; }),
             others = split([](int r) { return r == 0 ? 0 : 1; });
  Values of_all(DType::f32, 9 * chunk), of_pair(DType::f32, 9 * chunk), of_others(DType::f32, 2 * chunk);
  for (auto* x : {&of_all, &of_pair, &of_others}) x->fill([](std::int64_t) { return 1; });
  std::int32_t token = 0;
  const Tensor told{&token, DType::i32, {1}};
  if (rank == 0) group.receive(told, last).wait();
  auto sum_of_all = all->all_reduce(of_all.tensor()), sum_of_pair = pair->all_reduce(of_pair.tensor());
  if (rank > 0) {
    int sum = 1;
    for (int i = 0; i < 3; ++i, sum *= others->size()) others->all_reduce(of_others.tensor()).wait();
    of_others.expect("all_reduce without a late rank", [&](std::int64_t) { return sum; });
  }
  if (rank == last) group.send(told, 0).wait();
  sum_of_pair.wait();
  sum_of_all.wait();
  of_all.expect("all_reduce with a late rank", [&](std::int64_t) { return group.size(); });
  of_pair.expect("all_reduce of a pair with a late rank", [&](std::int64_t) { return pair->size(); });
}

// Invalid calls are refused before anything is sent, and the group remains usable.
inline void check_refusals(World& world, std::int64_t) {
  auto& group = world.ranks;
  float memory[64] = {};
  const auto tensor = [&](DType dtype, std::int64_t count) { return Tensor{memory, dtype, {count}}; };
  const auto refused = [](std::string_view what, const std::function<void()>& call) {
    try {
      call();
    } catch (const StoppedByPeer&) {
      throw;
    } catch (const Error&) {
      return;
    }
    fail("{} was not refused", what);
  };
  const int size = group.size();
  refused("a sum of float16", [&] { group.all_reduce(tensor(DType::f16, 4)).wait(); });
  refused("a reduce_scatter that does not divide",
          [&] { group.reduce_scatter(tensor(DType::f32, 2), tensor(DType::f32, 2 * size + 1)).wait(); });
  refused("an all_gather of other types",
          [&] { group.all_gather(tensor(DType::f32, size), tensor(DType::i32, 1)).wait(); });
  refused("an all_to_all of other sizes",
          [&] { group.all_to_all(tensor(DType::f32, size), tensor(DType::f32, 2 * size)).wait(); });
  refused("a broadcast from nobody", [&] { group.broadcast(tensor(DType::f32, 1), size).wait(); });
  refused("a message to oneself", [&] { group.send(tensor(DType::f32, 1), group.rank()).wait(); });
  refused("a message from nobody", [&] { group.receive(tensor(DType::f32, 1), -1).wait(); });
  check_barriers(world, 0);
}

struct Check {
  const char* name;
  void (*run)(World& world, std::int64_t chunk);
};

inline constexpr Check kChecks[] = {
    {"Place", check_place},
    {"AllReduce", check_all_reduce},
    {"ReduceScatter", check_reduce_scatter},
    {"AllGather", check_all_gather},
    {"AllToAll", check_all_to_all},
    {"Broadcast", check_broadcast},
    {"Messages", check_messages},
    {"CrossingMessages", check_crossing_messages},
    {"Barriers", check_barriers},
    {"Rounding", check_rounding},
    {"SameBits", check_same_bits},
    {"ManyRequests", check_many_requests},
    {"Grid", check_grid},
    {"SplitOrder", check_split_order},
    {"DroppedRequests", check_dropped_requests},
    {"LateRank", check_late_rank},
    {"Refusals", check_refusals},
};

// Bodies of runs that must fail. They return on no rank.

// The last rank throws UserError "the disk is full"; the collectives of the others throw StoppedByPeer.
inline void fail_while_others_wait(World& world) {
  auto& group = world.ranks;
  Values x(DType::f32, 100000);
  if (group.rank() == group.size() - 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    fail_user("the disk is full");
  }
  try {
    group.all_reduce(x.tensor()).wait();
  } catch (const StoppedByPeer&) {
    throw;
  } catch (const Error& error) {
    fail("a rank that waits for one that failed says: {}", error.what());
  }
  fail("a collective went on without a rank that failed");
}

// The last rank joins an all_reduce for "step 12, gradients of block.3" too late.
inline void miss_deadline(World& world, double deadline_seconds) {
  auto& group = world.ranks;
  Values x(DType::f32, 100000);
  group.set_purpose("step 12, gradients of block.3");
  if (group.rank() == group.size() - 1) {
    std::this_thread::sleep_for(std::chrono::duration<double>(deadline_seconds * 3));
  }
  group.all_reduce(x.tensor()).wait();
  fail("a collective whose deadline has passed went on");
}

}  // namespace shoal::test
