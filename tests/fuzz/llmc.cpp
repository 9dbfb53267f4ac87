#include "checkpoint/llmc.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal::fuzz;
  const InputFile input(data, size);
  return try_input([&] { read_all(*shoal::open_llmc(input.path())); });
}
