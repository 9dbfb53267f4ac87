#include "config/schema.h"

#include <fmt/format.h>

#include <array>
#include <type_traits>
#include <utility>

#include "config/optimizer_schemes.h"
#include "parallel/gossip/topology_schemes.h"
#include "parallel/pipeline/schedule.h"

namespace shoal {
namespace {

template <auto Section, auto Member>
FieldRef at(Config& config) {
  auto* member = &((config.*Section).*Member);
  if constexpr (std::is_enum_v<std::remove_pointer_t<decltype(member)>>) {
    static_assert(sizeof *member == 1);
    return Choice{reinterpret_cast<unsigned char*>(member)};
  } else {
    return member;
  }
}

template <auto Section, auto Member>
Field plain(std::string_view name, std::string_view doc) {
  const auto dot = name.find('.');
  return {name.substr(0, dot), name.substr(dot + 1), at<Section, Member>, {}, {}, {}, "", doc};
}

template <auto Section, auto Member>
Field number(std::string_view name, Bounds bounds, std::string_view unit, std::string_view doc) {
  Field field = plain<Section, Member>(name, doc);
  field.bounds = bounds;
  field.unit = unit;
  return field;
}

// A text with a list of allowed values.
template <auto Section, auto Member>
Field text(std::string_view name, std::vector<std::string_view> choices, std::string_view doc) {
  Field field = plain<Section, Member>(name, doc);
  field.choices = std::move(choices);
  return field;
}

// An enum, with the names of its enumerators.
template <typename E>
using Names = std::initializer_list<std::pair<std::string_view, E>>;
template <auto Section, auto Member, typename E>
Field choice(std::string_view name, Names<E> choices, std::string_view doc) {
  Field field = plain<Section, Member>(name, doc);
  for (const auto& [choice, value] : choices) {
    field.choices.push_back(choice);
    field.numbers.push_back(static_cast<unsigned char>(value));
  }
  return field;
}

std::vector<std::string_view> topology_choices() {
  std::vector<std::string_view> choices;
  for (const auto& scheme : topology_schemes()) choices.push_back(scheme.name);
  choices.push_back("file:ROUNDS.toml");
  return choices;
}

// "gpipe: all forward passes, then all backward passes; 1f1b: in turn, ...", of a table of schemes.
template <typename Scheme>
std::string meanings(std::span<const Scheme> schemes) {
  std::string text;
  for (const auto& scheme : schemes) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", scheme.name, scheme.meaning);
  }
  return text;
}

// An enum whose names are in a table of schemes.
template <auto Section, auto Member, typename Scheme>
Field scheme_choice(std::string_view name, std::span<const Scheme> schemes, std::string_view doc) {
  Field field = plain<Section, Member>(name, doc);
  for (const auto& scheme : schemes) {
    field.choices.push_back(scheme.name);
    field.numbers.push_back(static_cast<unsigned char>(scheme.kind));
  }
  return field;
}

Bounds at_least(double low) { return {.low = low}; }
Bounds above(double low) { return {.low = low, .low_open = true}; }
Bounds between(double low, double high) { return {.low = low, .high = high}; }
// The largest counts. Their sums, and an epoch's sequences times kEpochs, fit into 64 bits.
constexpr std::int64_t kSteps = std::int64_t{1} << 40, kTokens = std::int64_t{1} << 50, kEpochs = 1 << 20;
constexpr Bounds kFraction = {.low = 0, .high = 1, .high_open = true};
constexpr Bounds kShare = {.low = 0, .high = 1, .low_open = true};

constexpr std::array kPresets = {
    Preset{"gpt2", 12, 12, 768},     Preset{"gpt2-medium", 24, 16, 1024}, Preset{"gpt2-large", 36, 20, 1280},
    Preset{"gpt2-xl", 48, 25, 1600}, Preset{"gpt-mini", 6, 6, 192},       Preset{"gpt-micro", 4, 4, 128},
    Preset{"gpt-nano", 3, 3, 48},
};

std::vector<std::string_view> preset_names() {
  std::vector<std::string_view> names = {""};
  for (const auto& preset : kPresets) names.push_back(preset.name);
  return names;
}

std::vector<Field> make_fields() {
  using C = Config;
  using Run = RunConfig;
  using Data = DataConfig;
  using Model = ModelConfig;
  using Train = TrainConfig;
  using Optim = OptimConfig;
  using Lora = LoraSection;
  using Lr = LrScheduleConfig;
  using Par = ParallelConfig;
  using Gossip = GossipConfig;
  using Outer = OuterConfig;
  static const std::string optimizer_doc = fmt::format("Optimizer. {}.", meanings(optimizer_schemes()));
  static const std::string schedule_doc =
      fmt::format("Order of a pipeline's forward and backward passes. {}. `shoal schedule` draws it.",
                  meanings(schedule_schemes()));
  return {
      plain<&C::run, &Run::name>(
          "run.name",
          "Name of the run, and of its folder in run.dir. Empty: the config file's name without .toml."),
      plain<&C::run, &Run::dir>("run.dir", "Folder that holds the runs."),
      number<&C::run, &Run::seed>("run.seed", at_least(0), "",
                                  "Seed of everything random: initial parameters, batches, dropout."),
      choice<&C::run, &Run::deterministic, Determinism>(
          "run.deterministic",
          {{"off", Determinism::off}, {"run", Determinism::run}, {"layout", Determinism::layout}},
          "run: a run repeats exactly on the same layout. off: the same on CPUs; a GPU may add attention's "
          "gradient in another order each time, which is faster. layout: gradients are summed in one fixed "
          "order, so that any number of ranks gives the same bits (a little slower)."),
      number<&C::run, &Run::verify>(
          "run.verify", between(0, kSteps), "steps",
          "Finds processors and memory that err silently: every so many steps each data rank also computes "
          "the gradient of another one's first micro-batch and compares checksums. A difference stops the "
          "run before the update and names ranks, hosts and tensor. It costs the passes of one micro-batch. "
          "A single data rank computes its own micro-batch a second time. 0: never."),

      plain<&C::data, &Data::dir>(
          "data.dir",
          "Folder made by `shoal prepare`: train.bin, val.bin, meta.json. Or one with the "
          "token files of llm.c or nanoGPT, as they are."),
      number<&C::data, &Data::dirs>(
          "data.dirs", above(0), "",
          "In place of data.dir: several such folders, and the weights with which sequences are drawn from "
          "them, e.g. {\"data/books\" = 0.7, \"data/code\" = 0.3}. The val loss is the weighted mean of "
          "theirs, which are logged too."),
      choice<&C::data, &Data::sampling, Sampling>(
          "data.sampling", {{"random", Sampling::random}, {"epochs", Sampling::epochs}},
          "random: each sequence starts anywhere, with replacement. epochs: every sequence once per "
          "epoch, shuffled."),
      number<&C::data, &Data::stride>(
          "data.stride", at_least(0), "tokens",
          "Distance between the starts of neighboring sequences of an epoch. 0: model.block_size, so that "
          "sequences do not overlap. 1: a sequence starts at every token, as in minGPT, and an epoch has "
          "almost as many sequences as the data has tokens. Needs data.sampling = \"epochs\"."),
      number<&C::data, &Data::truncate>("data.truncate", kShare, "",
                                        "Use only this share of the training tokens, from the start."),

      text<&C::model, &Model::preset>(
          "model.preset", preset_names(),
          "A known size: sets n_layer, n_head and n_embd. Sizes that are set explicitly override it."),
      number<&C::model, &Model::n_layer>("model.n_layer", between(1, 1000), "blocks", "Transformer blocks."),
      number<&C::model, &Model::n_head>("model.n_head", between(1, 4096), "heads",
                                        "Attention heads; must divide n_embd."),
      number<&C::model, &Model::n_embd>("model.n_embd", between(1, 1 << 20), "channels",
                                        "Width of the residual stream."),
      number<&C::model, &Model::block_size>("model.block_size", between(1, 1 << 24), "tokens",
                                            "Context length: tokens per sequence."),
      number<&C::model, &Model::vocab_size>("model.vocab_size", between(0, 1 << 30), "tokens",
                                            "Size of the vocabulary. 0: the vocabulary of the data."),
      number<&C::model, &Model::dropout>(
          "model.dropout", kFraction, "",
          "Probability of dropping an activation (embedding, attention, residual)."),
      plain<&C::model, &Model::bias>("model.bias", "Biases in linear layers and LayerNorms (GPT-2: true)."),
      choice<&C::model, &Model::gelu, Gelu>(
          "model.gelu", {{"tanh", Gelu::tanh}, {"erf", Gelu::erf}},
          "tanh: the approximation of OpenAI's GPT-2 weights. erf: exact, as nanoGPT."),
      plain<&C::model, &Model::tie_embeddings>(
          "model.tie_embeddings",
          "The head's matrix is the token embedding's (GPT-2: true; minGPT has two matrices)."),

      text<&C::init, &InitConfig::from>(
          "init.from",
          {"scratch", "resume", "auto", "checkpoint:DIR", "hf:DIR", "nanogpt:FILE", "llmc:FILE",
           "auto:checkpoint:DIR", "auto:hf:DIR", "auto:nanogpt:FILE", "auto:llmc:FILE"},
          "scratch: new parameters. resume: go on from this run's latest checkpoint. checkpoint:DIR: "
          "parameters of a checkpoint of the same model, new optimizer; its adapters are merged into "
          "them where this run has none. Weights of another program decide the model's keys. hf:DIR: a "
          "GPT-2 in Hugging Face's format, a folder with config.json and model.safetensors or "
          "pytorch_model.bin, or a model of the hub, hf:openai-community/gpt2, which is fetched into "
          "the hub's cache. nanogpt:FILE: nanoGPT's ckpt.pt. llmc:FILE: a model of llm.c. auto: resume "
          "if the run has a checkpoint, else start from scratch; auto:FROM: else from FROM. The argument "
          "init.from=auto keeps the config's value as FROM."),
      plain<&C::init, &InitConfig::other_data>(
          "init.other_data",
          "Resume although the data are not those that the checkpoint was trained on. Holds for one start."),

      choice<&C::train, &Train::backend, BackendKind>(
          "train.backend",
          {{"cpu", BackendKind::cpu}, {"cuda", BackendKind::cuda}, {"reference", BackendKind::reference}},
          "Hardware and kernels that compute. cpu: all cores of the host. cuda: one NVIDIA GPU for each "
          "rank; the ranks of a host take its GPUs in turn. reference: plain loops, slow, which the tests "
          "compare the others with."),
      choice<&C::train, &Train::dtype, DType>(
          "train.dtype", {{"float32", DType::f32}, {"bfloat16", DType::bf16}},
          "Type of the matrix products. bfloat16 keeps float32 master weights and moments, and by default "
          "(train.gradient_dtype) gradients."),
      choice<&C::train, &Train::residual_dtype, DType>(
          "train.residual_dtype", {{"float32", DType::f32}, {"bfloat16", DType::bf16}},
          "Type of the residual stream, the sum that runs through all blocks, and of its gradient. bfloat16, "
          "as in llm.c, needs train.dtype = bfloat16; activations take less memory and norms less time, for "
          "one more rounding in every sum. Generated texts have it in float32 always."),
      choice<&C::train, &Train::gradient_dtype, DType>(
          "train.gradient_dtype", {{"float32", DType::f32}, {"bfloat16", DType::bf16}},
          "Type of the gradients of parameters, to which a rank's micro-batches add; sums over ranks are "
          "float32. bfloat16, as in llm.c, needs train.dtype = bfloat16; 2 bytes less for each parameter, "
          "and less to move. Exact enough where a rank has few micro-batches in a step. Not with Muon, "
          "optim.ema, gossip or an outer optimizer."),
      plain<&C::train, &Train::tf32>(
          "train.tf32",
          "cuda: compute float32 matrix products on tensor cores, which round their operands to 10 bits of "
          "mantissa (TF32). Several times faster; less exact than float32, more exact than bfloat16."),
      plain<&C::train, &Train::graph>(
          "train.graph",
          "cuda, one rank: capture the second step as a CUDA graph and replay it for every later step, and "
          "likewise for the tokens of generated texts. The host launches less and the GPU has no gaps "
          "between kernels; the results are the same. Not with "
          "traces, offload, run.verify, train.spike_zscore, parallel.zero = 3 or an outer optimizer."),
      number<&C::train, &Train::global_batch>("train.global_batch", at_least(1), "sequences",
                                              "Sequences per optimizer step, over all ranks."),
      number<&C::train, &Train::micro_batch>(
          "train.micro_batch", at_least(0), "sequences",
          "Sequences per forward and backward pass on a rank. It decides the memory; the result changes only "
          "by rounding. Must divide global_batch; micro-batches are assigned to the data ranks round-robin. "
          "0: the largest size that gives every data rank one micro-batch, or four per stage in a pipeline; "
          "with run.deterministic = layout the largest size that makes eight."),
      number<&C::train, &Train::steps>("train.steps", between(0, kSteps), "steps",
                                       "Optimizer steps of the whole run. Give this or epochs."),
      number<&C::train, &Train::epochs>("train.epochs", between(0, kEpochs), "epochs",
                                        "Passes over the training data. Give this or steps."),
      number<&C::train, &Train::grad_clip>(
          "train.grad_clip", at_least(0), "",
          "Largest norm of the whole gradient; a larger gradient is scaled down to it. 0: off."),
      choice<&C::train, &Train::recompute, Recompute>(
          "train.recompute",
          {{"none", Recompute::none},
           {"gelu", Recompute::gelu},
           {"light", Recompute::light},
           {"block", Recompute::block}},
          "Activations that the backward pass recomputes instead of keeping them for every block. gelu: the "
          "output of GELU, the largest one. light: also the outputs of the norms. Both cost little. block: "
          "everything but a block's input: far less memory, a third more work. The run is the same to the "
          "bit, except that on GPUs in bfloat16 gelu and light may round GELU differently, unless "
          "run.deterministic = layout."),
      number<&C::train, &Train::recompute_blocks>(
          "train.recompute_blocks", at_least(0), "blocks",
          "Blocks that train.recompute applies to: 4 means the first four blocks of each pipeline stage's "
          "range of the model, [4, 2] has a number for each range, as parallel.stages has. Empty: every "
          "block."),
      number<&C::train, &Train::threads>("train.threads", between(0, 4096), "threads",
                                         "Threads of the cpu backend on a rank. 0: the cores of its host, "
                                         "divided by the ranks there."),
      number<&C::train, &Train::spike_zscore>(
          "train.spike_zscore", at_least(0), "",
          "A loss this many standard deviations above the mean of the last spike_window steps is a bad "
          "step. 0: off."),
      number<&C::train, &Train::spike_window>("train.spike_window", between(8, 1 << 20), "steps",
                                              "Number of past losses that spike_zscore compares with."),
      choice<&C::train, &Train::on_bad_step, OnBadStep>(
          "train.on_bad_step", {{"stop", OnBadStep::stop}, {"skip", OnBadStep::skip}},
          "Reaction to a loss or gradient that is not finite, or to a "
          "spike. stop: end the run. skip: leave out that update."),

      scheme_choice<&C::optim, &Optim::name>("optim.name", optimizer_schemes(), optimizer_doc),
      number<&C::optim, &Optim::lr>("optim.lr", above(0), "", "Peak learning rate."),
      number<&C::optim, &Optim::betas>("optim.betas", kFraction, "",
                                       "Decay rates of the first and second moment."),
      number<&C::optim, &Optim::eps>("optim.eps", above(0), "", "Added to the denominator of the update."),
      number<&C::optim, &Optim::weight_decay>("optim.weight_decay", at_least(0), "",
                                              "Weight decay of the parameters that optim.decay names."),
      choice<&C::optim, &Optim::decay, Decay>(
          "optim.decay",
          {{"matrices", Decay::matrices}, {"all", Decay::all}, {"no_embeddings", Decay::no_embeddings}},
          "Parameters that weight_decay applies to. matrices: tensors of two or more dimensions. all: every "
          "parameter, biases and norms too. no_embeddings: matrices without the embeddings of tokens and "
          "positions."),
      number<&C::optim, &Optim::accum_steps>("optim.accum_steps", at_least(1), "steps",
                                             "Steps per commit of the moments (accum_adamw, accum_adam)."),
      number<&C::optim, &Optim::matrix_lr>("optim.matrix_lr", at_least(0), "",
                                           "muon: peak learning rate of the hidden matrices, those of the "
                                           "blocks' linear layers. It has optim.lr's schedule. 0: optim.lr."),
      number<&C::optim, &Optim::momentum>("optim.momentum", kFraction, "",
                                          "muon: decay rate of the hidden matrices' momentum."),
      plain<&C::optim, &Optim::nesterov>("optim.nesterov", "muon: use Nesterov momentum."),
      number<&C::optim, &Optim::ns_steps>("optim.ns_steps", between(1, 100), "steps",
                                          "muon: Newton-Schulz steps, which make a momentum orthogonal."),
      choice<&C::optim, &Optim::adjust_lr, MuonScale>(
          "optim.adjust_lr",
          {{"match_rms_adamw", MuonScale::match_rms_adamw}, {"original", MuonScale::original}},
          "muon: factor of an orthogonal update. match_rms_adamw: 0.2 sqrt(max(rows, columns)), with which "
          "AdamW's learning rates fit. original: sqrt(max(1, rows / columns))."),
      number<&C::optim, &Optim::ema>(
          "optim.ema", kFraction, "",
          "Decay of a moving average of the parameters, e.g. 0.999: after each step it becomes ema * average "
          "+ (1 - ema) * parameters. Evaluations during training, shoal sample, eval, serve and export use "
          "the average. 0: there is none."),
      plain<&C::optim, &Optim::frozen>(
          "optim.frozen",
          "Units that are not trained, as a list of patterns: \"embedding, block.[0-5]\". Units are "
          "embedding, block.0, block.1, ... and head. They take no gradients and no optimizer state. Empty: "
          "with lora.rank every unit, else none."),

      number<&C::lora, &Lora::rank>(
          "lora.rank", between(0, 1 << 16), "",
          "Low-rank adapters (LoRA): each of lora.targets adds alpha / rank * B (A x) to its output, and "
          "only A [rank, in] and B [out, rank] are trained. 0: no adapters."),
      number<&C::lora, &Lora::alpha>("lora.alpha", above(0), "",
                                     "The adapters' output is scaled by alpha / rank."),
      number<&C::lora, &Lora::dropout>("lora.dropout", kFraction, "",
                                       "Probability of dropping an input of an adapter."),
      plain<&C::lora, &Lora::targets>(
          "lora.targets",
          "Linear layers with adapters, as a list: attn.c_attn, attn.c_proj, mlp.c_fc, mlp.c_proj, or all."),
      plain<&C::lora, &Lora::from>(
          "lora.from",
          "Start from adapters that peft saved: a folder with adapter_config.json and "
          "adapter_model.safetensors, whose rank and layers have to be those of this section."),

      choice<&C::lr_schedule, &Lr::name, LrShape>(
          "lr_schedule.name",
          {{"cosine", LrShape::cosine},
           {"linear", LrShape::linear},
           {"constant", LrShape::constant},
           {"wsd", LrShape::wsd}},
          "Shape after the warmup. wsd: constant, then decay over the last decay_steps."),
      number<&C::lr_schedule, &Lr::warmup_steps>("lr_schedule.warmup_steps", between(0, kSteps), "steps",
                                                 "Steps over which the learning rate rises to optim.lr."),
      number<&C::lr_schedule, &Lr::warmup_start>(
          "lr_schedule.warmup_start", kFraction, "",
          "Share of optim.lr at which the linear warmup starts. 0: 1 / (warmup_steps + 1), as in nanoGPT. 1 "
          "/ warmup_steps equals PyTorch's LinearLR with that start_factor."),
      number<&C::lr_schedule, &Lr::decay_steps>(
          "lr_schedule.decay_steps", between(0, kSteps), "steps",
          "cosine, linear: the step at which min_lr is reached (0: the last). wsd: length of the final "
          "decay (0: a fifth of the run)."),
      number<&C::lr_schedule, &Lr::warmup_tokens>("lr_schedule.warmup_tokens", between(0, kTokens), "tokens",
                                                  "In place of warmup_steps: training tokens, rounded up to "
                                                  "whole steps. 0: as warmup_steps says."),
      number<&C::lr_schedule, &Lr::decay_tokens>(
          "lr_schedule.decay_tokens", between(0, kTokens), "tokens",
          "decay_steps in training tokens, rounded up to whole steps. 0: as decay_steps says."),
      number<&C::lr_schedule, &Lr::min_lr>("lr_schedule.min_lr", at_least(0), "",
                                           "Learning rate after the decay."),

      number<&C::eval, &EvalConfig::interval>("eval.interval", between(-1, kSteps), "steps",
                                              "Steps between evaluations; the last step is always followed "
                                              "by one, and by one of the test split where the data has "
                                              "it. 0: only at the end. -1: never."),
      number<&C::eval, &EvalConfig::epochs>(
          "eval.epochs", between(0, kEpochs), "epochs",
          "Epochs between evaluations; given alone, it replaces eval.interval. 0: by interval only."),
      number<&C::eval, &EvalConfig::batches>("eval.batches", at_least(-1), "batches",
                                             "Instead of eval.sequences: this many batches of "
                                             "train.global_batch sequences. 0: the whole split in "
                                             "order. -1: eval.sequences counts."),
      number<&C::eval, &EvalConfig::sequences>(
          "eval.sequences", between(0, std::int64_t{1} << 40), "sequences",
          "Random sequences per evaluation and split: the same ones at every evaluation, on any ranks and "
          "with any micro-batch. 0: the whole val split in order, and as many sequences of the train split."),
      plain<&C::eval, &EvalConfig::at_start>(
          "eval.at_start", "Evaluate before the first step, unless evaluations are only at the end."),
      number<&C::eval, &EvalConfig::patience>("eval.patience", at_least(0), "evaluations",
                                              "Early stopping: the run ends when this many evaluations in a "
                                              "row have not lowered the val loss. 0: it makes all steps."),
      plain<&C::eval, &EvalConfig::tasks>(
          "eval.tasks",
          "Tasks to score at each evaluation, too, as a list of files: JSON lines of multiple choice "
          "(HellaSwag's) or last words (LAMBADA's), as shoal eval --task takes them."),
      number<&C::eval, &EvalConfig::samples>(
          "eval.samples", between(0, 1024), "texts",
          "Texts that the model writes at each evaluation, for metrics.jsonl and the page of shoal report. "
          "Every evaluation uses the same random draws. Not with pipeline stages. 0: none."),
      plain<&C::eval, &EvalConfig::sample_prompt>("eval.sample_prompt",
                                                  "Prompt of the texts of eval.samples. \"\": none."),
      number<&C::eval, &EvalConfig::sample_tokens>("eval.sample_tokens", between(1, 1 << 20), "tokens",
                                                   "Length of the texts of eval.samples."),

      number<&C::checkpoint, &CheckpointConfig::interval>("checkpoint.interval", between(0, kSteps), "steps",
                                                          "Steps between checkpoints. 0: only at the end."),
      number<&C::checkpoint, &CheckpointConfig::epochs>(
          "checkpoint.epochs", between(0, kEpochs), "epochs",
          "Epochs between checkpoints; given alone, it replaces "
          "checkpoint.interval. 0: by interval only."),
      number<&C::checkpoint, &CheckpointConfig::keep>(
          "checkpoint.keep", at_least(1), "checkpoints",
          "Number of latest checkpoints to keep; `best` is kept in addition."),
      plain<&C::checkpoint, &CheckpointConfig::best>(
          "checkpoint.best",
          "Keep the checkpoint with the lowest validation loss (needs evaluations), the start of the run "
          "included."),
      plain<&C::checkpoint, &CheckpointConfig::memory>(
          "checkpoint.memory",
          "Checkpoints in memory between those on the disk: while the next step computes, each rank's state "
          "is copied to the memory of its host, and to that of a second host where there are several. After "
          "the loss of a process or a host, the run goes on from there and loses at most one such "
          "checkpoint. Not with parallel.offload = disk."),
      number<&C::checkpoint, &CheckpointConfig::memory_interval>(
          "checkpoint.memory_interval", between(1, kSteps), "steps", "Steps between checkpoints in memory."),
      plain<&C::checkpoint, &CheckpointConfig::memory_dir>(
          "checkpoint.memory_dir",
          "Folder of the checkpoints in memory, on a memory file system (tmpfs) of each host. It needs room "
          "for "
          "two states of the host's ranks, and as much again for copies where there are several hosts."),

      number<&C::parallel, &Par::data>(
          "parallel.data", between(0, 1 << 20), "ranks",
          "Data-parallel ranks, which share the micro-batches of a step. A run has data * tensor * pipeline "
          "ranks. 0: all started ranks, divided by tensor * pipeline. Without --ranks, mpirun or srun, the "
          "whole mesh is started as threads, and 0 means 1."),
      number<&C::parallel, &Par::tensor>(
          "parallel.tensor", between(1, 4096), "ranks",
          "Tensor-parallel ranks, which share every layer: attention heads, hidden channels and the "
          "vocabulary, with exchanges of activations in every block. They are neighbouring ranks."),
      plain<&C::parallel, &Par::sequence>(
          "parallel.sequence",
          "Each tensor rank computes norms, dropout and residuals for its part of the tokens only: less "
          "memory, up to half as much traffic again in the backward pass. parallel.tensor must divide the "
          "tokens of a micro-batch. No effect without tensor ranks."),
      number<&C::parallel, &Par::pipeline>(
          "parallel.pipeline", between(1, 1000), "stages",
          "Pipeline stages. Each holds a range of blocks and passes micro-batches on to the next."),
      scheme_choice<&C::parallel, &Par::schedule>("parallel.schedule", schedule_schemes(), schedule_doc),
      number<&C::parallel, &Par::chunks>("parallel.chunks", at_least(1), "chunks",
                                         "Ranges of the model per pipeline rank; more than 1 needs a "
                                         "schedule with chunks, such as interleaved."),
      number<&C::parallel, &Par::stages>("parallel.stages", at_least(1), "blocks",
                                         "Blocks in each of the pipeline * chunks ranges of the model, e.g. "
                                         "[5, 4, 3]; range k is on pipeline rank k mod pipeline. Empty: "
                                         "ranges balanced by their cost (`shoal schedule` prints them)."),
      choice<&C::parallel, &Par::engine, EngineKind>(
          "parallel.engine", {{"allreduce", EngineKind::allreduce}, {"gossip", EngineKind::gossip}},
          "How data-parallel ranks agree: all-reduce of gradients, or averaging with neighbours."),
      number<&C::parallel, &Par::zero>("parallel.zero", between(0, 3), "",
                                       "ZeRO stage: state that is sharded over the data ranks. 1: optimizer "
                                       "state and master weights. 2: gradients too. 3: parameters too."),
      number<&C::parallel, &Par::replicate>(
          "parallel.replicate", at_least(1), "groups",
          "Number of groups of data ranks that each hold a full copy (ZeRO inside a group, all-reduce "
          "between groups). Must divide the data ranks."),
      choice<&C::parallel, &Par::offload, Offload>(
          "parallel.offload", {{"none", Offload::none}, {"host", Offload::host}, {"disk", Offload::disk}},
          "Storage of master weights and moments, from zero = 2 on also of gradients, with zero = 3 also of "
          "parameters. none: the backend's memory. host: the host's memory (the same for the cpu backend). "
          "disk: memory-mapped files in the run's folder. A GPU receives them piece by piece."),
      choice<&C::parallel, &Par::reduce_dtype, DType>(
          "parallel.reduce_dtype", {{"float32", DType::f32}, {"bfloat16", DType::bf16}},
          "Type in which gradients are sent between ranks; they are added in float32."),
      choice<&C::parallel, &Par::gpu_exchange, GpuExchange>(
          "parallel.gpu_exchange",
          {{"auto", GpuExchange::automatic}, {"nccl", GpuExchange::nccl}, {"host", GpuExchange::host}},
          "Path of data in GPU memory between ranks. nccl: from GPU to GPU, which needs a GPU for every "
          "rank. host: through the host's memory. auto: nccl if it is available."),
      number<&C::parallel, &Par::timeout>(
          "parallel.timeout", above(0), "seconds",
          "A collective that takes longer ends the run; the error names the ranks that did not arrive."),
      choice<&C::parallel, &Par::plan, PlanKind>(
          "parallel.plan", {{"manual", PlanKind::manual}, {"auto", PlanKind::automatic}},
          "auto: the planner chooses the layout."),

      text<&C::gossip, &Gossip::topology>(
          "gossip.topology", topology_choices(),
          "Groups of workers that average in each round (`shoal gossip topology` prints them)."),
      number<&C::gossip, &Gossip::worker_size>(
          "gossip.worker_size", between(1, 1 << 20), "ranks",
          "Data-parallel ranks per worker. They share its batches and, as parallel.zero says, its state; "
          "gossip runs between workers."),
      number<&C::gossip, &Gossip::bucket_mib>("gossip.bucket_mib", above(0), "MiB",
                                              "Size of a bucket of parameters that are averaged together: "
                                              "neighbouring blocks up to this size, or one larger block."),
      choice<&C::gossip, &Gossip::clip, GossipClip>(
          "gossip.clip", {{"global", GossipClip::global}, {"bucket", GossipClip::bucket}},
          "global: clip by the norm of the worker's whole gradient, and update at the end of the backward "
          "pass. bucket: clip every bucket by its own norm, and update and send it while the backward pass "
          "goes on; only for workers of one rank, and not with run.deterministic = \"layout\", "
          "outer.interval, run.verify, train.on_bad_step = \"skip\" or train.spike_zscore."),
      plain<&C::gossip, &Gossip::continue_from_average>(
          "gossip.continue_from_average",
          "After an evaluation, continue from the average of the workers, which was evaluated, instead of "
          "from each worker's own model."),
      number<&C::gossip, &Gossip::local_size>(
          "gossip.local_size", at_least(0), "workers",
          "Neighbouring workers that share a node, for alternating-exp-ring. 0: as the launcher placed them; "
          "on one host 8, 4 or 2."),

      number<&C::outer, &Outer::interval>(
          "outer.interval", {.low = 0, .high = 1 << 20}, "steps",
          "Steps between the moves of an outer optimizer: it averages how far the models have moved since "
          "the last time, and applies the mean as a gradient of SGD. With parallel.engine = \"gossip\" "
          "workers talk only then, in the groups of gossip.topology (complete: DiLoCo; others: NoLoCo). With "
          "\"allreduce\" there is one model, and its own movement is the gradient (SNOO). 0: no outer "
          "optimizer."),
      number<&C::outer, &Outer::lr>("outer.lr", above(0), "", "Learning rate of the outer optimizer."),
      number<&C::outer, &Outer::momentum>("outer.momentum", kFraction, "",
                                          "Momentum of the outer optimizer."),
      plain<&C::outer, &Outer::nesterov>("outer.nesterov", "Use Nesterov momentum in the outer optimizer."),
      text<&C::outer, &Outer::compress>(
          "outer.compress", {"none", "bfloat16", "int4", "topk:SHARE"},
          "The part of their movement that workers send. none: all, in float32. bfloat16: all, rounded. "
          "int4: all, in 4 bits, scaled by the largest of every 1024 numbers. topk:0.02: the largest 2 % of "
          "every 1024, and their places. What is not sent is added to the next movement. All but none need "
          "gossip.topology=complete."),
      number<&C::outer, &Outer::fragments>(
          "outer.fragments", at_least(1), "fragments",
          "Number of parts of the model, each of whole units, that are exchanged one after another in an "
          "interval (Streaming DiLoCo), so that each exchange is smaller."),
      number<&C::outer, &Outer::overlap>(
          "outer.overlap", between(0, kSteps), "steps",
          "Steps that workers go on training while a movement is on its way. 0: they wait for it."),
      number<&C::outer, &Outer::own_share>("outer.own_share", kFraction, "",
                                           "With outer.overlap a worker goes on from own_share * its own "
                                           "weights + (1 - own_share) * the moved model."),

      number<&C::plan, &PlanConfig::instance_ranks>(
          "plan.instance_ranks", at_least(0), "ranks",
          "With parallel.plan = auto, and for `shoal plan`: ranks that hold one model together (pipeline x "
          "tensor). 0: any number."),
      number<&C::plan, &PlanConfig::memory_gib>(
          "plan.memory_gib", at_least(0), "GiB",
          "Memory of a rank that a plan may take. 0: 80 % of the available memory; on this machine's GPU "
          "97 % of its memory."),

      number<&C::log, &LogConfig::interval>("log.interval", between(1, kSteps), "steps",
                                            "Steps between log lines."),
      plain<&C::log, &LogConfig::tensorboard>("log.tensorboard",
                                              "Write TensorBoard events into the run's folder."),
      plain<&C::log, &LogConfig::jsonl>(
          "log.jsonl", "Write metrics.jsonl into the run's folder, which `shoal plot` reads."),
      number<&C::log, &LogConfig::peak_tflops>(
          "log.peak_tflops", at_least(0), "TFLOP/s",
          "Peak speed of one rank's hardware, as the manufacturer states it: 312 for an A100 in bfloat16. "
          "The log gives speeds as a share of this peak. 0: the peak that is measured at the start."),
  };
}

}  // namespace

std::span<const Field> config_fields() {
  static const std::vector<Field> fields = make_fields();
  return fields;
}

std::span<const Preset> model_presets() { return kPresets; }

const Field* find_field(std::string_view section, std::string_view key) {
  for (const auto& field : config_fields()) {
    if (field.section == section && field.key == key) return &field;
  }
  return nullptr;
}

const Field* find_field(std::string_view name) {
  const auto dot = name.find('.');
  return dot == std::string_view::npos ? nullptr : find_field(name.substr(0, dot), name.substr(dot + 1));
}

std::vector<std::string> config_sections() {
  std::vector<std::string> sections;
  for (const auto& field : config_fields()) {
    if (sections.empty() || sections.back() != field.section) sections.emplace_back(field.section);
  }
  return sections;
}

}  // namespace shoal
