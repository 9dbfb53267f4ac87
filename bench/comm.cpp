// Times collectives among ranks, interleaved with each rank copying as many bytes from one of its buffers to
// another, all on huge pages.
//   bench_comm [ROUNDS] [RANKS] [MB...]         threads of one process
//   mpirun -n 2 bench_comm [ROUNDS] 0 [MB...]   processes
// Prints one line per size: bytes, and the median time of a copy, of all_reduce, of reduce_scatter and of
// all_gather in place (bytes: of the whole), with its ratio to the copy.
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "comm/world.h"
#include "core/clock.h"
#include "core/error.h"

using namespace shoal;

namespace {

class HugeBuffer {
 public:
  explicit HugeBuffer(std::size_t bytes)
      : bytes_((bytes + kHugePage - 1) / kHugePage * kHugePage),
        data_(std::aligned_alloc(kHugePage, bytes_)) {
    if (data_ == nullptr) fail("no memory for {} bytes", bytes_);
    madvise(data_, bytes_, MADV_HUGEPAGE);
    std::memset(data_, 0, bytes_);
  }
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;
  ~HugeBuffer() { std::free(data_); }

  Tensor floats(std::int64_t count, std::int64_t first = 0) const {
    return {static_cast<float*>(data_) + first, DType::f32, {count}};
  }

 private:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;
  std::size_t bytes_;
  void* data_;
};

double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Seconds of one call, of as many as take a few milliseconds.
double time_of(Communicator& ranks, std::int64_t bytes, const std::function<void()>& call) {
  const auto calls = std::clamp<std::int64_t>(20'000'000 / bytes, 1, 2000);
  ranks.barrier();
  const Stopwatch watch;
  for (std::int64_t i = 0; i < calls; ++i) call();
  ranks.barrier();
  return watch.seconds() / static_cast<double>(calls);
}

void measure(World& world, std::int64_t bytes, int rounds) {
  auto& ranks = world.ranks;
  const auto size = ranks.size();
  const auto part = bytes / static_cast<std::int64_t>(sizeof(float)) / size;
  const auto count = part * size;
  const HugeBuffer a(static_cast<std::size_t>(bytes)), b(static_cast<std::size_t>(bytes));
  const auto x = a.floats(count), other = b.floats(count);
  const std::function<void()> calls[] = {
      [&] { std::memcpy(other.data, x.data, x.bytes()); },
      [&] { ranks.all_reduce(x).wait(); },
      [&] { ranks.reduce_scatter(b.floats(part), x).wait(); },
      [&] { ranks.all_gather(x, a.floats(part, part * ranks.rank())).wait(); },
  };
  std::vector<double> times[4];
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t k = 0; k < 4; ++k) times[k].push_back(time_of(ranks, bytes, calls[k]));
  }
  if (ranks.rank() != 0) return;
  const double copying = median(times[0]);
  fmt::print("{:>11} bytes  copy {:>10.2f} us", bytes, copying * 1e6);
  const char* names[] = {"", "all_reduce", "reduce_scatter", "all_gather"};
  for (std::size_t k = 1; k < 4; ++k) {
    fmt::print("  {} {:>10.2f} us ({:.2f})", names[k], median(times[k]) * 1e6, median(times[k]) / copying);
  }
  fmt::print("\n");
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 11;
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 2;
  std::vector<double> sizes;
  for (int i = 3; i < argc; ++i) sizes.push_back(std::atof(argv[i]));
  if (sizes.empty()) sizes = {0.004096, 0.065536, 1, 10, 100, 498};
  const RankBody body = [&](World& world) {
    if (world.ranks.rank() == 0) fmt::print("{}, {} rounds\n", world.where, rounds);
    for (const double megabytes : sizes) measure(world, std::llround(megabytes * 1e6), rounds);
  };
  try {
    const bool alone = detect_launcher().kind == Launcher::Kind::alone;
    alone ? run_threads({.ranks = ranks}, body) : run_mpi({}, body);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
