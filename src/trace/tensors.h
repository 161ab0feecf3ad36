// Small things about PyTorch's tensors and boxed values that the recorder and those who replay
// recordings share.
#pragma once
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <utility>

namespace ingot::trace {

/// The tensor behind `impl`: one more reference to it.
inline at::Tensor borrow(c10::TensorImpl* impl) {
    return at::Tensor(
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl));
}

/// A 0-dim tensor of doubles that PyTorch takes for a number; no operator is called.
inline at::Tensor number_tensor(double value) {
    at::Tensor t(at::detail::empty_cpu({}, c10::kDouble));
    *t.mutable_data_ptr<double>() = value;
    t.unsafeGetTensorImpl()->set_wrapped_number(true);
    return t;
}

/// Calls `visit` with every tensor in a value, lists and tuples included; some may be undefined.
template <class Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
    if (value.isTensor()) {
        visit(value.toTensor());
    } else if (value.isList()) {
        for (const c10::IValue& e : value.toListRef()) for_each_tensor(e, visit);
    } else if (value.isTuple()) {
        for (const c10::IValue& e : value.toTupleRef().elements()) for_each_tensor(e, visit);
    }
}

/// `value` with `map` of each of its tensors instead; a list with tensors is copied, and anything
/// without is the value itself.
template <class Map>
c10::IValue map_tensors(const c10::IValue& value, Map&& map) {
    if (value.isTensor()) return map(value.toTensor());
    if (!value.isList()) return value;
    const auto elements = value.toListRef();
    if (std::ranges::none_of(elements, [](const c10::IValue& e) { return e.isTensor(); }))
        return value;
    auto list = value.toList().copy();
    for (std::size_t i = 0; i < list.size(); ++i)
        if (const c10::IValue e = list.get(i); e.isTensor()) list.set(i, map(e.toTensor()));
    return list;
}

}  // namespace ingot::trace
