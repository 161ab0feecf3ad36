// See known_numbers.h.
#include "trace/known_numbers.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "trace/promise.h"
#include "trace/replay.h"
#include "trace/tensors.h"
#include "trace/unrecorded.h"

namespace ingot::trace {
namespace {

/// Of what is made for nothing else.
constexpr std::int64_t kMostNumbers = 4096;
constexpr std::size_t kMostCalls = 64;

using Tensors = std::unordered_set<const c10::TensorImpl*>;

bool is_small(const at::Tensor& t) {
    return t.defined() && t.device().is_cpu() && t.layout() == c10::kStrided &&
           t.sym_numel().maybe_as_int().value_or(kMostNumbers + 1) <= kMostNumbers;
}

/// Whether a tensor that is no promise holds what the program has written down.
bool is_written_down(const LoggedCall& call, const at::Tensor& t) {
    return t.unsafeGetTensorImpl()->is_wrapped_number() ||
           (call.op.schema().name() == "aten::lift_fresh" && is_small(t));
}

bool any(const std::vector<c10::IValue>& values, const auto& holds) {
    bool found = false;
    for (const c10::IValue& v : values)
        for_each_tensor(v,
                        [&](const at::Tensor& t) { found = found || (t.defined() && holds(t)); });
    return found;
}

bool is_symbolic_float(const c10::IValue& v) {
    return v.isSymFloat() || v.isSymBool() ||
           (v.isScalar() && v.toScalar().isSymbolic() && !v.toScalar().isIntegral(false));
}

/// The calls that lead to `tensor`, in order; none where something else has gone into it.
std::vector<const LoggedCall*> leading_to(std::span<const LoggedCall> log,
                                          const at::Tensor& tensor) {
    Tensors wanted = {tensor.unsafeGetTensorImpl()}, made;
    std::vector<const LoggedCall*> calls;
    bool numbers = true;
    for (auto call = log.rbegin(); call != log.rend() && numbers && !wanted.empty(); ++call) {
        const auto is_wanted = [&](const at::Tensor& t) {
            return wanted.contains(t.unsafeGetTensorImpl());
        };
        if (!any(call->results, is_wanted)) continue;
        numbers = !call->function && !call->op.schema().is_mutable() &&
                  !call->op.hasTag(at::Tag::nondeterministic_seeded) && calls.size() < kMostCalls &&
                  !any(
                      call->results, [](const at::Tensor& t) { return !is_small(t); }) &&
                  std::ranges::none_of(call->arguments, is_symbolic_float);
        calls.push_back(&*call);
        for (const c10::IValue& v : call->results)
            for_each_tensor(v, [&](const at::Tensor& t) {
                if (!t.defined()) return;
                wanted.erase(t.unsafeGetTensorImpl());
                made.insert(t.unsafeGetTensorImpl());
            });
        for (const c10::IValue& v : call->arguments)
            for_each_tensor(v, [&](const at::Tensor& t) {
                if (!t.defined()) return;
                if (is_promise(t))
                    wanted.insert(t.unsafeGetTensorImpl());
                else
                    numbers = numbers && is_written_down(*call, t);
            });
    }
    if (!numbers || !wanted.empty()) return {};
    // Nothing that may share memory with one of them is written to.
    for (const LoggedCall& call : log) {
        if (!any(call.arguments,
                 [&](const at::Tensor& t) { return made.contains(t.unsafeGetTensorImpl()); }))
            continue;
        if (call.op.schema().is_mutable()) return {};
        for (const c10::IValue& v : call.results)
            for_each_tensor(v, [&](const at::Tensor& t) {
                if (t.defined()) made.insert(t.unsafeGetTensorImpl());
            });
    }
    std::ranges::reverse(calls);
    return calls;
}

/// Fixes the sizes and integers that a value has.
void fix(const c10::IValue& value, SymbolicSizes& symbols) {
    const auto number = [&](const c10::SymInt& n) {
        if (const Expr e = unwrap(n); !e.is_constant()) symbols.specialise(e);
    };
    if (value.isSymInt())
        number(value.toSymInt());
    else if (value.isScalar() && value.toScalar().isSymbolic())
        number(value.toScalar().toSymInt());
    else if (value.isList())
        for (const c10::IValue& e : value.toListRef())
            if (e.isSymInt()) number(e.toSymInt());
}

}  // namespace

std::optional<c10::Scalar> known_number(std::span<const LoggedCall> log, const at::Tensor& tensor,
                                        SymbolicSizes& symbols) {
    if (!is_promise(tensor) || !is_small(tensor) || tensor.sym_numel() != 1) return std::nullopt;
    const std::vector<const LoggedCall*> calls = leading_to(log, tensor);
    if (calls.empty()) return std::nullopt;
    for (const LoggedCall* call : calls)
        for (const c10::IValue& v : call->arguments) fix(v, symbols);
    const Unrecorded unrecorded;
    Replay replay([&](Expr symbol) { return symbols.hint(symbol); });
    for (const LoggedCall* call : calls) replay.run(*call);
    return replay.tensor(tensor).item();
}

}  // namespace ingot::trace
