// Embedding, layer norm and residual stream of the cpu backend against the oracle.
#include <cmath>

#include "ops/conformance.h"

namespace shoal::test {
namespace {

class CpuEmbedding : public Conformance<std::tuple<Types, Shape, double>> {  // the shape is B, T, C
 protected:
  CpuEmbedding() {
    dropout_.p = std::get<2>(GetParam());
    dropout_.window.first_position = 2;
  }
  Types types_ = std::get<0>(GetParam());
  DType type_ = types_.compute, stream_ = types_.stream;
  std::int64_t B_ = std::get<1>(GetParam())[0], T_ = std::get<1>(GetParam())[1],
               C_ = std::get<1>(GetParam())[2];
  std::int64_t V_ = 7, P_ = T_ + 3, first_class_ = 2;  // of 12 classes, so that some belong to other shards
  Dropout dropout_ = some_dropout(T_ + 3);
  Values tokens_ = random_integers(B_ * T_, 1, 12);
};

TEST_P(CpuEmbedding, Forward) {
  const Values wte = normal_values(V_ * C_, 2, type_), wpe = normal_values(P_ * C_, 3, type_);
  const auto run = [&](const Side& side, const Values& wte_, const Values& wpe_) {
    const Buffer out = side.stream({B_, T_, C_});
    side.backend.embedding_forward(out, side.ints({B_, T_}, tokens_), side.compute({V_, C_}, wte_),
                                   side.compute({P_, C_}, wpe_), first_class_, side.at_step(dropout_));
    return out.values();
  };
  const Values expected = run(oracle(), wte, wpe);
  expect_within(run(cpu(types_), wte, wpe), expected,
                gamma(1) * run(oracle(), std::abs(wte), std::abs(wpe)) + storage(expected, stream_));
}

// Positions that are given one by one, the last one first.
TEST_P(CpuEmbedding, ForwardAtPositions) {
  const Values wte = normal_values(V_ * C_, 2, type_), wpe = normal_values(P_ * C_, 3, type_);
  Values positions(B_ * T_);
  for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<double>(P_ - 1 - i % P_);
  const auto run = [&](const Side& side, const Values& wte_, const Values& wpe_) {
    const Buffer out = side.stream({B_, T_, C_}), places = side.ints({B_, T_}, positions);
    side.backend.embedding_forward(out, side.ints({B_, T_}, tokens_), side.compute({V_, C_}, wte_),
                                   side.compute({P_, C_}, wpe_), first_class_, side.at_step(dropout_),
                                   places);
    return out.values();
  };
  const Values expected = run(oracle(), wte, wpe);
  expect_within(run(cpu(types_), wte, wpe), expected,
                gamma(1) * run(oracle(), std::abs(wte), std::abs(wpe)) + storage(expected, stream_));
}

TEST_P(CpuEmbedding, Backward) {
  const Values dout = normal_values(B_ * T_ * C_, 4, stream_), dwte0 = normal_values(V_ * C_, 5),
               dwpe0 = normal_values(P_ * C_, 6);
  const auto run = [&](const Side& side, const Values& dout_, const Values& dwte_before,
                       const Values& dwpe_before) {
    const Buffer dwte = side.full({V_, C_}, dwte_before), dwpe = side.full({P_, C_}, dwpe_before);
    side.backend.embedding_backward(dwte, dwpe, side.stream({B_, T_, C_}, dout_),
                                    side.ints({B_, T_}, tokens_), first_class_, side.at_step(dropout_));
    return std::pair(dwte.values(), dwpe.values());
  };
  const auto [dwte, dwpe] = run(cpu(types_), dout, dwte0, dwpe0);
  const auto [expected_dwte, expected_dwpe] = run(oracle(), dout, dwte0, dwpe0);
  const auto [dwte_size, dwpe_size] = run(oracle(), std::abs(dout), std::abs(dwte0), std::abs(dwpe0));
  // At most B T tokens add to one row of wte, and B sequences to each position; dropout rounds once more.
  expect_within(dwte, expected_dwte, gamma(B_ * T_ + 1) * dwte_size + storage(expected_dwte, DType::f32));
  expect_within(dwpe, expected_dwpe, gamma(B_ + 1) * dwpe_size + storage(expected_dwpe, DType::f32));
}

// Each of the 12 classes is in one shard. For a token, that shard gives the row of the whole embedding, the
// others give zeros.
TEST_P(CpuEmbedding, ShardsOfTheVocabularyMakeTheWhole) {
  const std::int64_t borders[] = {0, 1, 4, 11, 12};
  const Values wte = normal_values(12 * C_, 2, type_), wpe = normal_values(P_ * C_, 3, type_),
               dout = normal_values(B_ * T_ * C_, 4, stream_), dwpe0 = normal_values(P_ * C_, 6);
  for (const Side& side : {cpu(types_), Side{oracle().backend, type_}}) {
    const Buffer tokens = side.ints({B_, T_}, tokens_), weight = side.compute({12, C_}, wte),
                 positions = side.compute({P_, C_}, wpe), upstream = side.stream({B_, T_, C_}, dout);
    const auto run = [&](const Tensor& dwte, std::int64_t first, std::int64_t classes) {
      const Buffer out = side.stream({B_, T_, C_}), dwpe = side.full({P_, C_}, dwpe0);
      side.backend.embedding_forward(out, tokens, Tensor(weight).row_range(first, classes), positions, first,
                                     side.at_step(dropout_));
      side.backend.embedding_backward(dwte.row_range(first, classes), dwpe, upstream, tokens, first,
                                      side.at_step(dropout_));
      return std::pair(out.values(), dwpe.bytes());
    };
    const Buffer whole_dwte = side.full({12, C_}), dwte = side.full({12, C_});
    const auto [whole, whole_dwpe] = run(whole_dwte, 0, 12);
    Values sum(whole.size());
    for (std::size_t shard = 0; shard + 1 < std::size(borders); ++shard) {
      const auto [out, dwpe] = run(dwte, borders[shard], borders[shard + 1] - borders[shard]);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        ASSERT_TRUE(sum[i] == 0 || out[i] == 0) << "two shards have a row for element " << i;
      }
      sum += out;
      EXPECT_TRUE(dwpe == whole_dwpe) << side.backend.name() << ", shard " << shard;
    }
    EXPECT_TRUE((sum == whole).min()) << side.backend.name();
    EXPECT_TRUE(dwte.bytes() == whole_dwte.bytes()) << side.backend.name();
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CpuEmbedding,
                         testing::Combine(testing::ValuesIn(kTypes),
                                          testing::Values(Shape{1, 1, 1}, Shape{2, 5, 3}, Shape{3, 33, 17},
                                                          Shape{1, 64, 48}, Shape{2, 100, 100},
                                                          Shape{1, 5, 257}),
                                          testing::Values(0.0, 0.1)));

// Classes with many tokens, whose sums the CUDA backend takes in pieces of 32.
class CpuEmbeddingSums : public Conformance<std::tuple<std::int64_t, double, DType>> {
 protected:
  static constexpr std::int64_t kCounts[] = {1, 31, 32, 63, 64, 65, 129, 33}, kB = 10, kT = 50;
  static constexpr std::int64_t kFirst = 2, kClasses = std::size(kCounts) + 2;  // one before them, one after

  CpuEmbeddingSums() { dropout_.p = std::get<1>(GetParam()); }
  Side side() const { return cpu(Types{DType::bf16, stream_}); }

  // The first classes have kCounts tokens; all tokens left have one of the `others` in turn.
  static Values tokens(const std::vector<std::int64_t>& others) {
    std::vector<std::int64_t> sorted;
    for (std::size_t i = 0; i < std::size(kCounts); ++i) {
      sorted.insert(sorted.end(), kCounts[i], kFirst + 1 + static_cast<std::int64_t>(i));
    }
    while (sorted.size() < kB * kT) sorted.push_back(others[sorted.size() % others.size()]);
    Values mixed(sorted.size());
    for (std::size_t i = 0; i < sorted.size(); ++i) {
      mixed[i * 101 % sorted.size()] = static_cast<double>(sorted[i]);
    }
    return mixed;
  }
  std::pair<Values, Values> run(const Side& side, const Values& tokens, const Values& dout) const {
    const Buffer dwte = side.full({kClasses, C_}), dwpe = side.full({kT, C_});
    side.backend.embedding_backward(dwte, dwpe, side.stream({kB, kT, C_}, dout), side.ints({kB, kT}, tokens),
                                    kFirst, side.at_step(dropout_));
    return {dwte.values(), dwpe.values()};
  }

  std::int64_t C_ = std::get<0>(GetParam());
  DType stream_ = std::get<2>(GetParam());
  Dropout dropout_ = some_dropout(kT);
  Values dout_ = normal_values(kB * kT * C_, 4, stream_);
};

TEST_P(CpuEmbeddingSums, HaveEveryRow) {
  for (const auto& others : {std::vector<std::int64_t>{kFirst}, {kFirst + kClasses - 1, 0}}) {
    const auto [dwte, dwpe] = run(side(), tokens(others), dout_);
    const auto [expected_dwte, expected_dwpe] = run(oracle(), tokens(others), dout_);
    const auto [dwte_size, dwpe_size] = run(oracle(), tokens(others), std::abs(dout_));
    expect_within(dwte, expected_dwte, gamma(kB * kT + 1) * dwte_size + storage(expected_dwte, DType::f32));
    expect_within(dwpe, expected_dwpe, gamma(kB + 1) * dwpe_size + storage(expected_dwpe, DType::f32));
  }
}

TEST_P(CpuEmbeddingSums, DependOnTheirOwnRowsAlone) {
  const auto rows_of = [&](const std::vector<std::int64_t>& others) {
    return Values(run(side(), tokens(others), dout_).first[std::slice(C_, std::size(kCounts) * C_, 1)]);
  };
  const Values expected = rows_of({kFirst});  // all before them
  EXPECT_TRUE((rows_of({kFirst, kFirst + kClasses - 1, 0}) == expected).min());
  EXPECT_TRUE((rows_of({kFirst + kClasses - 1}) == expected).min());
  EXPECT_TRUE((rows_of({0, kFirst + kClasses}) == expected).min()) << "others of another rank";
}

INSTANTIATE_TEST_SUITE_P(Columns, CpuEmbeddingSums,
                         testing::Combine(testing::Values(3, 256, 300), testing::Values(0.0, 0.1),
                                          kComputeTypes));

class CpuResidual : public Conformance<std::tuple<Types, Shape, double>> {
 protected:
  CpuResidual() { dropout_.p = std::get<2>(GetParam()); }
  Types types_ = std::get<0>(GetParam());
  DType type_ = types_.compute, stream_ = types_.stream;
  Shape shape_ = std::get<1>(GetParam());
  Dropout dropout_ = some_dropout(shape_[1]);
};

TEST_P(CpuResidual, ForwardInPlaceAsWell) {
  const Values residual = normal_values(shape_.count(), 1, stream_),
               branch = normal_values(shape_.count(), 2, type_);
  const auto run = [&](const Side& side, const Values& residual_, const Values& branch_, bool in_place) {
    const Buffer stream = side.stream(shape_, residual_), separate = side.stream(shape_);
    side.backend.residual_forward(in_place ? stream : separate, stream, side.compute(shape_, branch_),
                                  side.at_step(dropout_));
    return (in_place ? stream : separate).values();
  };
  const Values expected = run(oracle(), residual, branch, false);
  const Values bound =
      gamma(1) * run(oracle(), std::abs(residual), std::abs(branch), false) + storage(expected, stream_);
  expect_within(run(cpu(types_), residual, branch, false), expected, bound);
  expect_within(run(cpu(types_), residual, branch, true), expected, bound);
}

TEST_P(CpuResidual, Backward) {
  const Values dout = normal_values(shape_.count(), 3, stream_);
  const auto run = [&](const Side& side) {
    const Buffer dbranch = side.compute(shape_);
    side.backend.residual_backward(dbranch, side.stream(shape_, dout), side.at_step(dropout_));
    return dbranch.values();
  };
  const Values expected = run(oracle());
  expect_within(run(cpu(types_)), expected, gamma(1) * std::abs(expected) + storage(expected, type_));
}

INSTANTIATE_TEST_SUITE_P(Shapes, CpuResidual,
                         testing::Combine(testing::ValuesIn(kTypes),
                                          testing::Values(Shape{1, 1, 1}, Shape{2, 5, 3}, Shape{3, 33, 17},
                                                          Shape{1, 64, 48}, Shape{2, 100, 100},
                                                          Shape{1, 257, 300}),
                                          testing::Values(0.0, 0.1)));

class CpuLayerNorm : public Conformance<std::tuple<Types, Shape, double>> {  // R, C; the mean of the inputs
 protected:
  Types types_ = std::get<0>(GetParam());
  DType type_ = types_.compute, stream_ = types_.stream;
  std::int64_t R_ = std::get<1>(GetParam())[0], C_ = std::get<1>(GetParam())[1];
  Values x_ = normal_values(R_ * C_, 1, stream_, std::get<2>(GetParam()));
  Values gamma_ = normal_values(C_, 2, type_), beta_ = normal_values(C_, 3, type_);

  struct Results {
    Values y, mean, rstd;
  };
  Results forward(const Side& side, bool with_beta) const {
    const Buffer y = side.compute({R_, C_}), mean = side.full({R_}), rstd = side.full({R_});
    const Buffer beta = side.compute({C_}, beta_);
    side.backend.layernorm_forward(y, mean, rstd, side.stream({R_, C_}, x_), side.compute({C_}, gamma_),
                                   with_beta ? beta : Tensor{});
    return {y.values(), mean.values(), rstd.values()};
  }
};

// The mean is off by at most e = gamma(C + 1) * mean |x|. That shifts every deviation by e, which adds e^2 to
// the variance (the deviations from the true mean sum to zero, so there is no first-order term), and the
// variance rounds C + 4 times: its relative error is v. 1/sqrt halves that and adds its own. A normalised
// value is then off by rstd * e, plus its own size times the error of rstd and two roundings; scale and shift
// round twice more.
TEST_P(CpuLayerNorm, Forward) {
  for (const bool with_beta : {true, false}) {
    const Results actual = forward(cpu(types_), with_beta), expected = forward(oracle(), with_beta);
    Values y_bound = storage(expected.y, type_), mean_bound(R_), rstd_bound(R_);
    for (std::int64_t r = 0; r < R_; ++r) {
      const Values row = x_[std::slice(r * C_, C_, 1)];
      const double rstd = expected.rstd[r], mean_size = Values(std::abs(row)).sum() / static_cast<double>(C_);
      mean_bound[r] = gamma(C_ + 1) * mean_size;
      const double v = gamma(C_ + 4) + mean_bound[r] * mean_bound[r] * rstd * rstd;
      rstd_bound[r] = rstd * (v / 2 + kFunctionError);
      for (std::int64_t c = 0; c < C_; ++c) {
        const double normal = std::abs(row[c] - expected.mean[r]) * rstd;
        const double normal_error = rstd * mean_bound[r] + normal * (v / 2 + kFunctionError + gamma(2));
        const double shift = with_beta ? std::abs(beta_[c]) : 0;
        y_bound[r * C_ + c] +=
            std::abs(gamma_[c]) * normal_error + gamma(2) * (std::abs(gamma_[c]) * normal + shift);
      }
    }
    expect_within(actual.y, expected.y, y_bound);
    expect_within(actual.mean, expected.mean, mean_bound + storage(expected.mean, DType::f32));
    expect_within(actual.rstd, expected.rstd, rstd_bound + storage(expected.rstd, DType::f32));
  }
}

// With n = (x - mean) rstd and g = dy gamma: dx += rstd (g - mean(g) - n mean(g n)). A product of the last
// sum rounds five times, the sum C times, and what is made of it five times more. mean and rstd are inputs
// here.
TEST_P(CpuLayerNorm, Backward) {
  const Results stats = forward(cpu(types_), true);
  const Values dy = normal_values(R_ * C_, 4, type_), dx0 = normal_values(R_ * C_, 5, stream_),
               dgamma0 = normal_values(C_, 6), dbeta0 = normal_values(C_, 7);
  for (const bool with_beta : {true, false}) {
    const auto run = [&](const Side& side) {
      const Buffer dx = side.stream({R_, C_}, dx0), dgamma = side.full({C_}, dgamma0),
                   dbeta = side.full({C_}, dbeta0);
      side.backend.layernorm_backward({.dx = dx,
                                       .dgamma = dgamma,
                                       .dbeta = with_beta ? dbeta : Tensor{},
                                       .dy = side.compute({R_, C_}, dy),
                                       .x = side.stream({R_, C_}, x_),
                                       .gamma = side.compute({C_}, gamma_),
                                       .mean = side.full({R_}, stats.mean),
                                       .rstd = side.full({R_}, stats.rstd)});
      return std::array{dx.values(), dgamma.values(), dbeta.values()};
    };
    const auto [dx, dgamma, dbeta] = run(cpu(types_));
    const auto [expected_dx, expected_dgamma, expected_dbeta] = run(oracle());
    Values dx_size = std::abs(dx0), dgamma_size = std::abs(dgamma0), dbeta_size = std::abs(dbeta0);
    for (std::int64_t r = 0; r < R_; ++r) {
      const Values row = x_[std::slice(r * C_, C_, 1)], dy_row = dy[std::slice(r * C_, C_, 1)];
      const Values n = std::abs(row - stats.mean[r]) * stats.rstd[r], g = std::abs(dy_row * gamma_);
      const double mean_g = g.sum() / static_cast<double>(C_);
      const double mean_gn = Values(g * n).sum() / static_cast<double>(C_);
      dx_size[std::slice(r * C_, C_, 1)] += Values(stats.rstd[r] * (g + mean_g + n * mean_gn));
      dgamma_size += std::abs(dy_row) * n;
      dbeta_size += std::abs(dy_row);
    }
    expect_within(dx, expected_dx, gamma(C_ + 10) * dx_size + storage(expected_dx, stream_));
    expect_within(dgamma, expected_dgamma,
                  gamma(R_ + 3) * dgamma_size + storage(expected_dgamma, DType::f32));
    expect_within(dbeta, expected_dbeta, gamma(R_ + 1) * dbeta_size + storage(expected_dbeta, DType::f32));
  }
}

// With a mean of 100 standard deviations, a variance computed as a difference of squares would be wrong.
INSTANTIATE_TEST_SUITE_P(Shapes, CpuLayerNorm,
                         testing::Combine(testing::ValuesIn(kTypes),
                                          testing::Values(Shape{1, 1}, Shape{5, 3}, Shape{33, 17},
                                                          Shape{64, 48}, Shape{100, 100}, Shape{257, 64},
                                                          Shape{3, 1003}),
                                          testing::Values(0.0, 100.0)));

// The fused op of residual addition and norm gives the bits of the separate ops.
class CpuStreamNorm : public Conformance<std::tuple<Types, Shape, double>> {  // the shape is B, T, C
 protected:
  CpuStreamNorm() {
    dropout_.p = std::get<2>(GetParam());
    dropout_.window.first_position = 3;  // as on a rank that has a range of the rows
  }
  Types types_ = std::get<0>(GetParam());
  DType type_ = types_.compute, stream_ = types_.stream;
  Shape shape_ = std::get<1>(GetParam());
  std::int64_t R_ = shape_[0] * shape_[1], C_ = shape_[2], n_ = R_ * C_;
  Dropout dropout_ = some_dropout(shape_[1] + 3);
  Side side_ = cpu(types_);
  Backend& ops_ = side_.backend;
  Values x_ = normal_values(n_, 1, stream_);
  Buffer gamma_ = side_.compute({C_}, normal_values(C_, 3, type_)),
         beta_ = side_.compute({C_}, normal_values(C_, 4, type_)),
         other_ = side_.compute(shape_, normal_values(n_, 2, type_));  // a branch, or a gradient
};

TEST_P(CpuStreamNorm, Forward) {
  for (const bool with_beta : {true, false}) {
    for (const bool in_place : {false, true}) {
      const Tensor beta = with_beta ? static_cast<const Tensor&>(beta_) : Tensor{};
      const auto run = [&](bool fused) {
        const Buffer residual = side_.stream(shape_, x_), separate = side_.stream(shape_),
                     y = side_.compute({R_, C_}), mean = side_.full({R_}), rstd = side_.full({R_});
        const Tensor out = in_place ? residual : separate;
        if (fused) {
          ops_.residual_layernorm_forward({.out = out,
                                           .y = y,
                                           .mean = mean,
                                           .rstd = rstd,
                                           .residual = residual,
                                           .branch = other_,
                                           .dropout = side_.at_step(dropout_),
                                           .gamma = gamma_,
                                           .beta = beta});
        } else {
          ops_.residual_forward(out, residual, other_, side_.at_step(dropout_));
          ops_.layernorm_forward(y, mean, rstd, out, gamma_, beta);
        }
        return std::vector{residual.bytes(), separate.bytes(), y.bytes(), mean.bytes(), rstd.bytes()};
      };
      EXPECT_TRUE(run(true) == run(false)) << with_beta << in_place;
    }
  }
}

TEST_P(CpuStreamNorm, Backward) {
  const Buffer x = side_.stream(shape_, x_), y = side_.compute({R_, C_}), mean = side_.full({R_}),
               rstd = side_.full({R_});
  ops_.layernorm_forward(y, mean, rstd, x, gamma_, beta_);
  for (const bool fresh : {false, true}) {
    for (const bool with_branch : {true, false}) {
      const auto run = [&](bool fused) {
        const Buffer dx = side_.stream(shape_, normal_values(n_, 5, stream_)),
                     dbranch = side_.compute(shape_), dgamma = side_.full({C_}, normal_values(C_, 6)),
                     dbeta = side_.full({C_}, normal_values(C_, 7));
        const Tensor dy = static_cast<const Tensor&>(other_).reshaped({R_, C_});
        if (fused) {
          ops_.layernorm_residual_backward(
              {.norm = {.dx = dx,
                        .dgamma = dgamma,
                        .dbeta = dbeta,
                        .dy = dy,
                        .x = x,
                        .gamma = gamma_,
                        .mean = mean,
                        .rstd = rstd},
               .overwrite = fresh,
               .dbranch = with_branch ? static_cast<const Tensor&>(dbranch) : Tensor{},
               .dropout = side_.at_step(dropout_)});
        } else {
          if (fresh) ops_.zero(dx);
          ops_.layernorm_backward({.dx = dx,
                                   .dgamma = dgamma,
                                   .dbeta = dbeta,
                                   .dy = dy,
                                   .x = x,
                                   .gamma = gamma_,
                                   .mean = mean,
                                   .rstd = rstd});
          if (with_branch) ops_.residual_backward(dbranch, dx, side_.at_step(dropout_));
        }
        return std::vector{dx.bytes(), dbranch.bytes(), dgamma.bytes(), dbeta.bytes()};
      };
      EXPECT_TRUE(run(true) == run(false)) << fresh << with_branch;
    }
  }
}

TEST_P(CpuStreamNorm, SumsOfTheGradient) {
  if (ops_.norm_backward_sums()) expect_sums_of_gradient(side_, R_, C_);
}

// Rows of up to 16 x 128 columns are kept in the registers of a GPU.
INSTANTIATE_TEST_SUITE_P(Shapes, CpuStreamNorm,
                         testing::Combine(testing::ValuesIn(kTypes),
                                          testing::Values(Shape{1, 1, 4}, Shape{2, 5, 3}, Shape{3, 47, 20},
                                                          Shape{2, 3, 132}, Shape{1, 5, 516},
                                                          Shape{2, 2, 768}, Shape{1, 3, 1600},
                                                          Shape{1, 2, 2048}, Shape{1, 2, 2052}),
                                          testing::Values(0.0, 0.1)));

}  // namespace
}  // namespace shoal::test
