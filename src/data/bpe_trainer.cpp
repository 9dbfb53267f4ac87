#include "data/bpe_trainer.h"

#include <limits>
#include <optional>
#include <queue>
#include <utility>

#include "core/error.h"
#include "data/byte_alphabet.h"
#include "data/byte_pairs.h"

namespace shoal {
namespace {

constexpr std::int64_t kLeastCount = 2;  // of a pair that is merged
constexpr std::int32_t kEdge = -1;       // between two words
constexpr std::int32_t kInside = -2;     // the former start of a token that was merged into the one before it

// Numbers pairs of tokens from 0 on. A hash table with open addressing, at most half full.
class PairNumbers {
 public:
  // The number of a pair; a new pair gets `next`.
  std::uint32_t find_or_add(std::int32_t left, std::int32_t right, std::uint32_t next) {
    if (2 * std::size_t{next} >= slots_.size()) grow();
    const auto key = static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint64_t>(right);
    Slot& slot = slots_[slot_of(key)];
    if (slot.number == kNone) slot = {key, next};
    return slot.number;
  }

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  struct Slot {
    std::uint64_t key = 0;
    std::uint32_t number = kNone;
  };

  std::size_t slot_of(std::uint64_t key) const {
    const std::size_t mask = slots_.size() - 1;
    // The upper bits of a product depend on all bits of both factors.
    std::size_t at = (key * 0x9E3779B97F4A7C15 >> 32) & mask;
    while (slots_[at].number != kNone && slots_[at].key != key) at = (at + 1) & mask;
    return at;
  }
  void grow() {
    const auto old = std::exchange(slots_, std::vector<Slot>(slots_.empty() ? 1 << 12 : 2 * slots_.size()));
    for (const Slot& slot : old) {
      if (slot.number != kNone) slots_[slot_of(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
};

// The words lie in one array, a position per byte, with an edge before each and after the last. The positions
// of a token's first and last byte hold its id, so that neighbours are found in both directions; those
// between hold what is never read.
class BpeTrainer {
 public:
  BpeTrainer(const WordTable& words, std::size_t most);

  std::optional<std::uint32_t> next();  // the number of the pair to merge
  BpeMerge merge(std::uint32_t number);

 private:
  struct Pair {
    std::int32_t left, right;
    std::int64_t count = 0;
    // Starts of left tokens, ascending. Later merges leave entries behind that are no longer this pair.
    std::vector<std::uint32_t> places{};
  };
  // The count is an upper bound: those of other pairs fall with every merge, and never rise after the merge
  // that made the pair.
  struct Candidate {
    std::int64_t count;
    std::int32_t left, right;
    std::uint32_t pair;
    bool operator<(const Candidate& other) const {
      if (count != other.count) return count < other.count;
      return left != other.left ? left > other.left : right > other.right;
    }
  };
  // The pairs that a neighbour of a merged pair was in, and is in. They are looked up once per merge.
  struct Neighbour {
    std::int32_t merge = 0;  // the result of the merge of which the numbers are
    std::uint32_t old_pair = 0, new_pair = 0;
  };

  std::uint32_t length(std::int32_t token) const { return lengths_[static_cast<std::size_t>(token)]; }
  std::uint32_t pair(std::int32_t left, std::int32_t right);
  void move(const Neighbour& neighbour, std::int64_t count, std::uint32_t place);
  void queue_from(std::size_t first);

  std::vector<std::int32_t> tokens_;    // by position
  std::vector<std::uint32_t> words_;    // the word's number by position
  std::vector<std::int64_t> counts_;    // by word
  std::vector<std::uint32_t> lengths_;  // by token, in bytes
  std::vector<Pair> pairs_;
  PairNumbers numbers_;
  std::priority_queue<Candidate> queue_;
  std::vector<Neighbour> before_, after_;  // by token
};

BpeTrainer::BpeTrainer(const WordTable& words, std::size_t most) : lengths_(256, 1) {
  const std::size_t positions = words.text_bytes() + words.size() + 1;
  if (positions > std::numeric_limits<std::uint32_t>::max()) {
    fail_user(
        "the distinct words of the text have more than 4 GiB, too much to learn a tokenizer from; give a "
        "part of the text");
  }
  before_.resize(256 + most);
  after_.resize(256 + most);
  tokens_.reserve(positions);
  words_.reserve(positions);
  const ByteAlphabet alphabet;
  for (std::size_t i = 0; i < words.size(); ++i) {
    counts_.push_back(words.count(i));
    tokens_.push_back(kEdge);
    words_.push_back(static_cast<std::uint32_t>(i));
    for (const char byte : words.word(i)) {
      const std::int32_t token = alphabet.id_of_byte[static_cast<std::uint8_t>(byte)];
      if (tokens_.back() != kEdge) {
        Pair& with_previous = pairs_[pair(tokens_.back(), token)];
        with_previous.count += counts_.back();
        with_previous.places.push_back(static_cast<std::uint32_t>(tokens_.size() - 1));
      }
      tokens_.push_back(token);
      words_.push_back(static_cast<std::uint32_t>(i));
    }
  }
  tokens_.push_back(kEdge);
  queue_from(0);
}

std::uint32_t BpeTrainer::pair(std::int32_t left, std::int32_t right) {
  const auto next = static_cast<std::uint32_t>(pairs_.size());
  const std::uint32_t number = numbers_.find_or_add(left, right, next);
  if (number == next) pairs_.push_back({left, right});
  return number;
}

void BpeTrainer::queue_from(std::size_t first) {
  for (std::size_t i = first; i < pairs_.size(); ++i) {
    const Pair& added = pairs_[i];
    if (added.count >= kLeastCount) {
      queue_.push({added.count, added.left, added.right, static_cast<std::uint32_t>(i)});
    }
  }
}

std::optional<std::uint32_t> BpeTrainer::next() {
  while (!queue_.empty()) {
    Candidate top = queue_.top();
    queue_.pop();
    const Pair& found = pairs_[top.pair];
    if (length(found.left) + length(found.right) > BytePairs::kMaxSpelling) continue;
    if (found.count == top.count) return top.pair;
    top.count = found.count;
    if (top.count >= kLeastCount) queue_.push(top);
  }
  return std::nullopt;
}

// A place has changed from the old pair to the new one.
void BpeTrainer::move(const Neighbour& neighbour, std::int64_t count, std::uint32_t place) {
  Pair& old_pair = pairs_[neighbour.old_pair];
  old_pair.count -= count;
  if (old_pair.count == 0) std::vector<std::uint32_t>().swap(old_pair.places);  // none of them is this pair
  Pair& new_pair = pairs_[neighbour.new_pair];
  new_pair.count += count;
  new_pair.places.push_back(place);
}

BpeMerge BpeTrainer::merge(std::uint32_t number) {
  const std::int32_t left = pairs_[number].left, right = pairs_[number].right;
  const auto result = static_cast<std::int32_t>(lengths_.size());
  lengths_.push_back(length(left) + length(right));
  const std::size_t first_new = pairs_.size();
  // From left to right, as an encoder merges: of three equal tokens the first two are joined.
  for (const std::uint32_t at : std::exchange(pairs_[number].places, {})) {
    const std::uint32_t middle = at + length(left);
    if (tokens_[at] != left || tokens_[middle] != right) continue;
    const std::uint32_t end = middle + length(right);
    const std::int64_t count = counts_[words_[at]];
    if (const std::int32_t token = tokens_[at - 1]; token != kEdge) {
      Neighbour& before = before_[static_cast<std::size_t>(token)];
      if (before.merge != result) before = {result, pair(token, left), pair(token, result)};
      move(before, count, at - length(token));
    }
    if (const std::int32_t token = tokens_[end]; token != kEdge) {
      Neighbour& after = after_[static_cast<std::size_t>(token)];
      if (after.merge != result) after = {result, pair(right, token), pair(result, token)};
      move(after, count, at);
    }
    tokens_[at] = tokens_[end - 1] = result;
    if (middle != end - 1) tokens_[middle] = kInside;
  }
  queue_from(first_new);
  return {left, right};
}

}  // namespace

std::vector<BpeMerge> train_bpe(WordTable words, std::size_t most,
                                const std::function<void(std::size_t)>& made) {
  BpeTrainer trainer(words, most);
  words = {};
  std::vector<BpeMerge> merges;
  while (merges.size() < most) {
    const auto best = trainer.next();
    if (!best) break;
    merges.push_back(trainer.merge(*best));
    if (made) made(merges.size());
  }
  return merges;
}

}  // namespace shoal
