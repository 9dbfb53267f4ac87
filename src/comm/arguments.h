// What every implementation refuses before it talks to anybody. All throw Error.
#pragma once

#include "comm/communicator.h"

namespace shoal {

std::string_view name_of(ReduceOp op);  // "sum"

std::string list_ranks(const std::vector<int>& ranks);  // "ranks 0, 2 and 5"

void check_reducible(DType dtype);
// `whole` must be `size` times `part`: of a reduce_scatter, an all_gather.
void check_parts(std::string_view what, const Tensor& whole, const Tensor& part, int size);
void check_all_to_all(const Tensor& out, const Tensor& x, int size);
// A rank of the group; for messages another one than oneself.
void check_root(int root, int size);
void check_peer(std::string_view what, int peer, int rank, int size);

}  // namespace shoal
