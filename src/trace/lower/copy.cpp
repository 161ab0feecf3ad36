// Copies, conversions and writes of whole tensors.
#include <ATen/ops/empty_strided.h>

#include "ir/tensor.h"
#include "trace/known_numbers.h"
#include "trace/lower/promote.h"
#include "trace/mode.h"

namespace ingot::trace {

namespace {

/// Strides of a copy in the format asked for.
SymInts copy_strides(const at::Tensor& self, std::optional<c10::MemoryFormat> format) {
    Layout l = layout_of(self);
    if (!format || *format == c10::MemoryFormat::Preserve) return preserved_strides(l);
    return format_strides(l.sizes, *format);
}
void lower_clone(Call& call) {
    at::Tensor self = call.tensor("self");
    call.give(call.read(self), copy_strides(self, call.memory_format("memory_format")),
              self.device());
}
void lower_contiguous(Call& call) {
    at::Tensor self = call.tensor("self");
    auto format = call.memory_format("memory_format").value_or(c10::MemoryFormat::Contiguous);
    if (format == c10::MemoryFormat::Preserve) throw UserError("contiguous: preserve is no format");
    if (is_contiguous(layout_of(self), format)) return call.give(self);
    call.give(call.read(self), copy_strides(self, format), self.device());
}
/// What has no contents to record: kernels ask for sizes and types in this way.
void give_meta(Call& call, const at::Tensor& self) {
    const WithoutMode no_mode(call.state());
    const auto type = call.scalar_type("dtype").value_or(self.scalar_type());
    call.give(call.state().keep_meta(
        at::empty_strided(concrete(self.sym_sizes()),
                          concrete(copy_strides(self, call.memory_format("memory_format"))),
                          at::TensorOptions(type).device(c10::kMeta))));
}
void lower_to_copy(Call& call) {
    at::Tensor self = call.tensor("self");
    if (const auto d = call.device("device"); d && d->is_meta()) return give_meta(call, self);
    // Everything is computed on the program's device, numbers that eager keeps on the processor
    // too.
    c10::Device device = self.device();
    if (auto d = call.device("device")) device = call.state().resolve(*d);
    if (device.is_cpu() && self.is_cuda()) throw NotSupported("a copy to another device");
    if (call.given("layout") && call.at("layout").toLayout() != c10::kStrided)
        throw NotSupported("a layout other than strided");
    ValueId v = call.read(self);
    if (auto t = call.scalar_type("dtype")) v = call.emit().convert(v, to_dtype(*t));
    call.give(v, copy_strides(self, call.memory_format("memory_format")), device);
}
void lower_copy_(Call& call) {
    at::Tensor self = call.tensor("self"), source = operand(call, "src");
    if (self.device().type() != source.device().type() && !is_wrapped(source))
        throw NotSupported("a copy to another device");
    call.write(self, value_as(call, source, to_dtype(self.scalar_type())));
    call.give(self);
}
/// The functional form: a new tensor like self that holds src.
void lower_copy(Call& call) {
    at::Tensor self = call.tensor("self"), source = operand(call, "src");
    if (call.at("src").isScalar()) check_fits(call.at("src").toScalar(), self.scalar_type());
    ValueId v = call.emit().expand(value_as(call, source, to_dtype(self.scalar_type())),
                                   self.sym_sizes().vec());
    call.give(v, preserved_strides(layout_of(self)), self.device());
}
void lower_fill(Call& call) {
    at::Tensor self = call.tensor("self");
    const c10::IValue& value = call.at("value");
    if (value.isScalar()) check_fits(value.toScalar(), self.scalar_type());
    if (value.isTensor() && value.toTensor().dim() > 0)
        throw UserError("fill_ only supports 0-dimension value tensor");
    ValueId v = value_as(call, operand(call, "value"), to_dtype(self.scalar_type()));
    call.give(call.emit().expand(v, self.sym_sizes().vec()), preserved_strides(layout_of(self)),
              self.device());
}
void lower_zero(Call& call) {
    at::Tensor self = call.tensor("self");
    DType t = to_dtype(self.scalar_type());
    call.give(call.emit().full(t, self.sym_sizes().vec(), cast_scalar(0, t)),
              preserved_strides(layout_of(self)), self.device());
}
/// Numbers known while recording; everything else depends on the data.
void lower_local_scalar(Call& call) {
    at::Tensor self = call.tensor("self");
    if (is_wrapped(self)) return call.give_value(self.item());
    ValueId v = call.read(self);
    const Node* node = call.emit().graph().producer(v);
    if (node == nullptr || node->prim != Prim::Full) {
        RecorderState& state = call.state();
        if (const auto known = known_number(state.log, self, *state.symbols))
            return call.give_value(*known);
        throw NotSupported("a number that depends on the data");
    }
    DType t = call.emit().dtype(v);
    const Num s = to_num(node->attrs.get<Scalar>("value"), t);  // as it is in the tensor
    if (t == DType::Bool) return call.give_value(c10::Scalar(s.i != 0));
    if (t == DType::U64) return call.give_value(c10::Scalar(static_cast<std::uint64_t>(s.i)));
    if (is_int(t)) return call.give_value(c10::Scalar(s.i));
    if (is_float(t)) return call.give_value(c10::Scalar(s.re));
    throw NotSupported("a complex number that depends on the data");
}
}  // namespace

std::span<const LoweringEntry> copy_lowerings() {
    static constexpr LoweringEntry table[] = {
        {"clone", lower_clone},      {"contiguous", lower_contiguous},
        {"_to_copy", lower_to_copy}, {"copy_", lower_copy_},
        {"copy", lower_copy},        {"fill", lower_fill},
        {"zero", lower_zero},        {"_local_scalar_dense", lower_local_scalar},
    };
    return table;
}

}  // namespace ingot::trace
