#include "data/word_table.h"

#include <xxhash.h>

#include <algorithm>

namespace shoal {
namespace {

constexpr std::size_t kFirstSlots = 1 << 10;  // a power of two
constexpr std::uint64_t kUpperHalf = 0xFFFFFFFF00000000;

}  // namespace

void WordTable::add(std::string_view word, std::int64_t count) {
  add(word, XXH3_64bits(word.data(), word.size()), count);
}

void WordTable::add(const WordTable& other) {
  for (std::size_t i = 0; i < other.size(); ++i) add(other.word(i), other.entries_[i].hash, other.count(i));
}

std::size_t WordTable::bytes() const {
  return text_.capacity() + entries_.capacity() * sizeof(Entry) + slots_.size() * sizeof(slots_[0]);
}

void WordTable::add(std::string_view word, std::uint64_t hash, std::int64_t count) {
  if (2 * entries_.size() >= slots_.size()) grow();
  auto& slot = slots_[slot_of(word, hash)];
  if (slot != 0) {
    entries_[(slot & ~kUpperHalf) - 1].count += count;
    return;
  }
  entries_.push_back({hash, count, text_.size(), static_cast<std::uint32_t>(word.size())});
  text_ += word;
  slot = (hash & kUpperHalf) | entries_.size();
}

// The slot of the word, or the empty slot for it.
std::size_t WordTable::slot_of(std::string_view word, std::uint64_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash & mask;
  for (; slots_[at] != 0; at = (at + 1) & mask) {
    if (((slots_[at] ^ hash) & kUpperHalf) == 0 && this->word((slots_[at] & ~kUpperHalf) - 1) == word) break;
  }
  return at;
}

void WordTable::grow() {
  slots_.assign(std::max(kFirstSlots, 2 * slots_.size()), 0);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    std::size_t at = entries_[i].hash & mask;
    while (slots_[at] != 0) at = (at + 1) & mask;
    slots_[at] = (entries_[i].hash & kUpperHalf) | (i + 1);
  }
}

}  // namespace shoal
