// Distinct words, and how often each has come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// A hash table with open addressing. Words are byte strings of less than 4 GiB each, at most 2^32 - 2 of
// them.
class WordTable {
 public:
  void add(std::string_view word, std::int64_t count = 1);
  void add(const WordTable& other);

  std::size_t size() const { return entries_.size(); }
  // Words are numbered in the order in which they first came.
  std::string_view word(std::size_t i) const {
    return std::string_view(text_).substr(entries_[i].begin, entries_[i].length);
  }
  std::int64_t count(std::size_t i) const { return entries_[i].count; }
  std::size_t text_bytes() const { return text_.size(); }  // of all words together
  std::size_t bytes() const;                               // of memory

 private:
  struct Entry {
    std::uint64_t hash;
    std::int64_t count;
    std::size_t begin;  // in text_
    std::uint32_t length;
  };

  void add(std::string_view word, std::uint64_t hash, std::int64_t count);
  std::size_t slot_of(std::string_view word, std::uint64_t hash) const;
  void grow();

  std::string text_;
  std::vector<Entry> entries_;
  // At most half full: the upper half of the hash and the entry's number from 1 on; 0 is empty.
  std::vector<std::uint64_t> slots_;
};

}  // namespace shoal
