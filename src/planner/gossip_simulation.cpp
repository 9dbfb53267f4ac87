#include "planner/gossip_simulation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>

#include "core/error.h"
#include "planner/shared_link.h"

namespace shoal {
namespace {

constexpr double kPiece = 1 << 20;     // bytes per piece of a bucket
constexpr double kWindow = 4;          // pieces in flight between two workers
constexpr double kBackward = 2.0 / 3;  // share of a micro-batch's time

// The random draws of a step.
class Conditions {
 public:
  explicit Conditions(const SimulatedRun& run)
      : run_(run),
        key_(philox_key(run.seed, PhiloxStream::simulation)),
        hosts_((run.topology.workers + run.per_host - 1) / run.per_host) {}

  void draw(std::int64_t step) {
    const int workers = run_.topology.workers;
    fill(compute, run_.compute, workers, step);
    fill(bandwidth, run_.link.bandwidth, hosts_, step);
    fill(delay, run_.link.delay, hosts_, step);
    fill(local_bandwidth, run_.local.bandwidth, hosts_, step);
    fill(local_delay, run_.local.delay, hosts_, step);
    for (const auto* speeds : {&bandwidth, &local_bandwidth}) {
      if (std::ranges::min(*speeds) <= 0) {
        fail_user("a bandwidth of 0 was drawn; use lognormal or uniform, which stay above 0");
      }
    }
  }
  int hosts() const { return hosts_; }

  std::vector<double> compute, bandwidth, delay, local_bandwidth, local_delay;

 private:
  void fill(std::vector<double>& values, const Distribution& distribution, int count,
            std::int64_t step) const {
    if (!values.empty() && !distribution.varies()) return;
    values.resize(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
      values[i] = distribution.draw(key_, i, step);
      if (!std::isfinite(values[i]))
        fail_user("a number too large to calculate with was drawn at step {}", step);
    }
  }

  const SimulatedRun& run_;
  PhiloxKey key_;
  int hosts_;
};

// The share of payload in the bytes between hosts: TCP/IP headers have 20 and 32 bytes, and every second
// packet is acknowledged by a packet of headers.
double payload_share(double mtu) { return (mtu - 52) / (mtu + 26); }

double ms_of(double bytes, double mbit_per_s) { return bytes * 8e-3 / mbit_per_s; }

// The traffic in each direction between m members of a group of k and the other members, in buckets: parts,
// then means.
double crossing(double m, double k) { return 2 * m * (k - m) / k; }

// Calls visit(host, number of members there) for every host with members of the group. Workers are ascending.
template <typename Visit>
void for_each_host(const Topology::Group& group, int per_host, Visit visit) {
  for (std::size_t i = 0; i < group.size();) {
    const int host = group[i] / per_host;
    std::size_t end = i;
    while (end < group.size() && group[end] / per_host == host) ++end;
    visit(host, static_cast<double>(end - i));
    i = end;
  }
}

// The limits of a bucket's exchange other than the links between hosts: the time that it occupies its group,
// and the delay after its last byte is sent. Both in ms.
struct Cost {
  double busy = 0, delay = 0;
};
Cost within_group(const Topology::Group& group, const SimulatedRun& run, const Conditions& now, double bytes,
                  int messages = 2) {
  const double piece = std::min(bytes, kPiece);
  const auto k = static_cast<double>(group.size());
  Cost cost;
  for_each_host(group, run.per_host, [&](int host, double m) {
    if (m < k) cost.delay = std::max(cost.delay, messages * now.delay[host]);
    if (m > 1) {
      cost.busy = std::max(cost.busy, ms_of(bytes * 2 * (m - 1) / k, now.local_bandwidth[host]));
      cost.delay = std::max(cost.delay, messages * now.local_delay[host]);
    }
  });
  cost.busy = std::max(cost.busy, bytes / (piece * kWindow) * cost.delay);
  return cost;
}

// Exchanges among all workers, one bucket after another.
class AmongAll {
 public:
  explicit AmongAll(const SimulatedRun& run)
      : run_(run), bucket_bytes_(run.bytes / run.buckets), payload_(payload_share(run.mtu)) {
    everyone_.resize(static_cast<std::size_t>(run.topology.workers));
    std::iota(everyone_.begin(), everyone_.end(), 0);
  }

  Cost direct(const Conditions& now) const {
    Cost cost = within_group(everyone_, run_, now, bucket_bytes_);
    for_each_host(everyone_, run_.per_host, [&](int host, double m) {
      const double sent = bucket_bytes_ * crossing(m, run_.topology.workers) / payload_;
      cost.busy = std::max(cost.busy, ms_of(sent, now.bandwidth[host]));
    });
    return cost;
  }

  // The time of a small message from all workers to all.
  double longest_delay(const Conditions& now) const {
    return std::ranges::max(now.hosts() > 1 ? now.delay : now.local_delay);
  }

  Cost ring(const Conditions& now) const {
    const double n = run_.topology.workers, hosts = now.hosts(), times = 2 * (n - 1) / n;
    const double slowest = std::ranges::min(hosts > 1 ? now.bandwidth : now.local_bandwidth);
    double around = 0;
    for (int host = 0; host < now.hosts(); ++host) {
      const double here = std::min<double>(run_.per_host, n - host * static_cast<double>(run_.per_host));
      around += (here - (hosts > 1 ? 1 : 0)) * now.local_delay[host] + (hosts > 1 ? now.delay[host] : 0);
    }
    return {ms_of(bucket_bytes_ * times / (hosts > 1 ? payload_ : 1), slowest), times * around};
  }

 private:
  const SimulatedRun& run_;
  double bucket_bytes_, payload_;
  Topology::Group everyone_;
};

// Sums over the measured steps of a run.
struct Meter {
  double begin = 0, compute = 0;

  SimulatedScheme report(std::string name, double end, double apart, const SimulatedRun& run) const {
    const double workers = run.topology.workers, measured = run.steps - run.first_measured();
    const double step = (end - begin) / measured;
    const double computing = compute / (workers * measured);
    return {std::move(name), step, step > 0 ? std::max(0.0, 1 - computing / step) : 0, apart};
  }
};

// Workers that average their models, or their movement.
class Gossip {
 public:
  Gossip(const SimulatedRun& run, int hosts)
      : run_(run),
        buckets_(static_cast<std::size_t>(buckets_of(run))),
        links_(static_cast<std::size_t>(hosts)),
        clock_(static_cast<std::size_t>(run.topology.workers), 0.0),
        link_free_(clock_.size(), 0.0),
        bucket_(clock_.size() * buckets_, 0.0),
        ready_(bucket_.size()),
        end_(bucket_.size()) {
    for (const auto& groups : run.topology.rounds) {
      auto& round = rounds_.emplace_back();
      for (const auto& group : groups) {
        if (group.size() == 1) continue;
        const auto k = static_cast<double>(group.size());
        for_each_host(group, run.per_host, [&](int host, double m) {
          if (m < k) round.parts.push_back({host, round.groups.size(), crossing(m, k)});
        });
        round.groups.push_back(&group);
      }
      std::ranges::stable_sort(round.parts, {}, &Part::host);
    }
  }

  void step(std::int64_t step, const Conditions& now) {
    if (run_.outer) return outer_step(step + 1, now);
    compute(now);
    exchange(rounds_[static_cast<std::size_t>((step + 1) % run_.topology.period())], now);
  }

  double mean_clock() const {
    return std::accumulate(clock_.begin(), clock_.end(), 0.0) / static_cast<double>(clock_.size());
  }
  double apart() const { return std::ranges::max(clock_) - std::ranges::min(clock_); }

 private:
  // The buckets of an exchange: all of the model's, or a fragment's.
  static int buckets_of(const SimulatedRun& run) {
    return run.outer ? std::max(1, run.buckets / run.outer->fragments()) : run.buckets;
  }
  // The bytes of a bucket, for a group whose members send parts and then means.
  double bytes_of(std::size_t members) const {
    const double bytes = run_.bytes / static_cast<double>(buckets_);
    if (!run_.outer) return bytes;
    return bytes / run_.outer->fragments() * exchanged_share(run_.outer->sent, static_cast<int>(members));
  }
  void outer_step(std::int64_t update, const Conditions& now) {
    const auto& outer = *run_.outer;
    for (std::size_t i = 0; i < clock_.size(); ++i) clock_[i] += now.compute[i];
    const auto wait = [&] {
      for (std::size_t i = 0; i < clock_.size(); ++i)
        clock_[i] = std::max(clock_[i], bucket_[(i + 1) * buckets_ - 1]);
    };
    if (outer.overlap > 0 && outer.exchange_after(update - outer.overlap)) wait();
    const auto begin = [&](const OuterOptions::Exchange& turn, double share, int messages) {
      for (std::size_t i = 0; i < bucket_.size(); ++i) bucket_[i] = clock_[i / buckets_];
      exchange(rounds_[static_cast<std::size_t>(turn.round % run_.topology.period())], now, share, messages);
    };
    const auto kind = outer.sent.kind;
    const auto turn = outer.exchange_after(update);
    if (kind == OuterSent::Kind::int4) {  // movements, and later their sums
      if (turn) begin(*turn, 0.5, 1);
      if (const auto summed = outer.exchange_after(update - outer.sums_after())) {
        wait();
        begin(*summed, 0.5, 1);
      }
    } else if (turn) {
      begin(*turn, 1, kind == OuterSent::Kind::largest ? 1 : 2);
    }
    if (turn && outer.overlap == 0) wait();
  }

  // A group's traffic through a host's link.
  struct Part {
    int host;
    std::size_t group;
    double share;  // of a bucket
  };
  struct Round {
    std::vector<const Topology::Group*> groups;  // groups of at least two workers
    std::vector<Part> parts;                     // by host
  };

  // bucket_ has the time when each bucket's exchange arrived, and later the time of its update.
  void compute(const Conditions& now) {
    const double in_buckets = run_.clip_by_bucket ? kBackward / run_.micro_batches : 0;
    for (std::size_t i = 0; i < clock_.size(); ++i) {
      const double piece = now.compute[i] * in_buckets / static_cast<double>(buckets_);
      double t = clock_[i] + now.compute[i] * (1 - in_buckets);
      for (std::size_t b = 0; b < buckets_; ++b) {
        double& bucket = bucket_[i * buckets_ + b];
        bucket = t = std::max(t + piece, bucket);
      }
      clock_[i] = t;
    }
  }

  // `share` of the bytes of an exchange, in so many messages one after the other.
  void exchange(const Round& round, const Conditions& now, double share = 1, int messages = 2) {
    for (std::size_t g = 0; g < round.groups.size(); ++g) {
      for (std::size_t b = 0; b < buckets_; ++b) {
        double ready = 0;
        for (const int i : *round.groups[g]) {
          ready = std::max({ready, link_free_[i], bucket_[i * buckets_ + b]});
        }
        ready_[g * buckets_ + b] = end_[g * buckets_ + b] = ready;
      }
    }
    for (auto part = round.parts.begin(); part != round.parts.end();) {
      const int host = part->host;
      flows_.clear();
      for (; part != round.parts.end() && part->host == host; ++part) {
        const double bytes = share * bytes_of(round.groups[part->group]->size()) / payload_share(run_.mtu);
        flows_.push_back({.busy = ms_of(bytes * part->share, now.bandwidth[host]),
                          .ready = {&ready_[part->group * buckets_], buckets_},
                          .end = {&end_[part->group * buckets_], buckets_}});
      }
      links_[host].serve(flows_, first_update_on(host));
    }
    for (std::size_t g = 0; g < round.groups.size(); ++g) {
      const auto& group = *round.groups[g];
      const Cost cost = within_group(group, run_, now, share * bytes_of(group.size()), messages);
      double free = 0;
      for (std::size_t b = 0; b < buckets_; ++b) {
        free = std::max(free, ready_[g * buckets_ + b]) + cost.busy;
        const double end = std::max(free, end_[g * buckets_ + b]);
        for (const int i : group) bucket_[i * buckets_ + b] = end + cost.delay;
        for (const int i : group) link_free_[i] = end;
      }
    }
  }

  // The earliest time at which a worker of the host starts an exchange.
  double first_update_on(int host) const {
    const int first = host * run_.per_host, end = std::min(first + run_.per_host, run_.topology.workers);
    double earliest = std::numeric_limits<double>::infinity();
    for (int i = first; i < end; ++i) earliest = std::min(earliest, bucket_[i * buckets_]);
    return earliest;
  }

  const SimulatedRun& run_;
  std::size_t buckets_;
  std::vector<Round> rounds_;
  std::vector<SharedLink> links_;                   // by host, to the others
  std::vector<double> clock_, link_free_, bucket_;  // by worker; by worker and bucket
  std::vector<double> ready_, end_;                 // by group and bucket
  std::vector<Flow> flows_;
};

// All workers begin a step at the same time, except for ZeRO's wait for parameters in the forward pass.
class Synchronous {
 public:
  Synchronous(const SimulatedRun& run, bool zero) : run_(run), share_(zero ? 0.5 : 1) {}

  // told: time until all workers have the norm of the gradient and then the losses. fastest, slowest: the
  // extremes of the workers' compute times.
  void step(const Cost& whole, double told, double fastest, double slowest) {
    const double begin = clock_;
    const double busy = whole.busy * share_, delay = whole.delay * share_;
    const double backward = kBackward / run_.micro_batches, n = run_.buckets;
    double end = begin;
    for (int b = 0; b < run_.buckets; ++b) {
      const double done = 1 - backward + backward * (b + 1) / n;
      // The last worker is the fastest or the slowest one: compute time plus wait is a convex function of the
      // former.
      for (const double compute : {fastest, slowest}) {
        end = std::max(end, begin + forward_wait(compute) + compute * done);
      }
      end += busy;
    }
    clock_ = end + delay + told;
    if (share_ < 1) gather_ = {busy, delay};
  }

  double clock() const { return clock_; }

 private:
  // The wait of a forward pass for parameters that are still in transfer.
  double forward_wait(double compute) const {
    const double forward = compute * (1 - kBackward) / run_.micro_batches, n = run_.buckets;
    return gather_.delay + std::max(gather_.busy, n * gather_.busy - forward * (1 - 1 / n));
  }

  const SimulatedRun& run_;
  double share_, clock_ = 0;  // ZeRO moves half of the bytes before the update and half of them after it
  Cost gather_;
};

}  // namespace

int SimulatedRun::first_measured() const {
  if (warm_up) return *warm_up;
  if (!outer) return steps / 2;
  const auto interval = static_cast<int>(outer->interval);
  return std::max(0, steps - std::max(1, steps / 2 / interval) * interval);
}

std::vector<SimulatedScheme> simulate(const SimulatedRun& run, const std::function<void(int)>& done) {
  Conditions now(run);
  const AmongAll among_all(run);
  Gossip gossip(run, now.hosts());
  struct Other {
    const char* name;
    bool ring;
    Synchronous run;
    Meter meter;
  };
  std::vector<Other> others{{"all-reduce, ring", true, {run, false}, {}},
                            {"all-reduce, direct", false, {run, false}, {}},
                            {"ZeRO 1, ring", true, {run, true}, {}},
                            {"ZeRO 1, direct", false, {run, true}, {}}};
  Meter meter;
  double compute = 0;
  for (int step = 0; step < run.steps; ++step) {
    now.draw(step);
    if (step == run.first_measured()) {
      meter.begin = gossip.mean_clock();
      for (auto& other : others) other.meter.begin = other.run.clock();
    }
    if (step >= run.first_measured()) compute += std::accumulate(now.compute.begin(), now.compute.end(), 0.0);
    gossip.step(step, now);
    const auto [fastest, slowest] = std::ranges::minmax(now.compute);
    const Cost direct = among_all.direct(now);
    const Cost ring = among_all.ring(now);
    const double told = 2 * among_all.longest_delay(now);
    for (auto& other : others) other.run.step(other.ring ? ring : direct, told, fastest, slowest);
    const auto ends = [](const Other& other) { return std::isfinite(other.run.clock()); };
    if (!std::isfinite(gossip.mean_clock()) || !std::ranges::all_of(others, ends))
      fail_user("step {} takes too long to calculate with; give a faster link or fewer bytes", step);
    if (done) done(step + 1);
  }
  meter.compute = compute;
  std::vector<SimulatedScheme> schemes{meter.report((run.outer ? "outer, " : "gossip, ") + run.topology.name,
                                                    gossip.mean_clock(), gossip.apart(), run)};
  for (auto& other : others) {
    other.meter.compute = compute;
    schemes.push_back(other.meter.report(other.name, other.run.clock(), 0, run));
  }
  return schemes;
}

Consensus consensus_of(const Topology& topology, int steps, std::uint64_t seed) {
  constexpr double kRounding = 1e-12;  // a smaller distance is a rounding error
  const auto key = philox_key(seed, PhiloxStream::simulation);
  const auto n = static_cast<std::size_t>(topology.workers);
  const auto draw = [&](std::size_t i, int step) {
    return to_normal(philox(key, {static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(step), 0, 1000}));
  };
  const auto distance = [&](const std::vector<double>& x) {
    const double mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(n);
    double sum = 0;
    for (const double value : x) sum += (value - mean) * (value - mean);
    return std::sqrt(sum / static_cast<double>(n));
  };
  std::vector<double> once(n), always(n, 0.0);
  for (std::size_t i = 0; i < n; ++i) once[i] = draw(i, -1);
  const double start = distance(once);
  Consensus consensus;
  double squares = 0, left = 1;
  int measured = 0, steps_left = 0;
  for (int step = 0; step < steps; ++step) {
    mix(topology, step, once);
    mix(topology, step, always);
    for (std::size_t i = 0; i < n; ++i) always[i] += draw(i, step);
    const double now = start > 0 ? distance(once) / start : 0;
    if (now > kRounding) left = now, steps_left = step + 1;
    if (now <= 1e-3 && consensus.steps_to_thousandth == 0) consensus.steps_to_thousandth = step + 1;
    if (step >= steps / 2) squares += std::pow(distance(always), 2), ++measured;
  }
  if (steps_left > 0) consensus.decay = std::pow(left, 1.0 / steps_left);
  consensus.updates_apart = measured > 0 ? std::sqrt(squares / measured) : 0;
  return consensus;
}

}  // namespace shoal
