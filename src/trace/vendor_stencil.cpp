// Pooling, resampling and sampling through ATen. See vendor.h.
#include <ATen/ATen.h>

#include <sstream>

#include "trace/dtypes.h"
#include "trace/vendor.h"

namespace ingot::trace {
namespace {

using Tensors = std::vector<at::Tensor>;
using In = std::span<const at::Tensor>;
using Out = std::span<const at::Tensor>;

VendorFunction max_pool(const Attrs& a) {
    const Ints kernel = a.get<Ints>("kernel"), stride = a.get<Ints>("stride"),
               padding = a.get<Ints>("padding"), dilation = a.get<Ints>("dilation");
    const bool ceil = a.get<bool>("ceil");
    return [=](In in, Out) -> Tensors {
        std::tuple<at::Tensor, at::Tensor> r;
        if (kernel.size() == 1)
            r = at::max_pool1d_with_indices(in[0], kernel, stride, padding, dilation, ceil);
        else if (kernel.size() == 2)
            r = at::max_pool2d_with_indices(in[0], kernel, stride, padding, dilation, ceil);
        else
            r = at::max_pool3d_with_indices(in[0], kernel, stride, padding, dilation, ceil);
        return {std::get<0>(r), std::get<1>(r)};
    };
}

VendorFunction max_pool_grad(const Attrs& a) {
    return [sizes = to_ints(a.get<Sizes>("sizes"))](In in, Out) -> Tensors {
        // Leading dims (all but the spatial ones) are those before the last size that differs.
        const at::Tensor &grad = in[0], &indices = in[1];
        const auto lead = std::min<std::int64_t>(2, grad.dim() - 1);
        const at::Tensor flat_grad = grad.flatten(lead),
                         flat_indices = indices.flatten(lead).to(at::kLong);
        at::Tensor out = at::zeros(sizes, grad.options());
        out.flatten(lead).scatter_add_(lead, flat_indices, flat_grad);
        return {out};
    };
}

struct Resampling {
    Ints sizes;  // spatial
    std::string mode;
    bool align;
    std::vector<std::optional<double>> scales;

    explicit Resampling(const Attrs& a)
        : mode(a.get<std::string>("mode")), align(a.get<bool>("align_corners")) {
        const Ints all = to_ints(a.get<Sizes>("sizes"));
        sizes.assign(all.begin() + 2, all.end());
        std::istringstream text(a.get<std::string>("scales"));
        for (std::string one; std::getline(text, one, ',');)
            scales.push_back(one.empty() ? std::nullopt : std::optional(std::stod(one)));
        scales.resize(sizes.size());
    }
    at::Tensor operator()(const at::Tensor& x) const {
        const auto n = sizes.size();
        const auto& s = scales;
        if (mode == "nearest") {
            if (n == 1) return at::upsample_nearest1d(x, sizes, s[0]);
            if (n == 2) return at::upsample_nearest2d(x, sizes, s[0], s[1]);
            return at::upsample_nearest3d(x, sizes, s[0], s[1], s[2]);
        }
        if (mode == "nearest-exact") {
            if (n == 1) return at::_upsample_nearest_exact1d(x, sizes, s[0]);
            if (n == 2) return at::_upsample_nearest_exact2d(x, sizes, s[0], s[1]);
            return at::_upsample_nearest_exact3d(x, sizes, s[0], s[1], s[2]);
        }
        if (mode == "bicubic" && n == 2) return at::upsample_bicubic2d(x, sizes, align, s[0], s[1]);
        if (mode != "bilinear") throw NotSupported("resampling of mode '" + mode + "'");
        if (n == 1) return at::upsample_linear1d(x, sizes, align, s[0]);
        if (n == 2) return at::upsample_bilinear2d(x, sizes, align, s[0], s[1]);
        return at::upsample_trilinear3d(x, sizes, align, s[0], s[1], s[2]);
    }
};

VendorFunction grid_sample(const Attrs& a) {
    const std::string &mode = a.get<std::string>("mode"), &pad = a.get<std::string>("padding");
    const int mode_number = mode == "bilinear" ? 0 : mode == "nearest" ? 1 : 2;
    const int pad_number = pad == "zeros" ? 0 : pad == "border" ? 1 : 2;
    return [=, align = a.get<bool>("align_corners")](In in, Out) -> Tensors {
        return {at::grid_sampler(in[0], in[1], mode_number, pad_number, align)};
    };
}

}  // namespace

/// The Stencil part of vendor_function; empty for a prim without one.
VendorFunction stencil_function(Prim prim, const Attrs& attrs);
VendorFunction stencil_function(Prim prim, const Attrs& attrs) {
    switch (prim) {
        case Prim::MaxPoolIndices:
            return max_pool(attrs);
        case Prim::MaxPoolGrad:
            return max_pool_grad(attrs);
        case Prim::Interpolate:
            return [r = Resampling(attrs)](In in, Out) -> Tensors { return {r(in[0])}; };
        case Prim::GridSample:
            return grid_sample(attrs);
        default:
            return nullptr;
    }
}

}  // namespace ingot::trace
