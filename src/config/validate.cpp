// Checks rules between keys, and refuses values that are not implemented.
#include <fmt/ranges.h>

#include <limits>
#include <numeric>

#include "config/optimizer_schemes.h"
#include "config/pretrained.h"
#include "config/schema.h"
#include "core/error.h"
#include "core/text.h"
#include "parallel/gossip/outer_options.h"

namespace shoal {
namespace {

class Rules {
 public:
  Rules(const Config& config, const Origins& origins) : config_(config), origins_(origins) {}

  void check() const {
    check_backend();
    check_names();
    check_sizes();
    check_length();
    check_evaluation();
    check_checkpoints();
    check_optimizer();
    check_trained();
    check_schedule();
    check_parallel();
    check_gossip();
    check_outer();
    check_pipeline();
  }

 private:
  // "optim.lr = 0.1 (configs/quickstart.toml:12)"
  std::string say(std::string_view key) const {
    const auto origin = origins_.find(key);
    return fmt::format("{} = {}{}", key, find_field(key)->value(config_),
                       origin == origins_.end() ? "" : fmt::format(" ({})", origin->second));
  }

  // Whether a key has another value than its default.
  bool is_set(std::string_view key) const {
    static const Config defaults;
    const auto* field = find_field(key);
    return field->value(config_) != field->value(defaults);
  }

  void check_backend() const {
    const bool cuda = config_.train.backend == BackendKind::cuda;
    if (config_.train.tf32 && !cuda) {
      fail_user("{} needs tensor cores, which {} does not use; leave it out", say("train.tf32"),
                say("train.backend"));
    }
    if (config_.train.residual_dtype == DType::bf16 && config_.train.dtype != DType::bf16) {
      fail_user("{} needs train.dtype = \"bfloat16\", not {}; set train.residual_dtype=float32",
                say("train.residual_dtype"), say("train.dtype"));
    }
    if (config_.train.gradient_dtype == DType::bf16) {
      const auto needs = [&](bool holds, std::string_view needed, std::string_view instead_of) {
        if (holds) return;
        fail_user("{} needs {}, not {}; set train.gradient_dtype=float32", say("train.gradient_dtype"),
                  needed, say(instead_of));
      };
      needs(config_.train.dtype == DType::bf16, "train.dtype = \"bfloat16\"", "train.dtype");
      needs(config_.optim.name != OptimizerKind::muon, "another optimizer", "optim.name");
      needs(config_.optim.ema == 0, "optim.ema = 0", "optim.ema");
      needs(config_.outer.interval == 0, "outer.interval = 0", "outer.interval");
      needs(config_.parallel.engine != EngineKind::gossip, "parallel.engine = \"allreduce\"",
            "parallel.engine");
    }
    if (config_.parallel.gpu_exchange != GpuExchange::automatic && !cuda) {
      fail_user("{} needs GPUs, which {} does not use; leave it out", say("parallel.gpu_exchange"),
                say("train.backend"));
    }
  }

  void check_names() const {
    const auto& name = config_.run.name;
    if (name.empty()) fail_user("run.name is empty; name the run, e.g. run.name=first");
    if (name == "." || name == ".." || name.find('/') != std::string::npos) {
      fail_user("{} cannot name a folder; use a name without '/', and run.dir for the folder around it",
                say("run.name"));
    }
    if (!config_.data.dirs.empty()) {
      if (!config_.data.dir.empty()) {
        fail_user("{} and {} both say where the data are; give one of them", say("data.dir"),
                  say("data.dirs"));
      }
      if (config_.data.sampling == Sampling::epochs && config_.data.dirs.size() > 1) {
        fail_user(
            "{} draws sequences by weight, so there are no epochs; leave out data.sampling, and give "
            "train.steps",
            say("data.dirs"));
      }
    } else if (config_.data.dir.empty()) {
      fail_user(
          "data.dir is not set; prepare a dataset (`shoal prepare synthetic --out data/synthetic`) and set "
          "data.dir to its folder");
    }
  }

  void check_sizes() const {
    const auto& model = config_.model;
    const auto& train = config_.train;
    if (model.n_embd % model.n_head != 0) {
      fail_user("{} does not divide {}; every head needs the same width, e.g. model.n_embd={}",
                say("model.n_head"), say("model.n_embd"), (model.n_embd / model.n_head + 1) * model.n_head);
    }
    if (train.micro_batch == 0) return;  // resolved when the ranks are known
    if (train.global_batch % train.micro_batch != 0) {
      int fitting = std::min(train.micro_batch, train.global_batch);
      while (train.global_batch % fitting != 0) --fitting;
      fail_user("{} does not divide {}; use e.g. train.micro_batch={}", say("train.micro_batch"),
                say("train.global_batch"), fitting);
    }
  }

  void check_length() const {
    const auto& train = config_.train;
    if (train.steps == 0 && train.epochs == 0) {
      fail_user("the length of the run is not set; give train.steps or train.epochs, e.g. train.steps=2000");
    }
    if (train.steps != 0 && train.epochs != 0) {
      fail_user("{} and {} both set the length of the run; give one of them", say("train.steps"),
                say("train.epochs"));
    }
    if (train.epochs != 0 && config_.data.sampling == Sampling::random) {
      fail_user("{} needs data.sampling = \"epochs\": random sampling has no epochs; or give train.steps",
                say("train.epochs"));
    }
    if (config_.data.stride != 0 && config_.data.sampling == Sampling::random) {
      fail_user("{} needs data.sampling = \"epochs\": with random sampling, sequences start anywhere",
                say("data.stride"));
    }
    for (const auto* section : {"eval", "checkpoint"}) {
      const auto key = fmt::format("{}.epochs", section);
      if (find_field(key)->value(config_) == "0" || config_.data.sampling != Sampling::random) continue;
      fail_user("{} needs data.sampling = \"epochs\": random sampling has no epochs; or give {}.interval",
                say(key), section);
    }
  }

  void check_evaluation() const {
    const auto& eval = config_.eval;
    if (eval.interval < 0 && eval.epochs > 0) {
      fail_user("{} never evaluates, but {} asks for evaluations; leave one of them out",
                say("eval.interval"), say("eval.epochs"));
    }
    if (eval.patience > 0 && eval.interval <= 0 && eval.epochs == 0) {
      fail_user("{} counts evaluations on the way; set eval.interval or eval.epochs", say("eval.patience"));
    }
    if (eval.batches >= 0 && eval.sequences != EvalConfig{}.sequences) {
      fail_user(
          "{} and {} both set how much is evaluated; give one of them: a batch is train.global_batch = {} "
          "sequences",
          say("eval.batches"), say("eval.sequences"), config_.train.global_batch);
    }
    if (eval.samples > 0 && config_.parallel.pipeline > 1) {
      fail_user("{}: text is generated without pipeline stages; leave it out, or parallel.pipeline",
                say("eval.samples"));
    }
    const double most = find_field("eval.sequences")->bounds.high;
    if (static_cast<double>(eval.batches) * config_.train.global_batch > most) {
      fail_user("{} of {} are more than {} sequences; lower one of them", say("eval.batches"),
                say("train.global_batch"), with_commas(static_cast<std::int64_t>(most)));
    }
  }

  void check_checkpoints() const {
    if (config_.checkpoint.memory && config_.parallel.offload == Offload::disk) {
      fail_user("{} keeps the state in memory, and with {} it is on the disk; leave one of them out",
                say("checkpoint.memory"), say("parallel.offload"));
    }
    if (config_.checkpoint.memory && config_.checkpoint.memory_dir.empty()) {
      fail_user("{} needs a folder; leave checkpoint.memory_dir out to use /dev/shm",
                say("checkpoint.memory_dir"));
    }
  }

  void check_optimizer() const {
    for (const auto& field : config_fields()) {
      const auto key = field.name();
      if (scheme_of(config_.optim.name).reads(key) || !is_set(key)) continue;
      std::vector<std::string_view> readers;
      for (const auto& scheme : optimizer_schemes()) {
        if (scheme.reads(key)) readers.push_back(scheme.name);
      }
      fail_user("{} has no meaning for {}; leave it out, or use {}", say(key), say("optim.name"),
                fmt::join(readers, " or "));
    }
    const auto& optim = config_.optim;
    const auto check_rate = [&](std::string_view key, double rate) {
      if (static_cast<float>(rate) < 1) return;
      fail_user("{} has a rate that is 1 in float32, where nothing decays; use at most 0.9999999", say(key));
    };
    for (const double beta : optim.betas) check_rate("optim.betas", beta);
    check_rate("optim.momentum", optim.momentum);
    check_rate("optim.ema", optim.ema);
    check_rate("outer.momentum", config_.outer.momentum);
    check_rate("outer.own_share", config_.outer.own_share);
    if (static_cast<float>(optim.eps) < std::numeric_limits<float>::min()) {
      fail_user("{} is 0 or almost in float32, where updates divide by it; use at least 1e-37",
                say("optim.eps"));
    }
  }

  void check_trained() const {
    const auto& lora = config_.lora;
    for (const auto* key : {"lora.alpha", "lora.dropout", "lora.targets", "lora.from"}) {
      if (lora.rank > 0 || !is_set(key)) continue;
      fail_user("{} has no meaning without adapters; set lora.rank, e.g. lora.rank=8", say(key));
    }
    const auto& from = config_.init.from;
    if (!lora.from.empty() && start_without_checkpoint(from).value_or(from) == "scratch") {
      fail_user("{} starts from adapters, but {} has none of the weights that they are of; set init.from",
                say("lora.from"), say("init.from"));
    }
    auto model = to_gpt_config(config_);
    model.vocab_size = std::max<std::int64_t>(1, model.vocab_size);  // 0: not known yet
    if (lora.rank > 0 && std::ranges::none_of(model.lora.targets, [](bool on) { return on; }))
      fail_user("lora.targets is empty; name the layers that get adapters, e.g. lora.targets=attn.c_attn");
    if (model.frozen.empty()) return;
    const auto units = gpt_units(model);
    for (const auto& pattern : model.frozen) {
      const auto matches = [&](const UnitSpec& unit) { return !unit.adapter && fits(unit.name, pattern); };
      if (std::ranges::any_of(units, matches)) continue;
      fail_user("{}: no unit is called {}; the model has embedding, block.0 to block.{}, and head",
                say("optim.frozen"), pattern, model.n_layer - 1);
    }
    if (std::ranges::none_of(units, &UnitSpec::trained))
      fail_user("{} leaves nothing to train; leave a unit out of it, or add adapters, lora.rank=8",
                say("optim.frozen"));
  }

  void check_schedule() const {
    const auto& lr = config_.lr_schedule;
    const auto steps = config_.train.steps;
    if (lr.min_lr > config_.optim.lr) {
      fail_user("{} is above {}; lower it, since the learning rate only falls after the warmup",
                say("lr_schedule.min_lr"), say("optim.lr"));
    }
    for (const auto& [tokens, in_steps] :
         {std::pair("lr_schedule.warmup_tokens", "lr_schedule.warmup_steps"),
          std::pair("lr_schedule.decay_tokens", "lr_schedule.decay_steps")}) {
      if (is_set(tokens) && is_set(in_steps))
        fail_user("{} and {} say the same in two units; leave one out", say(tokens), say(in_steps));
    }
    if (steps > 0 && lr.warmup_steps > steps) {
      fail_user("{} is longer than the run, {}; lower it", say("lr_schedule.warmup_steps"),
                say("train.steps"));
    }
    if (lr.name == LrShape::constant) {
      for (const auto* key : {"lr_schedule.decay_steps", "lr_schedule.decay_tokens", "lr_schedule.min_lr"}) {
        if (!is_set(key)) continue;
        fail_user(
            "{} has no meaning for lr_schedule.name = \"constant\"; leave it out, or choose another schedule",
            say(key));
      }
    } else if (lr.name == LrShape::wsd) {
      if (steps > 0 && lr.warmup_steps + lr.decay_steps > steps) {
        fail_user("{} and {} are together longer than the run, {}", say("lr_schedule.warmup_steps"),
                  say("lr_schedule.decay_steps"), say("train.steps"));
      }
    } else if (lr.decay_steps != 0 && lr.decay_steps <= lr.warmup_steps) {
      fail_user("{} ends before {} does; it counts from the start of the run", say("lr_schedule.decay_steps"),
                say("lr_schedule.warmup_steps"));
    }
  }

  void check_parallel() const {
    const auto& parallel = config_.parallel;
    if (parallel.replicate > 1 && parallel.zero == 0) {
      fail_user("{} makes groups that shard, but with {} nothing is sharded; set parallel.zero to 1, 2 or 3",
                say("parallel.replicate"), say("parallel.zero"));
    }
    if (parallel.data % parallel.replicate != 0) {
      fail_user("{} does not divide {}; groups are of one size", say("parallel.replicate"),
                say("parallel.data"));
    }
  }

  void check_gossip() const {
    const auto& parallel = config_.parallel;
    if (parallel.engine != EngineKind::gossip) {
      for (const auto& field : config_fields()) {
        if (field.section != "gossip" || !is_set(field.name())) continue;
        fail_user("{} has no meaning without parallel.engine=gossip; set that, or leave it out",
                  say(field.name()));
      }
      return;
    }
    const int size = config_.gossip.worker_size;
    if (parallel.zero > 0 && size == 1) {
      fail_user("{} shards over the ranks of a worker, but {} has one; raise it, or set parallel.zero=0",
                say("parallel.zero"), say("gossip.worker_size"));
    }
    if (size % parallel.replicate != 0) {
      fail_user("{} does not divide {}; groups are of one size", say("parallel.replicate"),
                say("gossip.worker_size"));
    }
    if (parallel.data % size != 0) {
      fail_user("{} does not divide {}; workers are of one size", say("gossip.worker_size"),
                say("parallel.data"));
    }
    if (config_.optim.ema > 0 && config_.gossip.continue_from_average) {
      fail_user("{} does not go with {}: evaluations are of moving averages, not of models to go on from",
                say("gossip.continue_from_average"), say("optim.ema"));
    }
    if (config_.gossip.clip == GossipClip::bucket) check_clip_by_bucket();
  }

  void check_outer() const {
    if (!outer_sent(config_.outer.compress)) {
      fail_user(
          "{} is not \"none\", \"bfloat16\", \"int4\" or \"topk:SHARE\" with a share of at most 1, e.g. "
          "\"topk:0.02\"",
          say("outer.compress"));
    }
    const auto& outer = config_.outer;
    if (outer.interval == 0) {
      for (const auto* key : {"outer.lr", "outer.momentum", "outer.nesterov", "outer.compress",
                              "outer.fragments", "outer.overlap", "outer.own_share"}) {
        if (!is_set(key)) continue;
        fail_user(
            "{} has no meaning without outer.interval; set that, e.g. outer.interval=30, or leave it out",
            say(key));
      }
      return;
    }
    const auto fault =
        fault_of_turns(outer.interval, outer.fragments, outer.overlap,
                       [&](std::string_view name) { return say(fmt::format("outer.{}", name)); });
    if (!fault.empty()) fail_user("{}", fault);
    if (outer.overlap == 0 && is_set("outer.own_share")) {
      fail_user("{} has no meaning without outer.overlap, e.g. outer.overlap=1; set that, or leave it out",
                say("outer.own_share"));
    }
  }

  // Buckets are updated before the backward pass ends.
  void check_clip_by_bucket() const {
    const auto refuse = [&](std::string_view key, std::string_view why) {
      if (!is_set(key)) return;
      fail_user("{} does not go with {}: {}; use gossip.clip=global, or leave {} out", say("gossip.clip"),
                say(key), why, key);
    };
    constexpr std::string_view kLate = "a worker's ranks have its gradient only after the backward pass",
                               kDone =
                                   "by the time that a step is known to be bad, buckets have been updated";
    refuse("gossip.worker_size", kLate);
    refuse("outer.interval", "its moves are of the whole model");
    refuse("parallel.tensor", kLate);
    refuse("parallel.pipeline", kLate);
    if (config_.run.deterministic == Determinism::layout)
      refuse("run.deterministic", "sums of a fixed order are ready only after the backward pass");
    refuse("run.verify", kDone);
    refuse("train.on_bad_step", kDone);
    refuse("train.spike_zscore", kDone);
  }

  void check_pipeline() const {
    const int stages = config_.parallel.pipeline, chunks = config_.parallel.chunks;
    const bool takes_chunks = scheme_of(config_.parallel.schedule).takes_chunks;
    if (chunks > 1 && !takes_chunks) {
      fail_user("{} needs parallel.schedule = \"{}\": {} has one chunk per rank", say("parallel.chunks"),
                schedules_with_chunks("\" or \""), say("parallel.schedule"));
    }
    if (chunks > 1 && stages == 1) {
      fail_user("{} has no meaning for {}; set parallel.pipeline to 2 or more, or leave parallel.chunks out",
                say("parallel.chunks"), say("parallel.pipeline"));
    }
    if (takes_chunks && stages > 1 && chunks == 1) {
      fail_user("{} needs several chunks per rank; set parallel.chunks=2, or parallel.schedule=1f1b",
                say("parallel.schedule"));
    }
    const std::int64_t ranges = std::int64_t{stages} * chunks;
    if (ranges > config_.model.n_layer) {
      fail_user("{}{} makes {} ranges of at least one block each, but {}; at most {} are possible",
                say("parallel.pipeline"), chunks > 1 ? " with " + say("parallel.chunks") : "", ranges,
                say("model.n_layer"), config_.model.n_layer);
    }
    check_stages(ranges);
    const auto& recomputed = config_.train.recompute_blocks;
    if (recomputed.size() > 1 && std::ssize(recomputed) != ranges) {
      fail_user("{} has {} numbers, but {} x {} makes {}; give one for each, or one for all",
                say("train.recompute_blocks"), recomputed.size(), say("parallel.pipeline"),
                say("parallel.chunks"), ranges == 1 ? "one range" : fmt::format("{} ranges", ranges));
    }
    if (!recomputed.empty() && config_.train.recompute == Recompute::none) {
      fail_user("{} needs train.recompute = \"gelu\", \"light\" or \"block\"", say("train.recompute_blocks"));
    }
  }

  void check_stages(std::int64_t ranges) const {
    const auto& counts = config_.parallel.stages;
    if (counts.empty()) return;
    if (std::ssize(counts) != ranges) {
      fail_user("{} has {} number{}, but {} x {} makes {}; give one for each, or leave it empty",
                say("parallel.stages"), counts.size(), counts.size() == 1 ? "" : "s",
                say("parallel.pipeline"), say("parallel.chunks"),
                ranges == 1 ? "one range" : fmt::format("{} ranges", ranges));
    }
    const auto sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
    if (sum != config_.model.n_layer) {
      fail_user("{} adds up to {} blocks, but {}; change one of them, or leave parallel.stages empty",
                say("parallel.stages"), sum, say("model.n_layer"));
    }
  }

  const Config& config_;
  const Origins& origins_;
};

}  // namespace

void validate(const Config& config, const Origins& origins) { Rules(config, origins).check(); }

}  // namespace shoal
