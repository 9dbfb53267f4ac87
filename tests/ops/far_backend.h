// A backend whose memory the host cannot reach, as a GPU's: that of another one, by addresses that are none.
// Who reads or writes through them without the backend crashes. It may also put off what it is asked for, as
// a GPU does: then who does not wait for a line of work, or let one line follow another, reads or writes too
// early.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/backend.h"

namespace shoal::test {

class FarBackend final : public Backend {
 public:
  // Of the three lines, which do at once what does not have to follow others; the rest do it when somebody
  // waits for it. By default everything is done at once.
  struct Eager {
    bool kernels = true, in = true, out = true;
  };
  explicit FarBackend(std::unique_ptr<Backend> near, const Eager& eager = {true, true, true})
      : near_(std::move(near)) {
    line(Line::kernels).eager = eager.kernels;
    line(Line::in).eager = eager.in;
    line(Line::out).eager = eager.out;
  }
  ~FarBackend() override { drain(); }
  std::string_view name() const override { return near_->name(); }
  Gpu gpu() const override { return near_->gpu(); }

  void* allocate(std::size_t bytes) override { return moved(near_->allocate(bytes)); }
  void release(void* data, std::size_t bytes) override {
    drain();
    near_->release(moved(data), bytes);
  }
  void copy_to_host(void* host, const Tensor& from) override {
    advance(Line::kernels);
    near_->copy_to_host(host, near(from));
  }
  // Of memory that may change at once.
  void copy_from_host(const Tensor& to, const void* host) override {
    const auto* bytes = static_cast<const std::byte*>(host);
    ask(Line::kernels, [this, to = near(to), copy = std::vector<std::byte>(bytes, bytes + to.bytes())] {
      near_->copy_from_host(to, copy.data());
    });
  }
  void synchronize() override { drain(); }

  void* allocate_host(std::size_t bytes) override { return near_->allocate_host(bytes); }
  void release_host(void* data, std::size_t bytes) override {
    drain();
    near_->release_host(data, bytes);
  }
  void copy_in(const Tensor& to, const void* host) override {
    ask(Line::in, [this, to = near(to), host] { near_->copy_in(to, host); });
  }
  void copy_out(void* host, const Tensor& from) override {
    ask(Line::out, [this, host, from = near(from)] { near_->copy_out(host, from); });
  }
  std::unique_ptr<Fence> make_fence() override { return std::make_unique<Place>(); }
  void mark(Fence& fence, Line which) override {
    static_cast<Place&>(fence).line = which;
    static_cast<Place&>(fence).before = line(which).asked;
  }
  void follow(Line which, const Fence& fence) override {
    ask(
        which, [] {}, static_cast<const Place&>(fence));
  }
  void wait(const Fence& fence) override {
    const auto& place = static_cast<const Place&>(fence);
    advance(place.line, place.before);
  }
  bool records() const override { return near_->records(); }
  void begin_recording() override { near_->begin_recording(); }
  std::unique_ptr<RecordedWork> end_recording() override { return near_->end_recording(); }
  bool is_remote(const void* data) const override {
    return (reinterpret_cast<std::uintptr_t>(data) & kFar) != 0;
  }

  void zero(const Tensor& x) override { call(&Backend::zero, x); }
  void convert(const Tensor& out, const Tensor& x) override { call(&Backend::convert, out, x); }
  void add(const Tensor& out, const Tensor& x) override { call(&Backend::add, out, x); }
  void scale(const Tensor& out, const Tensor& x, float factor) override {
    call(&Backend::scale, out, x, factor);
  }
  void sum(const Tensor& total, const Tensor& x) override { call(&Backend::sum, total, x); }
  void sum_squares(const Tensor& totals, const Tensor& x) override { call(&Backend::sum_squares, totals, x); }
  void sum_rows(const Tensor& total, const Tensor& x, std::int64_t n) override {
    call(&Backend::sum_rows, total, x, n);
  }
  void clip_scale(const Tensor& scale, const Tensor& squares, double max_norm,
                  const Tensor& losses) override {
    call(&Backend::clip_scale, scale, squares, max_norm, losses);
  }
  void linear_forward(const Tensor& y, const Tensor& x, const Tensor& w, const Tensor& bias) override {
    call(&Backend::linear_forward, y, x, w, bias);
  }
  void linear_backward_input(const Tensor& dx, const Tensor& dy, const Tensor& w) override {
    call(&Backend::linear_backward_input, dx, dy, w);
  }
  void linear_backward_weight(const Tensor& dw, const Tensor& dbias, const Tensor& dy,
                              const Tensor& x) override {
    call(&Backend::linear_backward_weight, dw, dbias, dy, x);
  }
  void linear_gelu_forward(const Tensor& y, const Tensor& hidden, const Tensor& x, const Tensor& w,
                           const Tensor& bias, Gelu kind) override {
    call(&Backend::linear_gelu_forward, y, hidden, x, w, bias, kind);
  }
  void linear_gelu_backward(const Tensor& dhidden, const Tensor& dy, const Tensor& w, const Tensor& hidden,
                            Gelu kind) override {
    call(&Backend::linear_gelu_backward, dhidden, dy, w, hidden, kind);
  }
  void embedding_forward(const Tensor& out, const Tensor& tokens, const Tensor& wte, const Tensor& wpe,
                         std::int64_t first_class, const Dropout& dropout) override {
    call(&Backend::embedding_forward, out, tokens, wte, wpe, first_class, dropout);
  }
  void embedding_backward(const Tensor& dwte, const Tensor& dwpe, const Tensor& dout, const Tensor& tokens,
                          std::int64_t first_class, const Dropout& dropout) override {
    call(&Backend::embedding_backward, dwte, dwpe, dout, tokens, first_class, dropout);
  }
  void layernorm_forward(const Tensor& y, const Tensor& mean, const Tensor& rstd, const Tensor& x,
                         const Tensor& gamma, const Tensor& beta) override {
    call(&Backend::layernorm_forward, y, mean, rstd, x, gamma, beta);
  }
  void layernorm_backward(const Tensor& dx, const Tensor& dgamma, const Tensor& dbeta, const Tensor& dy,
                          const Tensor& x, const Tensor& gamma, const Tensor& mean,
                          const Tensor& rstd) override {
    call(&Backend::layernorm_backward, dx, dgamma, dbeta, dy, x, gamma, mean, rstd);
  }
  void residual_forward(const Tensor& out, const Tensor& residual, const Tensor& branch,
                        const Dropout& dropout) override {
    call(&Backend::residual_forward, out, residual, branch, dropout);
  }
  void residual_backward(const Tensor& dbranch, const Tensor& dout, const Dropout& dropout) override {
    call(&Backend::residual_backward, dbranch, dout, dropout);
  }
  void gelu_forward(const Tensor& y, const Tensor& x, Gelu kind) override {
    call(&Backend::gelu_forward, y, x, kind);
  }
  void gelu_backward(const Tensor& dx, const Tensor& dy, const Tensor& x, Gelu kind) override {
    call(&Backend::gelu_backward, dx, dy, x, kind);
  }
  void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv, std::int64_t first_head,
                         const Dropout& dropout) override {
    call(&Backend::attention_forward, out, lse, qkv, first_head, dropout);
  }
  void attention_backward(const Tensor& dqkv, const Tensor& dout, const Tensor& out, const Tensor& lse,
                          const Tensor& qkv, std::int64_t first_head, const Dropout& dropout) override {
    call(&Backend::attention_backward, dqkv, dout, out, lse, qkv, first_head, dropout);
  }
  void attention_cached(const Tensor& out, const Tensor& keys, const Tensor& values, const Tensor& qkv,
                        std::int64_t past) override {
    call(&Backend::attention_cached, out, keys, values, qkv, past);
  }
  void cross_entropy_stats(const Tensor& maximum, const Tensor& exp_sum, const Tensor& target_logit,
                           const Tensor& argmax, const Tensor& logits, const Tensor& targets,
                           std::int64_t first_class, std::int64_t valid) override {
    call(&Backend::cross_entropy_stats, maximum, exp_sum, target_logit, argmax, logits, targets, first_class,
         valid);
  }
  void cross_entropy_rescale(const Tensor& exp_sum, const Tensor& argmax, const Tensor& own,
                             const Tensor& maximum) override {
    call(&Backend::cross_entropy_rescale, exp_sum, argmax, own, maximum);
  }
  void cross_entropy_loss(const Tensor& losses, const Tensor& maximum, const Tensor& exp_sum,
                          const Tensor& target_logit, const Tensor& targets) override {
    call(&Backend::cross_entropy_loss, losses, maximum, exp_sum, target_logit, targets);
  }
  void cross_entropy_backward(const Tensor& dlogits, const Tensor& logits, const Tensor& maximum,
                              const Tensor& exp_sum, const Tensor& targets, std::int64_t first_class,
                              std::int64_t valid, float scale) override {
    call(&Backend::cross_entropy_backward, dlogits, logits, maximum, exp_sum, targets, first_class, valid,
         scale);
  }
  void fill_normal(const Tensor& out, std::uint64_t seed, std::uint64_t name, std::int64_t first,
                   double stddev) override {
    call(&Backend::fill_normal, out, seed, name, first, stddev);
  }
  void fill(const Tensor& out, float value) override { call(&Backend::fill, out, value); }
  void adamw(const Tensor& weights, const Tensor& compute, const Tensor& m, const Tensor& v,
             const Tensor& mean, const Tensor& grads, const AdamWStep& step) override {
    AdamWStep here = step;
    here.grad_scale = moved(step.grad_scale);
    here.now = moved(step.now);
    call(&Backend::adamw, weights, compute, m, v, mean, grads, here);
  }

 private:
  static constexpr std::uintptr_t kFar = std::uintptr_t{1} << 62;

  // There and back.
  template <typename T>
  static T* moved(T* data) {
    return data ? reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(data) ^ kFar) : nullptr;
  }
  template <typename T>
  static const T& near(const T& other) {
    return other;
  }
  // What is not the backend's becomes an address that is none.
  static Tensor near(const Tensor& x) { return {moved(x.data), x.dtype, x.shape}; }
  static Dropout near(Dropout x) {
    x.now = moved(x.now);
    return x;
  }
  template <typename... Parameters, typename... Arguments>
  void call(void (Backend::*op)(Parameters...), const Arguments&... arguments) {
    ask(Line::kernels, [this, op, values = std::tuple(near(arguments)...)] {
      std::apply([&](const auto&... x) { ((*near_).*op)(x...); }, values);
    });
  }

  struct Place : Fence {
    Line line = Line::kernels;
    std::int64_t before = 0;  // so much of the line
  };
  struct Work {
    std::function<void()> go;
    Place after;
  };
  struct LineOfWork {
    bool eager = true;
    std::int64_t asked = 0, done = 0;
    std::deque<Work> waiting;
  };
  LineOfWork& line(Line which) { return lines_[static_cast<std::size_t>(which)]; }
  bool reached(const Place& place) { return line(place.line).done >= place.before; }

  void ask(Line which, std::function<void()> go) { ask(which, std::move(go), Place{}); }
  void ask(Line which, std::function<void()> go, const Place& after) {
    auto& asked = line(which);
    ++asked.asked;
    asked.waiting.push_back({std::move(go), after});
    do_eagerly();
  }
  void do_first(LineOfWork& of) {
    const auto work = std::move(of.waiting.front());
    of.waiting.pop_front();
    ++of.done;  // also where it throws
    work.go();
  }
  void do_eagerly() {
    for (bool any = true; any;) {
      any = false;
      for (auto& of : lines_) {
        for (; of.eager && !of.waiting.empty() && reached(of.waiting.front().after); any = true) do_first(of);
      }
    }
  }
  // The line does what it was asked for, up to there, and others do what that has to follow.
  void advance(Line which, std::int64_t before) {
    auto& of = line(which);
    while (of.done < before) {
      const Place after = of.waiting.front().after;
      if (reached(after)) {
        do_first(of);
        do_eagerly();
      } else {
        advance(after.line, after.before);
      }
    }
  }
  void advance(Line which) { advance(which, line(which).asked); }
  void drain() {
    for (const auto which : {Line::kernels, Line::in, Line::out}) advance(which);
  }

  std::unique_ptr<Backend> near_;
  std::array<LineOfWork, 3> lines_;
};

}  // namespace shoal::test
