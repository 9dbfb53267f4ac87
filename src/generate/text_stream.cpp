#include "generate/text_stream.h"

#include <algorithm>
#include <utility>

#include "core/utf8.h"

namespace shoal {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

// Whether more bytes could make `bytes` a character. The second byte is the only one with a range of its own,
// and that range always has 0x80 or 0xBF in it.
bool may_be_completed(std::string_view bytes) {
  for (std::size_t missing = 1; missing <= 3; ++missing) {
    for (const char filler : {'\x80', '\xBF'}) {
      const std::string whole = std::string(bytes) + std::string(missing, filler);
      if (static_cast<std::size_t>(decode_utf8(whole, 0).length) == whole.size()) return true;
    }
  }
  return false;
}

}  // namespace

std::string Utf8Joiner::push(std::string_view bytes) {
  pending_ += bytes;
  std::string text;
  std::size_t at = 0;
  while (at < pending_.size()) {
    const auto rest = std::string_view(pending_).substr(at);
    const auto length = static_cast<std::size_t>(decode_utf8(rest, 0).length);
    if (length > 0) {
      text += rest.substr(0, length);
      at += length;
    } else if (rest.size() < 4 && may_be_completed(rest)) {
      break;
    } else {
      append_utf8(text, kReplacement);
      ++at;
    }
  }
  pending_.erase(0, at);
  return text;
}

std::string Utf8Joiner::finish() {
  std::string text;
  for (std::size_t left = std::exchange(pending_, {}).size(); left > 0; --left)
    append_utf8(text, kReplacement);
  return text;
}

StopFilter::StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) { std::erase(stops_, ""); }

std::string StopFilter::push(std::string_view bytes) {
  if (stopped_) return {};
  held_ += bytes;
  std::size_t found = std::string::npos, begun = 0;
  for (const auto& stop : stops_) {
    found = std::min(found, held_.find(stop));
    // The longest end of the text that is a beginning of the stop string stays.
    std::size_t size = std::min(held_.size(), stop.size() - 1);
    while (!held_.ends_with(std::string_view(stop).substr(0, size))) --size;
    begun = std::max(begun, size);
  }
  stopped_ = found != std::string::npos;
  const std::size_t safe = stopped_ ? found : held_.size() - begun;
  std::string text = held_.substr(0, safe);
  held_.erase(0, stopped_ ? held_.size() : safe);
  return text;
}

std::string StopFilter::finish() { return std::exchange(held_, {}); }

}  // namespace shoal
