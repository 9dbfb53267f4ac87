// The config of a run: one struct per concern, read from TOML and from `section.key=value` arguments. Members
// hold the defaults. Names, types, ranges and explanations are in one table, schema.cpp, which reading,
// writing, `shoal config --explain` and the comparison on resume all use.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/sampling.h"
#include "model/config.h"
#include "model/recompute.h"
#include "model/unit.h"
#include "ops/make_backend.h"
#include "optim/lr_schedule.h"
#include "optim/muon.h"
#include "parallel/backend_ranks.h"
#include "parallel/pipeline/schedule.h"

namespace shoal {

enum class Determinism : std::uint8_t { off, run, layout };
enum class OnBadStep : std::uint8_t { stop, skip };
enum class OptimizerKind : std::uint8_t { adamw, accum_adamw, accum_adam, muon };
enum class EngineKind : std::uint8_t { allreduce, gossip };
enum class Offload : std::uint8_t { none, host, disk };
enum class PlanKind : std::uint8_t { manual, automatic };
enum class GossipClip : std::uint8_t { global, bucket };

struct RunConfig {
  std::string name;  // empty: the config file's name without .toml
  std::string dir = "runs";
  std::int64_t seed = 1337;
  Determinism deterministic = Determinism::off;
  std::int64_t verify = 0;  // steps; 0: off
  std::filesystem::path path() const { return std::filesystem::path(dir) / name; }
};

struct DataConfig {
  std::string dir;
  std::map<std::string, double> dirs;  // in place of dir: folders and their weights
  // The folders, of which there may be one, with their shares of all sequences, which add up to 1.
  std::map<std::string, double> sources() const;
  Sampling sampling = Sampling::random;
  std::int64_t stride = 0;  // tokens; 0: model.block_size
  double truncate = 1.0;
};

struct ModelConfig {
  std::string preset;
  int n_layer = 12;
  int n_head = 12;
  int n_embd = 768;
  int block_size = 1024;
  std::int64_t vocab_size = 0;  // 0: from the data
  double dropout = 0;
  bool bias = true;
  Gelu gelu = Gelu::tanh;
  bool tie_embeddings = true;
};

struct InitConfig {
  std::string from = "scratch";
  bool resumes() const { return from == "resume"; }
  bool other_data = false;
};

struct TrainConfig {
  BackendKind backend = BackendKind::cpu;
  DType dtype = DType::f32;
  DType residual_dtype = DType::f32, gradient_dtype = DType::f32;
  bool tf32 = false;
  bool graph = true;
  int global_batch = 12;  // sequences
  int micro_batch = 0;    // sequences; 0: chosen by resolve_layout() (config/layout.h)
  std::int64_t steps = 0;
  std::int64_t epochs = 0;
  double grad_clip = 1.0;
  Recompute recompute = Recompute::none;
  std::vector<int> recompute_blocks;  // the first of each range, or of all ranges; empty: every block
  int threads = 0;                    // per rank; 0: the host's cores / its ranks
  double spike_zscore = 0;
  int spike_window = 128;
  OnBadStep on_bad_step = OnBadStep::stop;
};

struct OptimConfig {
  OptimizerKind name = OptimizerKind::adamw;
  double lr = 6e-4;
  std::array<double, 2> betas = {0.9, 0.95};
  double eps = 1e-8;
  double weight_decay = 0.1;
  Decay decay = Decay::matrices;
  int accum_steps = 1;
  double matrix_lr = 0;  // of hidden matrices; 0: lr
  double momentum = 0.95;
  bool nesterov = true;
  int ns_steps = 5;
  MuonScale adjust_lr = MuonScale::match_rms_adamw;
  double ema = 0;      // decay of the weights' moving average; 0: none
  std::string frozen;  // patterns of units, with commas; empty: with adapters all that are none, else none
};

struct LoraSection {
  int rank = 0;  // 0: off
  double alpha = 16;
  double dropout = 0;
  std::string targets = "attn.c_attn";  // with commas, or "all"
  std::string from;                     // a folder of peft's; empty: new adapters
};

struct LrScheduleConfig {
  LrShape name = LrShape::cosine;
  std::int64_t warmup_steps = 0;
  double warmup_start = 0;
  std::int64_t decay_steps = 0;
  std::int64_t warmup_tokens = 0, decay_tokens = 0;  // in place of steps; 0: those
  double min_lr = 0;
};

struct EvalConfig {
  std::int64_t interval = 250;
  std::int64_t epochs = 0;
  std::int64_t batches = -1;  // of train.global_batch sequences; -1: use `sequences`
  std::int64_t sequences = 256;
  bool at_start = true;
  int patience = 0;        // evaluations; 0: none
  std::string tasks = {};  // files with items, with commas
  int samples = 0;         // texts that the model writes
  std::string sample_prompt = {};
  std::int64_t sample_tokens = 100;
};

struct CheckpointConfig {
  std::int64_t interval = 1000;
  std::int64_t epochs = 0;
  int keep = 3;
  bool best = true;
  bool memory = false;
  std::int64_t memory_interval = 1;  // steps
  std::string memory_dir = "/dev/shm";
};

struct ParallelConfig {
  int data = 0;  // 0: as many as ranks are started
  int tensor = 1;
  bool sequence = false;
  int pipeline = 1;
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int chunks = 1;
  std::vector<int> stages;  // blocks per range; empty: balanced by cost
  EngineKind engine = EngineKind::allreduce;
  int zero = 0;
  int replicate = 1;
  Offload offload = Offload::none;
  DType reduce_dtype = DType::f32;
  GpuExchange gpu_exchange = GpuExchange::automatic;
  double timeout = 600;  // seconds
  PlanKind plan = PlanKind::manual;
};

struct GossipConfig {
  std::string topology = "exp";
  int worker_size = 1;
  double bucket_mib = 25;
  GossipClip clip = GossipClip::global;
  bool continue_from_average = false;
  int local_size = 0;
};

struct OuterConfig {
  std::int64_t interval = 0;  // steps; 0: none
  double lr = 0.7;
  double momentum = 0.9;
  bool nesterov = true;
  std::string compress = "none";
  int fragments = 1;
  std::int64_t overlap = 0;  // steps
  double own_share = 0;
};

struct PlanConfig {
  int instance_ranks = 0;  // that hold one model; 0: any number
  double memory_gib = 0;   // of a rank; 0: 80 % of the available memory, 97 % of this machine's GPU
};

struct LogConfig {
  std::int64_t interval = 10;
  bool tensorboard = true;
  bool jsonl = true;
  double peak_tflops = 0;  // of a rank, in 1e12 FLOP/s; 0: measured
};

struct Config {
  RunConfig run;
  DataConfig data;
  ModelConfig model;
  InitConfig init;
  TrainConfig train;
  OptimConfig optim;
  LoraSection lora;
  LrScheduleConfig lr_schedule;
  EvalConfig eval;
  CheckpointConfig checkpoint;
  ParallelConfig parallel;
  GossipConfig gossip;
  OuterConfig outer;
  PlanConfig plan;
  LogConfig log;

  // Keys set by the file or by arguments: constraints of the planner.
  std::set<std::string, std::less<>> given = {};
  // Keys set by arguments, which are never adapted (config/follow.h), and descriptions of the keys that were.
  std::set<std::string, std::less<>> fixed = {};
  std::vector<std::string> followed = {};
};

// The source of each key that is set: "optim.lr" -> "configs/quickstart.toml:12" or "argument optim.lr=1".
using Origins = std::map<std::string, std::string, std::less<>>;

// Reads a TOML file, then the arguments in order (`section.key=value`, with or without "--"; the last one
// wins). Then fills derived values (preset, run.name), adapts keys to the arguments (config/follow.h) and
// validates. A preset sets n_layer, n_head and n_embd; sizes set explicitly, in the same file or by
// arguments, override it. Initial weights (init.from = "hf:DIR") set the model's keys, and must agree with
// those that are given. Throws UserError with file and line (or the argument), the key, the allowed values
// and the nearest known name.
Config load_config(const std::filesystem::path& file, std::span<const std::string> arguments = {});

// The same from text. `source` replaces the file's name in errors; run.name is not derived.
Config parse_config(std::string_view toml, std::string_view source,
                    std::span<const std::string> arguments = {});

// Reads a config that to_toml() wrote, from a checkpoint. Derives nothing and reads no other file.
Config stored_config(std::string_view toml, std::string_view source);

// Applies `section.key=value` arguments to an existing config (a checkpoint's), without validating the whole.
void apply_arguments(Config& config, std::span<const std::string> arguments);

// Throws UserError, with the rule and a fix, for values that contradict each other or are not implemented.
void validate(const Config& config, const Origins& origins = {});

// TOML that reads back to the same config; `comments` adds each key's explanation.
std::string to_toml(const Config& config, bool comments = false);

// {"section": {"key": value}}, for manifests. Reading accepts any subset of the keys (the others keep their
// defaults) and does not validate. Throws UserError; `source` is the file's name in errors.
nlohmann::ordered_json to_json(const Config& config);
Config config_from_json(const nlohmann::ordered_json& json, std::string_view source);

// The name of an enum's value as it is written in TOML: name_of_choice(config, "parallel.offload") = "disk".
std::string_view name_of_choice(const Config& config, std::string_view key);

struct ConfigDifference {
  std::string key;  // "model.n_layer"
  std::string a;
  std::string b;
};
// The keys with different values, in the order of the table, with both values as TOML.
std::vector<ConfigDifference> diff(const Config& a, const Config& b);

// A text that explains every key: type, default, allowed values and meaning. `filter` is a section, a key, or
// empty for all. Throws UserError for an unknown filter.
std::string explain_config(std::string_view filter = {});

// The number of sequences that an evaluation takes from each split. 0: the whole split.
std::int64_t eval_sequences(const Config& config);

// The config of the model room. model.vocab_size must be resolved.
GptConfig to_gpt_config(const ModelConfig& model);
// The same with adapters, and with what is trained. Throws UserError for unknown names of layers or units.
GptConfig to_gpt_config(const Config& config);

}  // namespace shoal
