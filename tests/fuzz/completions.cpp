// The body of a request to shoal serve.
#include "fuzz.h"
#include "serve/api_error.h"
#include "serve/request.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal;
  static const auto tokenizer = make_byte_tokenizer();
  const serve::ServedModel model{
      .name = "tiny", .tokenizer = *tokenizer, .vocab_size = 257, .block_size = 64, .max_tokens = 32};
  return fuzz::try_input([&] {
    try {
      serve::read_request({reinterpret_cast<const char*>(data), size}, model);
    } catch (const serve::ApiError&) {
    }
  });
}
