// See view_steps.h.
#include "trace/view_steps.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "trace/replay.h"
#include "trace/sym_node.h"
#include "trace/tensors.h"

namespace ingot::trace {
namespace {

/// Where among the results of a call the tensor is: its place in a list, -1: the result itself, -2:
/// nowhere.
int place_in(const LoggedCall& call, const at::Tensor& t) {
    if (call.results.size() != 1) return -2;
    const c10::IValue& result = call.results[0];
    if (result.isTensor()) return result.toTensor().is_same(t) ? -1 : -2;
    if (!result.isList()) return -2;
    const auto list = result.toListRef();
    for (std::size_t i = 0; i < list.size(); ++i)
        if (list[i].isTensor() && list[i].toTensor().is_same(t)) return static_cast<int>(i);
    return -2;
}

/// Whether the call only looks into its first argument.
bool is_view(const LoggedCall& call) {
    const c10::FunctionSchema& schema = call.op.schema();
    if (schema.is_mutable() || call.function != nullptr || call.arguments.empty() ||
        !call.arguments[0].isTensor() || schema.returns().size() != 1)
        return false;
    const auto* alias = schema.arguments()[0].alias_info();
    if (alias == nullptr || schema.returns()[0].alias_info() == nullptr) return false;
    bool others = false;
    for (std::size_t i = 1; i < call.arguments.size(); ++i)
        for_each_tensor(call.arguments[i], [&](const at::Tensor&) { others = true; });
    return !others;
}

void collect_symbols(const c10::IValue& value, std::vector<Expr>& into) {
    if (value.isSymInt()) {
        ingot::collect_symbols(unwrap(value.toSymInt()), into);
    } else if (value.isList()) {
        for (const c10::IValue& e : value.toListRef()) collect_symbols(e, into);
    }
}

}  // namespace

std::shared_ptr<const ViewSteps> steps_between(std::span<const LoggedCall> log,
                                               std::span<const at::Tensor> base,
                                               const at::Tensor& view) {
    auto steps = std::make_shared<ViewSteps>();
    at::Tensor at = view;
    std::size_t end = log.size();
    const auto is_base = [&](const at::Tensor& t) {
        return std::ranges::any_of(
            base, [&](const at::Tensor& b) { return b.defined() && b.is_same(t); });
    };
    while (!is_base(at)) {
        int place = -2;
        for (; end > 0; --end) {
            const LoggedCall& call = log[end - 1];
            place = place_in(call, at);
            if (place > -2) break;
        }
        if (end == 0) return nullptr;
        const LoggedCall& call = log[--end];
        if (!is_view(call)) return nullptr;  // such as transpose_, or what made it
        steps->push_back(
            {call.op, {call.arguments.begin() + 1, call.arguments.end()}, place, call.grad_mode});
        at = call.arguments[0].toTensor();
    }
    std::ranges::reverse(*steps);
    return steps;
}

void collect_symbols(const ViewSteps& steps, std::vector<Expr>& into) {
    for (const ViewStep& step : steps)
        for (const c10::IValue& v : step.arguments) collect_symbols(v, into);
}

std::shared_ptr<const ViewSteps> numbered(const std::shared_ptr<const ViewSteps>& steps,
                                          const std::function<std::int64_t(Expr)>& numbers) {
    std::vector<Expr> symbols;
    if (steps != nullptr) collect_symbols(*steps, symbols);
    if (symbols.empty()) return steps;
    auto made = std::make_shared<ViewSteps>(*steps);
    for (ViewStep& step : *made)
        for (c10::IValue& v : step.arguments) v = with_numbers(v, numbers);
    return made;
}

at::Tensor make_view(const ViewSteps& steps, at::Tensor base) {
    for (const ViewStep& step : steps) {
        const at::AutoGradMode grad(at::GradMode::is_enabled() && step.grad_mode);
        torch::jit::Stack stack{std::move(base)};
        stack.insert(stack.end(), step.arguments.begin(), step.arguments.end());
        step.op.callBoxed(stack);
        const c10::IValue& made = stack[0];
        base = (step.element < 0 ? made : made.toListRef()[step.element]).toTensor();
    }
    return base;
}

}  // namespace ingot::trace
