#include "data/wikitext.h"

#include <algorithm>
#include <array>
#include <optional>

#include "core/error.h"
#include "data/archive.h"
#include "data/byte_source.h"
#include "data/download.h"
#include "data/prepare_texts.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using Fault = PrepareError::Fault;

// The names in one edition of WikiText.
class Edition {
 public:
  Edition(const std::string& dataset, bool unk)
      : folder(dataset + (unk ? "" : "-raw")),
        archive(folder + "-v1.zip"),
        ending_(unk ? ".tokens" : ".raw") {}

  std::string file(Split split) const {
    constexpr std::array kNames = {"train", "valid", "test"};
    return std::string("wiki.") + kNames[static_cast<std::size_t>(split)] + ending_;
  }

  const std::string folder;  // of its files in the archive
  const std::string archive;

 private:
  std::string ending_;
};

constexpr std::array kSplits = {Split::train, Split::val, Split::test};

class WikiText {
 public:
  explicit WikiText(const PrepareOptions& options)
      : edition_(options.dataset, options.unk), other_(options.dataset, !options.unk), unk_(options.unk) {}

  SplitSources in_archive(const fs::path& archive) const {
    const auto members = members_of(archive);
    SplitSources sources;
    for (const auto split : kSplits) {
      const auto member = with_name(members, edition_.file(split));
      if (!member)
        fail_without(archive, edition_.file(split), with_name(members, other_.file(split)).has_value());
      require_edition(archive, member->parent_path().filename().string());
      sources[static_cast<std::size_t>(split)] = {{archive}, edition_.file(split)};
    }
    return sources;
  }

  SplitSources in_folder(const fs::path& folder) const {
    for (const auto& place : {folder, folder / edition_.folder}) {
      if (!fs::exists(place / edition_.file(Split::train))) continue;
      require_edition(place, plain_name(place));
      SplitSources sources;
      for (const auto split : kSplits) {
        const auto file = place / edition_.file(split);
        if (!fs::exists(file)) fail_without(place, edition_.file(split), false);
        sources[static_cast<std::size_t>(split)] = {{file}};
      }
      return sources;
    }
    if (fs::exists(folder / edition_.archive)) return in_archive(folder / edition_.archive);
    const bool other = fs::exists(folder / other_.file(Split::train)) ||
                       fs::exists(folder / other_.folder / other_.file(Split::train)) ||
                       fs::exists(folder / other_.archive);
    fail_without(folder, fmt::format("{} and no {}", edition_.file(Split::train), edition_.archive), other);
  }

  const std::string& archive() const { return edition_.archive; }

 private:
  static std::string plain_name(const fs::path& folder) {
    const auto path = fs::weakly_canonical(folder);
    return (path.has_filename() ? path : path.parent_path()).filename().string();
  }

  static std::vector<fs::path> members_of(const fs::path& file) {
    if (!is_archive_name(file.string())) {
      fail_user("{} is neither a folder nor an archive, by its name", file.string());
    }
    FileSource source(file);
    Archive archive(source, file.string());
    std::vector<fs::path> members;
    while (archive.next()) members.emplace_back(archive.member());
    return members;
  }

  static std::optional<fs::path> with_name(const std::vector<fs::path>& members, const std::string& name) {
    const auto found =
        std::ranges::find_if(members, [&](const auto& path) { return path.filename() == name; });
    return found == members.end() ? std::nullopt : std::optional(*found);
  }

  // The editions' files have the same names; the folder that they are distributed in tells them apart.
  void require_edition(const fs::path& where, const std::string& folder) const {
    const auto size =
        edition_.folder.substr(0, edition_.folder.find("-raw"));  // files' endings tell the rest
    if (!folder.starts_with("wikitext-") || folder.starts_with(size)) return;
    fail_user("{} holds {}, not {}", where.string(), folder, edition_.folder);
  }

  [[noreturn]] void fail_without(const fs::path& where, const std::string& missing, bool other) const {
    if (!other) fail_user("{} has no {}", where.string(), missing);
    throw PrepareError(unk_ ? Fault::only_raw : Fault::only_unk,
                       fmt::format("{} holds the {}, not the {}", where.string(),
                                   unk_ ? "raw text" : "text with <unk> for rare words",
                                   unk_ ? "one with <unk> for rare words" : "raw one"));
  }

  Edition edition_, other_;
  bool unk_;
};

}  // namespace

DatasetMeta prepare_wikitext(const PrepareOptions& options, int threads) {
  const WikiText wikitext(options);
  if (options.inputs.empty()) {
    const auto& file = remote_file(wikitext.archive());
    return prepare_texts(options, wikitext.in_archive(fetch(file, options.fetch)), threads,
                         {std::string(file.url)});
  }
  const auto& given = options.inputs.front();
  if (options.inputs.size() > 1) {
    fail_user("{}: {} is one file or folder", options.inputs[1].string(), options.dataset);
  }
  std::error_code ignored;
  if (!fs::exists(given, ignored)) fail_user("{}: no such file or folder", given.string());
  return prepare_texts(options,
                       fs::is_directory(given) ? wikitext.in_folder(given) : wikitext.in_archive(given),
                       threads, {given.string()});
}

}  // namespace shoal
