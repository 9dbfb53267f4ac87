#include "data/byte_pairs.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <queue>

namespace shoal {
namespace {

constexpr std::uint64_t kEmptyPair = ~std::uint64_t{0};
constexpr std::int32_t kBytes = 256;     // the first tokens
constexpr std::size_t kShortMerge = 64;  // up to this length, scanning all pairs is faster than a queue

// The upper bits of a product depend on all bits of both factors; 2^64 divided by the golden ratio, made odd.
std::uint64_t mix(std::uint64_t value) { return value * 0x9E3779B97F4A7C15; }

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(left) << 20 | static_cast<std::uint64_t>(right);
}

int shift_for(std::size_t table_size) { return 64 - std::countr_zero(table_size); }

}  // namespace

BytePairs::BytePairs(const std::array<std::uint8_t, 256>& bytes, std::size_t merges)
    : whole_(kBytes, true),
      short_tokens_(std::bit_ceil(2 * (merges + 256))),
      pairs_(std::bit_ceil(2 * (merges + 1)), kEmptyPair) {
  ends_.reserve(merges + 257);
  parts_.reserve(merges);
  for (const std::uint8_t byte : bytes) {
    id_of_byte_[byte] = size();
    spellings_.push_back(static_cast<char>(byte));
    ends_.push_back(static_cast<std::uint32_t>(spellings_.size()));
    add_short(size() - 1);
  }
}

void BytePairs::add_merge(std::int32_t left, std::int32_t right) {
  const std::int32_t result = size();
  spellings_.append(std::string(spelling(left)).append(spelling(right)));
  ends_.push_back(static_cast<std::uint32_t>(spellings_.size()));
  whole_.push_back(whole_[static_cast<std::size_t>(left)] && whole_[static_cast<std::size_t>(right)] &&
                   stay_apart(left, right));
  if (whole_.back() && spelling(result).size() <= kShort) add_short(result);
  const std::uint64_t key = pair_key(left, right);
  pairs_[pair_slot(key)] = key << 24 | static_cast<std::uint64_t>(result);
  parts_.push_back({left, right});
}

// Whether no merge joins bytes of `left` with bytes of `right` before both are whole. Undoes their merges,
// the latest first, and looks for an earlier merge across the boundary. Of two equal merges the left one
// comes first.
bool BytePairs::stay_apart(std::int32_t left, std::int32_t right) const {
  while (std::max(left, right) >= kBytes) {
    const bool in_left = left > right;
    const std::int32_t undone = in_left ? left : right;
    const auto& [start, end] = parts_[static_cast<std::size_t>(undone - kBytes)];
    (in_left ? left : right) = in_left ? end : start;
    const std::int32_t across = merged(left, right);
    if (across < undone || (across == undone && !in_left)) return false;
  }
  return true;
}

void BytePairs::add_short(std::int32_t token) {
  const std::string_view text = spelling(token);
  ShortToken key = read_short(text, 0, text.size());
  key.token = token;
  short_tokens_[short_slot(key)] = key;
}

BytePairs::ShortToken BytePairs::read_short(std::string_view text, std::size_t begin, std::size_t length) {
  ShortToken key;
  key.length = static_cast<std::uint32_t>(length);
  if (begin + kShort > text.size()) {
    std::array<char, kShort> padded{};
    std::memcpy(padded.data(), text.data() + begin, length);
    std::memcpy(&key.low, padded.data(), 8);
    std::memcpy(&key.high, padded.data() + 8, 8);
    return key;
  }
  // Reading past the piece and masking is much faster than copying a few bytes.
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(&key.low, text.data() + begin, 8);
  std::memcpy(&key.high, text.data() + begin + 8, 8);
  const auto low_bytes = [](std::size_t count) { return count >= 8 ? ~0ull : (1ull << 8 * count) - 1; };
  key.low &= low_bytes(length);
  key.high &= low_bytes(length < 8 ? 0 : length - 8);
  return key;
}

// The slot of the token with this spelling, or the empty slot for it.
std::size_t BytePairs::short_slot(const ShortToken& key) const {
  const std::uint64_t hash = mix(key.low ^ std::rotl(mix(key.high + key.length), 32));
  std::size_t slot = hash >> shift_for(short_tokens_.size());
  while (short_tokens_[slot].length != 0 &&
         (short_tokens_[slot].low != key.low || short_tokens_[slot].high != key.high ||
          short_tokens_[slot].length != key.length)) {
    slot = (slot + 1) & (short_tokens_.size() - 1);
  }
  return slot;
}

std::size_t BytePairs::pair_slot(std::uint64_t key) const {
  std::size_t slot = mix(key) >> shift_for(pairs_.size());
  while (pairs_[slot] != kEmptyPair && pairs_[slot] >> 24 != key) slot = (slot + 1) & (pairs_.size() - 1);
  return slot;
}

std::int32_t BytePairs::merged(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pairs_[pair_slot(pair_key(left, right))];
  return pair == kEmptyPair ? kNone : static_cast<std::int32_t>(pair & 0xFFFFFF);
}

void BytePairs::encode(std::string_view text, std::size_t begin, std::size_t end,
                       std::vector<std::int32_t>& out) const {
  // A piece that is one of short_tokens_ needs no merging: its bytes merge into that token.
  if (end - begin <= kShort) {
    const ShortToken& found = short_tokens_[short_slot(read_short(text, begin, end - begin))];
    if (found.token != kNone) return out.push_back(found.token);
  }
  const std::string_view piece = text.substr(begin, end - begin);
  piece.size() <= kShortMerge ? merge_short(piece, out) : merge_long(piece, out);
}

void BytePairs::merge_short(std::string_view piece, std::vector<std::int32_t>& out) const {
  std::array<std::int32_t, kShortMerge> tokens;
  std::array<std::int32_t, kShortMerge> results;  // of tokens[i] with tokens[i + 1]
  std::size_t count = piece.size();
  for (std::size_t i = 0; i < count; ++i) tokens[i] = id_of_byte_[static_cast<std::uint8_t>(piece[i])];
  for (std::size_t i = 0; i + 1 < count; ++i) results[i] = merged(tokens[i], tokens[i + 1]);
  while (count > 1) {
    const auto first = results.begin();
    const auto lowest = std::min_element(first, first + static_cast<std::ptrdiff_t>(count) - 1);
    if (*lowest == kNone) break;
    const auto at = static_cast<std::size_t>(lowest - first);
    tokens[at] = *lowest;
    --count;
    for (std::size_t i = at + 1; i < count; ++i) tokens[i] = tokens[i + 1];
    for (std::size_t i = at; i + 1 < count; ++i) results[i] = results[i + 1];
    if (at > 0) results[at - 1] = merged(tokens[at - 1], tokens[at]);
    if (at + 1 < count) results[at] = merged(tokens[at], tokens[at + 1]);
  }
  out.insert(out.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(count));
}

void BytePairs::merge_long(std::string_view piece, std::vector<std::int32_t>& out) const {
  struct Part {  // of a doubly linked list over positions in the piece
    std::size_t previous, next;
    std::int32_t token;
    std::int32_t result;  // of this and the next part
  };
  struct Candidate {
    std::int32_t result;
    std::size_t at;
    auto operator<=>(const Candidate&) const = default;
  };
  const std::size_t end = piece.size();
  std::vector<Part> parts(end);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto look_at = [&](std::size_t at) {
    Part& part = parts[at];
    part.result = part.next == end ? kNone : merged(part.token, parts[part.next].token);
    if (part.result != kNone) queue.push({part.result, at});
  };
  for (std::size_t i = 0; i < end; ++i) {
    parts[i] = {i == 0 ? end : i - 1, i + 1, id_of_byte_[static_cast<std::uint8_t>(piece[i])], kNone};
  }
  for (std::size_t i = 0; i < end; ++i) look_at(i);
  while (!queue.empty()) {
    const auto [result, at] = queue.top();
    queue.pop();
    Part& part = parts[at];
    if (part.result != result) continue;  // this pair has been merged or changed since it was queued
    Part& gone = parts[part.next];
    part.token = result;
    part.next = gone.next;
    gone.result = kNone;
    if (part.next != end) parts[part.next].previous = at;
    look_at(at);
    if (part.previous != end) look_at(part.previous);
  }
  for (std::size_t i = 0; i < end; i = parts[i].next) out.push_back(parts[i].token);
}

}  // namespace shoal
