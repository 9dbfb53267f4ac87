// The white space of a text file as OpenWebText's published preparation leaves it, made on a stream.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// Line ends become line feeds, three or more line feeds in a row become two, and white space at both ends of
// the text goes: Python's re.sub("\n\n\n+", "\n\n", text).strip() on a file opened as text. So do NUL bytes
// at both ends, which are padding. All other bytes stay, valid UTF-8 or not. Memory does not grow with the
// text: of white space at its end, 4096 runs of one character each are remembered, however long each is.
class TextTidy {
 public:
  // `put` gets what is to stay, in pieces.
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
  std::string carry_;        // a character that the end of the last bytes cut off
  std::vector<Run> blanks_;  // since the last other character
  bool begun_ = false;       // there was another character
  bool after_return_ = false;
};

}  // namespace shoal
