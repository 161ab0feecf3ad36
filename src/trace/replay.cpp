// See replay.h.
#include "trace/replay.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

namespace ingot::trace {

at::Tensor Replay::tensor(const at::Tensor& promise) const {
    if (!promise.defined()) return promise;
    const auto found = values_.find(promise.unsafeGetTensorImpl());
    if (found != values_.end()) return found->second;
    check(!is_promise(promise), "the log of calls uses a tensor that no call made");
    return promise;
}

c10::IValue Replay::real(const c10::IValue& value) const {
    if (value.isTensor()) return tensor(value.toTensor());
    if (!value.isList()) return value;
    auto list = value.toList().copy();
    for (std::size_t i = 0; i < list.size(); ++i) {
        const c10::IValue element = list.get(i);
        if (element.isTensor()) list.set(i, tensor(element.toTensor()));
    }
    return list;
}

void Replay::bind_results(const c10::IValue& promised, const c10::IValue& real) {
    if (promised.isTensor()) {
        if (promised.toTensor().defined()) bind(promised.toTensor(), real.toTensor());
    } else if (promised.isList()) {
        const auto a = promised.toListRef(), b = real.toListRef();
        for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) bind_results(a[i], b[i]);
    }
}

void Replay::run(const LoggedCall& call) {
    // Recorded below autocast, so the casts are calls of the log.
    c10::impl::ExcludeDispatchKeyGuard autocast(c10::autocast_dispatch_keyset);
    torch::jit::Stack stack;
    for (const c10::IValue& v : call.arguments) stack.push_back(real(v));
    call.op.callBoxed(stack);
    for (std::size_t i = 0; i < call.results.size() && i < stack.size(); ++i)
        bind_results(call.results[i], stack[i]);
}

}  // namespace ingot::trace
