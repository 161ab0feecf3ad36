// See replay.h.
#include "trace/replay.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

#include <optional>

#include "trace/silent_changes.h"
#include "trace/tensors.h"

namespace ingot::trace {

c10::IValue with_numbers(const c10::IValue& value, const SymbolValues& numbers) {
    auto number = [&](const c10::SymInt& n) {
        const Expr e = unwrap(n);
        return e.is_constant() ? e.constant() : evaluate(e, numbers);
    };
    if (value.isSymInt()) return number(value.toSymInt());
    if (value.isScalar() && value.toScalar().isSymbolic()) {
        const c10::Scalar s = value.toScalar();
        if (s.isIntegral(false)) return number(s.toSymInt());
        return s.isBoolean() ? c10::IValue(s.toSymBool().guard_bool(__FILE__, __LINE__))
                             : c10::IValue(s.toDouble());
    }
    if (!value.isList()) return value;
    const auto list = value.toListRef();
    if (std::none_of(list.begin(), list.end(), [](const c10::IValue& e) { return e.isSymInt(); }))
        return value;
    std::vector<std::int64_t> ints;
    for (const c10::IValue& e : list) ints.push_back(e.isInt() ? e.toInt() : number(e.toSymInt()));
    return ints;
}

std::int64_t Replay::number(const c10::SymInt& value) const {
    return with_numbers(value, numbers_).toInt();
}

at::Tensor Replay::tensor(const at::Tensor& promise) const {
    if (!promise.defined()) return promise;
    if (at::Tensor found = find(promise); found.defined()) return found;
    check(!is_promise(promise), "the log of calls uses a tensor that no call made");
    return promise;
}

c10::IValue Replay::real(const c10::IValue& value) const {
    if (value.isSymFloat())
        if (const at::Tensor number = contents(value.toSymFloat()); number.defined())
            return tensor(number).item().toDouble();
    return map_tensors(with_numbers(value, numbers_),
                       [this](const at::Tensor& t) { return tensor(t); });
}

void Replay::bind_results(const c10::IValue& promised, const c10::IValue& real) {
    if (promised.isTensor()) {
        const at::Tensor promise = promised.toTensor();
        if (!promise.defined()) return;
        // A number to PyTorch, whatever made it: it decides less about the results' types.
        if (promise.unsafeGetTensorImpl()->is_wrapped_number())
            real.toTensor().unsafeGetTensorImpl()->set_wrapped_number(true);
        bind(promise, real.toTensor());
    } else if (promised.isList()) {
        const auto a = promised.toListRef(), b = real.toListRef();
        for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) bind_results(a[i], b[i]);
    }
}

void Replay::run(const LoggedCall& call) {
    // Recorded below autocast, so the casts are calls of the log.
    c10::impl::ExcludeDispatchKeyGuard autocast(c10::autocast_dispatch_keyset);
    // What the program did without gradients stays without.
    at::AutoGradMode grad(at::GradMode::is_enabled() && call.grad_mode);
    torch::jit::Stack stack;
    for (const c10::IValue& v : call.arguments) stack.push_back(real(v));
    // An alias with a version counter of its own: whoever has kept its owner's contents looks.
    static const c10::OperatorHandle data =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::data", "");
    std::optional<at::Tensor> owner;
    if (&call.op.schema() == &data.schema()) owner = stack.front().toTensor();
    call.op.callBoxed(stack);
    if (owner) note_silent_change(*owner->unsafeGetTensorImpl());
    for (std::size_t i = 0; i < call.results.size() && i < stack.size(); ++i)
        bind_results(call.results[i], stack[i]);
}

std::vector<at::Tensor> Replay::run(std::span<const LoggedCall> log,
                                    std::span<const at::Tensor> wanted) {
    return run_cut(log, wanted, {});
}

std::vector<at::Tensor> Replay::run_cut(std::span<const LoggedCall> log,
                                        std::span<const at::Tensor> wanted, std::span<Cut> cuts) {
    for (Cut& cut : cuts)
        for (std::size_t c = 0; c < log.size(); ++c)
            for (const c10::IValue& result : log[c].results)
                for_each_tensor(result, [&](const at::Tensor& t) {
                    if (t.is_same(cut.promise)) cut.last = c;
                });
    for (calls_made_ = 0; calls_made_ < log.size();) {
        const LoggedCall& call = log[calls_made_];
        const std::size_t first = calls_made_;
        if (call.function && at::GradMode::is_enabled()) {
            call.function->apply(*this, log.subspan(calls_made_, call.calls));
            calls_made_ += call.calls;
        } else {
            run(call);
            ++calls_made_;
        }
        for (Cut& cut : cuts) {
            if (cut.last < first || cut.last >= calls_made_) continue;
            if (!cut.leaf.defined()) cut.leaf = tensor(cut.promise).detach().requires_grad_();
            bind(cut.promise, cut.leaf);
        }
    }
    std::vector<at::Tensor> results;
    for (const at::Tensor& promise : wanted) results.push_back(tensor(promise));
    return results;
}

}  // namespace ingot::trace
