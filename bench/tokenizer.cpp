// Tokens per second of processor time of the gpt2 tokenizer, on one thread:
// bench_tokenizer VOCABULARY_FOLDER FILE [REPEATS]
// bench/peers/tiktoken_bench.py prints the same for tiktoken; the checksums must agree.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>

#include "core/error.h"
#include "data/tokenizer.h"

namespace {

// The process's own time, so that other work on the machine does not count.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// FNV-1a over 32-bit words: what the peer's script can compute too.
std::uint64_t checksum(const std::vector<std::int32_t>& tokens) {
  std::uint64_t result = 0xCBF29CE484222325;
  for (const std::int32_t token : tokens)
    result = (result ^ static_cast<std::uint32_t>(token)) * 0x100000001B3;
  return result;
}

void run(const char* vocabulary, const char* path, int repeats) {
  const double load_start = cpu_seconds();
  const auto tokenizer = shoal::load_bpe_tokenizer(vocabulary);
  const double load_seconds = cpu_seconds() - load_start;
  std::ifstream file(path, std::ios::binary);
  if (!file) shoal::fail_user("cannot read {}", path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};

  std::vector<double> times;
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < repeats; ++i) {
    const double start = cpu_seconds();
    std::vector<std::int32_t> fresh;  // a new vector every time, as the peer makes a new list
    tokenizer->encode(text, fresh);
    times.push_back(cpu_seconds() - start);
    tokens = std::move(fresh);
  }
  std::sort(times.begin(), times.end());
  const double count = static_cast<double>(tokens.size());
  fmt::print(
      "shoal                        {} tokens  fnv {:016x}  median {:6.2f} M tokens/s  best {:6.2f}  (loaded "
      "in {:.0f} ms)\n",
      tokens.size(), checksum(tokens), count / times[times.size() / 2] / 1e6, count / times[0] / 1e6,
      load_seconds * 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: bench_tokenizer VOCABULARY_FOLDER FILE [REPEATS]\n");
    return 2;
  }
  try {
    run(argv[1], argv[2], argc > 3 ? std::max(1, std::atoi(argv[3])) : 21);
  } catch (const shoal::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
