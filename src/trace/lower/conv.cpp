// Where the results of convolutions lie; see conv.h.
#include "trace/lower/conv.h"

#include <ATen/native/ConvUtils.h>
#include <c10/core/GradMode.h>

namespace ingot::trace {

SymInts conv_strides(Call& call, const at::Tensor& input, const at::Tensor& weight,
                     const SymInts& sizes) {
    // A 1-d convolution makes its operand contiguous first.
    if (sizes.size() == 3) return contiguous(sizes);
    c10::MemoryFormat f = suggested_format(layout_of(input));
    if (f == c10::MemoryFormat::Contiguous) f = suggested_format(layout_of(weight));
    // Of images with depth one of ATen's kernels for processors answers in rows alone. Which one
    // serves depends on types, sizes and threads: ATen is asked, as eager asks it.
    if (f == c10::MemoryFormat::ChannelsLast3d && input.device().is_cpu()) {
        const auto listed = [&](const char* name) { return call.sizes(name); };
        const SymInts stride = listed("stride"), padding = listed("padding"),
                      dilation = listed("dilation"), more = listed("output_padding");
        const at::native::ConvBackend backend = at::native::select_conv_backend(
            input, weight, std::nullopt, stride, padding, dilation, call.flag("transposed"), more,
            call.size("groups"), std::nullopt);
        f = at::native::_determine_backend_memory_format(input, weight, backend);
    }
    return format_strides(sizes, f);
}

namespace {
bool has_rows(const at::Tensor& t) {
    return suggested_format(layout_of(t)) == c10::MemoryFormat::Contiguous;
}
}  // namespace

bool adds_bias_late(RecorderState& state, std::span<const c10::IValue> arguments) {
    const at::Tensor &x = arguments[0].toTensor(), &w = arguments[1].toTensor();
    if (arguments[2].isNone() || !arguments[2].toTensor().defined() || !x.is_cpu() ||
        !c10::isReducedFloatingType(x.scalar_type()) || x.scalar_type() != w.scalar_type() ||
        x.dim() != w.dim() || x.dim() < 3 || x.sym_numel() == 0 || arguments[6].toBool())
        return false;
    if (x.scalar_type() == c10::kHalf) return true;
    if (x.scalar_type() != c10::kBFloat16 || !has_rows(x) || !has_rows(w)) return false;
    // Packed ahead it is multiplied by generated code. What a captured program is given for good,
    // and what for a call, is not known yet: parameters that nobody trains need gradients.
    const std::int32_t input = state.promise(w).cell()->input;
    if (input < 0 || !state.graph.inputs()[static_cast<std::size_t>(input)].frozen) return true;
    const at::Tensor& met = state.inputs[static_cast<std::size_t>(input)].captured;
    return met.defined() && (!met.requires_grad() || c10::GradMode::is_enabled());
}

at::Tensor result_of_convolution(std::span<const c10::IValue> arguments) {
    const at::Tensor &x = arguments[0].toTensor(), &w = arguments[1].toTensor();
    const auto listed = [&](std::size_t k, std::size_t d) {
        const SymInts all = arguments[k].toSymIntVector();
        return all.at(all.size() == 1 ? 0 : d);
    };
    SymInts sizes{x.sym_size(0), w.sym_size(0)};
    for (std::int64_t d = 2; d < x.dim(); ++d) {
        const auto k = static_cast<std::size_t>(d - 2);
        const c10::SymInt span = listed(5, k) * (w.sym_size(d) - 1) + 1;
        sizes.push_back((x.sym_size(d) + listed(4, k) * 2 - span) / listed(3, k) + 1);
    }
    c10::MemoryFormat f = c10::MemoryFormat::Contiguous;
    if (x.dim() > 3)
        f = has_rows(x) ? suggested_format(layout_of(w)) : suggested_format(layout_of(x));
    return at::empty_symint(sizes, x.options(), f);
}

}  // namespace ingot::trace
