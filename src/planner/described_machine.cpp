#include "planner/described_machine.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace shoal {
namespace {

// Tiles of a product's result that a GPU's processors share in waves (cuBLAS's usual size).
constexpr double kTileRows = 128, kTileColumns = 128;

// The share of the processors' time that has work: the last wave is rarely full. A short product is cut along
// its depth instead.
double wave_share(const Kernel& kernel, int processors) {
  const double tiles = std::ceil(static_cast<double>(kernel.rows) / kTileRows) *
                       std::ceil(static_cast<double>(kernel.columns) / kTileColumns);
  const double splits = std::max(1.0, std::min(processors / tiles, static_cast<double>(kernel.depth) / 512));
  const double waves = std::ceil(tiles * splits / processors);
  return std::min(1.0, tiles * splits / (waves * processors));
}

}  // namespace

double DescribedMachine::seconds(const Kernel& kernel, const RunPlan& plan) const {
  double peak = plan.engine.compute == DType::f32 ? cluster_.peak_float32 : cluster_.peak_bfloat16;
  if (plan.tf32 && plan.engine.compute == DType::f32 && kernel.kind == Kernel::Kind::product) {
    if (cluster_.peak_tf32 == 0) {
      fail_user("{}: device.tf32_tflops is missing, which train.tf32 needs; add it, or leave train.tf32 out",
                cluster_.file);
    }
    peak = cluster_.peak_tf32;
  }
  const double moved = kernel.bytes / (cluster_.bandwidth * cluster_.streaming);
  double computed = 0;
  if (kernel.kind == Kernel::Kind::product) {
    computed = kernel.flops / (peak * cluster_.product * wave_share(kernel, cluster_.processors));
  } else if (kernel.kind == Kernel::Kind::attention) {
    computed = kernel.flops / (peak * cluster_.attention);
  }
  return std::max({computed, moved, cluster_.launch});
}

SampleTimes DescribedMachine::times(const RunPlan& sample, const SampleKernels& kernels) {
  SampleTimes times;
  const auto total = [&](const std::vector<Kernel>& all) {
    double sum = 0;
    for (const auto& kernel : all) sum += seconds(kernel, sample);
    return sum;
  };
  for (std::size_t pass = 0; pass < kSamplePasses; ++pass) {
    for (std::size_t part = 0; part < kStepParts; ++part) {
      times.parts.values[pass][part] = total(kernels.parts.values[pass][part]);
    }
  }
  times.update = total(kernels.update) / static_cast<double>(std::max<std::int64_t>(1, kernels.updated));
  return times;
}

// Rings: each member sends (n - 1) / n of the tensor once, for an all-reduce twice. Where a group spans
// hosts, its ring crosses every host's link once, which the host's other groups share.
double DescribedMachine::seconds(const GroupCall& call) {
  if (call.ranks < 2) return 0;
  const int per_host = cluster_.devices_per_host;
  // A group may lie across two hosts though one has room for it: of 8 devices for groups of 6.
  const bool aligned = call.world <= per_host || per_host % (call.ranks * call.stride) == 0;
  const bool within = aligned && (call.ranks - 1) * call.stride < per_host;
  const auto& link = within ? cluster_.inside : cluster_.between;
  double bandwidth = link.bandwidth;
  if (!within) {
    if (!(bandwidth > 0)) {
      fail_user(
          "{}: between.gb_s is missing, which ranks on several hosts need (devices_per_host = {}); add "
          "[between] with latency_us and gb_s, or give at most {} rank{}",
          cluster_.file, per_host, per_host, per_host == 1 ? "" : "s");
    }
    const int here = std::clamp(per_host / call.stride, 1, call.ranks);
    const int groups = std::max(1, per_host / here);
    bandwidth = std::min(cluster_.inside.bandwidth, link.bandwidth / groups);
  }
  if (call.kind == GroupCall::Kind::message) return link.latency + call.bytes / bandwidth;
  // Measured on NVSwitch: latency grows by a fifth for every further rank; trees end that growth.
  const double latency = link.latency * (std::min(call.ranks, 16) + 3) / 5;
  if (call.kind == GroupCall::Kind::broadcast) return latency + call.bytes / bandwidth;
  const double rounds = call.kind == GroupCall::Kind::all_reduce ? 2 : 1;
  const double share = static_cast<double>(call.ranks - 1) / call.ranks;
  return rounds * (latency + share * call.bytes / bandwidth);
}

}  // namespace shoal
