// How a view was made, to be made again of the tensor it looks into.
//
// A result that looks into an input, or into another result, and takes part in gradients is to be
// the very view that eager makes: `x.select(0, 0)` of a leaf whose rows overlap has its gradient in
// that row, where a window by strides would spread it over all places that share the memory, and
// several dispatches of views are cheaper than the gradient of such a window. The log of a
// recording tells which operators made it. A few microseconds an operator and call, only where
// gradients are recorded.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <span>
#include <vector>

#include "ir/expr.h"
#include "trace/recorder.h"

namespace ingot::trace {

/// One operator: its first argument is the tensor it looks into.
struct ViewStep {
    c10::OperatorHandle op;
    std::vector<c10::IValue> arguments;  // those behind the first; without tensors
    int element = -1;                    // of the list that it gives; -1: it gives the view
    bool grad_mode = true;
};
using ViewSteps = std::vector<ViewStep>;

/// The steps from `base` to `view`, two promises of the log (`base` may be the real tensor that was
/// given to operators); null where it was made in another way, or changed into a view in place.
std::shared_ptr<const ViewSteps> steps_between(std::span<const LoggedCall> log,
                                               std::span<const at::Tensor> base,
                                               const at::Tensor& view);
/// The symbols in their arguments.
void collect_symbols(const ViewSteps& steps, std::vector<Expr>& into);
/// The same steps with the symbols' numbers.
std::shared_ptr<const ViewSteps> numbered(const std::shared_ptr<const ViewSteps>& steps,
                                          const std::function<std::int64_t(Expr)>& numbers);
/// Makes the view of `base` by steps without symbols.
at::Tensor make_view(const ViewSteps& steps, at::Tensor base);

}  // namespace ingot::trace
