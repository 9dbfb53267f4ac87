#include "simulate/disk.h"

#include <algorithm>
#include <fstream>

namespace shoal::simulate {
namespace fs = std::filesystem;

namespace {

constexpr std::size_t kSector = 512;  // is written whole or not at all

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::string bytes(file ? static_cast<std::size_t>(file.tellg()) : 0, '\0');
  file.seekg(0).read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

// A file that was being written: its size and every sector of it are those of before or after.
std::string torn(const std::string& before, const std::string& after, Random& random) {
  const auto sizes = std::minmax({before.size(), after.size()});
  std::string found(sizes.first + static_cast<std::size_t>(random.below(
                                      static_cast<std::int64_t>(sizes.second - sizes.first) + 1)),
                    '\0');
  for (std::size_t begin = 0; begin < found.size(); begin += kSector) {
    const auto& from = random.chance(0.5) ? before : after;
    const auto end = std::min({begin + kSector, found.size(), from.size()});
    if (begin < end) found.replace(begin, end - begin, from, begin, end - begin);
  }
  return found;
}

}  // namespace

Disk::Disk(fs::path root) : root_(std::move(root)), tree_(read_tree(root_)) {}

Disk::NodePointer Disk::read_tree(const fs::path& path) {
  auto node = std::make_shared<Node>();
  if (fs::is_symlink(path)) {
    node->kind = Node::Kind::link;
    node->content = fs::read_symlink(path).string();
  } else if (fs::is_directory(path)) {
    node->kind = Node::Kind::folder;
    for (const auto& entry : fs::directory_iterator(path)) {
      node->now[entry.path().filename().string()] = read_tree(entry.path());
    }
    node->durable = node->now;
  } else {
    node->content = read_file(path);
  }
  return node;
}

bool Disk::has(const fs::path& path) const {
  const auto text = path.lexically_normal().string(), root = root_.string();
  return text.starts_with(root) && (text.size() == root.size() || text[root.size()] == '/');
}

Disk::NodePointer Disk::find(const fs::path& path) const {
  const auto relative = path.lexically_normal().lexically_relative(root_);
  auto node = tree_;
  for (const auto& part : relative) {
    if (part == "." || part.empty()) continue;
    const auto found = node->now.find(part.string());
    if (found == node->now.end()) return nullptr;
    node = found->second;
  }
  return node;
}

// Gives a name of a folder to a node, or with null takes it away.
void Disk::set(const fs::path& path, NodePointer node) {
  const auto folder = find(path.parent_path());
  if (!folder) return;
  const auto name = path.filename().string();
  folder->changes.push_back({{name, node}});
  if (node) {
    folder->now[name] = std::move(node);
  } else {
    folder->now.erase(name);
  }
}

void Disk::opened(const fs::path& path, bool emptied) {
  const auto node = find(path);
  if (!node) {
    set(path, std::make_shared<Node>(Node{.dirty = true}));
  } else if (emptied) {
    node->dirty = true;
  }
}

void Disk::opened_stream(const fs::path& path) {
  opened(path, true);
  if (const auto node = find(path)) node->stream = true;
}

void Disk::made_folder(const fs::path& path) {
  set(path, std::make_shared<Node>(Node{.kind = Node::Kind::folder}));
}

void Disk::made_link(const fs::path& path, const std::string& target) {
  set(path, std::make_shared<Node>(Node{.kind = Node::Kind::link, .content = target}));
}

void Disk::changed(const fs::path& path) {
  if (const auto node = find(path)) node->dirty = true;
}

// The name on the disk may outlive the one in the cache, so the content is needed later.
void Disk::note_content(const NodePointer& node, const fs::path& path) {
  if (node && node->kind == Node::Kind::file && node->dirty) node->last = read_file(path);
}

void Disk::about_to_remove(const fs::path& path) { note_content(find(path), path); }

void Disk::removed(const fs::path& path) { set(path, nullptr); }

void Disk::renamed(const fs::path& from, const fs::path& to) {
  const auto node = find(from), folder = find(to.parent_path());
  if (!node || !folder) return;
  if (from.parent_path() != to.parent_path()) {
    set(to, node);
    return set(from, nullptr);
  }
  const auto old = from.filename().string(), name = to.filename().string();
  folder->changes.push_back({{old, nullptr}, {name, node}});
  folder->now.erase(old);
  folder->now[name] = node;
}

void Disk::swapped(const fs::path& one, const fs::path& other) {
  const auto folder = find(one.parent_path()), first = find(one), second = find(other);
  if (!folder || !first || !second) return;
  const auto name = one.filename().string(), other_name = other.filename().string();
  folder->changes.push_back({{name, second}, {other_name, first}});
  folder->now[name] = second;
  folder->now[other_name] = first;
}

void Disk::synced(const fs::path& path) {
  const auto node = find(path);
  if (!node) return;
  if (node->kind == Node::Kind::folder) {
    node->durable = node->now;
    node->changes.clear();
  } else {
    node->content = read_file(path);
    node->dirty = node->stream;
  }
}

// Before the folder is emptied: the newest content of every file that has a name.
void Disk::remember_contents(const NodePointer& folder, const fs::path& path) {
  for (const auto& [name, node] : folder->now) {
    if (node->kind == Node::Kind::folder) {
      remember_contents(node, path / name);
    } else {
      note_content(node, path / name);
    }
  }
}

void Disk::keep_some_changes(const NodePointer& folder, Random& random) {
  const double share = random.chance(0.3) ? 0 : random.chance(0.4) ? 1 : random.share();
  for (const auto& change : folder->changes) {
    if (!random.chance(share)) continue;
    for (const auto& [name, node] : change) {
      if (node) {
        folder->durable[name] = node;
      } else {
        folder->durable.erase(name);
      }
    }
  }
  for (const auto& [name, node] : folder->durable) {
    if (node->kind == Node::Kind::folder) keep_some_changes(node, random);
  }
}

void Disk::write_tree(const NodePointer& folder, const fs::path& path, Random& random) {
  for (const auto& [name, node] : folder->durable) {
    const auto at = path / name;
    if (node->kind == Node::Kind::folder) {
      fs::create_directory(at);
      write_tree(node, at, random);
    } else if (node->kind == Node::Kind::link) {
      fs::create_symlink(node->content, at);
    } else {
      const auto& newest = node->dirty && node->last ? *node->last : node->content;
      const auto found = random.chance(0.3)   ? node->content
                         : random.chance(0.3) ? newest
                                              : torn(node->content, newest, random);
      std::ofstream(at, std::ios::binary) << found;
    }
  }
}

void Disk::cut_power(Random& random) {
  remember_contents(tree_, root_);
  keep_some_changes(tree_, random);
  for (const auto& entry : fs::directory_iterator(root_)) fs::remove_all(entry.path());
  write_tree(tree_, root_, random);
}

}  // namespace shoal::simulate
