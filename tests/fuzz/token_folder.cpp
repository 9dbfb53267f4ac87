// Token files of llm.c, beside one that is whole: a header and ids.
#include "data/dataset.h"
#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal::fuzz;
  static const InputFolder folder;
  static constexpr const char* kName[] = {"set_train.bin"};
  std::ofstream(folder.path() / kName[0], std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  static const bool written = [] {
    std::string whole(1024 + 4, '\0');
    const std::int32_t header[] = {20240520, 1, 2};  // GPT-2's tokens, version, number of tokens
    whole.replace(0, sizeof header, reinterpret_cast<const char*>(header), sizeof header);
    std::ofstream(folder.path() / "set_val.bin", std::ios::binary) << whole;
    return true;
  }();
  return try_input([&] {
    if (!written) return;
    const shoal::Dataset dataset(folder.path());
    dataset.verify();
    touch(std::as_bytes(std::span(dataset.tokenizer_text())));
  });
}
