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

/// The format eager's convolution answers in: channels-last when the operand or the weight is. A
/// 1-d convolution makes its operand contiguous first.
inline SymInts conv_strides(const at::Tensor& input, const at::Tensor& weight,
                            const SymInts& sizes) {
    if (sizes.size() == 3) return contiguous(sizes);
    c10::MemoryFormat f = suggested_format(layout_of(input));
    if (f == c10::MemoryFormat::Contiguous) f = suggested_format(layout_of(weight));
    return format_strides(sizes, f);
}

}  // namespace ingot::trace
