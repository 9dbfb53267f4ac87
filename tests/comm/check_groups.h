// Checks of requests, of groups split from the world, and of invalid calls; see comm/conformance.h.
#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

#include "comm/check_collectives.h"
#include "comm/test_values.h"
#include "comm/world.h"

namespace shoal::test {

// Collectives of every kind run at the same time, and every rank waits for them in another order.
inline void check_many_requests(World& world, std::int64_t chunk) {
  auto& group = world.ranks;
  constexpr int kRequests = 48;
  const int size = group.size();
  const auto count_of = [&](int k) { return (k % 5 == 0 ? chunk / 2 : 100) + k; };
  const auto value = [&](int k, int rank, std::int64_t i) { return value_of(rank + k, i); };
  std::vector<GuardedValues> ins, outs;
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
    GuardedValues a(DType::f32, chunk / 4 + 3), b(DType::f32, chunk + 1), c(DType::i32, 17);
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
  GuardedValues x(DType::f32, chunk + 3), y(DType::f32, 9);
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
  GuardedValues of_all(DType::f32, 9 * chunk), of_pair(DType::f32, 9 * chunk),
      of_others(DType::f32, 2 * chunk);
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

}  // namespace shoal::test
