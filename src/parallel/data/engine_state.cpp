// The engine's state: its first values, its tensors for checkpoints, and the search for values that are not
// finite.
#include <fmt/format.h>

#include <cmath>

#include "parallel/data/data_engine.h"

namespace shoal {

void DataEngine::initialize(std::uint64_t seed) {
  await_updates();
  weights_.settle();
  for (const auto& state : buffers_.optimizer.state) stream_.zero(state.all());
  plan_.for_units([&](int u) {
    const auto range = plan_.my_shard(u);
    const Tensor master = weights_.master(u);
    stream_.zero(master);
    plan_.for_boxes(
        u, range, [&](const ParameterSpec& parameter, const Box& box, std::int64_t first, ElementRange here) {
          stream_.each({StateStream::out(part_of(master, here.begin - range.begin, here.count()))},
                       [&](auto parts, std::int64_t at) {
                         shoal::initialize(backend_, parameter, box, parts[0], first + at, seed);
                       });
        });
    arenas_.done_with(master);
  });
  if (mixer_) mixer_->set_equal();
  if (outer_) outer_->begin();
  begin_average();
  weights_replaced();
}

bool DataEngine::is_finite(const Tensor& x) {
  backend_.zero(buffers_.squares);
  stream_.sum_squares(buffers_.squares, x);
  double squares = 0;
  backend_.copy_to_host(&squares, buffers_.squares);
  return std::isfinite(squares);
}

std::string DataEngine::first_bad_tensor() {
  await_updates();
  std::string found;
  for (const bool gradient : {false, true}) {
    (gradient ? trained_ : plan_).for_units([&](int u) {
      const auto range = plan_.my_shard(u);
      const Tensor shard = gradient ? reducer_->reduced(u) : weights_.master(u);
      plan_.for_boxes(
          u, range, [&](const ParameterSpec& parameter, const Box&, std::int64_t, ElementRange here) {
            if (!found.empty() || is_finite(part_of(shard, here.begin - range.begin, here.count()))) return;
            found = (gradient ? "the gradient of " : "") + parameter.name;
          });
    });
  }
  return found;
}

std::vector<StateTensor> DataEngine::state(bool optimizer, Share share) {
  if (optimizer && outer_) outer_->arrive(*reducer_);
  stream_.settle();
  await_updates();
  if (share == Share::held) weights_.settle();  // others may still be reading what is written next
  std::vector<StateTensor> tensors;
  // `part` gives a range of what is held of a unit.
  const auto add = [&](const std::string& prefix, const ShardPlan& plan, auto&& held, auto&& part) {
    plan.for_units([&](int u) {
      const auto range = share == Share::held ? held(u) : held(u) & plan_.my_piece(u);
      plan_.for_boxes(
          u, range,
          [&](const ParameterSpec& parameter, const Box& box, std::int64_t first, ElementRange here) {
            if (share == Share::to_save && !owns(options_.part, plan_.unit(u), parameter)) return;
            tensors.push_back({.name = prefix + parameter.name,
                               .shape = parameter.shape,
                               .box = box,
                               .first = first,
                               .data = part(u, here),
                               .adapter = plan.unit(u).adapter});
          });
    });
  };
  add(
      "", plan_, [&](int u) { return plan_.my_shard(u); },
      [&](int u, const ElementRange& here) {
        return part_of(weights_.master(u), here.begin - plan_.my_shard(u).begin, here.count());
      });
  if (optimizer) {
    const auto add_state = [&](std::string_view name, const OptimizerState& state) {
      add(
          fmt::format("optimizer.{}.", name), trained_, [&](int u) { return state.held(trained_, u); },
          [&](int u, const ElementRange& here) { return state.part(trained_, u, here); });
    };
    const auto names = optimizer_->state_names();
    for (std::size_t i = 0; i < names.size(); ++i) add_state(names[i], buffers_.optimizer.state[i]);
    if (buffers_.optimizer.average) add_state(kAverageState, *buffers_.optimizer.average);
    if (buffers_.outer) {
      for (std::size_t i = 0; i < buffers_.outer->state.size(); ++i)
        add_state(kOuterStates[i], buffers_.outer->state[i]);
    }
  }
  return tensors;
}

}  // namespace shoal
