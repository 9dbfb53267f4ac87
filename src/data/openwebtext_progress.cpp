#include "data/openwebtext_progress.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kName = "progress.json";

json to_json(const SplitMeta& split) { return {{"tokens", split.tokens}, {"xxh64", split.xxh64}}; }

SplitMeta split_from(const json& object) {
  return {object.at("tokens").get<std::int64_t>(), object.at("xxh64").get<std::uint64_t>(), {}};
}

json to_json(const FileCount& files) { return {{"count", files.count}, {"first", files.first}}; }

json to_json(const OddFiles& odd) {
  return {{"skipped", to_json(odd.skipped)},
          {"not_utf8", to_json(odd.not_utf8)},
          {"endless_tars", to_json(odd.endless_tars)}};
}

FileCount files_from(const json& kinds, const char* key) {
  if (!kinds.contains(key)) return {};  // saved by an older version
  const auto& object = kinds.at(key);
  return {object.at("count").get<std::int64_t>(), object.at("first").get<std::string>()};
}

OddFiles odd_from(const json& progress, const char* key) {
  if (!progress.contains(key)) return {};  // saved by an older version
  const auto& kinds = progress.at(key);
  return {.skipped = files_from(kinds, "skipped"),
          .not_utf8 = files_from(kinds, "not_utf8"),
          .endless_tars = files_from(kinds, "endless_tars")};
}

void write_synced(const fs::path& path, const std::string& text) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"), std::fclose);
  if (!file || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() ||
      std::fflush(file.get()) != 0 || fsync(fileno(file.get())) != 0) {
    fail("{}: cannot be written: {}", path.string(), std::strerror(errno));
  }
}

}  // namespace

void save_progress(const fs::path& folder, const std::string& settings, const OpenWebTextProgress& progress) {
  const auto& place = progress.place;
  const json object = {{"settings", settings},
                       {"files", place.files},
                       {"files_hash", place.files_hash},
                       {"tasks", place.tasks},
                       {"tasks_hash", place.tasks_hash},
                       {"input_bytes", place.input_bytes},
                       {"odd", to_json(place.odd)},
                       {"documents", progress.documents},
                       {"odd_in_parcels", to_json(progress.odd_in_parcels)},
                       {"train", to_json(progress.train)},
                       {"val", to_json(progress.val)}};
  const auto path = folder / kName, fresh = folder / "progress.json.new";
  write_synced(fresh, object.dump(1) + "\n");
  if (std::rename(fresh.c_str(), path.c_str()) != 0) {
    fail("{}: cannot be written: {}", path.string(), std::strerror(errno));
  }
}

bool has_progress(const fs::path& folder) {
  std::error_code absent;
  return fs::exists(folder / kName, absent);
}

OpenWebTextProgress load_progress(const fs::path& folder, const std::string& settings) {
  OpenWebTextProgress progress;
  std::string saved;
  try {
    const auto object = json::parse(read_text(folder / kName, 1 << 30));
    saved = object.at("settings").get<std::string>();
    auto& place = progress.place;
    object.at("files").get_to(place.files);
    object.at("files_hash").get_to(place.files_hash);
    object.at("tasks").get_to(place.tasks);
    object.at("tasks_hash").get_to(place.tasks_hash);
    object.at("input_bytes").get_to(place.input_bytes);
    place.odd = odd_from(object, "odd");
    object.at("documents").get_to(progress.documents);
    progress.odd_in_parcels = odd_from(object, "odd_in_parcels");
    progress.train = split_from(object.at("train"));
    progress.val = split_from(object.at("val"));
  } catch (const json::exception&) {
    fail_user("{}: cannot be read; remove {} to start over", (folder / kName).string(), folder.string());
  }
  if (saved != settings) {
    fail_user(
        "{} holds an interrupted preparation with other settings or another input ({}, now {}); give the "
        "same to resume it, or remove it to start over",
        folder.string(), saved, settings);
  }
  return progress;
}

void remove_progress(const fs::path& folder) { fs::remove(folder / kName); }

}  // namespace shoal
