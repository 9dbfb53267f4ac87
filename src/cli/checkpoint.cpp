// shoal checkpoint: what a checkpoint holds, and whether it is whole.
#include <algorithm>
#include <memory>

#include "checkpoint/reader.h"
#include "cli/command.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/text.h"

namespace shoal::cli {
namespace {

using nlohmann::json;

std::string bytes_text(std::uint64_t bytes) {
  return fmt::format("{} ({} bytes)", format_bytes(static_cast<double>(bytes)),
                     with_commas(static_cast<std::int64_t>(bytes)));
}

// A list of numbers is told by its length, the tokenizer by its name: its text may be of megabytes.
std::string value_text(const std::string& key, const json& value) {
  if (key == "tokenizer" && value.is_string()) {
    if (value.get_ref<const std::string&>().empty()) return "none";
    const auto tokenizer = json::parse(value.get_ref<const std::string&>(), nullptr, false);
    if (tokenizer.is_object()) return tokenizer.value("name", "unknown");
    return "unreadable";
  }
  if (value.is_array()) return fmt::format("{} values", value.size());
  if (value.is_number_integer()) return with_commas(value.get<std::int64_t>());
  if (value.is_number()) return fmt::format("{:.6g}", value.get<double>());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

void print_fields(const char* title, const json& fields) {
  fmt::print("\n{}\n", title);
  for (const auto& [key, value] : fields.items()) fmt::print("  {:<16} {}\n", key, value_text(key, value));
}

void inspect(const std::string& where) {
  const auto contents = inspect_checkpoint(where);
  const auto& manifest = contents.manifest;
  fmt::print("{}\n", contents.directory.string());
  fmt::print("step {}, written by shoal {}; {} numbers in {} tensors, {}\n", manifest.info.step,
             manifest.info.shoal_version, with_commas(contents.elements), manifest.tensors.size(),
             bytes_text(contents.bytes));
  print_fields("model", manifest.info.model);
  print_fields("state of the run", manifest.info.state);

  std::size_t width = 0;
  for (const auto& tensor : manifest.tensors) width = std::max(width, tensor.name.size());
  fmt::print("\ntensors\n");
  for (const auto& tensor : manifest.tensors) {
    fmt::print("  {:<{}}  {:<8}  {}\n", tensor.name, width, name_of(tensor.dtype), tensor.shape.to_string());
  }
  fmt::print("\nfiles\n");
  for (const auto& file : manifest.files) {
    fmt::print("  {}  {}\n", file.name, bytes_text(file.summary.bytes));
  }
}

void verify(const std::string& where) {
  Stopwatch watch;
  const auto faults = verify_checkpoint(where);
  if (faults.size() == 1) fail_user("{} is damaged: {}", where, faults.front());
  if (!faults.empty()) {
    fail_user("{} is damaged, {} faults:\n  {}", where, faults.size(), fmt::join(faults, "\n  "));
  }
  const auto contents = inspect_checkpoint(where);
  fmt::print("ok: {}, {} tensors, {} read in {}\n", contents.directory.string(),
             contents.manifest.tensors.size(), bytes_text(contents.bytes), format_duration(watch.seconds()));
}

}  // namespace

void add_checkpoint(CLI::App& app) {
  auto* command = add_command(app, "checkpoint", "Look into checkpoints, or check that they are whole",
                              {{"shoal checkpoint inspect runs/quickstart", "the latest of a run"},
                               {"shoal checkpoint verify runs/quickstart/checkpoints/step-00000500",
                                "reads all of it and compares checksums"}});
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* what, void (*run)(const std::string&)) {
    auto where = std::make_shared<std::string>();
    auto* action = command->add_subcommand(name, what)->group("Commands");
    action->add_option("where", *where, "A run, or one of its checkpoints")->required()->option_text("DIR");
    action->callback([where, run] { run(*where); });
  };
  add("inspect", "Print step, model, state, tensors and files", inspect);
  add("verify", "Read all of it and compare checksums; exit code 2 when damaged", verify);
}

}  // namespace shoal::cli
