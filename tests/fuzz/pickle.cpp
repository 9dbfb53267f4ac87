#include "core/pickle.h"

#include <array>

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal::fuzz;
  static constexpr std::array<std::string_view, 2> kGlobals = {"collections.OrderedDict", "a.b"};
  return try_input([&] {
    const shoal::Pickle pickle({reinterpret_cast<const char*>(data), size}, "input", {.globals = kGlobals});
    touch(std::as_bytes(std::span(pickle.root().text)));
    for (const int item : pickle.root().items) touch(std::as_bytes(std::span(pickle[item].text)));
    pickle.find(pickle.root(), "model_args");
  });
}
