// Where the supported versions of PyTorch (2.11 to 2.13) differ in what this stage uses of them.
#pragma once
#include <c10/util/Float8_e4m3fn.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace ingot::trace {

/// A new node of an autograd graph, in the pointer that autograd keeps it in: 2.13 counts
/// references in the node, older versions beside it.
template <class Node, class... Arguments>
auto make_node(Arguments&&... arguments) {
    if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, Node>)
        return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
    else
        return std::make_shared<Node>(std::forward<Arguments>(arguments)...);
}

/// Whether too large numbers become the largest one of float8_e4m3fn, as from 2.12 on, and not NaN.
inline bool float8_saturates() { return static_cast<float>(c10::Float8_e4m3fn(1e4f)) == 448; }

}  // namespace ingot::trace
