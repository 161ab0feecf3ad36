// Calls of PyTorch that want plain numbers, made of others that take symbolic ones.
//
// `torch.tensor(n)` and `torch.linspace(0, 1, n)` ask for their numbers where Python's arguments
// are read, before any operator is called. With a number that may be another at the next call they
// are put together from operators that give the same, bit by bit.
//
// Flow: from the recorder, when it carries a call out on stand-ins (arithmetic.cpp).
#pragma once
#include <optional>

#include "capture/interpreter/observer.h"
#include "capture/numbers.h"

namespace ingot::capture {

/// `F.one_hot(t, n)`, which looks at the data to refuse classes beyond n: here the graph fails
/// where there is one, and eager raises. A new reference, or nullptr with the error set; nothing
/// where the call has another form. `classes` is fixed.
std::optional<PyObject*> perform_one_hot(Numbers& numbers, const Event& event);

/// The result of such a call as operators see it, nullptr with the error set; nothing where the
/// call is no such one, or can only be made with its numbers.
std::optional<PyObject*> perform_replaced(Numbers& numbers, const Event& event);

}  // namespace ingot::capture
