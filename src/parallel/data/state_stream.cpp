#include "parallel/data/state_stream.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "parallel/data/shard_plan.h"

namespace shoal {
namespace {

using Stream = Device::Stream;
constexpr std::size_t kMostOperands = 8;

bool overlap(const Tensor& a, const Tensor& b) {
  const auto *first = a.as<const std::byte>(), *second = b.as<const std::byte>();
  return first < second + b.bytes() && second < first + a.bytes();
}

}  // namespace

StreamBuffers StreamBuffers::take(Arena& backend, Arena* pinned, int tensors, std::int64_t elements) {
  StreamBuffers buffers;
  buffers.elements = elements;
  for (std::size_t set = 0; set < kSets; ++set) {
    for (int i = 0; i < tensors; ++i) {
      buffers.sets[set].push_back(backend.take(DType::f32, {elements}));
      if (pinned) buffers.slots[set].push_back(pinned->take(DType::f32, {elements}));
    }
  }
  return buffers;
}

StateStream::StateStream(Backend& backend, const StreamBuffers& buffers, std::span<const std::byte> resting)
    : backend_(backend), buffers_(buffers), resting_(resting) {
  if (resting.empty()) return;
  arrived_ = backend.make_event();
  computed_ = backend.make_event();
  for (auto& set : sets_) set.done = backend.make_event();
  backend.synchronize();  // new memory is zeroed among the kernels
}

StateStream::~StateStream() {
  try {
    settle();
  } catch (...) {  // the backend has failed, and somebody else says so
  }
}

StateStream::Set& StateStream::next_set() {
  auto& set = sets_[turn_];
  turn_ = (turn_ + 1) % sets_.size();
  if (keeps_host_busy()) {
    free(set);
  } else {
    set.going_back.clear();
    if (set.used) backend_.wait(Stream::copy_in, *set.done);
  }
  set.used = true;
  return set;
}

// The host waits for what the set is used for, and puts what came back where it rests.
void StateStream::free(Set& set) {
  if (!set.used) return;
  backend_.synchronize(*set.done);
  for (const auto& [home, slot] : set.going_back) {
    if (slot) std::memcpy(home.data, slot.data, slot.bytes());
  }
  set.going_back.clear();
  set.used = false;
}

// Before it is read, what is on its way there from other sets has to be there.
void StateStream::await(const Set* user, const Tensor& resting) {
  for (auto& set : sets_) {
    const auto same = [&](const auto& back) { return overlap(back.first, resting); };
    if (&set == user || std::ranges::none_of(set.going_back, same)) continue;
    keeps_host_busy() ? free(set) : backend_.wait(Stream::copy_in, *set.done);
  }
}

void StateStream::each(std::span<const Operand> operands, const Work& work, std::int64_t whole) {
  std::array<Tensor, kMostOperands> all;
  if (operands.size() > all.size()) fail("{} operands in a stream of state", operands.size());
  std::int64_t count = 0;
  bool any = false;
  std::size_t i = 0;
  for (const auto& operand : operands) {
    all[i++] = operand.x;
    if (operand.x) count = operand.x.count();
    any = any || rests(operand.x);
  }
  if (!any) return work(std::span(all).first(operands.size()), 0);
  const std::int64_t most = buffers_.elements / whole * whole;
  if (most == 0) fail("pieces of state have {} elements, not {}", buffers_.elements, whole);
  for (std::int64_t first = 0; first < count; first += most) {
    piece(operands, first, std::min(most, count - first), work);
  }
}

void StateStream::piece(std::span<const Operand> operands, std::int64_t first, std::int64_t count,
                        const Work& work) {
  const std::size_t turn = turn_;
  auto& set = next_set();
  std::array<Tensor, kMostOperands> parts;
  std::vector<std::pair<Tensor, Tensor>> back;  // (where it rests, where it is)
  std::size_t buffer = 0;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const auto& operand = operands[i];
    const Tensor home = part_of(operand.x, first, count);
    parts[i] = home;
    if (!rests(home)) continue;
    if (buffer == buffers_.sets[turn].size()) fail("more than {} tensors of a piece of state", buffer);
    parts[i].data = buffers_.sets[turn][buffer].data;
    Tensor slot = home;
    if (keeps_host_busy()) slot.data = buffers_.slots[turn][buffer].data;
    ++buffer;
    if (operand.read) {
      await(&set, home);
      if (keeps_host_busy()) std::memcpy(slot.data, home.data, home.bytes());
      backend_.copy_in(parts[i], slot.data);
    }
    if (!operand.written) continue;
    back.emplace_back(slot, parts[i]);
    set.going_back.emplace_back(home, keeps_host_busy() ? slot : Tensor{});
  }
  // Also when nothing comes in: this stream has waited for the set.
  backend_.record(*arrived_, Stream::copy_in);
  backend_.wait(Stream::kernels, *arrived_);
  work(std::span(parts).first(operands.size()), first);
  if (back.empty()) return backend_.record(*set.done, Stream::kernels);
  backend_.record(*computed_, Stream::kernels);
  backend_.wait(Stream::copy_out, *computed_);
  for (const auto& [to, from] : back) backend_.copy_out(to.data, from);
  backend_.record(*set.done, Stream::copy_out);
  // Meanwhile the host takes care of the piece before.
  if (keeps_host_busy()) free(sets_[turn_]);
}

void StateStream::zero(const Tensor& x) {
  each({out(x)}, [&](auto parts, std::int64_t) { backend_.zero(parts[0]); });
}
void StateStream::convert(const Tensor& to, const Tensor& x) {
  each({out(to), in(x)}, [&](auto parts, std::int64_t) { backend_.convert(parts[0], parts[1]); });
}
void StateStream::add(const Tensor& to, const Tensor& x) {
  each({in_out(to), in(x)}, [&](auto parts, std::int64_t) { backend_.add(parts[0], parts[1]); });
}
void StateStream::scale(const Tensor& to, const Tensor& x, float factor) {
  each({out(to), in(x)}, [&](auto parts, std::int64_t) { backend_.scale(parts[0], parts[1], factor); });
}

void StateStream::sum_squares(const Tensor& totals, const Tensor& x) {
  if (totals.count() == 1) {
    return each({in(x)}, [&](auto parts, std::int64_t) { backend_.sum_squares(totals, parts[0]); });
  }
  const std::int64_t k = x.count() / totals.count();
  each(
      {in(x)},
      [&](auto parts, std::int64_t first) {
        backend_.sum_squares(part_of(totals, first / k, parts[0].count() / k), parts[0]);
      },
      k);
}

void StateStream::bring(const Tensor& to, const Tensor& from, Backend::Event& arrived) {
  backend_.record(*computed_, Stream::kernels);
  backend_.wait(Stream::copy_in, *computed_);
  if (!keeps_host_busy()) {
    await(nullptr, from);
    backend_.copy_in(to, from.data);
    return backend_.record(arrived, Stream::copy_in);
  }
  const auto most = buffers_.elements * 4 / static_cast<std::int64_t>(size_of(from.dtype));
  for (std::int64_t first = 0; first < from.count(); first += most) {
    const Tensor home = part_of(from, first, std::min(most, from.count() - first));
    const std::size_t turn = turn_;
    auto& set = next_set();
    await(&set, home);
    void* slot = buffers_.slots[turn][0].data;
    std::memcpy(slot, home.data, home.bytes());
    backend_.copy_in(part_of(to, first, home.count()), slot);
    backend_.record(*set.done, Stream::copy_in);
  }
  backend_.record(arrived, Stream::copy_in);
}

void StateStream::settle() {
  for (auto& set : sets_) free(set);
}

}  // namespace shoal
