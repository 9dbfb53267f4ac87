// State that rests in the host's memory while a backend computes in one of its own: parameters, moments and
// gradients go through the backend's memory in pieces, to where kernels can have them and back, while the
// piece before is worked on (as ZeRO-Offload, Ren et al. 2021, and ZeRO-Infinity, Rajbhandari et al. 2021,
// but with the update on the backend too, so that its bits do not depend on where state rests).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "model/arena.h"
#include "ops/kernels.h"

namespace shoal {

// Two sets of buffers, one for each tensor of a piece.
struct StreamBuffers {
  static constexpr int kSets = 2;

  std::int64_t elements = 0;                    // of a piece
  std::array<std::vector<Tensor>, kSets> sets;  // f32 [elements] each, in the backend's memory
  // The same, pinned, where state is in a mapped file: copies beside kernels need memory that stays.
  std::array<std::vector<Tensor>, kSets> slots;

  static StreamBuffers take(Arena& backend, Arena* pinned, int tensors, std::int64_t elements);
};

class StateStream {
 public:
  struct Operand {
    Tensor x;
    bool read = true, written = false;
  };
  static Operand in(const Tensor& x) { return {x, true, false}; }
  static Operand out(const Tensor& x) { return {x, false, true}; }
  static Operand in_out(const Tensor& x) { return {x, true, true}; }
  // The operands' elements from `first` on, in the backend's memory.
  using Work = std::function<void(std::span<const Tensor> parts, std::int64_t first)>;

  // Nothing rests elsewhere: work is done on the operands themselves.
  explicit StateStream(Backend& backend) : backend_(backend) {}
  // `resting` is the host's memory where state rests.
  StateStream(Backend& backend, const StreamBuffers& buffers, std::span<const std::byte> resting);
  ~StateStream();
  StateStream(const StateStream&) = delete;
  StateStream& operator=(const StateStream&) = delete;

  bool rests(const Tensor& x) const {
    const auto* at = x.as<const std::byte>();
    return !resting_.empty() && at >= resting_.data() && at < resting_.data() + resting_.size();
  }
  // Whether the host itself moves state, and so should have given the backend its work before.
  bool keeps_host_busy() const { return !buffers_.slots[0].empty(); }

  // Has the work done on operands of equal counts, some of which may be empty and some of which may rest:
  // piece by piece, each of a multiple of `whole` elements but for the last.
  void each(std::span<const Operand> operands, const Work& work, std::int64_t whole = 1);
  void each(std::initializer_list<Operand> operands, const Work& work, std::int64_t whole = 1) {
    each(std::span(operands.begin(), operands.size()), work, whole);
  }

  // The backend's ops, on tensors that may rest.
  void zero(const Tensor& x);
  void convert(const Tensor& out, const Tensor& x);
  void add(const Tensor& out, const Tensor& x);
  void scale(const Tensor& out, const Tensor& x, float factor);
  void sum_squares(const Tensor& totals, const Tensor& x);

  // Begins to bring what rests in `from` to `to`, which kernels that were asked for before may still use;
  // `arrived` comes behind it.
  void bring(const Tensor& to, const Tensor& from, Backend::Event& arrived);

  // Waits until all that rests is there: before the host, or a communicator, touches it.
  void settle();
  const Tensor& settled(const Tensor& x) {
    if (rests(x)) settle();
    return x;
  }

 private:
  struct Set {
    std::unique_ptr<Backend::Event> done;  // all that the set was last used for is
    bool used = false;
    std::vector<std::pair<Tensor, Tensor>> going_back;  // (where it rests, its slot if there are any)
  };
  Set& next_set();
  void free(Set& set);
  void await(const Set* user, const Tensor& resting);
  void piece(std::span<const Operand> operands, std::int64_t first, std::int64_t count, const Work& work);

  Backend& backend_;
  StreamBuffers buffers_;
  std::span<const std::byte> resting_;
  std::array<Set, StreamBuffers::kSets> sets_;
  std::size_t turn_ = 0;
  std::unique_ptr<Backend::Event> arrived_, computed_;
};

}  // namespace shoal
