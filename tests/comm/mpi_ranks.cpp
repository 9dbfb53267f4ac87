// The program that MPI tests start under mpirun: `mpi_ranks WHAT [DEADLINE]` runs one body on every rank.
// Like shoal, it prints the error that run_mpi throws, and exits with 2 for a UserError, else with 1.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "comm/conformance.h"
#include "core/clock.h"

namespace shoal::test {
namespace {

void say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

void sleep_seconds(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

// The chunk is the largest message of the implementation.
void conform(World& world) {
  for (const auto& check : kChecks) check.run(world, (1 << 20) / world.ranks.size());
  say("conforms");
}

void say_where(World& world) {
  say(fmt::format("rank {} local {} of {}, {} cores, {}", world.ranks.rank(), world.local_rank,
                  world.local_size, world.cores, world.where));
}

// Runs collectives until the run is stopped.
void go_on(World& world) {
  GuardedValues x(DType::f32, 300000);
  for (bool first = true;; first = false) {
    world.ranks.set_purpose("going on");
    world.ranks.all_reduce(x.tensor()).wait();
    if (first) say(fmt::format("pid {}", ::getpid()));
    sleep_seconds(0.001);
  }
}

void fail_alike(World&) { fail_user("no such file"); }

// Rank 0 joins no further collective.
void fail_while_another_computes(World& world) {
  if (world.ranks.rank() == 0) sleep_seconds(60);
  fail("gone");
}

// An exception destroys the request of a collective that the other ranks never join.
void give_up(World& world) {
  GuardedValues x(DType::f32, 100000);
  if (world.ranks.rank() > 0) sleep_seconds(60);
  const auto lonely = world.ranks.all_reduce(x.tensor());
  fail("gone");
}

double cpu_seconds() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Rank 0 computes, while the others wait for collectives that it has started.
void progress(World& world) {
  auto& group = world.ranks;
  GuardedValues x(DType::f32, 1000000);
  x.fill([](std::int64_t) { return 1; });
  group.barrier();
  const Stopwatch watch;
  auto request = group.all_reduce(x.tensor());
  if (group.rank() == 0) {
    while (watch.seconds() < 2) continue;
  }
  request.wait();
  x.expect("all_reduce", [&](std::int64_t) { return group.size(); });
  if (group.rank() > 0) say(watch.seconds() < 1.5 ? "progress" : "no progress");
}

// Rank 0 is late: the ranks that wait, or have started the collective and do something else, leave the core
// to others.
void idle(World& world) {
  auto& group = world.ranks;
  GuardedValues x(DType::f32, 1000000);
  group.barrier();
  const double before = cpu_seconds();
  if (group.rank() == 0) sleep_seconds(2);
  auto request = group.all_reduce(x.tensor());
  if (group.rank() == 1) sleep_seconds(2);
  request.wait();
  const double used = cpu_seconds() - before;
  say(used < 0.4 ? "idle" : fmt::format("busy for {} s", used));
}

int run(const std::string& what, double deadline_seconds) {
  const std::map<std::string, RankBody> bodies{
      {"conform", conform},       {"where", say_where},
      {"go_on", go_on},           {"fail", fail_while_others_wait},
      {"fail_alike", fail_alike}, {"fail_while_another_computes", fail_while_another_computes},
      {"give_up", give_up},       {"late", [&](World& world) { miss_deadline(world, deadline_seconds); }},
      {"progress", progress},     {"idle", idle},
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
  ::alarm(300);  // ends a program that hangs
  return shoal::test::run(argc > 1 ? argv[1] : "where", argc > 2 ? std::atof(argv[2]) : 60);
}
