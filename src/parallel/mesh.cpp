#include "parallel/mesh.h"

#include <fmt/format.h>

#include "core/error.h"

namespace shoal {

MeshCoordinate coordinate_of(const MeshShape& shape, int rank) {
  return {.pipeline = rank / (shape.tensor * shape.data) % shape.pipeline,
          .data = rank / shape.tensor % shape.data,
          .tensor = rank % shape.tensor,
          .worker = rank / shape.ranks_of_worker()};
}

std::string to_string(const MeshCoordinate& coordinate, const MeshShape& shape) {
  return fmt::format("{}pipeline {}, data {}, tensor {}",
                     shape.workers > 1 ? fmt::format("worker {}, ", coordinate.worker) : "",
                     coordinate.pipeline, coordinate.data, coordinate.tensor);
}

Mesh::Mesh(Communicator& world, const MeshShape& shape)
    : world_(world), shape_(shape), coordinate_(coordinate_of(shape, world.rank())) {
  if (shape.ranks() != world.size()) {
    fail("a mesh of {} x {} x {} x {} is not one of {} ranks", shape.workers, shape.pipeline, shape.data,
         shape.tensor, world.size());
  }
  worker_ = world.split([&](int rank) {
    return Communicator::SplitKey{coordinate_of(shape, rank).worker, rank};
  });
  peers_ = world.split([&](int rank) {
    return Communicator::SplitKey{rank % shape.ranks_of_worker(), rank};
  });
  // The colour of a group is what its members have in common.
  const auto split = [&](auto&& colour) {
    return worker_->split([&](int rank) {
      return Communicator::SplitKey{colour(coordinate_of(shape, rank)), rank};
    });
  };
  const auto stages = [&](const MeshCoordinate& p) { return p.data * shape.tensor + p.tensor; };
  data_ = split([&](const MeshCoordinate& p) { return p.pipeline * shape.tensor + p.tensor; });
  tensor_ = split([&](const MeshCoordinate& p) { return p.pipeline * shape.data + p.data; });
  activations_ = split(stages);
  gradients_ = split(stages);
  if (shape.pipeline > 1) {  // as the stages are ordered there
    const int next = (coordinate_.pipeline + 1) % shape.pipeline,
              previous = (coordinate_.pipeline + shape.pipeline - 1) % shape.pipeline;
    activations_->expect_messages(next, previous);
    gradients_->expect_messages(previous, next);
  }
  model_ = split([&](const MeshCoordinate& p) { return p.data; });
  ends_ = split([&](const MeshCoordinate& p) {
    const bool between = p.pipeline > 0 && p.pipeline + 1 < shape.pipeline;
    return stages(p) + (between ? p.pipeline * shape.data * shape.tensor : 0);
  });
}

}  // namespace shoal
