// Texts to prepare: the same bytes as lines of JSON, and as an archive or compressed file, whose kind its
// bytes tell.
#include "data/documents.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace shoal::fuzz;
  static const InputFolder folder;
  for (const char* name : {"input.jsonl", "input.tar", "input.txt"}) {
    const auto path = folder.path() / name;
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    try_input([&] {
      std::int64_t bytes = 0;  // a few kilobytes may stand for terabytes
      shoal::read_documents({path}, {.report_odd_files = false}, [&](const shoal::DocumentPiece& piece) {
        touch(std::as_bytes(std::span(piece.text)));
        return (bytes += static_cast<std::int64_t>(piece.text.size())) < (1 << 22);
      });
    });
  }
  return 0;
}
