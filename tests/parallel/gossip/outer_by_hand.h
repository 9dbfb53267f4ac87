// The algorithm of an outer optimizer, written by hand around workers that know nothing of each other.
#pragma once

#include <fmt/format.h>

#include <cmath>

#include "parallel/ranks_run.h"

namespace shoal::test {

// The numbers of a unit, as its buffer has them, to whole blocks.
using Flat = std::vector<float>;

// Rounds each block to levels from -7 to 7 of its scale, and leaves the differences in `rest`.
inline Flat in_int4(Flat& rest) {
  Flat sent(rest.size());
  for (std::size_t block = 0; block < rest.size(); block += kSparseBlock) {
    float largest = 0;
    for (std::size_t i = block; i < block + kSparseBlock; ++i) largest = std::max(largest, std::abs(rest[i]));
    if (largest == 0) continue;
    const double unit = std::exp2(std::ilogb(largest / 7) - 19);  // 20 significant bits
    const double scale = std::ceil(largest / 7 / unit) * unit;
    for (std::size_t i = block; i < block + kSparseBlock; ++i) {
      const float level = std::nearbyint(rest[i] / static_cast<float>(scale));
      sent[i] = static_cast<float>(level * scale);
      rest[i] -= sent[i];
    }
  }
  return sent;
}

// A worker that trains alone, with the algorithm around it.
class WorkerAlone {
 public:
  WorkerAlone(const RanksRun& run, int worker)
      : outer_(*run.engine.outer), run_(alone(run)), rank_(run_, *self_, {worker, run.mesh.workers}) {
    for (const auto& tensor : rank_.engine().state(false, DataEngine::Share::held))
      weights_[tensor.name] = tensor.data;
    for (const auto& unit : rank_.engine().units()) {
      const auto blocks = (unit.size + kSparseBlock - 1) / kSparseBlock;
      model_.emplace_back(static_cast<std::size_t>(blocks * kSparseBlock));
      for_numbers(unit, [&](std::size_t at, float& weight) { model_.back()[at] = weight; });
    }
    momentum_ = unsent_ = model_;
    for (auto* flats : {&momentum_, &unsent_})
      for (auto& flat : *flats) std::ranges::fill(flat, 0.0f);
  }

  int units() const { return static_cast<int>(model_.size()); }
  void step(int step) { rank_.step(step, outcome_); }
  // A unit's weights, negated.
  Flat model(int unit) {
    Flat negated(model_[static_cast<std::size_t>(unit)].size());
    for_numbers(rank_.engine().units()[static_cast<std::size_t>(unit)],
                [&](std::size_t at, float& weight) { negated[at] = -weight; });
    return negated;
  }
  // Moves by how far the model that the group set out from is from the mean of its members' weights.
  void move_from(int unit, Flat mean) {
    const Flat& begun = model_[static_cast<std::size_t>(unit)];
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += begun[i];
    move(unit, mean);
  }
  // The part of a unit's movement that the worker sends.
  Flat sent(int unit) {
    const auto u = static_cast<std::size_t>(unit);
    Flat moved = model_[u];
    for_numbers(rank_.engine().units()[u], [&](std::size_t at, float& weight) { moved[at] -= weight; });
    if (outer_.sent.kind == OuterSent::Kind::all) return moved;
    Flat& rest = unsent_[u];
    for (std::size_t i = 0; i < rest.size(); ++i) rest[i] += moved[i];
    if (outer_.sent.kind == OuterSent::Kind::int4) return in_int4(rest);
    const bool all = outer_.sent.kind == OuterSent::Kind::bfloat16;
    const auto count = all ? kSparseBlock : std::llround(outer_.sent.share * kSparseBlock);
    Flat sent(rest.size());
    for (std::size_t block = 0; block < rest.size(); block += kSparseBlock) {
      std::vector<std::size_t> order(kSparseBlock);
      std::iota(order.begin(), order.end(), block);
      std::ranges::stable_sort(order, [&](auto a, auto b) { return std::abs(rest[a]) > std::abs(rest[b]); });
      for (std::size_t k = 0; k < static_cast<std::size_t>(count); ++k) {
        float& number = rest[order[k]];
        sent[order[k]] = to_float(to_bfloat16(number));
        number -= sent[order[k]];
      }
    }
    return sent;
  }
  // The movement is the mean of the group's.
  void move(int unit, const Flat& movement) {
    const auto u = static_cast<std::size_t>(unit);
    const auto mu = static_cast<float>(outer_.momentum), rate = static_cast<float>(outer_.lr);
    for (std::size_t i = 0; i < movement.size(); ++i) {
      float &model = model_[u][i], &m = momentum_[u][i];
      const float decayed = mu * m;
      m = decayed + movement[i];
      const float ahead = mu * m, by = outer_.nesterov ? movement[i] + ahead : m, change = -rate * by;
      model += change;
    }
  }
  // The weights become the model that was moved, or come halfway.
  void go_on(int unit) {
    const auto u = static_cast<std::size_t>(unit);
    const auto own = static_cast<float>(outer_.overlap > 0 ? outer_.own_share : 0);
    for_numbers(rank_.engine().units()[u],
                [&](std::size_t at, float& weight) { weight = own * weight + (1 - own) * model_[u][at]; });
  }
  void moved() { rank_.engine().state_loaded(); }

  RunOutcome finish() {
    collect(outcome_, rank_.engine(), rank_.backend());
    const std::vector<Flat>* flats[] = {&model_, &momentum_, &unsent_};
    for (std::size_t i = 0; i < outer_states(outer_); ++i) {
      for (std::size_t u = 0; u < model_.size(); ++u) {
        for (const auto& parameter : rank_.engine().units()[u].parameters) {
          const auto from = (*flats[i])[u].begin() + parameter.offset;
          outcome_.state[fmt::format("optimizer.{}.{}", kOuterStates[i], parameter.name)] = {
              from, from + parameter.shape.count()};
        }
      }
    }
    return outcome_;
  }

 private:
  static RanksRun alone(RanksRun run) {
    run.mesh = {};
    run.engine.gossip.reset();
    run.engine.outer.reset();
    return run;
  }
  template <typename F>
  void for_numbers(const UnitSpec& unit, F&& f) {
    for (const auto& parameter : unit.parameters) {
      const Tensor& weights = weights_.at(parameter.name);
      for (std::int64_t i = 0; i < weights.count(); ++i)
        f(static_cast<std::size_t>(parameter.offset + i), weights.as<float>()[i]);
    }
  }

  OuterOptions outer_;
  RanksRun run_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
  RankOfRun rank_;
  RunOutcome outcome_;
  std::map<std::string, Tensor> weights_;
  std::vector<Flat> model_, momentum_, unsent_;  // of each unit
};

// Sums of bfloat16 are rounded once more, and those of int4 packed once more.
inline Flat mean_of(const std::vector<Flat>& sent, OuterSent::Kind kind) {
  Flat sum = sent.front();
  for (std::size_t i = 0; i < sum.size(); ++i) {
    for (std::size_t m = 1; m < sent.size(); ++m) sum[i] += sent[m][i];
    if (kind == OuterSent::Kind::bfloat16) sum[i] = to_float(to_bfloat16(sum[i]));
  }
  if (kind == OuterSent::Kind::int4 && sent.size() > 1) sum = in_int4(sum);
  for (float& number : sum) number *= 1.0f / static_cast<float>(sent.size());
  return sum;
}

// The outcomes of all workers.
inline std::vector<RunOutcome> outer_by_hand(const RanksRun& run) {
  const auto& outer = *run.engine.outer;
  std::vector<std::unique_ptr<WorkerAlone>> workers;
  for (int w = 0; w < run.mesh.workers; ++w) workers.push_back(std::make_unique<WorkerAlone>(run, w));
  const auto rounds =
      run.engine.gossip ? run.engine.gossip->topology.rounds : std::vector<Topology::Round>{{{0}}};
  const bool models = outer.sent.kind == OuterSent::Kind::all &&
                      std::ranges::any_of(rounds, [](const auto& round) { return round.size() > 1; });
  // Calls visit(unit, round) for each whose turn comes after so many steps.
  const auto for_turn = [&](std::int64_t steps, auto&& visit) {
    for (int unit = 0; unit < workers.front()->units(); ++unit) {
      const int fragment = outer.fragment_of.empty() ? 0 : outer.fragment_of[static_cast<std::size_t>(unit)];
      const auto turn = (fragment + 1) * outer.interval / outer.fragments();
      if (steps >= turn && (steps - turn) % outer.interval == 0) visit(unit, (steps - turn) / outer.interval);
    }
  };
  const auto go_on = [&](std::int64_t steps) {
    for_turn(steps, [&](int unit, std::int64_t) {
      for (auto& worker : workers) worker->go_on(unit);
    });
    for (auto& worker : workers) worker->moved();
  };
  for (int step = 0; step < run.steps; ++step) {
    for (auto& worker : workers) worker->step(step);
    if (outer.overlap > 0) go_on(step + 1 - outer.overlap);
    for_turn(step + 1, [&](int unit, std::int64_t round) {
      for (const auto& group : rounds[static_cast<std::size_t>(round) % rounds.size()]) {
        std::vector<Flat> sent;
        for (const int worker : group) {
          auto& member = *workers[static_cast<std::size_t>(worker)];
          sent.push_back(models ? member.model(unit) : member.sent(unit));
        }
        const Flat mean = mean_of(sent, outer.sent.kind);
        for (const int worker : group) {
          auto& member = *workers[static_cast<std::size_t>(worker)];
          models ? member.move_from(unit, mean) : member.move(unit, mean);
        }
      }
    });
    if (outer.overlap == 0) go_on(step + 1);
  }
  std::vector<RunOutcome> outcomes;
  for (auto& worker : workers) outcomes.push_back(worker->finish());
  return outcomes;
}

}  // namespace shoal::test
