// A tiny GPT-2 with random parameters, as a source of slices in Shoal's names and layout.
#pragma once

#include "checkpoint/huggingface_support.h"
#include "checkpoint/slice_source.h"
#include "checkpoint/weights_model.h"

namespace shoal::test {

class RandomModel : public SliceSource {
 public:
  explicit RandomModel(const WeightsModel& model, DType precision = DType::f32) {
    for (const auto& tensor : weights_tensors(model)) {
      TestTensor made("transformer." + tensor.name, DType::f32, tensor.shape, 0);
      const auto numbers = random_numbers(tensor.shape.count(), precision, tensors_.size());
      for (std::size_t i = 0; i < made.data.size() / 4; ++i) {
        std::uint32_t bits = 0;  // a bfloat16 is the upper half of a float
        std::memcpy(reinterpret_cast<std::byte*>(&bits) + 4 - size_of(precision),
                    &numbers[i * size_of(precision)], size_of(precision));
        std::memcpy(&made.data[i * 4], &bits, sizeof bits);
      }
      tensors_.push_back(std::move(made));
    }
  }
  void read(const TensorSlice& slice, std::span<std::byte> out) override {
    std::ranges::copy(cut(at(slice.name), slice), out.begin());
  }
  const TestTensor& at(const std::string& name) const {
    return *std::ranges::find(tensors_, name, [](const auto& tensor) { return tensor.slice.name; });
  }
  const std::vector<TestTensor>& tensors() const { return tensors_; }

 private:
  std::vector<TestTensor> tensors_;
};

// All parameters are those of `model`, to the bit.
inline void expect_same_model(SliceSource& source, const RandomModel& model) {
  for (const auto& tensor : model.tensors()) {
    std::vector<std::byte> data(tensor.data.size());
    source.read(tensor.slice, data);
    EXPECT_EQ(data, tensor.data) << tensor.slice.name;
  }
}

}  // namespace shoal::test
