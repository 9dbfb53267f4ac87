#include "parallel/gossip/workers_average.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace shoal {

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

// With the mean shown.
double WorkersAverage::distance(const std::function<Tensor(int unit)>& own) {
  std::array<double, 2> squares = {};  // of the distance, of the mean
  for (const bool of_mean : {false, true}) {
    norm_.begin_step();
    plan_.for_units([&](int u) {
      const auto piece = plan_.my_piece(u);
      for (auto at = piece.begin; at < piece.end; at += AverageBuffers::kChunk) {
        const auto first = at - plan_.my_shard(u).begin,
                   count = std::min(AverageBuffers::kChunk, piece.end - at);
        const Tensor x = part_of(buffers_.chunk, 0, count);
        stream_.scale(x, part_of(weights_.master(u), first, count), of_mean ? 1.0f : -1.0f);
        if (!of_mean) stream_.add(x, part_of(own(u), first, count));
        norm_.add_part(u, {at, at + count}, x);
      }
    });
    norm_.sum("consensus distance");
    backend_.copy_to_host(&squares[of_mean ? 1 : 0], norm_.squares());
  }
  mesh_.peers().set_purpose("consensus distance");
  mesh_.peers().all_reduce({squares.data(), DType::f64, {2}}).wait();
  return std::sqrt(squares[0] / squares[1]);
}

}  // namespace shoal
