// Promotion and broadcasting; see promote.h.
#include "trace/lower/promote.h"

#include <ATen/Dispatch.h>
#include <ATen/ScalarOps.h>
#include <ATen/native/TypeProperties.h>
#include <c10/core/DefaultDtype.h>

namespace ingot::trace {

namespace {

/// An integer that may be another one at the next call.
bool is_open_integer(const c10::Scalar& s) {
    return s.isSymbolic() && s.isIntegral(false) && !s.toSymInt().maybe_as_int();
}

}  // namespace

c10::ScalarType common_type(std::span<const at::Tensor> operands) {
    at::native::ResultTypeState state = {};
    for (const at::Tensor& t : operands) state = at::native::update_result_type_state(t, state);
    return at::native::result_type(state);
}
at::Tensor wrapped(const c10::Scalar& scalar) {
    if (scalar.isSymbolic() && scalar.isFloatingPoint()) {
        const at::Tensor open = contents(scalar.toSymFloat());  // flagged as a number
        return open.defined() ? open : at::native::wrapped_scalar_tensor(scalar.toDouble());
    }
    return at::native::wrapped_scalar_tensor(scalar);
}
ValueId spread_number(Call& call, const c10::Scalar& scalar, ValueId like) {
    Emitter& e = call.emit();
    const DType dtype = e.dtype(like);
    if (is_open_integer(scalar))
        return e.expand(e.convert(e.size_value(DType::I64, scalar.toSymInt()), dtype),
                        e.sizes(like));
    if (scalar.isSymbolic()) return e.expand(value_as(call, wrapped(scalar), dtype), e.sizes(like));
    return e.full(dtype, e.sizes(like), cast_scalar(scalar, dtype));
}
at::Tensor operand(const Call& call, std::string_view name) {
    const c10::IValue& v = call.at(name);
    if (v.isTensor()) return v.toTensor();
    const c10::Scalar scalar = v.toScalar();
    if (!is_open_integer(scalar)) return wrapped(scalar);
    RecorderState& state = call.state();
    Emitter e(state.graph, *state.symbols, state.origin);
    const at::Tensor number =
        state.fresh(e.size_value(DType::I64, scalar.toSymInt()), {}, c10::kCPU);
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    return number;
}
bool is_wrapped(const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->is_wrapped_number() &&
           as_promise(tensor.unsafeGetTensorImpl()) == nullptr;
}
Layout layout_of(const at::Tensor& tensor) {
    return {tensor.sym_sizes().vec(), tensor.sym_strides().vec()};
}
Layout layout_as(const at::Tensor& tensor, c10::ScalarType type) {
    Layout l = layout_of(tensor);
    if (tensor.scalar_type() != type && tensor.device().is_cpu()) l.strides = preserved_strides(l);
    return l;
}
c10::ScalarType float_type(c10::ScalarType type) {
    return c10::isIntegralType(type, true) ? c10::typeMetaToScalarType(c10::get_default_dtype())
                                           : type;
}

ValueId value_as(Call& call, const at::Tensor& tensor, DType dtype) {
    Emitter& e = call.emit();
    if (is_wrapped(tensor)) return e.full(dtype, {}, cast_scalar(tensor.item(), dtype));
    return e.convert(call.read(tensor), dtype);
}

void check_fits(const c10::Scalar& number, c10::ScalarType type) {
    if (number.isSymbolic()) return;
    try {
        AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND8(c10::kHalf, c10::kBFloat16, c10::kBool,
                                               c10::kFloat8_e4m3fn, c10::kFloat8_e5m2, c10::kUInt16,
                                               c10::kUInt32, c10::kUInt64, type, "number",
                                               [&] { (void)number.to<scalar_t>(); });
    } catch (const c10::Error& error) {
        throw UserError(error.what_without_backtrace());
    }
}
void check_alpha(const c10::Scalar& alpha, c10::ScalarType type) {
    if (alpha.isBoolean() && type != c10::kBool)
        throw UserError("Boolean alpha only supported for Boolean results.");
    if (!c10::isFloatingType(type) && !c10::isComplexType(type) && !alpha.isIntegral(true))
        throw UserError("alpha of integers is an integer");
    if (!c10::isComplexType(type) && alpha.isComplex())
        throw UserError("alpha of real numbers is a real one");
    check_fits(alpha, type);
}
void check_mask(const at::Tensor& mask) {
    if (mask.scalar_type() != c10::kBool) throw UserError("a mask is of truth values");
}

Operands gather_operands(std::vector<at::Tensor> tensors, c10::ScalarType type) {
    Operands out;
    std::vector<Layout> layouts;
    bool first = true;
    for (const at::Tensor& t : tensors) {
        out.shape = first ? t.sym_sizes().vec() : broadcast_sizes(out.shape, t.sym_sizes().vec());
        first = false;
        layouts.push_back(layout_as(t, type));
        if (t.dim() > 0 || !t.device().is_cpu()) out.device = t.device();
    }
    out.strides = iterator_strides(out.shape, layouts);
    out.tensors = std::move(tensors);
    return out;
}

std::vector<ValueId> operand_values(Call& call, const Operands& operands, DType common,
                                    DType compute, std::size_t exact) {
    std::vector<ValueId> values;
    for (const at::Tensor& t : operands.tensors) {
        bool keeps_bits = false;
        if (common != compute && to_dtype(t.scalar_type()) != common)
            keeps_bits = operands.device.is_cpu() ? values.size() == exact && t.sym_numel() == 1
                                                  : t.dim() == 0;
        ValueId v = keeps_bits ? value_as(call, t, compute)
                               : call.emit().convert(value_as(call, t, common), compute);
        values.push_back(call.emit().expand(v, operands.shape));
    }
    return values;
}

void lower_pointwise(Call& call, std::vector<at::Tensor> tensors, const PointwiseOptions& options,
                     const Formula& formula) {
    c10::ScalarType type = common_type(tensors);
    if (options.int_to_float) type = float_type(type);
    Operands operands = gather_operands(std::move(tensors), type);
    DType common = to_dtype(type);
    DType compute = options.wide || bytes(common) == 1 ? compute_type(common) : common;
    std::vector<ValueId> values = operand_values(call, operands, common, compute, options.exact);
    ValueId result = formula(call.emit(), values);
    if (options.numbers_aside) {
        std::vector<Layout> tensors_only;
        for (const at::Tensor& t : operands.tensors)
            if (!t.unsafeGetTensorImpl()->is_wrapped_number())
                tensors_only.push_back(layout_as(t, type));
        operands.strides = iterator_strides(operands.shape, tensors_only);
    }
    if (!options.boolean && call.emit().dtype(result) == compute)
        result = call.emit().convert(result, common);
    call.give(result, operands.strides, operands.device);
}

}  // namespace ingot::trace
