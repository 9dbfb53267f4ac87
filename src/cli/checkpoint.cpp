// shoal checkpoint: lists, inspects, verifies and compares checkpoints.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "checkpoint/compare.h"
#include "checkpoint/reader.h"
#include "checkpoint/worker_source.h"
#include "cli/checkpoint.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/text.h"

namespace shoal::cli {
namespace {

// The kind of optimizer state that a tensor "optimizer.KIND.NAME" is, and its parameter's name.
struct StateName {
  std::string_view kind, parameter;
};
std::optional<StateName> state_name(std::string_view tensor) {
  constexpr std::string_view kPrefix = "optimizer.";
  const auto dot = tensor.find('.', kPrefix.size());
  if (!tensor.starts_with(kPrefix) || dot == std::string_view::npos) return std::nullopt;
  return StateName{tensor.substr(kPrefix.size(), dot - kPrefix.size()), tensor.substr(dot + 1)};
}

std::string bytes_text(std::uint64_t bytes) {
  return fmt::format("{} ({} bytes)", format_bytes(static_cast<double>(bytes)),
                     with_commas(static_cast<std::int64_t>(bytes)));
}

// Shows a list of numbers by its length, and the tokenizer by its name, since its text may have megabytes.
std::string value_text(const std::string& key, const nlohmann::json& value) {
  if (key == "tokenizer" && value.is_string()) {
    if (value.get_ref<const std::string&>().empty()) return "none";
    const auto tokenizer = nlohmann::json::parse(value.get_ref<const std::string&>(), nullptr, false);
    const auto name = tokenizer.is_object() ? tokenizer.value("name", nlohmann::json()) : nlohmann::json();
    return name.is_string() ? name.get<std::string>() : "unreadable";
  }
  if (value.is_array()) return fmt::format("{} values", value.size());
  if (value.is_number_integer()) return with_commas(value.get<std::int64_t>());
  if (value.is_number()) return fmt::format("{:.6g}", value.get<double>());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void print_fields(const nlohmann::json& fields, const std::string& prefix = "") {
  for (const auto& [key, value] : fields.items()) {
    if (value.is_object()) {
      print_fields(value, prefix + key + ".");
    } else if (!(value.is_array() && value.empty())) {
      fmt::print("  {:<16} {}\n", prefix + key, value_text(key, value));
    }
  }
}

// Optimizer state has the shape of its parameter, and is shown in the parameter's line.
void print_tensors(const std::vector<TensorRecord>& tensors, int workers) {
  std::set<std::string_view> names;
  for (const auto& tensor : tensors) names.insert(tensor.name);
  const auto state_of = [&](const TensorRecord& tensor) {
    const auto found = state_name(tensor.name);
    return found && names.contains(found->parameter) ? found : std::nullopt;
  };
  std::map<std::string_view, std::vector<std::string_view>> kinds;  // by parameter
  std::size_t width = 0;
  for (const auto& tensor : tensors) {
    if (const auto state = state_of(tensor)) {
      kinds[state->parameter].push_back(state->kind);
    } else {
      width = std::max(width, tensor.name.size());
    }
  }
  fmt::print("\ntensors{}", workers == 1 ? "" : ", of every worker as worker.0.NAME and so on");
  if (!kinds.empty()) {
    const auto& kept = kinds.begin()->second;
    fmt::print(" (+ {}: with the tensors optimizer.{}.NAME and so on)", fmt::join(kept, ", "), kept.front());
  }
  fmt::print("\n");
  for (const auto& tensor : tensors) {
    if (state_of(tensor)) continue;
    const auto& kept = kinds[tensor.name];
    fmt::print("  {:<{}}  {}  {}{}{}\n", tensor.name, width, name_of(tensor.dtype), tensor.shape.to_string(),
               kept.empty() ? "" : "  + ", fmt::join(kept, ", "));
  }
}

// "4,096 elements in 12 tensors", "8 workers with 512 elements in 12 tensors each"
std::string tensors_text(const CheckpointContents& contents, int workers) {
  const auto each = fmt::format("{} elements in {} tensors", with_commas(contents.elements / workers),
                                contents.manifest.tensors.size() / static_cast<std::size_t>(workers));
  return workers == 1 ? each : fmt::format("{} workers with {} each", workers, each);
}

void inspect(const std::string& where) {
  const auto contents = inspect_checkpoint(where);
  const auto& manifest = contents.manifest;
  const int workers = workers_of(manifest, contents.directory);
  fmt::print("{}\n", contents.directory.string());
  fmt::print("step {}, written {} by shoal {}: {}, {}\n", manifest.info.step,
             time_written(contents.directory), manifest.info.shoal_version, tensors_text(contents, workers),
             bytes_text(contents.bytes));
  fmt::print("\nmodel\n");
  print_fields(manifest.info.model);
  fmt::print("\nstate of the run\n");
  print_fields(manifest.info.state);

  print_tensors(tensors_of_one_worker(manifest, workers), workers);

  fmt::print("\nfiles\n");
  for (const auto& file : manifest.files) {
    fmt::print("  {}  {}\n", file.name, bytes_text(file.summary.bytes));
  }
}

void verify(const std::string& where) {
  Stopwatch watch;
  const auto faults = verify_checkpoint(where);
  if (faults.size() == 1) fail_user("{}", faults.front());
  if (!faults.empty()) {
    fail_user("{} is damaged, {} faults:\n  {}", where, faults.size(), fmt::join(faults, "\n  "));
  }
  const auto contents = inspect_checkpoint(where);
  const int workers = workers_of(contents.manifest, contents.directory);
  fmt::print("ok: {}, {}, {} read in {}\n", contents.directory.string(), tensors_text(contents, workers),
             bytes_text(contents.bytes), format_duration(watch.seconds()));
}

// Returns an exit code as diff does: 0 when the checkpoints are the same, 1 when they differ.
void compare(const std::string& a, const std::string& b) {
  const auto result = compare_checkpoints(a, b);
  if (result.differences.empty()) {
    fmt::print("the same: {} tensors, bit by bit\n", result.tensors);
    return;
  }
  const auto in_one =
      std::ranges::count_if(result.differences, [](const auto& d) { return d.what.starts_with("only in"); });
  fmt::print("{} and {} differ in {} of {} tensors\n", a, b, result.differences.size(),
             result.tensors + static_cast<std::size_t>(in_one));
  for (const auto& [name, what, elements, largest] : result.differences) {
    fmt::print("{}: {}\n", name,
               !what.empty()
                   ? what
                   : fmt::format("{} elements differ, by {:.3g} at most", with_commas(elements), largest));
  }
  throw CLI::RuntimeError(1);
}

}  // namespace

void add_checkpoint(CLI::App& app) {
  auto* command = add_command(
      app, "checkpoint", "List, inspect, verify and compare checkpoints, or average workers",
      {{"shoal checkpoint list runs/quickstart", "all checkpoints of a run"},
       {"shoal checkpoint inspect runs/quickstart", "the contents of the latest one"},
       {"shoal checkpoint verify runs/quickstart/checkpoints/step-00000500",
        "read every file and compare the checksums"},
       {"shoal checkpoint compare runs/a runs/b", "compare two, also when other numbers of ranks wrote them"},
       {"shoal checkpoint average runs/gossip --out runs/gossip-average",
        "one model from the workers of a gossip run"}});
  command->callback([command] {
    if (!command->get_subcommands().empty()) return;
    fail_user(
        "name an action: `shoal checkpoint list RUN`, `inspect DIR`, `verify DIR`, `compare DIR DIR` or "
        "`average DIR --out DIR`");
  });
  add_checkpoint_list(*command);
  const auto add = [&](const char* name, const char* what, const Examples& examples,
                       void (*run)(const std::string&)) {
    auto where = std::make_shared<std::string>();
    auto* action = add_command(*command, name, what, examples);
    action->add_option("DIR", *where, "A run, or one of its checkpoints")->required();
    action->callback([where, run] { run(*where); });
  };
  add("inspect", "Print step, model, state, tensors and files",
      {{"shoal checkpoint inspect runs/quickstart", "the latest checkpoint of a run"},
       {"shoal checkpoint inspect runs/quickstart/checkpoints/best", "the best one"}},
      inspect);
  add("verify", "Read every file and compare the checksums; exit code 2 if the checkpoint is damaged",
      {{"shoal checkpoint verify runs/quickstart", "the latest checkpoint of a run"},
       {"shoal checkpoint verify runs/quickstart/checkpoints/step-00000500", "another one"}},
      verify);

  auto both = std::make_shared<std::pair<std::string, std::string>>();
  auto* action = add_command(
      *command, "compare", "Compare two checkpoints, tensor by tensor; exit code 1 if they differ",
      {{"shoal checkpoint compare runs/a runs/b", "the latest checkpoints of two runs"},
       {"shoal checkpoint compare runs/a/checkpoints/best runs/a", "two checkpoints of one run"}});
  action->add_option("A", both->first, "A run, or one of its checkpoints")->required();
  action->add_option("B", both->second, "Another one")->required();
  action->callback([both] { compare(both->first, both->second); });
  add_checkpoint_average(*command);
}

}  // namespace shoal::cli
