#include "checkpoint/worker_source.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/error.h"

namespace shoal {
namespace {

// out[i] = the mean of what `read` gives for every worker.
template <typename T, typename Read>
void read_mean(TensorSlice slice, std::span<std::byte> out, int workers, Read&& read) {
  const std::int64_t end = slice.flat_end;
  const auto most = static_cast<std::size_t>(std::min(kPieceElements, slice.count()));
  std::vector<T> values(most);
  std::vector<double> sums(most);
  for (; slice.flat_begin < end; slice.flat_begin = slice.flat_end) {
    slice.flat_end = std::min(end, slice.flat_begin + kPieceElements);
    const auto piece = std::span(values).first(static_cast<std::size_t>(slice.count()));
    for (int worker = 0; worker < workers; ++worker) {
      read(worker, slice, std::as_writable_bytes(piece));
      for (std::size_t i = 0; i < piece.size(); ++i) {
        sums[i] = worker == 0 ? static_cast<double>(piece[i]) : sums[i] + static_cast<double>(piece[i]);
      }
    }
    for (std::size_t i = 0; i < piece.size(); ++i) piece[i] = static_cast<T>(sums[i] / workers);
    std::memcpy(out.data(), piece.data(), piece.size_bytes());
    out = out.subspan(piece.size_bytes());
  }
}

}  // namespace

int workers_of(const CheckpointReader& checkpoint) {
  return workers_of(checkpoint.manifest(), checkpoint.directory());
}

WorkerSource::WorkerSource(CheckpointReader& checkpoint, int worker)
    : checkpoint_(checkpoint), workers_(workers_of(checkpoint)), worker_(worker) {
  if (workers_ > 1 && worker_ != kMean && (worker_ < 0 || worker_ >= workers_)) {
    fail_user("the checkpoint {} has workers 0 to {}, but worker {} is asked for",
              checkpoint_.directory().string(), workers_ - 1, worker_);
  }
}

bool WorkerSource::prefer(std::string prefix) {
  preferred_ = std::move(prefix);
  const auto begin = name_here(std::max(worker_, 0), preferred_);
  return std::ranges::any_of(checkpoint_.manifest().tensors,
                             [&](const TensorRecord& tensor) { return tensor.name.starts_with(begin); });
}

std::string WorkerSource::name_here(int worker, const std::string& name) const {
  return workers_ == 1 ? name : worker_tensor_name(worker, name);
}

void WorkerSource::read(const TensorSlice& slice, std::span<std::byte> out) {
  const auto preferred = preferred_ + slice.name;
  const auto& name = checkpoint_.find(name_here(std::max(worker_, 0), preferred)) ? preferred : slice.name;
  auto theirs = slice;
  const auto read_one = [&](int worker, const TensorSlice& piece, std::span<std::byte> to) {
    theirs.name = name_here(worker, name);
    theirs.flat_begin = piece.flat_begin;
    theirs.flat_end = piece.flat_end;
    checkpoint_.read(theirs, to);
  };
  if (workers_ == 1) return read_one(0, slice, out);
  if (const auto fault = fault_of(slice); !fault.empty()) fail("tensor \"{}\": {}", slice.name, fault);
  if (out.size() != slice.bytes())
    fail("tensor \"{}\": {} bytes for {}", slice.name, out.size(), slice.bytes());
  if (worker_ != kMean) return read_one(worker_, slice, out);
  switch (slice.dtype) {
    case DType::f32:
      return read_mean<float>(slice, out, workers_, read_one);
    case DType::f64:
      return read_mean<double>(slice, out, workers_, read_one);
    default:
      fail("tensor \"{}\": no mean is taken of {}", slice.name, name_of(slice.dtype));
  }
}

}  // namespace shoal
