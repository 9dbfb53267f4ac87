#include "comm/arguments.h"

#include "core/error.h"

namespace shoal {

std::string_view name_of(ReduceOp op) {
  return op == ReduceOp::sum ? "sum" : op == ReduceOp::max ? "max" : "min";
}

std::string list_ranks(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  const auto but_last = std::vector<int>(ranks.begin(), ranks.end() - 1);
  return fmt::format("ranks {} and {}", fmt::join(but_last, ", "), ranks.back());
}

void check_reducible(DType dtype) {
  if (dtype == DType::f16 || dtype == DType::i8) fail("{} cannot be reduced", name_of(dtype));
}

void check_parts(std::string_view what, const Tensor& whole, const Tensor& part, int size) {
  if (whole.dtype == part.dtype && whole.count() == part.count() * size) return;
  fail("{} among {} ranks: {} {} are not {} times {} {}", what, size, whole.count(), name_of(whole.dtype),
       size, part.count(), name_of(part.dtype));
}

void check_all_to_all(const Tensor& out, const Tensor& x, int size) {
  if (x.dtype == out.dtype && x.count() == out.count() && x.count() % size == 0) return;
  fail("all_to_all among {} ranks: {} {} cannot become {} {}", size, x.count(), name_of(x.dtype), out.count(),
       name_of(out.dtype));
}

void check_root(int root, int size) {
  if (root < 0 || root >= size) fail("broadcast from rank {}: the group has {} ranks", root, size);
}

void check_peer(std::string_view what, int peer, int rank, int size) {
  if (peer < 0 || peer >= size) fail("{} rank {}: the group has {} ranks", what, peer, size);
  if (peer == rank) fail("{} rank {}: that is this rank itself", what, peer);
}

}  // namespace shoal
