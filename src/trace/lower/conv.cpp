// Where the results of convolutions lie; see conv.h.
#include "trace/lower/conv.h"

#include <ATen/native/ConvUtils.h>

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

}  // namespace ingot::trace
