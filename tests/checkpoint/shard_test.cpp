// The file of one rank's shard: written, verified and copied.
#include "checkpoint/shard.h"

#include "checkpoint/checkpoint_support.h"
#include "checkpoint/shard_file.h"

namespace shoal::test {
namespace {

using testing::HasSubstr;

class Shard : public testing::Test {
 protected:
  // Two slices of a tensor that is larger than a block of checksums, and a small tensor between them.
  Shard() {
    TensorSlice first = large_.slice, second = large_.slice;
    first.flat_end = second.flat_begin = 500'000;
    const auto data = std::span<const std::byte>(large_.data);
    views_ = {{first, data.first(first.bytes())}, small_.view(), {second, data.subspan(first.bytes())}};
  }
  Manifest write(const std::string& name, OutputFile::Existing existing = OutputFile::Existing::emptied) {
    return write_shard_file(scratch_ / name, views_, {}, existing);
  }

  ScratchDir scratch_;
  const TestTensor large_{"a", DType::f32, {1'100'000}, 1}, small_{"b", DType::f32, {7}, 2};
  std::vector<SliceView> views_;
};

TEST_F(Shard, RecordDescribesTheFile) {
  const auto record = write("one");
  ASSERT_EQ(record.files.size(), 1u);
  EXPECT_EQ(record.files[0].name, "one");
  EXPECT_EQ(record.files[0].summary.bytes, fs::file_size(scratch_ / "one"));
  EXPECT_LE(record.files[0].summary.bytes + to_json_text(record).size(), shard_bytes(views_));
  ASSERT_EQ(record.tensors.size(), 2u);
  EXPECT_EQ(record.tensors[0].slices.size(), 2u);
  verify_shard_file(scratch_.path(), record);
}

TEST_F(Shard, OverwritesALongerFile) {
  const auto record = write("one");
  spill(scratch_ / "two", std::string(8 << 20, 'x'));
  EXPECT_EQ(write("two", OutputFile::Existing::overwritten).files[0].summary, record.files[0].summary);
  EXPECT_EQ(slurp(scratch_ / "two"), slurp(scratch_ / "one"));
}

TEST_F(Shard, CopyHasTheSameBytesAndItsOwnName) {
  const auto record = write("one");
  fs::create_directory(scratch_ / "to");
  const auto copy = copy_shard_file(scratch_.path(), record, scratch_ / "to/copy");
  EXPECT_EQ(slurp(scratch_ / "to/copy"), slurp(scratch_ / "one"));
  EXPECT_EQ(copy.files[0].name, "copy");
  EXPECT_EQ(copy.files[0].summary, record.files[0].summary);
}

TEST_F(Shard, DamageAnywhereIsFound) {
  const auto record = write("one");
  for (const auto at : {std::size_t{0}, std::size_t{4'300'000}, fs::file_size(scratch_ / "one") - 1}) {
    flip_byte(scratch_ / "one", at);
    EXPECT_THAT(user_error([&] { verify_shard_file(scratch_.path(), record); }), HasSubstr("one")) << at;
    EXPECT_THAT(user_error([&] { copy_shard_file(scratch_.path(), record, scratch_ / "copy"); }),
                HasSubstr("one"));
    flip_byte(scratch_ / "one", at);
  }
  fs::resize_file(scratch_ / "one", 4'300'000);
  EXPECT_THAT(user_error([&] { verify_shard_file(scratch_.path(), record); }), HasSubstr("one"));
}

TEST_F(Shard, StopsWhenItIsTold) {
  std::stop_source stop;
  stop.request_stop();
  EXPECT_THROW(write_shard_file(scratch_ / "one", views_, stop.get_token()), Error);
}

}  // namespace
}  // namespace shoal::test
