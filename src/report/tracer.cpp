#include "report/tracer.h"

#include <exception>
#include <nlohmann/json.hpp>
#include <optional>

#include "comm/agreement.h"
#include "comm/clocks.h"
#include "comm/tracing.h"
#include "core/error.h"
#include "core/host.h"
#include "core/log.h"
#include "core/trace.h"
#include "core/version.h"
#include "report/trace_file.h"

namespace shoal {
namespace {

constexpr int kFirst = 2;  // first traced step

}  // namespace

struct Tracer::Impl {
  TraceOptions options;
  World given;
  // Used where the run is traced:
  std::unique_ptr<Communicator> tracing;
  std::optional<World> traced;
  std::optional<trace::Recorder> recorder;
  std::optional<TraceFile> file;  // on rank 0, until it is finished
  HostClock clock = host_clock();
  ClockOffset begin, end;
  double origin = 0;  // rank 0's time that is 0 in the file
  std::string place;
  std::int64_t seen = 0;  // started steps
  bool written = false;
  int exceptions = std::uncaught_exceptions();

  Impl(const TraceOptions& its_options, World& world) : options(its_options), given(world) {}
  Communicator& ranks() const { return given.ranks; }
  bool first() const { return ranks().rank() == 0; }
  bool to_be_written() const { return recorder && !written; }

  void start();
  void stop();
  std::string lines() const;
  void write();
  void write_alone();
};

void Tracer::Impl::start() {
  begin = compare_clocks(ranks(), clock);
  origin = clock.now();
  ranks().broadcast({&origin, DType::f64, {1}}, 0).wait();
  recorder->set_on(true);
}

void Tracer::Impl::stop() {
  recorder->set_on(false);
  end = compare_clocks(ranks(), clock);
}

std::string Tracer::Impl::lines() const {
  return trace_lines({ranks().rank(), place, host_name()}, recorder->events(),
                     [&](double time) { return time_of_first(time, begin, end) - origin; });
}

// Rank 0 receives all parts even when its disk is full, because the others wait to send.
void Tracer::Impl::write() {
  written = true;
  std::vector<double> uncertainty(static_cast<std::size_t>(ranks().size()));
  double mine = std::max(begin.uncertainty, end.uncertainty) * 1e6;
  ranks().set_purpose("the trace");
  ranks().all_gather({uncertainty.data(), DType::f64, {ranks().size()}}, {&mine, DType::f64, {1}}).wait();
  if (!first()) return send_text(ranks(), lines(), 0);
  std::string error;
  const auto unless_failed = [&](const auto& part) {
    try {
      if (error.empty()) part();
    } catch (const std::exception& failure) {
      error = failure.what();
    }
  };
  unless_failed([&] { file->add(lines()); });
  for (int rank = 1; rank < ranks().size(); ++rank) {
    const auto text = receive_text(ranks(), rank);
    unless_failed([&] { file->add(text); });
  }
  unless_failed([&] {
    file->finish(nlohmann::ordered_json{{"program", fmt::format("Shoal {}", kVersion)},
                                        {"ranks", ranks().size()},
                                        {"clock_uncertainty_us", uncertainty}}
                     .dump());
  });
  if (error.empty()) {
    log::info("the trace is in {}; open it at https://ui.perfetto.dev", options.file);
  } else {
    log::warn("the trace could not be written: {}", error);
  }
  file.reset();
}

void Tracer::Impl::write_alone() {
  if (!file || !recorder->on()) return;
  try {
    recorder->set_on(false);
    file->add(lines());
    file->finish(R"({"incomplete":"the run failed; these are the events of rank 0"})");
    log::warn("the trace of rank 0 until the failure is in {}", options.file);
  } catch (const std::exception&) {  // the first failure must be reported, not this one
  }
}

Tracer::Tracer(const TraceOptions& options, World& world) : impl_(std::make_unique<Impl>(options, world)) {
  if (options.file.empty()) return;
  auto& own = *impl_;
  own.tracing = make_tracing_communicator(world.ranks);
  own.traced.emplace(World{*own.tracing, world.local_rank, world.local_size, world.cores, world.where});
  some_for_all(world.ranks, own.first(), [&] { own.file.emplace(options.file); });
  own.recorder.emplace(false);
}

Tracer::~Tracer() {
  if (std::uncaught_exceptions() > impl_->exceptions) impl_->write_alone();
}

World& Tracer::world() { return impl_->traced ? *impl_->traced : impl_->given; }

bool Tracer::traces() const { return impl_->traced.has_value(); }

void Tracer::set_place(std::string place) { impl_->place = std::move(place); }

void Tracer::begin_step() {
  auto& own = *impl_;
  if (!own.to_be_written()) return;
  const auto step = ++own.seen;
  if (step == kFirst) {
    own.start();
  } else if (step == kFirst + own.options.steps) {
    own.stop();
  } else if (step == kFirst + own.options.steps + 1) {
    own.write();
  }
}

void Tracer::finish() {
  auto& own = *impl_;
  if (!own.to_be_written()) return;
  if (own.seen < kFirst) {
    own.written = true;
    if (own.first())
      log::warn("no trace was written: traces begin at the second step, which this run did not reach");
    return;
  }
  if (own.recorder->on()) own.stop();
  own.write();
}

}  // namespace shoal
