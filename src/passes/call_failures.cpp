// See call_failures.h.
#include "passes/call_failures.h"

#include <algorithm>

namespace ingot {

bool never_fails(std::string_view callee) {
    static constexpr std::string_view kBeginnings[] = {
        "aten::_fft_",
        "aten::_foreach_",
        "aten::_fused_",
        "aten::_scaled_dot_product_",
        "aten::_thnn_",
        "aten::_native_multi_head_attention",
        "aten::adaptive_",
        "aten::_adaptive_",
        "aten::avg_pool",
        "aten::convolution",
        "aten::embedding_dense_backward",  // leaves out what lies outside
        "aten::lstm",
        "aten::gru",
        "aten::max_pool",
        "aten::mkldnn_rnn_layer",
        "aten::native_",
        "aten::rnn_",
        "aten::sort",
        "aten::topk",
        "aten::upsample_",
        "aten::_upsample_",
        "aten::_cdist_",
        "aten::grid_sampler",
        "aten::_transformer_encoder_layer_fwd",
    };
    return std::ranges::any_of(kBeginnings,
                               [&](std::string_view b) { return callee.starts_with(b); });
}

}  // namespace ingot
