#include "model/tensor_group.h"

namespace shoal {

Tensor TensorGroup::mine(const Tensor& x) const {
  if (!sequence_) return x;
  const std::int64_t rows = x.rows() / size();
  return x.row_range(rank() * rows, rows);
}

Request TensorGroup::gather(const Tensor& x, const Tensor& from, std::string_view purpose) const {
  if (!sequence_) return {};
  ranks_->set_purpose(purpose);
  return ranks_->all_gather(x, from);
}

Request TensorGroup::reduce(const Tensor& x, std::string_view purpose) const {
  if (!sequence_) return all_reduce(x, ReduceOp::sum, purpose);
  ranks_->set_purpose(purpose);
  return ranks_->reduce_scatter(mine(x), x);
}

Request TensorGroup::all_reduce(const Tensor& x, ReduceOp op, std::string_view purpose) const {
  if (size() == 1) return {};
  ranks_->set_purpose(purpose);
  return ranks_->all_reduce(x, op);
}

Request TensorGroup::all_gather(const Tensor& out, const Tensor& x, std::string_view purpose) const {
  if (size() == 1) return {};
  ranks_->set_purpose(purpose);
  return ranks_->all_gather(out, x);
}

Request TensorGroup::broadcast(const Tensor& x, std::string_view purpose) const {
  if (size() == 1) return {};
  ranks_->set_purpose(purpose);
  return ranks_->broadcast(x, 0);
}

}  // namespace shoal
