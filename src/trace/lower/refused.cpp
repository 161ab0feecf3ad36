// Operators on types that ATen's kernels refuse although the prims could compute them. They stay
// calls: ATen raises its own error when the program runs. tests/trace/opinfo.py finds what belongs
// here, by running every operator on every type.
#include <ATen/ATen.h>

#include <algorithm>
#include <span>
#include <unordered_map>

#include "trace/lower/call.h"
#include "trace/lower/promote.h"

namespace ingot::trace {
namespace {

struct Refusal {
    const char* name;   // with the overload where only that one refuses, without "aten::"
    const char* types;  // see letter_of
};

/// b bool, u unsigned, i other integers, h half, y bfloat16, d double, c complex, - anything else.
char letter_of(c10::ScalarType type) {
    if (type == c10::kBool) return 'b';
    if (type == c10::kByte) return 'u';
    if (c10::isIntegralType(type, false)) return 'i';
    if (type == c10::kHalf) return 'h';
    if (type == c10::kBFloat16) return 'y';
    if (type == c10::kDouble) return 'd';
    return c10::isComplexType(type) ? 'c' : '-';
}

constexpr Refusal kRefusals[] = {
    {"_upsample_nearest_exact1d", "bic"},
    {"_upsample_nearest_exact2d", "bic"},
    {"_upsample_nearest_exact3d", "bic"},
    {"abs", "b"},
    {"abs_", "bc"},
    {"addcmul", "b"},
    {"amax", "c"},
    {"amin", "c"},
    {"aminmax", "c"},
    {"argmax", "b"},
    {"argmin", "b"},
    {"avg_pool3d", "hy"},
    {"bitwise_left_shift", "b"},
    {"bitwise_right_shift", "b"},
    {"ceil", "b"},
    {"clamp", "b"},
    {"clamp_max", "b"},
    {"clamp_min", "b"},
    {"deg2rad", "c"},
    {"div.Scalar_mode", "b"},
    {"div.Tensor_mode", "b"},
    {"floor", "b"},
    {"floor_divide", "b"},
    {"fmod", "b"},
    {"gcd", "b"},
    {"glu", "c"},
    {"gelu", "c"},
    {"hardshrink", "bui"},
    {"hardtanh", "b"},
    {"huber_loss", "buic"},
    {"isneginf", "c"},
    {"isposinf", "c"},
    {"lcm", "b"},
    {"leaky_relu", "bui"},
    {"lerp", "bui"},
    {"logit", "c"},
    {"max", "c"},
    {"max_pool1d", "bui"},
    {"max_pool2d_with_indices", "b"},
    {"max_pool3d_with_indices", "b"},
    {"min", "c"},
    {"mish", "c"},
    {"mse_loss", "c"},
    {"nansum", "c"},
    {"neg", "b"},
    {"nll_loss2d_forward", "buic"},
    {"nll_loss_forward", "buic"},
    {"pow", "b"},
    {"rad2deg", "c"},
    {"reflection_pad1d", "b"},
    {"reflection_pad2d", "b"},
    {"reflection_pad3d", "b"},
    {"relu", "b"},
    {"remainder", "b"},
    {"replication_pad1d", "b"},
    {"replication_pad2d", "b"},
    {"replication_pad3d", "b"},
    {"round", "b"},
    {"round.decimals", "bui"},
    {"sign", "c"},
    {"smooth_l1_loss", "c"},
    {"softshrink", "bui"},
    {"special_bessel_j0", "hyd"},
    {"special_bessel_j1", "hyd"},
    {"special_bessel_y0", "hyd"},
    {"special_bessel_y1", "hyd"},
    {"special_chebyshev_polynomial_t", "hy"},
    {"special_chebyshev_polynomial_u", "hy"},
    {"special_erfcx", "hy"},
    {"special_hermite_polynomial_h", "hy"},
    {"special_laguerre_polynomial_l", "hy"},
    {"special_legendre_polynomial_p", "hy"},
    {"special_log_ndtr", "hy"},
    {"special_modified_bessel_i0", "hy"},
    {"special_modified_bessel_i1", "hy"},
    {"special_modified_bessel_k0", "hy"},
    {"special_modified_bessel_k1", "hy"},
    {"special_ndtri", "hy"},
    {"special_spherical_bessel_j0", "hy"},
    {"special_zeta", "hy"},
    {"threshold", "b"},
    {"trunc", "b"},
    {"upsample_nearest1d", "bic"},
    {"upsample_nearest2d", "bic"},
    {"upsample_nearest3d", "bic"},
};

/// What only the kernels of GPUs refuse: tests/gpu/test_operators_on_gpu.py.
constexpr Refusal kRefusalsOfGpus[] = {
    {"addbmm", "bui"},
    {"addmm", "bui"},
    {"addmv", "bui"},
    {"angle", "hy"},
    {"baddbmm", "bui"},
    {"igamma", "hy"},
    {"igammac", "hy"},
    {"max_pool2d_with_indices", "ui"},
    {"max_pool3d_with_indices", "ui"},
    {"mse_loss", "bui"},
};

/// By name, the rows of its overloads.
using Index = std::unordered_map<std::string_view, std::vector<Refusal>>;
const Index* indexed(std::span<const Refusal> table) {
    auto* m = new Index();
    for (const Refusal& r : table) {
        const std::string_view whole = r.name;
        (*m)[whole.substr(0, whole.find('.'))].push_back(r);
    }
    return m;
}

/// Looked up for every operator recorded, so by what its name holds already.
std::string_view types_refused_by(const c10::OperatorName& op, bool gpus) {
    static const Index* const everywhere = indexed(kRefusals);
    static const Index* const on_gpus = indexed(kRefusalsOfGpus);
    const Index* const index = gpus ? on_gpus : everywhere;
    std::string_view name = op.name;
    if (!name.starts_with("aten::")) return {};
    name.remove_prefix(6);
    for (int form = 0; form < 2; ++form) {  // as it is, and as the out-of-place operator
        if (auto it = index->find(name); it != index->end()) {
            const char* of_all = nullptr;  // a row for this overload goes before one for all
            for (const Refusal& r : it->second) {
                const std::string_view overload = std::string_view(r.name).substr(name.size());
                if (overload.empty())
                    of_all = r.types;
                else if (overload.substr(1) == op.overload_name)
                    return r.types;
            }
            if (of_all != nullptr) return of_all;
        }
        if (!name.ends_with('_')) break;
        name.remove_suffix(1);
    }
    return {};
}

/// Types for which few operators have kernels, other ones in each version: what computes is left to
/// ATen, which raises where it has none. (`torch.ones(2, dtype=torch.uint16) + 1` does.)
bool is_rare(c10::ScalarType type) {
    return c10::isBarebonesUnsignedType(type) || c10::isFloat8Type(type);
}

/// Whether a number given as argument `name` takes part in the promotion of types.
bool promotes(std::string_view name) {
    static constexpr std::string_view kNames[] = {"self", "other", "exponent", "min", "max"};
    return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace

namespace {

/// A number of this one's type: what a symbolic one is does not matter here, and is not asked.
at::Tensor of_its_type(const c10::Scalar& s) {
    return wrapped(s.isSymbolic() && s.isIntegral(false) ? c10::Scalar(std::int64_t{1}) : s);
}

}  // namespace

bool eager_refuses(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments) {
    for (const c10::IValue& v : arguments)
        if (v.isTensor() && v.toTensor().defined() && is_rare(v.toTensor().scalar_type()) &&
            computes(op.operator_name().name))
            return true;
    const std::string_view types = types_refused_by(op.operator_name(), false);
    const std::string_view on_gpus = types_refused_by(op.operator_name(), true);
    if (types.empty() && on_gpus.empty()) return false;
    std::vector<at::Tensor> tensors;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        const c10::Argument& formal = op.schema().arguments()[i];
        if (arguments[i].isTensor() && !formal.is_out() && arguments[i].toTensor().defined())
            tensors.push_back(arguments[i].toTensor());
        else if (arguments[i].isScalar() && promotes(formal.name()))
            tensors.push_back(of_its_type(arguments[i].toScalar()));
    }
    if (tensors.empty()) return false;
    const char type = letter_of(common_type(tensors));
    const bool gpu = std::ranges::any_of(tensors, [](const auto& t) { return t.is_cuda(); });
    const auto refused_by = [&](std::string_view list) {
        return list.find(type) != std::string_view::npos;
    };
    return refused_by(types) || (gpu && refused_by(on_gpus));
}

}  // namespace ingot::trace
