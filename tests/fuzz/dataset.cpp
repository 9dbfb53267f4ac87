// meta.json and train.bin of a dataset; a tokenizer that is accepted has to decode every id of the
// vocabulary.
#include "data/dataset.h"

#include "data/tokenizer.h"
#include "fuzz.h"

namespace {

constexpr const char* kNames[] = {"meta.json", "train.bin"};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal::fuzz;
  static const InputFolder folder;
  folder.write(data, size, kNames);
  std::ofstream(folder.path() / "val.bin", std::ios::binary) << std::string(4, '\0');
  return try_input([&] {
    const shoal::Dataset dataset(folder.path());
    dataset.verify();
    if (!dataset.has_tokenizer()) return;
    std::vector<std::int32_t> ids(
        static_cast<std::size_t>(std::min<std::int64_t>(dataset.train().size(), 64)));
    dataset.train().copy(0, ids);
    const auto text = dataset.tokenizer().decode(ids);
    touch(std::as_bytes(std::span(text)));
  });
}
