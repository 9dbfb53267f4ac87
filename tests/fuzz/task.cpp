// Lines of a task, and the tokens of its items.
#include "data/task.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  static const auto tokenizer = make_byte_tokenizer();
  const fuzz::InputFile file(data, size);
  return fuzz::try_input([&] {
    for (const auto& item : read_task(file.path()).items) make_sequence(item, 0, *tokenizer, 64);
  });
}
