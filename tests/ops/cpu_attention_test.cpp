// Attention of the cpu backend against the oracle.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/conformance.h"

namespace shoal::test {
namespace {

struct Case {
  std::int64_t B, T, H, D;
  double dropout = 0;
  double stddev = 1;  // of q, k, v; large ones make the running maximum jump
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << fmt::format("B{} T{} H{} D{} dropout {} stddev {}", c.B, c.T, c.H, c.D, c.dropout, c.stddev);
}

class CpuAttention : public Conformance<std::tuple<DType, Case>> {
 protected:
  CpuAttention() { dropout_.p = case_.dropout; }

  struct Results {
    Values out, lse;
  };
  Results forward(const Side& side, const Values& qkv) const {
    const Buffer out = side.compute({B_, T_, H_, D_}), lse = side.full({B_, H_, T_});
    side.backend.attention_forward(out, lse, side.compute({B_, T_, 3, H_, D_}, qkv), kFirstHead,
                                   side.at_step(dropout_));
    return {out.values(), lse.values()};
  }

  // The vector q, k or v, for which = 0, 1 or 2.
  const double* vector(std::int64_t which, std::int64_t b, std::int64_t t, std::int64_t h) const {
    return &qkv_[(((b * T_ + t) * 3 + which) * H_ + h) * D_];
  }
  double norm(const double* x) const {
    double squares = 0;
    for (std::int64_t d = 0; d < D_; ++d) squares += x[d] * x[d];
    return std::sqrt(squares);
  }
  // |q| max |k| / sqrt D over the keys that query i sees: an upper bound of its scores, and of the sum of
  // magnitudes in each.
  double score_size(std::int64_t b, std::int64_t i, std::int64_t h) const {
    double largest = 0;
    for (std::int64_t j = 0; j <= i; ++j) largest = std::max(largest, norm(vector(1, b, j, h)));
    return norm(vector(0, b, i, h)) * largest / std::sqrt(static_cast<double>(D_));
  }
  // The relative error of exp(score - x), with x of the score's size. A score of size S is off by gamma(D +
  // 2) S. Subtracting a maximum and rescaling by differences of maxima (they telescope), or working in powers
  // of two, rounds numbers of size 2 S three times. Each tile (at most one per 16 keys) rescales once, with
  // exp and a product.
  double exp_error(double size) const {
    return gamma(D_ + 8) * size + static_cast<double>(T_ / 16 + 2) * (kFunctionError + kUnit);
  }

  // out = sum p |v| / sum p with the oracle's p: both sums are off by the error of p and of a sum of T terms.
  // In bfloat16, p may be rounded before it is multiplied by v.
  Results bounds(const Results& expected) const {
    Values magnitudes = qkv_;
    const std::int64_t width = H_ * D_;
    for (std::int64_t row = 0; row < B_ * T_; ++row) {
      const std::slice values(row * 3 * width + 2 * width, width, 1);
      magnitudes[values] = Values(std::abs(Values(qkv_[values])));
    }
    Values out_bound = forward(oracle(), magnitudes).out, lse_bound(expected.lse.size());
    const double p_rounding = type_ == DType::bf16 ? unit_roundoff(type_) : 0;
    for (std::int64_t b = 0, row = 0; b < B_; ++b) {
      for (std::int64_t i = 0; i < T_; ++i) {
        for (std::int64_t h = 0; h < H_; ++h, ++row) {
          const double error = exp_error(score_size(b, i, h)) + gamma(T_ + 3);
          out_bound[std::slice(row * D_, D_, 1)] *= Values(2 * error + p_rounding, D_);
          // lse = maximum + log(sum): the error of the scores and of the sum, of log, and one rounding.
          lse_bound[(b * H_ + h) * T_ + i] = error + kFunctionError * std::log(static_cast<double>(T_) + 1);
        }
      }
    }
    return {out_bound + storage(expected.out, type_), lse_bound + storage(expected.lse, DType::f32)};
  }

  static constexpr std::int64_t kFirstHead = 2;
  DType type_ = std::get<0>(GetParam());
  Case case_ = std::get<1>(GetParam());
  std::int64_t B_ = case_.B, T_ = case_.T, H_ = case_.H, D_ = case_.D;
  Values qkv_ = normal_values(B_ * T_ * 3 * H_ * D_, 1, type_, 0, case_.stddev);
  Dropout dropout_ = some_dropout(T_);
};

TEST_P(CpuAttention, Forward) {
  const Results actual = forward(cpu(type_), qkv_), expected = forward(oracle(), qkv_),
                bound = bounds(expected);
  expect_within(actual.out, expected.out, bound.out);
  expect_within(actual.lse, expected.lse, bound.lse);
}

// out and lse are inputs, the same on both sides. p = exp(score - lse) has the error of exp; dp = dout . v
// and delta = dout . out are sums of D terms; so ds = p (dp - delta) / sqrt D is off by (error of p + gamma(D
// + 4)) times p (|dout| . |v| + |dout| . |out|) / sqrt D, and in bfloat16 p and ds may be rounded before they
// enter the products, which are sums of T terms. A probability below the smallest normal number may be zero.
TEST_P(CpuAttention, Backward) {
  const Results given = forward(cpu(type_), qkv_);
  const Values dout = normal_values(B_ * T_ * H_ * D_, 2, type_);
  const auto run = [&](const Side& side) {
    const Buffer dqkv = side.compute({B_, T_, 3, H_, D_});
    side.backend.attention_backward({.dqkv = dqkv,
                                     .dout = side.compute({B_, T_, H_, D_}, dout),
                                     .out = side.compute({B_, T_, H_, D_}, given.out),
                                     .lse = side.full({B_, H_, T_}, given.lse),
                                     .qkv = side.compute({B_, T_, 3, H_, D_}, qkv_),
                                     .first_head = kFirstHead,
                                     .dropout = side.at_step(dropout_)});
    return dqkv.values();
  };
  const Values expected = run(oracle());
  Values bound = storage(expected, type_);
  const double scale = 1 / std::sqrt(static_cast<double>(D_)),
               kept = dropout_.active() ? dropout_.scale() : 1;
  const double product_rounding = (type_ == DType::bf16 ? unit_roundoff(type_) : 0) + gamma(T_ + D_ + 4);
  for (std::int64_t b = 0; b < B_; ++b) {
    for (std::int64_t i = 0; i < T_; ++i) {
      for (std::int64_t h = 0; h < H_; ++h) {
        const std::int64_t row = ((b * T_ + i) * H_ + h) * D_;
        const double *q = vector(0, b, i, h), *go = &dout[row], *o = &given.out[row];
        const double lse = given.lse[(b * H_ + h) * T_ + i],
                     error = exp_error(score_size(b, i, h)) + product_rounding;
        double delta_size = 0;
        for (std::int64_t d = 0; d < D_; ++d) delta_size += std::abs(go[d] * o[d]);
        for (std::int64_t j = 0; j <= i; ++j) {
          const double *k = vector(1, b, j, h), *v = vector(2, b, j, h);
          double score = 0, dp_size = 0;
          for (std::int64_t d = 0; d < D_; ++d)
            score += q[d] * k[d], dp_size += std::abs(go[d] * v[d]) * kept;
          const double p = std::exp(score * scale - lse), p_error = error * p + kSmallest,
                       ds_error = p_error * (dp_size + delta_size) * scale;
          const std::int64_t query = vector(0, b, i, h) - &qkv_[0], key = vector(1, b, j, h) - &qkv_[0];
          for (std::int64_t d = 0; d < D_; ++d) {
            bound[query + d] += ds_error * std::abs(k[d]);
            bound[key + d] += ds_error * std::abs(q[d]);
            bound[key + H_ * D_ + d] += p_error * kept * std::abs(go[d]);
          }
        }
      }
    }
  }
  expect_within(run(cpu(type_)), expected, bound);
}

// Sequences that are read in pieces of several sizes, beside each other, must give the same output as whole.
// Generation has no dropout.
class CpuCachedAttention : public CpuAttention {
 protected:
  std::int64_t text(std::int64_t b) const { return B_ - b; }  // none is in text 0

  // The answers at n positions of each sequence behind `past`, from the caches x [B + 1, T + 2, H, D].
  Values read(const Side& side, const Buffer& keys, const Buffer& values, std::int64_t past,
              std::int64_t n) const {
    const std::int64_t width = H_ * D_;
    const std::int64_t rows = B_ * n;
    Values pieces(rows * 3 * width), texts(rows), positions(rows);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t b = row / n, t = past + row % n;
      std::copy_n(vector(0, b, t, 0), 3 * width, &pieces[row * 3 * width]);
      texts[row] = static_cast<double>(text(b));
      positions[row] = static_cast<double>(t);
    }
    const Buffer answers = side.compute({rows, H_, D_});
    side.backend.attention_cached(answers, keys, values, side.compute({rows, 3, H_, D_}, pieces),
                                  {.texts = side.ints({rows}, texts),
                                   .positions = side.ints({rows}, positions),
                                   .prompt = B_ == 1 && past == 0});
    return answers.values();
  }
};

TEST_P(CpuCachedAttention, IsTheWhole) {
  const Results expected = forward(oracle(), qkv_), bound = bounds(expected);
  const std::int64_t width = H_ * D_, block = T_ + 2;
  for (const Side& side : {cpu(type_), oracle()}) {
    const Results whole = forward(side, qkv_);
    for (const std::int64_t first_piece : {std::int64_t{1}, (T_ + 1) / 2, T_}) {
      const Buffer keys = side.compute({B_ + 1, block, H_, D_}),
                   values = side.compute({B_ + 1, block, H_, D_});
      Values out(B_ * T_ * width);
      for (std::int64_t past = 0; past < T_;) {
        const std::int64_t n = std::min(past == 0 ? first_piece : 3, T_ - past);
        const Values answers = read(side, keys, values, past, n);
        for (std::int64_t b = 0; b < B_; ++b) {
          std::copy_n(&answers[b * n * width], n * width, &out[(b * T_ + past) * width]);
        }
        past += n;
      }
      expect_within(out, expected.out, bound.out);
      expect_within(out, whole.out, 2.0 * bound.out);
      const Values cached_keys = keys.values(), cached_values = values.values();
      for (std::int64_t b = 0; b < B_; ++b) {
        for (std::int64_t t = 0; t < T_; ++t) {
          const std::int64_t at = (text(b) * block + t) * width;
          EXPECT_TRUE(std::equal(vector(1, b, t, 0), vector(1, b, t, 0) + width, &cached_keys[at])) << t;
          EXPECT_TRUE(std::equal(vector(2, b, t, 0), vector(2, b, t, 0) + width, &cached_values[at])) << t;
        }
        EXPECT_EQ(cached_keys[(text(b) * block + T_) * width], 0) << "past the end";
      }
      EXPECT_EQ(cached_keys[0], 0) << "of another text";
    }
  }
}

const auto kShort = testing::Values(Case{2, 1, 1, 1}, Case{1, 1, 2, 64}, Case{2, 5, 3, 8}, Case{2, 33, 2, 24},
                                    Case{1, 33, 1, 1}, Case{2, 64, 2, 32}, Case{1, 64, 2, 64});
const auto kLong = testing::Values(Case{1, 100, 2, 80}, Case{1, 100, 1, 96}, Case{1, 257, 1, 32, 0, 4},
                                   Case{1, 100, 1, 64, 0, 8});
const auto kLongest = testing::Values(Case{1, 257, 1, 64}, Case{1, 300, 1, 64}, Case{1, 257, 2, 24});
const auto kWithDropout = testing::Values(
    Case{2, 5, 3, 8, 0.1}, Case{2, 33, 3, 64, 0.1}, Case{1, 130, 2, 64, 0.1}, Case{2, 191, 1, 64, 0.5},
    Case{1, 257, 1, 64, 0.1}, Case{1, 100, 2, 80, 0.5}, Case{2, 257, 1, 32, 0.1});

INSTANTIATE_TEST_SUITE_P(Short, CpuAttention, testing::Combine(kComputeTypes, kShort));
INSTANTIATE_TEST_SUITE_P(Long, CpuAttention, testing::Combine(kComputeTypes, kLong));
INSTANTIATE_TEST_SUITE_P(Longest, CpuAttention, testing::Combine(kComputeTypes, kLongest));
INSTANTIATE_TEST_SUITE_P(WithDropout, CpuAttention, testing::Combine(kComputeTypes, kWithDropout));
INSTANTIATE_TEST_SUITE_P(Short, CpuCachedAttention, testing::Combine(kComputeTypes, kShort));
INSTANTIATE_TEST_SUITE_P(Long, CpuCachedAttention, testing::Combine(kComputeTypes, kLong));
INSTANTIATE_TEST_SUITE_P(Longest, CpuCachedAttention, testing::Combine(kComputeTypes, kLongest));

}  // namespace
}  // namespace shoal::test
