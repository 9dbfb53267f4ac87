#include "parallel/gossip/workers_average.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace shoal {
namespace {

// Calls f(first, count) for parts that the chunk can hold.
template <typename F>
void for_chunks(std::int64_t elements, F&& f) {
  constexpr auto kMost = AverageBuffers::kChunk;
  for (std::int64_t first = 0; first < elements; first += kMost) f(first, std::min(kMost, elements - first));
}

}  // namespace

double WorkersAverage::show(GradientReducer& reducer, std::int64_t step, const OptimizerState* averages) {
  weights_.settle();
  auto& peers = mesh_.peers();
  std::vector<Request> sums;
  plan_.for_units([&](int u) {
    const Tensor shown = weights_.master(u);
    stream_.convert(reducer.reduced(u), shown);
    if (averages) stream_.convert(shown, averages->shard(plan_, u));
    peers.set_purpose(fmt::format("step {}, mean of {}", step + 1, plan_.unit(u).name));
    sums.push_back(peers.all_reduce(stream_.settled(shown)));
  });
  for (auto& sum : sums) sum.wait();
  plan_.for_units([&](int u) {
    const Tensor shown = weights_.master(u);
    stream_.scale(shown, shown, 1.0f / static_cast<float>(peers.size()));
    weights_.changed(u, false);
  });
  return distance([&](int u) { return averages ? averages->shard(plan_, u) : reducer.reduced(u); });
}

// With the mean shown. Every element counts once in each worker.
double WorkersAverage::distance(const std::function<Tensor(int unit)>& own) {
  std::array<double, 2> squares = {};  // of the distances, of the mean
  for (const bool of_mean : {false, true}) {
    backend_.zero(buffers_.squares);
    plan_.for_units([&](int u) {
      const auto add = [&](std::int64_t at, std::int64_t count) {
        const Tensor x = part_of(buffers_.chunk, 0, count);
        stream_.scale(x, part_of(weights_.master(u), at, count), of_mean ? 1.0f : -1.0f);
        if (!of_mean) stream_.add(x, part_of(own(u), at, count));
        backend_.sum_squares(buffers_.squares, x);
      };
      plan_.for_boxes(u, plan_.my_piece(u),
                      [&](const ParameterSpec& parameter, const Box&, std::int64_t, ElementRange here) {
                        if (!owns(part_, plan_.unit(u), parameter)) return;
                        const std::int64_t begin = here.begin - plan_.my_shard(u).begin;
                        for_chunks(here.count(), [&](std::int64_t first, std::int64_t count) {
                          add(begin + first, count);
                        });
                      });
    });
    backend_.copy_to_host(&squares[of_mean ? 1 : 0], buffers_.squares);
  }
  mesh_.world().set_purpose("consensus distance");
  mesh_.world().all_reduce({squares.data(), DType::f64, {2}}).wait();
  return std::sqrt(squares[0] / squares[1]);
}

}  // namespace shoal
