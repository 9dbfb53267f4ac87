// nanoGPT's meta.pkl; a vocabulary that is accepted has to decode each of its ids.
#include "data/nanogpt_meta.h"

#include <nlohmann/json.hpp>
#include <numeric>

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal::fuzz;
  const InputFile input(data, size);
  return try_input([&] {
    const auto tokenizer = shoal::read_nanogpt_meta(input.path());
    std::vector<std::int32_t> ids(static_cast<std::size_t>(tokenizer->vocab_size()));
    std::iota(ids.begin(), ids.end(), 0);
    std::vector<std::int32_t> again;
    tokenizer->encode(tokenizer->decode(ids), again);
    if (again != ids) std::abort();
  });
}
