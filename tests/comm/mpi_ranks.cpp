// What the tests of MPI start under mpirun: `mpi_ranks WHAT [DEADLINE]` runs one thing on every rank. As the
// program does, it prints a failure where one comes out of run_mpi, and ends with 2 for the user's, else 1.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "comm/conformance.h"
#include "core/clock.h"

namespace shoal::test {
namespace {

constexpr std::int64_t kChunk = 1 << 20;  // where the implementation cuts a reduction

void conform(World& world) {
  for (const auto& check : kChecks) {
    const Stopwatch watch;
    check.run(world, kChunk);
    if (world.ranks.rank() == 0) fmt::print("{} {:.2f} s\n", check.name, watch.seconds());
  }
}

void say_where(World& world) {
  if (world.ranks.rank() == 0) {
    fmt::print("{}, {} of {} on this host, {} cores\n", world.where, world.local_rank, world.local_size,
               world.cores);
  }
}

int run(const std::string& what, double deadline_seconds) {
  const std::map<std::string, RankBody> bodies{
      {"conform", conform},
      {"where", say_where},
      {"fail", fail_while_others_wait},
      {"late", [&](World& world) { miss_deadline(world, deadline_seconds); }},
  };
  try {
    run_mpi({.deadline_seconds = deadline_seconds}, bodies.at(what));
    return 0;
  } catch (const StoppedByPeer&) {
    return 1;
  } catch (const UserError& error) {
    fmt::print(stderr, "shoal: error: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "shoal: error: {}\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace shoal::test

int main(int argc, char** argv) {
  return shoal::test::run(argc > 1 ? argv[1] : "where", argc > 2 ? std::atof(argv[2]) : 60);
}
