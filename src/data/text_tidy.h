// Normalises white space as OpenWebText's published preparation does, on a stream.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// Line ends become line feeds, three or more line feeds in a row become two, and white space at both ends of
// the text is removed: Python's re.sub("\n\n\n+", "\n\n", text).strip() on a file opened as text. NUL bytes
// at both ends are padding and also removed. All other bytes stay, valid UTF-8 or not. Memory does not grow
// with the text: up to 4096 runs of equal white space, of any length, are held back until text follows.
class TextTidy {
 public:
  // `put` receives the result in pieces.
  explicit TextTidy(std::function<void(std::string_view)> put) : put_(std::move(put)) {}

  void feed(std::string_view bytes);
  void finish();  // at the end of the text

 private:
  struct Run {
    char32_t character;
    std::int64_t count;
  };

  void tidy(std::string_view text);
  void hold(char32_t blank);
  void release(std::size_t runs);

  std::function<void(std::string_view)> put_;
  std::string carry_;        // an incomplete character at the end of the last bytes
  std::vector<Run> blanks_;  // since the last other character
  bool begun_ = false;       // whether a character other than white space has come
  bool after_return_ = false;
};

}  // namespace shoal
