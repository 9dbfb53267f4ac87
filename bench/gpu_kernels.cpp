// Lists the kernels and copies of any program that uses CUDA, with their time, by NVIDIA's activity records.
//   CUDA_INJECTION64_PATH=libbench_gpu_kernels.so KERNELS=report.txt STEPS=N program ...
// The report has a row per kernel: milliseconds and calls of a step (the program's total over N), and the
// time of one call in microseconds. The last row is the time in which the GPU was idle for less than a
// millisecond between two kernels: the gaps within steps.
#include <cupti.h>
#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Span {
  std::uint64_t begin, end;  // ns
};

struct Row {
  std::uint64_t time = 0, calls = 0;
};

std::mutex mutex;
std::map<std::string, Row> rows;
std::vector<Span> spans;

void count(const std::string& name, std::uint64_t begin, std::uint64_t end) {
  Row& row = rows[name];
  row.time += end - begin;
  ++row.calls;
  spans.push_back({begin, end});
}

void CUPTIAPI take_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *size = 8 << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, *size));
  *most_records = 0;
}

void CUPTIAPI read_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  const std::lock_guard lock(mutex);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      count(kernel->name, kernel->start, kernel->end);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      count("copy", copy->start, copy->end);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto* set = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      count("set", set->start, set->end);
    }
  }
  std::free(buffer);
}

std::string readable(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string result = status == 0 ? text : name;
  std::free(text);
  return result.substr(0, 150);
}

void report() {
  cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  const std::lock_guard lock(mutex);
  const char* path = std::getenv("KERNELS");
  const char* number = std::getenv("STEPS");
  std::FILE* file = path ? std::fopen(path, "w") : stderr;
  if (!file) return;
  const double steps = number ? std::max(1, std::atoi(number)) : 1;
  std::vector<std::pair<std::string, Row>> sorted(rows.begin(), rows.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.second.time > b.second.time; });
  for (const auto& [name, row] : sorted) {
    fmt::print(file, "{:9.3f} ms {:7.1f} calls {:9.1f} us  {}\n", static_cast<double>(row.time) / 1e6 / steps,
               static_cast<double>(row.calls) / steps,
               static_cast<double>(row.time) / 1e3 / static_cast<double>(row.calls), readable(name));
  }
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  constexpr std::uint64_t kPause = 1'000'000;
  std::uint64_t idle = 0, end = spans.empty() ? 0 : spans.front().end;
  for (const Span& span : spans) {
    if (span.begin > end && span.begin - end < kPause) idle += span.begin - end;
    end = std::max(end, span.end);
  }
  fmt::print(file, "{:9.3f} ms idle between kernels\n", static_cast<double>(idle) / 1e6 / steps);
  if (path) std::fclose(file);
}

}  // namespace

// CUDA calls it when it starts.
extern "C" __attribute__((visibility("default"))) int InitializeInjection();
extern "C" int InitializeInjection() {
  cuptiActivityRegisterCallbacks(take_buffer, read_buffer);
  for (const auto kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    cuptiActivityEnable(kind);
  }
  std::atexit(report);
  return 1;
}
