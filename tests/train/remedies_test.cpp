// Tests of the remedies that errors of the rooms below get.
#include "train/remedies.h"

#include <gmock/gmock.h>

#include "checkpoint/run_lock.h"
#include "data/errors.h"
#include "data/temp_folder.h"

namespace shoal {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

using Fault = DataError::Fault;

std::string message(Fault fault, const std::string& path) {
  return test::user_error([&] { with_remedy([&] { throw DataError(fault, path, "problem"); }); });
}

TEST(Remedies, TextIsToBePrepared) {
  EXPECT_THAT(message(Fault::missing, "out"),
              HasSubstr("out: problem; make it with `shoal prepare text FILE ... --out out`"));
  EXPECT_THAT(message(Fault::empty, "out/"), HasSubstr("`shoal prepare text FILE ... --out out`"));
  for (const auto* folder : {"my/books", "my/books/"}) {
    EXPECT_THAT(message(Fault::no_dataset, folder),
                AllOf(HasSubstr("`shoal prepare text my/books --out my/books-tokens`"),
                      HasSubstr("data.dir=my/books-tokens")));
  }
  EXPECT_THAT(message(Fault::file, "my/one.txt"),
              AllOf(HasSubstr("data.dir names a folder"),
                    HasSubstr("`shoal prepare text my/one.txt --out my/one-tokens`")));
}

TEST(Remedies, AVocabularyIsSetInTheConfig) {
  EXPECT_THAT(message(Fault::vocabulary_file, "meta.pkl"), EndsWith("set model.vocab_size"));
  EXPECT_THAT(message(Fault::large_id, "train.bin"), EndsWith("model.vocab_size is too small"));
}

TEST(Remedies, ARunInUseIsToBeStopped) {
  EXPECT_EQ(test::user_error([] { with_remedy([] { throw RunInUse("runs/a is in use"); }); }),
            "runs/a is in use; stop it, or choose another run.name or run.dir");
}

TEST(Remedies, OtherErrorsAndResultsPass) {
  EXPECT_EQ(with_remedy([] { return 7; }), 7);
  EXPECT_EQ(test::user_error([] { with_remedy([] { fail_user("as it is"); }); }), "as it is");
}

}  // namespace
}  // namespace shoal
