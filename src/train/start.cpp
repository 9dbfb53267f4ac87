#include "train/start.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/reader.h"
#include "checkpoint/store.h"
#include "config/pretrained.h"
#include "config/schema.h"
#include "core/log.h"
#include "core/text.h"
#include "train/facts.h"
#include "train/model_io.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMetrics = "metrics.jsonl";

bool holds_checkpoint(const fs::path& run) { return latest_in(run / kCheckpointsName).has_value(); }

bool holds_measurements(const fs::path& run) {
  std::error_code absent;
  const auto size = fs::file_size(run / kMetrics, absent);
  return !absent && size > 0;
}

// A directory for a new run must not hold an earlier one. One that was stopped before it measured anything is
// none.
void refuse_old_run(const fs::path& run) {
  const bool saved = holds_checkpoint(run);
  if (!saved && !holds_measurements(run)) return;
  fail_user("{} already holds a run{}, name another by run.name=NAME, or remove the folder", run.string(),
            saved ? "; go on with it by init.from=resume"
                  : " that saved no checkpoint; start it again by init.from=auto");
}

// TensorBoard reads every file with "tfevents" in its name.
std::string unsaved_name(std::string name) {
  if (const auto at = name.find("tfevents"); at != std::string::npos) name.replace(at, 8, "events");
  return "unsaved-" + name;
}

// "books", or {"books" = 0.7, "code" = 0.3}.
std::string dir_value(const DataConfig& data) {
  Config config;
  config.data = data;
  return find_field(data.dirs.empty() ? "data.dir" : "data.dirs")->value(config);
}
std::string dir_setting(const DataConfig& data) {
  return fmt::format("{} = {}", data.dirs.empty() ? "data.dir" : "data.dirs", dir_value(data));
}

fs::path find_latest(const Config& config) {
  const auto run = config.run.path();
  if (const auto latest = latest_in(run / kCheckpointsName)) return *latest;
  fail_user("init.from=resume: {} holds no checkpoint; {} init.from=scratch", run.string(),
            holds_measurements(run) ? "remove the folder and start again with" : "start the run with");
}

// A line for a key that differs from a checkpoint's.
std::string difference(std::string_view key, std::string_view before, std::string_view after) {
  return fmt::format("\n  {} = {} (the checkpoint has {})", key, after, before);
}

// Refuses a checkpoint whose parameters mean something else in this run's model, though their shapes may fit:
// other heads, another activation, fewer blocks.
void check_model(const CheckpointReader& checkpoint, const Config& config) {
  const auto saved = config_of(checkpoint);
  const bool both_adapt = config.lora.from.empty() && config.lora.rank > 0 && saved.lora.rank > 0;
  std::string differ;
  for (const auto& [key, before, after] : diff(saved, config)) {
    const bool of_model = key.starts_with("model.") && key != "model.preset" && key != "model.dropout";
    const bool of_adapters = key == "lora.rank" || key == "lora.alpha" || key == "lora.targets";
    if (of_model || (of_adapters && both_adapt)) differ += difference(key, before, after);
  }
  if (differ.empty()) return;
  fail_user("cannot start from the parameters in {}: they are of another model:{}\nset these keys so",
            checkpoint.directory().string(), differ);
}

}  // namespace

std::string settle_start(const Config& config) {
  const auto run = config.run.path();
  const auto otherwise = start_without_checkpoint(config.init.from);
  if (!otherwise) {
    if (!config.init.resumes()) refuse_old_run(run);
    return config.init.from;
  }
  return holds_checkpoint(run) ? "resume" : *otherwise;
}

void put_measurements_aside(const fs::path& run) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(run)) {
    const auto name = entry.path().filename().string();
    if (name == kMetrics || name.find("tfevents") != std::string::npos) files.push_back(entry.path());
  }
  const bool measured = holds_measurements(run);
  for (const auto& file : files) {
    std::error_code error;
    fs::rename(file, run / unsaved_name(file.filename().string()), error);
    if (error) fail_user("cannot rename {}: {}", file.string(), error.message());
  }
  if (measured) {
    log::info("{} holds an attempt that ended before its first checkpoint: its measurements are now in {}",
              run.string(), unsaved_name(kMetrics));
  }
}

std::optional<fs::path> find_start(const Config& config, const Mixture& data, bool counted,
                                   Communicator& ranks) {
  if (const auto other = checkpoint_folder(config.init.from)) {
    const auto found = find_checkpoint(*other, ranks);
    some_for_all(ranks, ranks.rank() == 0,
                 [&] { check_model(CheckpointReader(found, Verify::sizes), config); });
    return found;
  }
  if (const auto weights = weights_of_start(config.init.from)) {
    // They may have to be fetched.
    some_for_all_at_length(ranks, ranks.rank() == 0, [&] { open_weights(*weights, config); });
    return weights->path;
  }
  if (!config.init.resumes()) return std::nullopt;
  std::string from;
  some_for_all(ranks, ranks.rank() == 0, [&] {
    from = find_latest(config).string();
    std::optional<CheckpointReader> reader;
    try {
      reader.emplace(from, Verify::sizes);
    } catch (const UserError& error) {
      throw with_older_checkpoint(error, from);
    }
    const auto saved = config_of(*reader);
    check_resume(saved, config, counted, from);  // first: with data.truncate the data are others, too
    check_contents(reader->info().state.value("data", nlohmann::json()), saved, config, data, from);
  });
  return broadcast_text(ranks, from);
}

namespace {

// Whether a key that may change decides here which tensors are kept beside parameters.
bool changes_tensors(std::string_view key, const Config& saved, const Config& now) {
  const auto differ = [&](auto&& keeps) { return keeps(saved) != keeps(now); };
  if (key == "optim.ema") return differ([](const Config& c) { return c.optim.ema > 0; });
  if (key == "outer.interval") return differ([](const Config& c) { return c.outer.interval > 0; });
  if (key == "outer.compress") return differ([](const Config& c) { return c.outer.compress != "none"; });
  return false;
}

}  // namespace

bool counts_in_steps(const Config& given) {
  return given.data.sampling == Sampling::epochs || given.lr_schedule.warmup_tokens > 0 ||
         given.lr_schedule.decay_tokens > 0;
}

void check_resume(const Config& saved, const Config& now, bool counted, const std::string& checkpoint) {
  // A stride of 0 is the checkpoint's block size.
  const auto with_stride = [&](Config config) {
    if (config.data.stride == 0) config.data.stride = saved.model.block_size;
    return config;
  };
  std::string fixed;
  for (const auto& [key, before, after] : diff(with_stride(saved), with_stride(now))) {
    if (key == "model.vocab_size" && !now.fixed.contains(key)) {
      fixed += fmt::format("\n  {} has a vocabulary of {} (the checkpoint was trained on {}, with {})",
                           dir_setting(now.data), after, dir_value(saved.data), before);
    } else if (key == "run.seed" || key == "data.sampling" || key == "data.stride" ||
               key == "data.truncate" || key == "optim.name" || key == "optim.accum_steps" ||
               changes_tensors(key, saved, now) || (key == "train.global_batch" && counted) ||
               key == "optim.frozen" || key == "lora.rank" || key == "lora.alpha" || key == "lora.targets" ||
               (key.starts_with("model.") && key != "model.preset")) {
      fixed += difference(key, before, after);
    } else if (!key.starts_with("init.") && key != "model.preset" && key != "lora.from") {
      log::info("resuming with {} = {} instead of {}", key, after, before);
    }
  }
  if (fixed.empty()) return;
  fail_user(
      "cannot resume from {}: it belongs to another run:{}\nset these keys back, or start a new run under "
      "another run.name",
      checkpoint, fixed);
}

namespace {

nlohmann::json contents_of_splits(const Dataset& data) {
  nlohmann::json contents;
  for (const char* split : {"train", "val"}) contents[split] = contents_of(data.split(split));
  return contents;
}

// A line for each split whose contents are not those that a checkpoint describes.
std::string differences(const nlohmann::json& saved, const std::string& saved_dir, const Dataset& data) {
  std::string lines;
  for (const char* split : {"train", "val"}) {
    const auto said = saved.is_object() ? saved.find(split) : saved.end();
    if (said == saved.end() || !said->is_string()) continue;
    const auto& file = data.split(split);
    if (const auto mine = contents_of(file); mine != said->get<std::string>()) {
      lines += fmt::format("\n  {}: {} (the checkpoint's {}: {})", file.path().string(), mine,
                           (fs::path(saved_dir) / file.path().filename()).string(), said->get<std::string>());
    }
  }
  return lines;
}

}  // namespace

nlohmann::json describe_contents(const Mixture& data) {
  if (!data.is_mixed()) return contents_of_splits(data.first());
  nlohmann::json contents;
  for (const auto& [weight, source] : data.sources())
    contents["sources"].push_back(contents_of_splits(source));
  return contents;
}

bool has_same_validation_data(const CheckpointInfo& saved, const Config& config, const nlohmann::json& now) {
  const auto before = saved.state.value("data", nlohmann::json());
  const auto theirs = stored_config(saved.config, kManifestName).data.sources(), mine = config.data.sources();
  std::size_t i = 0;
  return std::ranges::equal(theirs, mine, [&](const auto& their, const auto& my) {
    const nlohmann::json::json_pointer val(mine.size() > 1 ? fmt::format("/sources/{}/val", i++) : "/val");
    return their.second == my.second && (!before.contains(val) || before.at(val) == now.at(val));
  });
}

void check_contents(const nlohmann::json& saved, const Config& before, const Config& now, const Mixture& data,
                    const std::string& checkpoint) {
  const auto dirs = before.data.sources();
  std::string lines;
  if (dirs.size() != data.sources().size()) {
    lines = fmt::format("\n  {} (the checkpoint's {})", dir_setting(now.data), dir_setting(before.data));
  } else {
    auto dir = dirs.begin();
    for (std::size_t i = 0; i < dirs.size(); ++i, ++dir) {
      const bool listed = saved.is_object() && saved.contains("sources");
      lines += differences(listed ? saved["sources"].at(i) : saved, dir->first, data.sources()[i].data);
    }
  }
  if (lines.empty()) return;
  if (now.init.other_data) {
    log::info("resuming on other data than those of the checkpoint (init.other_data):{}", lines);
    return;
  }
  fail_user(
      "cannot resume from {}: it was trained on other data:{}\n{}, start a new run under another run.name, "
      "or go on with these data by init.other_data=true",
      checkpoint, lines,
      dir_setting(before.data) == dir_setting(now.data)
          ? fmt::format("restore {}, which was prepared anew since", data.description())
          : fmt::format("set {} back to {}", dir_setting(now.data),
                        now.data.dirs.empty() == before.data.dirs.empty() ? dir_value(before.data)
                                                                          : dir_setting(before.data)));
}

UserError with_older_checkpoint(const UserError& error, const fs::path& checkpoint) {
  const auto root = checkpoint.parent_path();
  const auto name = checkpoint.filename().string();
  const auto put_aside = [&](const fs::path& damaged) {
    return fmt::format("mv {} {}", shell_word(damaged.string()),
                       shell_word((root / ("damaged-" + damaged.filename().string())).string()));
  };
  auto older = list_checkpoints(root);
  std::erase_if(older, [&](const fs::path& other) { return other.filename().string() >= name; });
  for (auto it = older.rbegin(); it != older.rend(); ++it) {
    if (!verify_checkpoint(*it).empty()) continue;
    std::string aside;  // all that are newer
    for (auto damaged = older.rbegin(); damaged != it; ++damaged) {
      aside += put_aside(*damaged) + " && ";
    }
    return UserError(fmt::format(
        "{}\nthe newest whole checkpoint is {}; to go on from there, put the damaged one{} aside "
        "and resume: {}{}, then the same command again",
        error.what(), it->filename().string(), aside.empty() ? "" : "s", aside, put_aside(root / name)));
  }
  return UserError(fmt::format("{}\nno older checkpoint of the run is whole", error.what()));
}

}  // namespace shoal
