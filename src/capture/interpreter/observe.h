// How instructions report to the observer. With none, `perform` is the work alone behind one
// predictable branch.
#pragma once
#include "capture/interpreter/evaluator.h"

namespace ingot::capture {

template <class Work>
[[gnu::always_inline]] inline bool Evaluator::perform(const Event& event, PyObject** result,
                                                      Work&& work) {
    if (observer_ == nullptr) [[likely]] {
        *result = work();
        return *result != nullptr;
    }
    return perform_observed(
        event, result, [](void* context) { return (*static_cast<Work*>(context))(); }, &work);
}

template <class Work>
[[gnu::always_inline]] inline bool Evaluator::perform_effect(const Event& event, Work&& work) {
    if (observer_ == nullptr) [[likely]]
        return work();
    PyObject* none = nullptr;
    return perform_observed(
        event, &none,
        [](void* context) -> PyObject* {
            (void)(*static_cast<Work*>(context))();
            return nullptr;
        },
        &work);
}

}  // namespace ingot::capture
