#include "checkpoint/workers.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/json_integer.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "worker.";

struct WorkerName {
  int worker;
  std::string_view name;
};

// Nothing where it is not as worker_tensor_name makes it.
std::optional<WorkerName> split(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto number = name.substr(kPrefix.size());
  WorkerName parts{};
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), parts.worker);
  const auto digits = static_cast<std::size_t>(end - number.data());
  if (error != std::errc() || parts.worker < 0 || digits + 1 >= number.size()) return std::nullopt;
  parts.name = number.substr(digits + 1);
  return worker_tensor_name(parts.worker, parts.name) == name ? std::optional(parts) : std::nullopt;
}

int stated_workers(const nlohmann::json& state, const fs::path& directory) {
  const auto found = state.find(kWorkersField);
  if (found == state.end()) return 1;
  if (const auto number = integer_of<int>(*found); number && *number >= 1) return *number;
  fail_user("the checkpoint {} cannot be used: it says that it is of {} workers", directory.string(),
            found->dump());
}

void require_same_tensors(const Manifest& manifest, int workers, const fs::path& directory) {
  const auto refuse = [&](const std::string& why) {
    fail_user("the checkpoint {} cannot be used: it says that it is of {} workers, but {}",
              directory.string(), workers, why);
  };
  if (static_cast<std::size_t>(workers) > manifest.tensors.size()) {
    refuse(fmt::format("there are {} tensors", manifest.tensors.size()));
  }
  std::map<std::string_view, std::vector<const TensorRecord*>> by_name;
  for (const auto& tensor : manifest.tensors) {
    const auto parts = split(tensor.name);
    if (!parts) refuse(fmt::format("tensor \"{}\" is of none", tensor.name));
    if (parts->worker >= workers) refuse(fmt::format("there is a tensor \"{}\"", tensor.name));
    by_name[parts->name].push_back(&tensor);
  }
  for (const auto& [name, tensors] : by_name) {
    const auto& first = *tensors.front();
    for (const auto* tensor : tensors) {
      if (tensor->dtype == first.dtype && tensor->shape == first.shape) continue;
      refuse(fmt::format("\"{}\" is {} {} and \"{}\" is {} {}", first.name, name_of(first.dtype),
                         first.shape.to_string(), tensor->name, name_of(tensor->dtype),
                         tensor->shape.to_string()));
    }
    if (tensors.size() == static_cast<std::size_t>(workers)) continue;
    std::vector<bool> there(static_cast<std::size_t>(workers));
    for (const auto* tensor : tensors) there[static_cast<std::size_t>(split(tensor->name)->worker)] = true;
    const auto missing = std::find(there.begin(), there.end(), false) - there.begin();
    refuse(fmt::format("there is no tensor \"{}\"", worker_tensor_name(static_cast<int>(missing), name)));
  }
}

}  // namespace

std::string worker_tensor_name(int worker, std::string_view name) {
  return fmt::format("{}{}.{}", kPrefix, worker, name);
}

int workers_of(const Manifest& manifest, const fs::path& directory) {
  const int workers = stated_workers(manifest.info.state, directory);
  if (workers > 1) {
    require_same_tensors(manifest, workers, directory);
    return workers;
  }
  for (const auto& tensor : manifest.tensors) {
    if (!split(tensor.name)) continue;
    fail_user(
        "the checkpoint {} cannot be used: it has a tensor \"{}\", but does not say of how many workers",
        directory.string(), tensor.name);
  }
  return 1;
}

std::vector<TensorRecord> tensors_of_one_worker(const Manifest& manifest, int workers) {
  std::vector<TensorRecord> tensors;
  for (const auto& tensor : manifest.tensors) {
    if (workers == 1) {
      tensors.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
    } else if (const auto parts = split(tensor.name); parts && parts->worker == 0) {
      tensors.push_back({std::string(parts->name), tensor.dtype, tensor.shape, {}});
    }
  }
  return tensors;
}

}  // namespace shoal
