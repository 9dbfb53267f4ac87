// Checks of arguments that all implementations of Communicator share. All throw Error.
#pragma once

#include "comm/communicator.h"

namespace shoal {

std::string_view name_of(ReduceOp op);  // "sum"

std::string list_ranks(const std::vector<int>& ranks);  // "ranks 0, 2 and 5"

void check_reducible(DType dtype);
// For reduce_scatter and all_gather: `whole` must have `size` times the elements of `part`.
void check_parts(std::string_view what, const Tensor& whole, const Tensor& part, int size);
void check_all_to_all(const Tensor& out, const Tensor& x, int size);
// A root must be a rank of the group; a peer must also be another rank than this one.
void check_root(int root, int size);
void check_peer(std::string_view what, int peer, int rank, int size);

}  // namespace shoal
