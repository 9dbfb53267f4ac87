// Shapes and views.
#include "core/tensor.h"

#include <gtest/gtest.h>

namespace shoal {
namespace {

TEST(Shape, CountsAndIndexesFromBothEnds) {
  Shape shape{4, 256, 768};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape.count(), 4 * 256 * 768);
  EXPECT_EQ(shape[0], 4);
  EXPECT_EQ(shape[-1], 768);
  EXPECT_EQ(shape.to_string(), "[4, 256, 768]");
  shape.push_back(2);
  EXPECT_EQ(shape, (Shape{4, 256, 768, 2}));
  EXPECT_EQ(Shape{}.count(), 1);
  EXPECT_EQ(Shape{}.to_string(), "[]");
}

TEST(Tensor, ViewsShareMemory) {
  float data[24] = {};
  const Tensor x{data, DType::f32, {2, 3, 4}};
  EXPECT_TRUE(x);
  EXPECT_FALSE(Tensor{});
  EXPECT_EQ(x.bytes(), 96);
  EXPECT_EQ(x.rows(), 6);
  EXPECT_EQ(x.columns(), 4);
  const Tensor rows = x.row_range(2, 3);
  EXPECT_EQ(rows.as<float>(), data + 8);
  EXPECT_EQ(rows.shape, (Shape{3, 4}));
  EXPECT_EQ(x.reshaped({4, 6}).rows(), 4);
}

}  // namespace
}  // namespace shoal
