// A folder, and what a power cut would leave of it. The folder itself is real (on tmpfs) and always up to
// date, as the page cache is; this keeps account of what POSIX promises to be on the disk: a file's content
// since its last fsync, a folder's names since the folder's. After a power cut any part of what is newer may
// be there: any of a folder's changes, any sectors of a file.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "simulate/scheduler.h"

namespace shoal::simulate {

class Disk {
 public:
  // The folder's contents count as being on the disk.
  explicit Disk(std::filesystem::path root);

  bool has(const std::filesystem::path& path) const;

  // The calls of the system, told when they have succeeded; removals and renames before as well, for what
  // they take away.
  void opened(const std::filesystem::path& path, bool emptied);
  void opened_stream(const std::filesystem::path& path);  // whose changes nobody tells
  void made_folder(const std::filesystem::path& path);
  void made_link(const std::filesystem::path& path, const std::string& target);
  void changed(const std::filesystem::path& path);
  void about_to_remove(const std::filesystem::path& path);
  void removed(const std::filesystem::path& path);
  void renamed(const std::filesystem::path& from, const std::filesystem::path& to);
  void swapped(const std::filesystem::path& one, const std::filesystem::path& other);  // of one folder
  void synced(const std::filesystem::path& path);

  // Makes the folder what a power cut now would leave of it.
  void cut_power(Random& random);

 private:
  struct Node;
  using NodePointer = std::shared_ptr<Node>;
  using Names = std::map<std::string, NodePointer>;
  using Change =
      std::vector<std::pair<std::string, NodePointer>>;  // of names, at once; null: the name is gone
  struct Node {
    enum class Kind : std::uint8_t { file, folder, link } kind = Kind::file;
    Names now = {}, durable = {};          // of a folder
    std::vector<Change> changes = {};      // since its last fsync
    std::string content = {};              // of a file, as it is on the disk; of a link its target
    bool dirty = false;                    // the file has changed since, or
    bool stream = false;                   // may have
    std::optional<std::string> last = {};  // the content when its last name went
  };

  NodePointer read_tree(const std::filesystem::path& path);
  NodePointer find(const std::filesystem::path& path) const;
  void set(const std::filesystem::path& path, NodePointer node);
  void note_content(const NodePointer& node, const std::filesystem::path& path);
  void remember_contents(const NodePointer& folder, const std::filesystem::path& path);
  void keep_some_changes(const NodePointer& folder, Random& random);
  void write_tree(const NodePointer& folder, const std::filesystem::path& path, Random& random);

  std::filesystem::path root_;
  NodePointer tree_;
};

}  // namespace shoal::simulate
