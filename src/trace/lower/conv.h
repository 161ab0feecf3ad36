// What a convolution's lowering and its gradients' have in common.
#pragma once
#include <algorithm>

#include "trace/lower/promote.h"

namespace ingot::trace {

/// The attributes of a convolution over `n` dims from the arguments of aten::convolution or its
/// backward.
inline Attrs conv_attrs(Call& call, std::size_t n) {
    auto repeated = [&](const char* name) {
        Ints v = call.ints(name);
        if (v.size() == 1) v.resize(n, v[0]);
        if (v.size() != n) throw UserError("convolution: a parameter of the wrong length");
        return v;
    };
    for (const char* name : {"padding", "output_padding"})
        if (std::ranges::any_of(call.ints(name), [](std::int64_t n) { return n < 0; }))
            throw UserError("convolution: negative padding");
    return {
        {"stride", repeated("stride")},          {"padding", to_sizes(repeated("padding"))},
        {"dilation", repeated("dilation")},      {"groups", call.integer("groups")},
        {"transposed", call.flag("transposed")}, {"output_padding", repeated("output_padding")}};
}

/// Whether the bias of this convolution of processors would be added to what the library has
/// rounded to 16 bits, with 1.3 times eager's error: the library is to add it, in a call. Where
/// code is generated the schedule sees to that (`BiasBeforeRounding`). `arguments`:
/// aten::convolution's.
bool adds_bias_late(RecorderState& state, std::span<const c10::IValue> arguments);
/// What such a call gives.
at::Tensor result_of_convolution(std::span<const c10::IValue> arguments);

/// The strides of a tensor of `sizes` that eager's convolution, or its backward, answers with.
SymInts conv_strides(Call& call, const at::Tensor& input, const at::Tensor& weight,
                     const SymInts& sizes);

}  // namespace ingot::trace
