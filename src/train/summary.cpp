#include "train/summary.h"

#include <fmt/format.h>

#include "config/follow.h"
#include "config/memory.h"
#include "config/pretrained.h"
#include "core/cores.h"
#include "core/log.h"
#include "core/text.h"
#include "train/model_io.h"

namespace shoal {
namespace {

// "4 threads of this process: 2 data x 2 tensor ranks, ZeRO stage 3, ..."
std::string layout_text(const Config& config, const RunPlan& plan, const World& world) {
  const auto& parallel = config.parallel;
  auto text = world.where;
  if (const auto mesh = mesh_text(plan); !mesh.empty()) text += ": " + mesh;
  const auto& shape = plan.mesh;
  if (parallel.zero == 0) {
    text += shape.data > 1 || shape.ranks() == 1 ? ", replicated" : "";
  } else {
    text += fmt::format(", ZeRO stage {}", parallel.zero);
  }
  if (parallel.replicate > 1) text += fmt::format(", {} replicas", parallel.replicate);
  if (config.run.deterministic == Determinism::layout) {
    text += fmt::format(", sums independent of the {}", parallel.tensor > 1 ? "rest of the mesh" : "layout");
  }
  return text;
}

void log_gossip(const Config& config, const Topology& topology) {
  const int on_node = config.gossip.local_size;
  log::info("{}: {}, {} round{}{}, {}", config.outer.interval > 0 ? "workers" : "gossip", topology.name,
            topology.period(), topology.period() == 1 ? "" : "s",
            on_node > 1 ? fmt::format(", {} workers on a node", on_node) : "",
            config.outer.interval > 0                  ? "which average their movement"
            : config.gossip.clip == GossipClip::bucket ? "updates bucket by bucket in the backward pass"
                                                       : "updates at the end of the backward pass");
}

void log_pipeline(const Config& config, const RunPlan& plan) {
  const auto& parallel = config.parallel;
  const auto& options = plan.pipeline;
  const auto schedule =
      make_schedule(options.schedule, {parallel.pipeline, parallel.chunks, options.micro_batches});
  log::info("pipeline: {}, {} micro-batches on a data rank, bubble {:.1f} % of a step",
            name_of(parallel.schedule), options.micro_batches, 100 * timeline(schedule).bubble);
  for (int stage = 0; stage < parallel.pipeline; ++stage) {
    log::info("stage {}: {}", stage, stage_text(plan, stage));
  }
}

}  // namespace

void log_summary(const Config& config, const RunPlan& plan, const Mixture& data, const World& world) {
  const auto& model = plan.model;
  const auto memory = estimate_memory(plan, RankCounts::of(world));
  const bool several = world.ranks.size() > 1, mesh = plan.ranks_of_model() > 1;
  log::info("model: {} layers, {} heads, width {}, block {}, vocabulary {}: {} parameters", model.n_layer,
            model.n_head, model.n_embd, model.block_size, model.vocab_size,
            format_count(static_cast<double>(parameter_count(gpt_units(model)))));
  if (const auto units = gpt_units(model); trained_count(units) < parameter_count(units))
    log::info("trained: {} parameters{}", with_commas(trained_count(units)),
              model.lora.rank > 0 ? fmt::format(", with adapters of rank {}", model.lora.rank) : "");
  log::info("data: {} ({} train and {} val tokens)", data.description(), with_commas(data.tokens("train")),
            with_commas(data.tokens("val")));
  for (const auto& [weight, source] : data.sources()) {
    if (!source.description().empty()) log::info("data: {}", source.description());
  }
  log_followed(config);
  const std::int64_t tokens = static_cast<std::int64_t>(config.train.global_batch) * model.block_size;
  log::info("run: {} steps of {} sequences = {} tokens in micro-batches of {}, {}, {} of memory{}{}",
            with_commas(config.train.steps), config.train.global_batch, with_commas(tokens),
            config.train.micro_batch, types_text(plan), format_bytes(memory.of_device()),
            memory.on_gpu > 0 ? " on the GPU" : "",
            mesh      ? " on the rank that needs most"
            : several ? " per rank"
                      : "");
  if (several) log::info("ranks: {}", layout_text(config, plan, world));
  if (const int cores = usable_cores(); RankCounts::of(world).threads && world.ranks.size() > cores &&
                                        config.train.backend != BackendKind::cuda) {
    log::info("{} ranks take turns on {} core{}: more ranks than cores make nothing faster",
              world.ranks.size(), cores, cores == 1 ? "" : "s");
  }
  if (plan.mesh.workers > 1) log_gossip(config, *plan.topology());
  if (config.optim.ema > 0)
    log::info("evaluations are of the parameters' moving average, of decay {:g}", config.optim.ema);
  if (const auto& outer = config.outer; outer.interval > 0) {
    log::info("outer optimizer: every {} steps, rate {:g}, {} {:g}{}{}", outer.interval, outer.lr,
              outer.nesterov ? "Nesterov's momentum" : "momentum", outer.momentum,
              outer.fragments > 1 ? fmt::format(", {} fragments in turn", outer.fragments) : "",
              outer.overlap > 0
                  ? fmt::format(", {} step{} under way", outer.overlap, outer.overlap == 1 ? "" : "s")
                  : "");
    if (const auto first = outer.interval / outer.fragments + outer.overlap; first > config.train.steps) {
      log::warn(
          "the outer optimizer moves nothing: its first move is after step {}, the run has {}; lower "
          "outer.interval",
          first, config.train.steps);
    }
    if (plan.engine.outer->sent.kind == OuterSent::Kind::largest && outer.momentum > 0) {
      log::warn(
          "outer.momentum = {:g} with outer.compress = \"{}\": what is sent late counts many times then; "
          "outer.momentum=0 outer.lr=1 has trained better (docs/decentralised.md)",
          outer.momentum, outer.compress);
    }
  }
  if (config.parallel.pipeline > 1) log_pipeline(config, plan);
  if (plan.topology() && plan.mesh.workers == 1 && config.outer.interval == 0) {
    log::info("parallel.engine = \"gossip\": there is one worker, with nobody to average with");
  }
  if (config.parallel.sequence && config.parallel.tensor == 1) {
    log::info("parallel.sequence: without tensor ranks there is nothing to share");
  }
  if (config.run.verify > 0 && plan.mesh.data == 1) {
    log::info(
        "run.verify: one data rank computes its own micro-batch again, which finds only what errs now "
        "and then");
  }
  if (config.train.backend == BackendKind::cuda && config.parallel.offload != Offload::none) {
    log::info("parallel.offload = \"{}\": {} of state rest {}, {} of memory are taken on the GPU",
              name_of_choice(config, "parallel.offload"),
              format_bytes(memory.on_disk > 0 ? memory.on_disk : memory.on_host),
              memory.on_disk > 0 ? "in a file of the run's folder" : "in the host's memory",
              format_bytes(memory.on_gpu));
  } else if (config.parallel.offload == Offload::host) {
    log::info("parallel.offload = \"host\": the {} backend's memory is the host's already",
              name_of_choice(config, "train.backend"));
  }
  if (weights_of_start(config.init.from)) warn_of_other_tokenizer(data.first(), model.vocab_size, nullptr);
  if (const auto floor = data.entropy_per_token()) {
    log::info("the data's own entropy is {:.4f} nats per token: no model's expected loss is below it",
              *floor);
  }
}

}  // namespace shoal
