// Pointwise operators of three operands.
#include "trace/lower/promote.h"

namespace ingot::trace {

namespace {

void lower_where(Call& call) {
    if (!call.given("self"))
        throw NotSupported("where with one argument: the size depends on data");
    at::Tensor condition = call.tensor("condition");
    if (condition.scalar_type() != c10::kByte) check_mask(condition);
    at::Tensor yes = operand(call, "self"), no = operand(call, "other");
    Emitter& e = call.emit();
    c10::ScalarType type = common_type(std::vector<at::Tensor>{yes, no});
    std::vector<Layout> layouts{layout_as(condition, c10::kBool), layout_as(yes, type),
                                layout_as(no, type)};
    SymInts shape =
        broadcast_sizes(broadcast_sizes(layouts[0].sizes, layouts[1].sizes), layouts[2].sizes);
    ValueId c = e.convert(call.read(condition), DType::Bool);
    ValueId y = value_as(call, yes, to_dtype(type)), n = value_as(call, no, to_dtype(type));
    ValueId r = e.select(e.expand(c, shape), e.expand(y, shape), e.expand(n, shape));
    call.give(r, iterator_strides(shape, layouts), condition.device());
}

/// self + value * a op b, in the compute type.
void addc(Call& call, Prim prim) {
    c10::Scalar value = call.scalar_or("value", 1);
    lower_pointwise(call, {call.tensor("self"), call.tensor("tensor1"), call.tensor("tensor2")}, {},
                    [&](Emitter& e, auto v) {
                        ValueId scale = spread_number(call, value, v[0]);
                        return e.add(v[0], e.op(prim, {e.mul(scale, v[1]), v[2]}));
                    });
}
void lower_addcmul(Call& call) { addc(call, Prim::Mul); }
void lower_addcdiv(Call& call) {
    if (c10::isIntegralType(call.tensor("tensor1").scalar_type(), true) &&
        c10::isIntegralType(call.tensor("tensor2").scalar_type(), true))
        throw UserError("Integer division with addcdiv is no longer supported");
    addc(call, Prim::Div);
}

void lower_lerp(Call& call) {
    const c10::ScalarType type = call.tensor("self").scalar_type();
    if (call.tensor("end").scalar_type() != type ||
        (call.at("weight").isTensor() && call.tensor("weight").scalar_type() != type))
        throw UserError("lerp of tensors of several types");
    lower_pointwise(call, {call.tensor("self"), call.tensor("end"), operand(call, "weight")},
                    {.numbers_aside = true, .exact = 2},
                    [](Emitter& e, auto v) { return e.op(Prim::Lerp, {v[0], v[1], v[2]}); });
}

void lower_masked_fill(Call& call) {
    at::Tensor self = call.tensor("self"), mask = call.tensor("mask");
    at::Tensor value = operand(call, "value");
    check_mask(mask);
    if (value.dim() > 0) throw UserError("masked_fill: a value of one element without dims");
    if (value.is_complex() && !self.is_complex())
        throw UserError("masked_fill: a complex value for a real tensor");
    Emitter& e = call.emit();
    Layout a = layout_of(self), m = layout_of(mask);
    SymInts shape = broadcast_sizes(a.sizes, m.sizes);
    DType type = to_dtype(self.scalar_type());
    ValueId x = e.expand(call.read(self), shape);
    ValueId c = e.expand(e.convert(call.read(mask), DType::Bool), shape);
    ValueId fill = e.expand(value_as(call, value, type), shape);
    // The functional form fills a contiguous copy.
    call.give(e.select(c, fill, x), contiguous(shape), self.device());
}

}  // namespace

std::span<const LoweringEntry> ternary_lowerings() {
    static constexpr LoweringEntry table[] = {
        {"where", lower_where}, {"addcmul", lower_addcmul},         {"addcdiv", lower_addcdiv},
        {"lerp", lower_lerp},   {"masked_fill", lower_masked_fill},
    };
    return table;
}

}  // namespace ingot::trace
