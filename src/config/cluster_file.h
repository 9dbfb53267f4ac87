// Reads descriptions of clusters, for plans of machines that are not here: configs/clusters/*.toml.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace shoal {

struct ClusterLink {
  double latency = 0;    // seconds
  double bandwidth = 0;  // bytes/s of one direction; of a device inside a host, of a whole host between hosts
};

// Seconds of a block's forward, recomputed and backward pass, measured without communication, and of what
// the embedding and the head add to a micro-batch.
struct MeasuredBlock {
  int n_embd = 0, n_head = 0, block_size = 0, micro_batch = 0, tensor = 1;
  double block = 0, ends = 0;
};

struct Cluster {
  std::string name;
  std::string file = {};  // that it was read from, for messages
  int devices_per_host = 8;
  double memory = 0;  // bytes of a device

  // A device. Peaks are FLOP/s of dense products.
  double peak_float32 = 0, peak_bfloat16 = 0;
  double peak_tf32 = 0;  // 0: not known
  double bandwidth = 0;  // of its memory, bytes/s
  int processors = 1;    // that share the tiles of a product: SMs
  double launch = 0;     // seconds from one kernel to the next at least
  double product = 0.8;  // shares of the peaks that large kernels reach
  double attention = 0.5;
  double streaming = 0.8;

  ClusterLink inside = {}, between = {};

  // A trainer in the style of Megatron-LM, whose measured steps a table holds.
  struct Measured {
    double block_floor = 0;  // seconds of a block at least: launches of its kernels
    double block_flops = 0;  // FLOP/s of large blocks
    double score_bytes = 0;  // memory traffic per attention score, and per activation of a block
    double activation_bytes = 0;
    double update = 0;         // seconds of an update, per parameter
    ClusterLink message = {};  // between stages
    std::vector<MeasuredBlock> blocks = {};
  } measured = {};
};

// Throws UserError with line and column for unknown keys, wrong types and values out of range, and for keys
// that every use needs. [between] and [measured] are for those who use them to ask for.
Cluster read_cluster(const std::filesystem::path& file);

}  // namespace shoal
