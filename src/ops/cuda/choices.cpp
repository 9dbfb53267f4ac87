#include "ops/cuda/choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>

namespace shoal::cuda {
namespace {

// The version of the format: the alternatives, and how a choice is written.
constexpr int kFormat = 2;

std::string file_name(std::string gpu) {
  const auto plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  };
  std::replace_if(
      gpu.begin(), gpu.end(), [&](char c) { return !plain(c); }, '-');
  return fmt::format("products-{}-cublaslt-{}-{}.txt", kFormat, cublasLtGetVersion(), gpu);
}

struct Process {
  std::mutex mutex;
  std::map<std::string, Algorithm> known;  // by file and key

  static Process& all() {
    static Process process;
    return process;
  }
};

}  // namespace

Choices::Choices(const std::filesystem::path& folder, const std::string& gpu)
    : name_(folder / file_name(gpu)), shared_(folder.empty() ? "" : name_) {}

std::optional<Algorithm> Choices::find(const ProductKey& key, const CanUse& can_use) const {
  const std::string text = key.text();
  auto& process = Process::all();
  const std::lock_guard lock(process.mutex);
  if (const auto known = process.known.find(name_ + text); known != process.known.end()) return known->second;
  const auto value = shared_.find(text);
  const auto algorithm = value ? algorithm_of(*value) : std::nullopt;
  if (!algorithm || !can_use(*algorithm)) return std::nullopt;
  return process.known.emplace(name_ + text, *algorithm).first->second;
}

Algorithm Choices::find_or_measure(const ProductKey& key, const CanUse& can_use,
                                   const std::function<Algorithm()>& measure) const {
  const std::string text = key.text();
  auto& process = Process::all();
  const std::lock_guard lock(process.mutex);
  if (const auto known = process.known.find(name_ + text); known != process.known.end()) return known->second;
  const auto valid = [&](std::string_view value) {
    const auto algorithm = algorithm_of(value);
    return algorithm && can_use(*algorithm);
  };
  const auto value = shared_.find_or_make(text, valid, [&] { return text_of(measure()); });
  return process.known.emplace(name_ + text, algorithm_of(value).value()).first->second;
}

Algorithm Choices::keep(const ProductKey& key, const Algorithm& algorithm) const {
  auto& process = Process::all();
  const std::lock_guard lock(process.mutex);
  return process.known.emplace(name_ + key.text(), algorithm).first->second;
}

}  // namespace shoal::cuda
