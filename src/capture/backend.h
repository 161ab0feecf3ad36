// A backend written in Python in the place of Ingot's compiler: it gets the recording's log and
// returns a callable over tensors. See capture.h for what crosses the border.
//
// The callable carries the calls out as eager would, in-place operators included, so that effects
// on inputs, views and gradients are PyTorch's own. Costs a Python object for each value of the log
// when a segment is compiled, and a Python call for each run of it.
#pragma once
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trace/recorder.h"

namespace ingot::capture {

/// A recording as its log of calls. `examples[i]` is the real tensor that `promises[i]` stood for;
/// a float is a tensor that counts as a number.
struct LogParts {
    std::span<const trace::LoggedCall> log;
    std::span<const trace::InputSource> inputs;
    std::span<const at::Tensor> examples, promises, outputs;
    const trace::SymbolicSizes& symbols;
    /// The symbols that calls are given numbers for. Those that are not among them are written as
    /// the example's numbers.
    std::span<const Expr> sizes;
};

/// (calls, examples, outputs, sizes, shapes) as capture.h describes them. `grad_mode`: at the
/// beginning. Needs Python's lock. Throws NotSupported, pybind11::error_already_set.
pybind11::tuple describe(const LogParts& parts, bool grad_mode);

class Backend {
  public:
    /// Hands the recording to `compile`; calls take the numbers of `parts.sizes`, then tensors like
    /// the examples, in this order.
    /// Throws as `describe`, and what `compile` raises.
    static std::shared_ptr<Backend> make(PyObject* compile, const LogParts& parts, bool grad_mode);

    /// Runs it; takes Python's lock. Nothing if it is not valid for these numbers and floats.
    /// Throws pybind11::error_already_set.
    std::optional<std::vector<at::Tensor>> call(std::span<c10::TensorImpl* const> inputs,
                                                std::span<const std::int64_t> numbers) const;
    /// The names of sizes for which it has one number only.
    const std::vector<std::string>& fixes() const { return fixes_; }
    /// The same of floats, by their places among the inputs.
    const std::vector<std::size_t>& fixes_floats() const { return fixes_floats_; }

    int traverse(visitproc visit, void* arg) const;

  private:
    Backend(pybind11::object run, std::size_t outputs);

    pybind11::object run_, serves_;
    std::vector<std::string> fixes_;
    std::vector<std::size_t> fixes_floats_;
    std::size_t outputs_ = 0;
};

/// Adds the types `Value` and `Size` to the module.
void add_value_types(pybind11::module_& module);

}  // namespace ingot::capture
