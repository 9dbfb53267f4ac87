// vocab.json and merges.txt; a vocabulary that is accepted has to keep any text.
#include "data/tokenizer.h"
#include "fuzz.h"

namespace {

constexpr const char* kNames[] = {"vocab.json", "merges.txt"};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal::fuzz;
  static const InputFolder folder;
  folder.write(data, size, kNames);
  return try_input([&] {
    const auto tokenizer = shoal::load_bpe_tokenizer(folder.path());
    const std::string text(reinterpret_cast<const char*>(data), size);
    std::vector<std::int32_t> ids;
    tokenizer->encode(text, ids);
    if (tokenizer->decode(ids) != text) std::abort();
  });
}
