// The ranks of a run as a mesh: pipeline x data x tensor. Neighbouring ranks are of one tensor group, which
// talks most, then come the data ranks, then the stages of the pipeline.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"

namespace shoal {

struct MeshShape {
  int pipeline = 1, data = 1, tensor = 1;
  int ranks() const { return pipeline * data * tensor; }
  bool operator==(const MeshShape&) const = default;
};

// A rank's coordinates.
struct MeshPlace {
  int pipeline = 0, data = 0, tensor = 0;
  bool operator==(const MeshPlace&) const = default;
};
MeshPlace place_of(const MeshShape& shape, int rank);
std::string to_string(const MeshPlace& place);  // "pipeline 1, data 0, tensor 3"

// One rank's groups. They have the members that differ in the named coordinate alone, in its order.
class Mesh {
 public:
  // Collective over `world`, which must outlive the mesh. Throws Error when the shape has another number of
  // ranks.
  Mesh(Communicator& world, const MeshShape& shape);
  // Data ranks alone.
  explicit Mesh(Communicator& world) : Mesh(world, {.data = world.size()}) {}

  const MeshShape& shape() const { return shape_; }
  const MeshPlace& place() const { return place_; }

  Communicator& world() { return world_; }
  Communicator& data() { return *data_; }
  Communicator& tensor() { return *tensor_; }
  // The stages, twice: activations and gradients go their ways at the same time, each in its own order.
  Communicator& activations() { return *activations_; }
  Communicator& gradients() { return *gradients_; }
  // Those that hold one model together: all of one data coordinate.
  Communicator& model() { return *model_; }
  // The first and the last stage, which share the embedding's matrix; a stage between them is alone.
  Communicator& ends() { return *ends_; }

 private:
  Communicator& world_;
  MeshShape shape_;
  MeshPlace place_;
  std::unique_ptr<Communicator> data_, tensor_, activations_, gradients_, model_, ends_;
};

}  // namespace shoal
