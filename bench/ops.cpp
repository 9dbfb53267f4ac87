// Times every op of the cpu backend over the shapes of three models in float32 and bfloat16.
//   bench_ops [--filter TEXT] [--threads N] [--seconds S]
// A row whose name (model, type, op, as printed) holds TEXT is measured; N is 0, every core, and S,
// the time spent on a row, 0.05 if not given.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/cores.h"
#include "core/cpu.h"
#include "core/philox.h"
#include "core/text.h"
#include "ops/cpu/cpu.h"
#include "ops/kernels.h"

using namespace shoal;

namespace {

struct Model {
  std::string name;
  std::int64_t batch, positions, heads, channels, classes, padded_classes, head_rows;
  double dropout;
  std::int64_t rows() const { return batch * positions; }
  // Parameters of one block: the buffer that the optimizer goes over at a time.
  std::int64_t unit() const { return 12 * channels * channels + 13 * channels; }
};

const std::vector<Model> kModels = {
    {"gpt2", 4, 256, 12, 768, 50257, 50272, 512, 0},  // the head's logits are made in chunks of 512 rows
    {"char384", 64, 256, 6, 384, 65, 80, 16384, 0.2},
    {"char128", 12, 64, 4, 128, 65, 80, 768, 0},
};

// The least cost of a call. flops counts only the products that the op needs.
struct Cost {
  double flops = 0;
  double bytes = 0;  // of inputs read and outputs written once each
};

double bytes_of(DType type) { return static_cast<double>(size_of(type)); }

struct Seconds {
  double median, best;
};

template <typename F>
Seconds measure(double budget, F&& f) {
  f();
  std::vector<double> times;
  Stopwatch total;
  while (times.size() < 5 || (total.seconds() < budget && times.size() < 2000)) {
    Stopwatch watch;
    f();
    times.push_back(watch.seconds());
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front()};
}

// The tensors of one row, filled with numbers of a normal distribution and released together.
class Pool {
 public:
  explicit Pool(Backend& backend) : backend_(backend) {}
  ~Pool() {
    for (const auto& tensor : tensors_) backend_.release(tensor.data, tensor.bytes());
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  Tensor zeros(DType dtype, Shape shape) {
    Tensor tensor{nullptr, dtype, shape};
    tensor.data = backend_.allocate(tensor.bytes());
    tensors_.push_back(tensor);
    return tensor;
  }
  Tensor normal(DType dtype, Shape shape) {
    const Tensor tensor = zeros(dtype, shape);
    const std::int64_t some = std::min<std::int64_t>(tensor.count(), 65521);
    const Tensor head{tensor.data, dtype, {some}};
    std::vector<float> values(static_cast<std::size_t>(some));
    backend_.fill_normal({values.data(), DType::f32, {some}}, 1, 2, 0, 1.0);
    backend_.convert(head, {values.data(), DType::f32, {some}});
    auto* bytes = tensor.as<std::byte>();
    for (std::size_t at = head.bytes(); at < tensor.bytes(); at += head.bytes()) {
      std::memcpy(bytes + at, bytes, std::min(head.bytes(), tensor.bytes() - at));
    }
    return tensor;
  }
  Tensor integer(std::int64_t value) {
    const Tensor tensor = zeros(DType::i32, {1});
    *tensor.as<std::int32_t>() = static_cast<std::int32_t>(value);
    return tensor;
  }
  Tensor classes(Shape shape, std::int64_t below) {
    const Tensor tensor = zeros(DType::i32, shape);
    for (std::int64_t i = 0; i < tensor.count(); ++i) {
      const auto random = philox({1, 2}, {static_cast<std::uint32_t>(i), 0, 0, 0});
      tensor.as<std::int32_t>()[i] =
          static_cast<std::int32_t>(to_below(random, static_cast<std::uint64_t>(below)));
    }
    return tensor;
  }

 private:
  Backend& backend_;
  std::vector<Tensor> tensors_;
};

class Bench {
 public:
  Bench(int threads, double row_seconds, std::string filter)
      : row_seconds_(row_seconds),
        threads_(threads > 0 ? threads : usable_cores()),
        filter_(std::move(filter)),
        backend_(make_cpu_backend(threads_)) {}

  void machine();
  void model(const Model& model, DType type);

 private:
  using Setup = std::function<std::function<void()>(Pool&)>;
  // Measures what `setup` returns, if the row is wanted.
  void row(const std::string& op, const std::string& shape, const Cost& cost, const Setup& setup);
  void products(const Model& model);
  void product(const std::string& name, std::int64_t rows, std::int64_t in, std::int64_t out, bool head);
  void attention(const Model& model, double dropout);
  void streams(const Model& model, double dropout);
  void norms_and_gelu(const Model& model);
  void loss(const Model& model);
  void flat(const Model& model);

  double row_seconds_;
  int threads_;
  std::string filter_;
  std::unique_ptr<Backend> backend_;
  double peak_[2] = {};  // float32, bfloat16
  double bandwidth_ = 0;
  std::string prefix_;
  DType type_ = DType::f32;
};

void Bench::machine() {
  const auto cache = cache_bytes(3);
  fmt::print("{}, {} cores, {} threads used, third-level cache {}\n", processor_name(), usable_cores(),
             threads_, cache > 0 ? format_bytes(static_cast<double>(cache)) : "unknown");
  for (const int threads : {1, threads_}) {
    const auto backend = make_cpu_backend(threads);
    peak_[0] = backend->measure_peak_flops(DType::f32);
    peak_[1] = backend->measure_peak_flops(DType::bf16);
    bandwidth_ = backend->measure_read_bandwidth();
    fmt::print("{} thread{}: peak float32 {:.1f} GFLOP/s, bfloat16 {:.1f}; memory read {:.1f} GB/s\n",
               threads, threads == 1 ? " " : "s", peak_[0] * 1e-9, peak_[1] * 1e-9, bandwidth_ * 1e-9);
    if (threads_ == 1) break;
  }
  backend_ = make_cpu_backend(threads_);  // sets the number of threads again
  fmt::print(
      "Rates are of the median time, with operands as warm as repetition leaves them; best: the shortest.\n"
      "% of peak: of the type's multiply-add peak.\n"
      "% of bw: bytes that must be read and written over the read bandwidth; what fits the caches may pass "
      "100.\nAttention counts the visible half of the scores (T (T + 1) / 2 a head); [brackets]: as if all "
      "T x T.\n\n{:<54} {:<20} {:>9} {:>9} {:>8} {:>7} {:>8} {:>7}  {:>7}\n",
      "model, type, op", "shape", "ms", "best", "GFLOP/s", "% peak", "GB/s", "% bw", "MB");
}

void Bench::row(const std::string& op, const std::string& shape, const Cost& cost, const Setup& setup) {
  const std::string name = prefix_ + op;
  if (name.find(filter_) == std::string::npos) return;
  Pool pool(*backend_);
  const auto [seconds, best] = measure(row_seconds_, setup(pool));
  fmt::print("{:<54} {:<20} {:>9.4f} {:>9.4f}", name, shape, seconds * 1e3, best * 1e3);
  if (cost.flops > 0) {
    const double rate = cost.flops / seconds;
    fmt::print(" {:>8.1f} {:>7.1f}", rate * 1e-9, 100 * rate / peak_[type_ == DType::bf16]);
  } else if (cost.bytes > 0) {
    const double rate = cost.bytes / seconds;
    fmt::print(" {:>8} {:>7} {:>8.1f} {:>7.1f}  {:>7.2f}", "", "", rate * 1e-9, 100 * rate / bandwidth_,
               cost.bytes * 1e-6);
  }
  if (op.starts_with("attention_forward") || op.starts_with("attention_backward")) {
    fmt::print(" {:>25}", fmt::format("[{:.1f}]", 2 * cost.flops / seconds * 1e-9));
  }
  fmt::print("\n");
  std::fflush(stdout);
}

void Bench::product(const std::string& name, std::int64_t rows, std::int64_t in, std::int64_t out,
                    bool head) {
  auto& ops = *backend_;
  const Cost cost{.flops = 2.0 * static_cast<double>(rows * in * out)};
  const std::string shape = fmt::format("{} x {} x {}", rows, out, in);
  const DType type = type_;
  row("linear_forward " + name, shape, cost, [&](Pool& pool) {
    return [&ops, y = pool.zeros(head ? DType::f32 : type, {rows, out}), x = pool.normal(type, {rows, in}),
            w = pool.normal(type, {out, in}),
            bias = head ? Tensor{} : pool.normal(type, {out})] { ops.linear_forward(y, x, w, bias); };
  });
  row("linear_backward_input " + name, shape, cost, [&](Pool& pool) {
    return [&ops, dx = pool.zeros(type, {rows, in}), dy = pool.normal(type, {rows, out}),
            w = pool.normal(type, {out, in})] { ops.linear_backward_input(dx, dy, w); };
  });
  row("linear_backward_weight " + name, shape, cost, [&](Pool& pool) {
    return [&ops, dw = pool.zeros(DType::f32, {out, in}),
            dbias = head ? Tensor{} : pool.zeros(DType::f32, {out}), dy = pool.normal(type, {rows, out}),
            x = pool.normal(type, {rows, in})] { ops.linear_backward_weight(dw, dbias, dy, x, false); };
  });
}

void Bench::products(const Model& model) {
  const std::int64_t c = model.channels;
  product("qkv", model.rows(), c, 3 * c, false);
  product("attention out", model.rows(), c, c, false);
  product("mlp up", model.rows(), c, 4 * c, false);
  product("mlp down", model.rows(), 4 * c, c, false);
  product("head", model.head_rows, c, model.padded_classes, true);
}

Dropout make_dropout(const Model& model, double p) {
  static constexpr std::uint32_t kStep = 1;
  return {.p = p, .seed = 1, .step = &kStep, .site = 1, .window = {.sequence = model.positions}};
}
std::string suffix(double p) { return p > 0 ? fmt::format(" dropout {}", p) : ""; }

void Bench::attention(const Model& model, double p) {
  auto& ops = *backend_;
  const std::int64_t b = model.batch, t = model.positions, h = model.heads, d = model.channels / h;
  const Dropout dropout = make_dropout(model, p);
  const double product = static_cast<double>(b * h * d * t * (t + 1));
  const std::string shape = fmt::format("{} x {} x {} x {}", b, t, h, d);
  const DType type = type_;
  struct Operands {
    Tensor qkv, out, lse;
  };
  const auto operands = [=](Pool& pool) {
    return Operands{pool.normal(type, {b, t, 3, h, d}), pool.zeros(type, {b, t, h, d}),
                    pool.zeros(DType::f32, {b, h, t})};
  };
  row("attention_forward" + suffix(p), shape, {.flops = 2 * product}, [&](Pool& pool) {
    return [&ops, dropout, o = operands(pool)] { ops.attention_forward(o.out, o.lse, o.qkv, 0, dropout); };
  });
  // Five products: the scores once more, and the gradients of probabilities, values, queries and keys.
  row("attention_backward" + suffix(p), shape, {.flops = 5 * product}, [&](Pool& pool) {
    const Operands o = operands(pool);
    ops.attention_forward(o.out, o.lse, o.qkv, 0, dropout);
    return
        [&ops, dropout, o, dout = pool.normal(type, {b, t, h, d}), dqkv = pool.zeros(type, {b, t, 3, h, d})] {
          ops.attention_backward(
              {.dqkv = dqkv, .dout = dout, .out = o.out, .lse = o.lse, .qkv = o.qkv, .dropout = dropout});
        };
  });
  if (p > 0) return;
  const Cost cached{.bytes = 2.0 * static_cast<double>(t * h * d) * bytes_of(type)};
  row("attention_cached", fmt::format("1 after {} x {} x {}", t - 1, h, d), cached, [&](Pool& pool) {
    return [&ops, out = pool.zeros(type, {1, h, d}), keys = pool.normal(type, {1, t, h, d}),
            values = pool.normal(type, {1, t, h, d}), qkv = pool.normal(type, {1, 3, h, d}),
            rows = CacheRows{.texts = pool.zeros(DType::i32, {1}), .positions = pool.integer(t - 1)}] {
      ops.attention_cached(out, keys, values, qkv, rows);
    };
  });
}

// The residual stream and the embedding.
void Bench::streams(const Model& model, double p) {
  auto& ops = *backend_;
  const std::int64_t b = model.batch, t = model.positions, c = model.channels, v = model.padded_classes;
  const Shape shape{b, t, c};
  const auto n = static_cast<double>(shape.count());
  const Dropout dropout = make_dropout(model, p);
  const DType type = type_;
  const double size = bytes_of(type);
  const auto shape_text = shape.to_string();
  row("residual_forward" + suffix(p), shape_text, {.bytes = n * (8 + size)}, [&](Pool& pool) {
    return [&ops, dropout, out = pool.zeros(DType::f32, shape), residual = pool.normal(DType::f32, shape),
            branch = pool.normal(type, shape)] { ops.residual_forward(out, residual, branch, dropout); };
  });
  row("residual_backward" + suffix(p), shape_text, {.bytes = n * (4 + size)}, [&](Pool& pool) {
    return [&ops, dropout, dbranch = pool.zeros(type, shape), dout = pool.normal(DType::f32, shape)] {
      ops.residual_backward(dbranch, dout, dropout);
    };
  });
  // A row of a table counts once, however often its token stands in the batch.
  const auto words = static_cast<double>(std::min(b * t, v) * c), places = static_cast<double>(t * c);
  row("embedding_forward" + suffix(p), shape_text, {.bytes = 4 * n + (words + places) * size},
      [&](Pool& pool) {
        return
            [&ops, dropout, out = pool.zeros(DType::f32, shape), tokens = pool.classes({b, t}, model.classes),
             wte = pool.normal(type, {v, c}),
             wpe = pool.normal(type, {t, c})] { ops.embedding_forward(out, tokens, wte, wpe, 0, dropout); };
      });
  row("embedding_backward" + suffix(p), shape_text, {.bytes = 4 * n + (words + places) * 8}, [&](Pool& pool) {
    return
        [&ops, dropout, dout = pool.normal(DType::f32, shape), tokens = pool.classes({b, t}, model.classes),
         dwte = pool.zeros(DType::f32, {v, c}), dwpe = pool.zeros(DType::f32, {t, c})] {
          ops.embedding_backward(dwte, dwpe, dout, tokens, 0, dropout);
        };
  });
}

void Bench::norms_and_gelu(const Model& model) {
  auto& ops = *backend_;
  const std::int64_t r = model.rows(), c = model.channels;
  const auto n = static_cast<double>(r * c);
  const DType type = type_;
  const double size = bytes_of(type);
  const Shape shape{r, c}, wide{r, 4 * c};
  row("layernorm_forward", shape.to_string(), {.bytes = n * (4 + size)}, [&](Pool& pool) {
    return [&ops, y = pool.zeros(type, shape), mean = pool.zeros(DType::f32, {r}),
            rstd = pool.zeros(DType::f32, {r}), x = pool.normal(DType::f32, shape),
            gamma = pool.normal(type, {c}),
            beta = pool.normal(type, {c})] { ops.layernorm_forward(y, mean, rstd, x, gamma, beta); };
  });
  row("layernorm_backward", shape.to_string(), {.bytes = n * (12 + size)}, [&](Pool& pool) {
    return [&ops, dx = pool.zeros(DType::f32, shape), dgamma = pool.zeros(DType::f32, {c}),
            dbeta = pool.zeros(DType::f32, {c}), dy = pool.normal(type, shape),
            x = pool.normal(DType::f32, shape), gamma = pool.normal(type, {c}),
            mean = pool.normal(DType::f32, {r}), rstd = pool.normal(DType::f32, {r})] {
      ops.layernorm_backward({.dx = dx,
                              .dgamma = dgamma,
                              .dbeta = dbeta,
                              .dy = dy,
                              .x = x,
                              .gamma = gamma,
                              .mean = mean,
                              .rstd = rstd});
    };
  });
  for (const auto& [kind, name] : {std::pair{Gelu::tanh, "tanh"}, std::pair{Gelu::erf, "erf"}}) {
    row(fmt::format("gelu_forward {}", name), wide.to_string(), {.bytes = 8 * n * size}, [&](Pool& pool) {
      return [&ops, kind = kind, y = pool.zeros(type, wide), x = pool.normal(type, wide)] {
        ops.gelu_forward(y, x, kind);
      };
    });
    row(fmt::format("gelu_backward {}", name), wide.to_string(), {.bytes = 12 * n * size}, [&](Pool& pool) {
      return [&ops, kind = kind, dx = pool.zeros(type, wide), dy = pool.normal(type, wide),
              x = pool.normal(type, wide)] { ops.gelu_backward(dx, dy, x, kind); };
    });
  }
}

void Bench::loss(const Model& model) {
  auto& ops = *backend_;
  const std::int64_t r = model.head_rows, v = model.padded_classes, valid = model.classes;
  const auto n = static_cast<double>(r * v);
  const DType type = type_;
  const std::string shape = Shape{r, v}.to_string();
  struct Rows {
    Tensor maximum, exp_sum, target_logit, argmax, targets;
  };
  const auto rows = [=](Pool& pool) {
    const auto make = [&] { return pool.normal(DType::f32, {r}); };
    return Rows{make(), make(), make(), pool.zeros(DType::i32, {r}), pool.classes({r}, valid)};
  };
  row("cross_entropy_stats", shape, {.bytes = 4 * n}, [&](Pool& pool) {
    return [&ops, valid, s = rows(pool), logits = pool.normal(DType::f32, {r, v})] {
      ops.cross_entropy_stats({.logits = logits,
                               .targets = s.targets,
                               .valid = valid,
                               .maximum = s.maximum,
                               .exp_sum = s.exp_sum,
                               .target_logit = s.target_logit,
                               .argmax = s.argmax});
    };
  });
  row("cross_entropy_loss", Shape{r}.to_string(), {.bytes = 20.0 * static_cast<double>(r)}, [&](Pool& pool) {
    const Rows s = rows(pool);
    ops.fill(s.exp_sum, 1.0f);
    return [&ops, s, losses = pool.zeros(DType::f32, {r})] {
      ops.cross_entropy_loss({.targets = s.targets,
                              .maximum = s.maximum,
                              .exp_sum = s.exp_sum,
                              .target_logit = s.target_logit,
                              .losses = losses});
    };
  });
  // In float32 the gradient takes the place of the logits, as in training.
  row("cross_entropy_backward", shape, {.bytes = n * (4.0 + bytes_of(type))}, [&](Pool& pool) {
    const Tensor logits = pool.normal(DType::f32, {r, v});
    const Rows s = rows(pool);
    ops.fill(s.maximum, 4.0f);
    ops.fill(s.exp_sum, 1000.0f);
    return [&ops, valid, s, logits, dlogits = type == DType::f32 ? logits : pool.zeros(type, {r, v})] {
      ops.cross_entropy_backward({.logits = logits,
                                  .targets = s.targets,
                                  .valid = valid,
                                  .maximum = s.maximum,
                                  .exp_sum = s.exp_sum,
                                  .dlogits = dlogits,
                                  .scale = 1e-3f});
    };
  });
}

// Ops over flat buffers, of the size of a block's parameters.
void Bench::flat(const Model& model) {
  auto& ops = *backend_;
  const Shape shape{model.unit()};
  const auto n = static_cast<double>(shape.count());
  const std::string text = shape.to_string();
  const DType type = type_;
  const double size = bytes_of(type);
  row("convert", text, {.bytes = n * (4 + size)}, [&](Pool& pool) {
    return [&ops, out = pool.zeros(type, shape), x = pool.normal(DType::f32, shape)] { ops.convert(out, x); };
  });
  row("add", text, {.bytes = n * (8 + size)}, [&](Pool& pool) {
    return [&ops, out = pool.zeros(DType::f32, shape), x = pool.normal(type, shape)] { ops.add(out, x); };
  });
  static constexpr AdamWScalars kScalars{.lr = 1e-4f, .correction1 = 1, .correction2 = 1, .commit = 1};
  row("adamw", text, {.bytes = n * (type == DType::bf16 ? 30 : 28)}, [&](Pool& pool) {
    return [&ops, w = pool.normal(DType::f32, shape), m = pool.zeros(DType::f32, shape),
            v = pool.zeros(DType::f32, shape), g = pool.normal(DType::f32, shape),
            compute = type == DType::bf16 ? pool.zeros(type, shape) : Tensor{}] {
      ops.adamw({.weights = w, .compute = compute, .m = m, .v = v, .grads = g},
                {.scalars = &kScalars, .weight_decay = 0.1f});
    };
  });
  if (type == DType::bf16) return;  // the rest is float32 always
  const auto one = [&](const std::string& name, double bytes, auto&& f) {
    row(name, text, {.bytes = bytes}, [&](Pool& pool) {
      return [f, x = pool.normal(DType::f32, shape), y = pool.zeros(DType::f32, shape),
              total = pool.zeros(DType::f64, {1})] { f(x, y, total); };
    });
  };
  using T = const Tensor&;
  one("zero", 4 * n, [&ops](T x, T, T) { ops.zero(x); });
  one("fill", 4 * n, [&ops](T x, T, T) { ops.fill(x, 1.0f); });
  one("fill_normal", 4 * n, [&ops](T x, T, T) { ops.fill_normal(x, 1, 2, 0, 0.02); });
  one("sum", 4 * n, [&ops](T x, T, T total) { ops.sum(total, x); });
  one("sum_squares", 4 * n, [&ops](T x, T, T total) { ops.sum_squares(total, x); });
  one("clip_scale", 0, [&ops](T x, T, T total) {
    ops.clip_scale({x.data, DType::f32, {1}}, total, 1.0, {});
  });
  one("copy_to_host", 8 * n, [&ops](T x, T y, T) { ops.copy_to_host(y.data, x); });
  one("copy_from_host", 8 * n, [&ops](T x, T y, T) { ops.copy_from_host(x, y.data); });
}

void Bench::model(const Model& model, DType type) {
  type_ = type;
  prefix_ = fmt::format("{} {} ", model.name, name_of(type));
  products(model);
  attention(model, 0);
  streams(model, 0);
  if (model.dropout > 0) {
    attention(model, model.dropout);
    streams(model, model.dropout);
  }
  norms_and_gelu(model);
  loss(model);
  flat(model);
}

}  // namespace

int main(int argc, char** argv) {
  std::string filter;
  int threads = 0;
  double row_seconds = 0.05;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 < argc && std::strcmp(argv[i], "--filter") == 0) {
      filter = argv[i + 1];
    } else if (i + 1 < argc && std::strcmp(argv[i], "--threads") == 0) {
      threads = std::atoi(argv[i + 1]);
    } else if (i + 1 < argc && std::strcmp(argv[i], "--seconds") == 0) {
      row_seconds = std::atof(argv[i + 1]);
    } else {
      fmt::print(stderr, "usage: {} [--filter TEXT] [--threads N] [--seconds S]\n", argv[0]);
      return 2;
    }
  }
  Bench bench(threads, row_seconds, filter);
  bench.machine();
  for (const auto& model : kModels) {
    for (const DType type : {DType::f32, DType::bf16}) bench.model(model, type);
  }
}
