// Runs recorded ATen calls again on real tensors, one by one, as eager does. Used where a compiled
// program cannot serve a call: the user then sees eager's results and eager's errors.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <unordered_map>

#include "trace/recorder.h"

namespace ingot::trace {

/// The number a symbol has in a call.
using SymbolValues = std::function<std::int64_t(Expr symbol)>;
/// `value` with symbolic integers replaced by their numbers, lists included.
c10::IValue with_numbers(const c10::IValue& value, const SymbolValues& numbers);

class Replay {
  public:
    explicit Replay(SymbolValues numbers = {}) : numbers_(std::move(numbers)) {}

    /// `real` takes the place of `promise`.
    void bind(const at::Tensor& promise, at::Tensor real) {
        values_[promise.unsafeGetTensorImpl()] = std::move(real);
    }
    /// Carries the call out. Exceptions are the operator's own.
    void run(const LoggedCall& call);
    /// A promise from which on the calls' history begins anew: what stands for it becomes a leaf,
    /// so that gradients of what is computed from it end there.
    struct Cut {
        at::Tensor promise, leaf{};
        std::size_t last = 0;  // of the log, the call that gives it
    };
    /// Carries all of them out; what stands for each of `wanted` then.
    std::vector<at::Tensor> run(std::span<const LoggedCall> log,
                                std::span<const at::Tensor> wanted);
    std::vector<at::Tensor> run_cut(std::span<const LoggedCall> log,
                                    std::span<const at::Tensor> wanted, std::span<Cut> cuts);
    /// How many of them have been carried out.
    std::size_t calls_made() const { return calls_made_; }
    /// The number of a symbolic integer in this call.
    std::int64_t number(const c10::SymInt& value) const;
    /// What stands for `promise`, undefined if nothing does (yet).
    at::Tensor find(const at::Tensor& promise) const {
        const auto found = values_.find(promise.unsafeGetTensorImpl());
        return found == values_.end() ? at::Tensor() : found->second;
    }
    /// What stands for `promise` now; a tensor that was real while recording is itself.
    at::Tensor tensor(const at::Tensor& promise) const;

  private:
    c10::IValue real(const c10::IValue& value) const;
    void bind_results(const c10::IValue& promised, const c10::IValue& real);

    SymbolValues numbers_;
    std::unordered_map<const c10::TensorImpl*, at::Tensor> values_;
    std::size_t calls_made_ = 0;
};

}  // namespace ingot::trace
