#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/huggingface.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/torch_file.h"
#include "core/error.h"

namespace shoal {

namespace fs = std::filesystem;

namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxIndex = 64 << 20;

// The two kinds of files, in the order in which they are looked for.
struct FileKind {
  const char* name;  // of the only file; an index is NAME.index.json
  std::unique_ptr<TensorFile> (*open)(const fs::path&);
};
template <typename File>
std::unique_ptr<TensorFile> open_as(const fs::path& path) {
  return std::make_unique<File>(path);
}
constexpr FileKind kFileKinds[] = {{"model.safetensors", open_as<SafetensorsFile>},
                                   {"pytorch_model.bin", open_as<TorchFile>}};

TensorFiles open_shards(const fs::path& index, const FileKind& kind) {
  std::map<std::string, std::string> places;  // of tensors
  try {
    places = json::parse(read_text(index, kMaxIndex)).at("weight_map").get<decltype(places)>();
  } catch (const json::exception& error) {
    fail_user("{} is damaged: {}", index.string(), error.what());
  }
  TensorFiles files;
  std::map<std::string, std::set<std::string_view>> opened;  // names of tensors
  for (const auto& [tensor, name] : places) {
    const auto [at, is_new] = opened.try_emplace(name);
    if (is_new) {
      if (name.empty() || name == ".." || name.find('/') != std::string::npos) {
        fail_user("{} names \"{}\", which is no file beside it", index.string(), name);
      }
      files.push_back(kind.open(index.parent_path() / name));
      for (const auto& stored : files.back()->tensors()) at->second.insert(stored.name);
    }
    if (!at->second.contains(tensor)) {
      fail_user("{} says that tensor \"{}\" is in {}, but it is not", index.string(), tensor, name);
    }
  }
  return files;
}

TensorFiles open_files(const fs::path& folder) {
  for (const auto& kind : kFileKinds) {
    if (fs::exists(folder / kind.name)) {
      TensorFiles files;
      files.push_back(kind.open(folder / kind.name));
      return files;
    }
    const auto index = folder / (std::string(kind.name) + ".index.json");
    if (fs::exists(index)) return open_shards(index, kind);
  }
  fail_user("{} has no {}; put it, or {}, beside config.json", folder.string(), kFileKinds[0].name,
            kFileKinds[1].name);
}

}  // namespace

std::unique_ptr<WeightsReader> open_hugging_face(const fs::path& folder) {
  const auto model = read_hugging_face_model(folder);
  return std::make_unique<WeightsReader>(open_files(folder), model, LinearLayout::in_out, folder,
                                         "config.json");
}

}  // namespace shoal
