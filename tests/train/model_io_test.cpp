#include "train/model_io.h"

#include "core/logged.h"
#include "train/tiny_run.h"

namespace shoal::test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OtherTokenizer : public TinyRuns {
 protected:
  std::string warning(std::int64_t model_vocab_size, const Tokenizer* tokenizer) const {
    return logged([&] { warn_of_other_tokenizer(dataset_, model_vocab_size, tokenizer); });
  }

  Dataset dataset_{*data_ / "data"};
};

TEST_F(OtherTokenizer, IsGuessedFromTheVocabularyWhereTheModelHasNone) {
  EXPECT_THAT(warning(dataset_.vocab_size(), nullptr), IsEmpty());
  EXPECT_THAT(warning(dataset_.vocab_size() + 1, nullptr), HasSubstr("the model's tokenizer?"));
}

TEST_F(OtherTokenizer, IsKnownWhereBothHaveOne) {
  EXPECT_THAT(warning(dataset_.vocab_size() + 1, &dataset_.tokenizer()), IsEmpty());
  EXPECT_THAT(warning(dataset_.vocab_size(), make_byte_tokenizer().get()), HasSubstr("another tokenizer"));
}

}  // namespace
}  // namespace shoal::test
