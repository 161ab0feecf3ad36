// The vendor's form of prims: how ATen computes what no generated kernel does.
//
// Used by extern_host.cpp for extern steps without a recorded ATen call. The choice of the function
// happens once, when a program is made; a call costs ATen's own time.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <functional>
#include <span>
#include <vector>

#include "ir/graph.h"

namespace ingot::trace {

/// What the prim `assert` raises: the call is eager's, which has words of its own for it.
class FailedAssertion final : public c10::Error {
    using c10::Error::Error;
};

/// Computes the prim's results. `outs` holds the planned memory of each result as a tensor, or an
/// undefined tensor; a function may write into it and return it, or return a tensor of its own.
using VendorFunction = std::function<std::vector<at::Tensor>(std::span<const at::Tensor> inputs,
                                                             std::span<const at::Tensor> outs)>;

/// Throws NotSupported, naming the prim, if ATen has no form for it.
VendorFunction vendor_function(Prim prim, const Attrs& attrs, c10::Device device = c10::kCPU);

}  // namespace ingot::trace
