// Training steps that others measured, of a trainer in the style of Megatron-LM (Narayanan et al. 2021): fp16
// mixed precision, full recompute, 1F1B, tensor parallelism without sequence parallelism, gradients that are
// all-reduced unsharded after the step.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "config/cluster_file.h"

namespace shoal {

struct MeasuredStep {
  int gpus = 1, global_batch = 1, micro_batch = 1;  // sequences
  int n_embd = 0, n_head = 0, n_layer = 0, block_size = 0;
  int tensor = 1, data = 1, pipeline = 1;
  double seconds = 0;  // measured
  int line = 0;        // in its file
};

// A CSV file with the columns gpus, global_batch, micro_batch, n_embd, n_head, n_layer, block_size, tensor,
// data, pipeline and step_ms, in any order. Throws UserError with the line and the reason.
std::vector<MeasuredStep> read_measured_steps(const std::filesystem::path& file);

// Seconds that the step takes on the cluster, by its [measured] constants and links. Throws UserError where
// the cluster lacks what they need.
double predict_measured(const MeasuredStep& step, const Cluster& cluster);

struct StepComparison {
  std::vector<MeasuredStep> steps;
  std::vector<double> predicted;  // seconds
  std::vector<double> errors;     // predicted / measured - 1
  struct Workload {
    MeasuredStep chosen, best;  // by prediction; by measurement
    int layouts = 0;
    double regret = 0;  // measured seconds of the chosen over the best, minus 1
  };
  std::vector<Workload> workloads;  // of equal gpus, global batch and model
  double median_error = 0, p90_error = 0, mean_regret = 0, worst_regret = 0;
};
StepComparison compare_steps(std::vector<MeasuredStep> steps, const Cluster& cluster);

}  // namespace shoal
