#include "data/token_folder.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "core/error.h"
#include "core/text.h"
#include "data/errors.h"
#include "data/nanogpt_meta.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kGpt2Vocabulary = 50'257;

// A split's files in the order of their names.
using SplitFiles = std::map<std::string, std::vector<fs::path>>;

struct ShardName {
  std::string set, split;
};

// The parts of NAME_train.bin or NAME_train_000001.bin; nullopt for other names.
std::optional<ShardName> parse_shard_name(std::string_view name) {
  if (!name.ends_with(".bin")) return std::nullopt;
  name.remove_suffix(4);
  const auto last = name.find_last_not_of("0123456789");
  if (last != std::string_view::npos && last + 1 < name.size() && name[last] == '_')
    name = name.substr(0, last);
  for (const std::string split : {"train", "val", "test"}) {
    if (name.ends_with("_" + split))
      return ShardName{std::string(name.substr(0, name.size() - split.size() - 1)), split};
  }
  return std::nullopt;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (!it->path().filename().string().starts_with('.')) paths.push_back(it->path());
  }
  if (error) fail_user("{}: the folder cannot be read: {}", folder.string(), error.message());
  std::sort(paths.begin(), paths.end());
  return paths;
}

[[noreturn]] void fail_without_tokens(const fs::path& folder, const std::vector<fs::path>& entries) {
  if (entries.empty()) {
    throw DataError(DataError::Fault::empty, folder, "the folder is empty");
  }
  throw DataError(DataError::Fault::no_dataset, folder,
                  fmt::format("no dataset but other files, such as {}", entries.front().filename().string()));
}

SplitFiles llmc_files(const fs::path& folder) {
  const auto entries = entries_of(folder);
  std::map<std::string, SplitFiles> sets;
  for (const auto& path : entries) {
    if (const auto name = parse_shard_name(path.filename().string()))
      sets[name->set][name->split].push_back(path);
  }
  if (sets.empty()) fail_without_tokens(folder, entries);
  std::string names;
  const SplitFiles* found = nullptr;
  int complete = 0;
  for (const auto& [name, files] : sets) {
    if (!files.contains("train") || !files.contains("val")) continue;
    names += (complete++ > 0 ? ", " : "") + name;
    found = &files;
  }
  if (complete > 1) {
    fail_user("{}: holds several datasets ({}); give each a folder of its own", folder.string(), names);
  }
  if (complete == 0) {
    const auto& [name, files] = *sets.begin();
    const bool train = files.contains("train");
    fail_user("{}: has {} but no {}_{}*.bin; a dataset needs both train and val files", folder.string(),
              files.begin()->second.front().filename().string(), name, train ? "val" : "train");
  }
  return *found;
}

TokenFolder open_llmc(const SplitFiles& files) {
  TokenFolder result;
  std::size_t count = 0;
  for (const auto& [split, paths] : files) {
    const TokenFile& file = result.splits.emplace(split, paths).first->second;
    count += file.files();
    const auto& first = result.splits.begin()->second;
    if (file.header()->tokenizer != first.header()->tokenizer) {
      fail_user("{} holds {} tokens, {} {}; the splits of a dataset have one tokenizer",
                first.path().string(), first.header()->tokenizer, file.path().string(),
                file.header()->tokenizer);
    }
  }
  const auto& header = *result.splits.begin()->second.header();
  result.vocab_size = header.vocab_size;
  result.description = fmt::format("{} of llm.c in {}'s tokens",
                                   count == 1 ? "a file" : fmt::format("{} files", count), header.tokenizer);
  return result;
}

TokenFolder open_nanogpt(const fs::path& folder, const SplitFiles& files) {
  TokenFolder result;
  for (const auto& [split, paths] : files) {
    result.splits.emplace(std::piecewise_construct, std::forward_as_tuple(split),
                          std::forward_as_tuple(paths.front(), 2));
  }
  const auto meta = folder / "meta.pkl";
  if (fs::exists(meta)) {
    const auto vocabulary = read_nanogpt_meta(meta);
    result.tokenizer = vocabulary->to_json().dump();
    result.vocab_size = vocabulary->vocab_size();
    result.description =
        fmt::format("files of nanoGPT with the {} characters of meta.pkl", result.vocab_size);
    return result;
  }
  result.vocab_size = kGpt2Vocabulary;
  result.assumed_vocabulary = true;
  result.description = "files of uint16 as nanoGPT writes them";
  return result;
}

}  // namespace

void require_data_folder(const fs::path& folder) {
  std::error_code ignored;
  if (fs::is_directory(folder, ignored)) return;
  if (fs::exists(folder, ignored)) throw DataError(DataError::Fault::file, folder, "a file, not a folder");
  throw DataError(DataError::Fault::missing, folder, "no such data folder");
}

TokenFolder open_token_folder(const fs::path& folder) {
  SplitFiles plain;
  for (const std::string split : {"train", "val", "test"}) {
    const auto path = folder / (split + ".bin");
    if (fs::exists(path)) plain[split] = {path};
  }
  if (!plain.contains("train") && !plain.contains("val")) return open_llmc(llmc_files(folder));
  for (const std::string split : {"train", "val"}) plain[split] = {folder / (split + ".bin")};
  const auto& train = plain["train"].front();
  return fs::is_regular_file(train) && has_llmc_header(train) ? open_llmc(plain)
                                                              : open_nanogpt(folder, plain);
}

}  // namespace shoal
