#include "comm/messages/run.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "comm/failure.h"
#include "comm/launcher.h"
#include "comm/messages/communicator.h"
#include "comm/messages/engine.h"
#include "core/cores.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/process_limits.h"

namespace shoal::messages {
namespace {

std::uint64_t cores_hash() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ::sched_getaffinity(0, sizeof allowed, &allowed);
  return fnv1a({reinterpret_cast<const char*>(&allowed), sizeof allowed});
}

LocalShare gather_local_share(Communicator& ranks) {
  std::vector<CoreBinding> bindings(static_cast<std::size_t>(ranks.size()));
  CoreBinding mine{host_hash(), cores_hash()};
  constexpr auto kWords = static_cast<std::int64_t>(sizeof(CoreBinding) / sizeof(std::int32_t));
  ranks.set_purpose("start of the run");
  ranks.all_gather({bindings.data(), DType::i32, {ranks.size() * kWords}}, {&mine, DType::i32, {kWords}})
      .wait();
  ranks.set_purpose("");
  return local_share(bindings, ranks.rank());
}

// "Open MPI v4.1.4, package: ..." or "MPICH Version:\t4.0.2\n..." as "Open MPI 4.1.4".
std::string short_version(std::string_view version) {
  version = version.substr(0, version.find_first_of(",\n"));
  std::string text;
  for (std::string_view word : {"Open MPI", "MPICH"}) {
    if (version.starts_with(word)) text = word;
  }
  const auto digit = version.find_first_of("0123456789");
  if (text.empty() || digit == std::string_view::npos) return std::string(version);
  return text + " " + std::string(version.substr(digit));
}

std::string plural(int n, std::string_view what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

// Returns the body's exit code.
int run_body(Engine& engine, const std::string& version, const RankBody& body) {
  const auto ranks = make_communicator(engine, engine.world());
  const auto share = gather_local_share(*ranks);
  World world{*ranks, share.local_rank, share.local_size, std::max(1, usable_cores() / share.sharing),
              fmt::format("{} on {} ({})", plural(ranks->size(), "rank"), plural(share.hosts, "host"),
                          short_version(version))};
  log::mute_thread(ranks->rank() > 0);
  body(world);
  const auto end = make_communicator(engine, engine.add_group(kEndGroup, engine.world()->members));
  end->set_purpose("end of the run");
  end->barrier();
  return world.exit_code;
}

[[noreturn]] void rethrow_with(const std::string& prefix) {
  try {
    throw;
  } catch (const UserError& error) {
    throw UserError(prefix + error.what());
  } catch (const std::exception& error) {
    throw Error(prefix + message_of(error));
  }
}

// To be called while the failure is handled.
[[noreturn]] void end_failed(Engine& engine, Engine::Verdict verdict) {
  const auto& group = *engine.world();
  if (!verdict.report) {
    engine.await_report();
    throw StoppedByPeer();
  }
  if (verdict.same_everywhere || group.members.size() == 1) throw;
  rethrow_with(fmt::format("rank {}: ", group.rank));
}

}  // namespace

void run_rank(Transport& transport, const WorldOptions& options, const RankBody& body) {
  Engine engine(transport, options.deadline_seconds);
  try {
    const int exit_code = run_body(engine, transport.version(), body);
    engine.finish(options.end_seconds, exit_code);
  } catch (const StoppedByPeer&) {
    end_failed(engine, engine.stopped_by_peer());
  } catch (...) {
    end_failed(engine, engine.fail(handled_failure()));
  }
}

}  // namespace shoal::messages
