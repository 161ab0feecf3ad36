// Tensors made from nothing: factories, ranges, constants of the program.
#include <ATen/ops/empty.h>

#include <cmath>
#include <optional>

#include "trace/lower/promote.h"

namespace ingot::trace {

namespace {

c10::Device device_of(Call& call) {
    c10::Device d = call.device("device").value_or(
        call.find("self") != nullptr && call.at("self").isTensor() ? call.tensor("self").device()
                                                                   : c10::Device(c10::kCPU));
    return call.state().resolve(d);
}
c10::ScalarType default_type() { return c10::typeMetaToScalarType(c10::get_default_dtype()); }
DType type_of(Call& call, c10::ScalarType otherwise) {
    return to_dtype(call.scalar_type("dtype").value_or(otherwise));
}
/// ATen's kernels count in few of the rare types, and in others in each version.
void refuse_rare(DType type) {
    const c10::ScalarType t = to_scalar_type(type);
    if (c10::isBarebonesUnsignedType(t) || c10::isFloat8Type(t))
        throw UserError("numbers counted in a rare type");
}
SymInts strides_for(Call& call, const SymInts& sizes) {
    auto format = call.memory_format("memory_format").value_or(c10::MemoryFormat::Contiguous);
    return format_strides(sizes, format);
}
/// `value` may be symbolic.
ValueId filled(Call& call, const SymInts& sizes, DType type, const c10::Scalar& value) {
    Emitter& e = call.emit();
    if (!value.isSymbolic()) return e.full(type, sizes, cast_scalar(value, type));
    return spread_number(call, value, e.full(type, sizes, cast_scalar(0, type)));
}
void give_full(Call& call, const SymInts& sizes, DType type, const c10::Scalar& value) {
    if (!value.isSymbolic()) check_fits(value, to_scalar_type(type));
    call.give(filled(call, sizes, type, value), strides_for(call, sizes), device_of(call));
}
/// Uninitialised memory has any contents; zeros are as good and reproducible.
void lower_empty(Call& call) {
    give_full(call, call.sizes("size"), type_of(call, default_type()), 0);
}
void lower_empty_strided(Call& call) {
    SymInts sizes = call.sizes("size");
    DType t = type_of(call, default_type());
    call.give(call.emit().full(t, sizes, cast_scalar(0, t)), call.sizes("stride"), device_of(call));
}
void lower_ones(Call& call) {
    give_full(call, call.sizes("size"), type_of(call, default_type()), 1);
}
void lower_full(Call& call) {
    c10::Scalar value = call.scalar_or("fill_value", 0);
    c10::ScalarType t = value.isBoolean()         ? c10::kBool
                        : value.isIntegral(false) ? c10::kLong
                        : value.isComplex()       ? c10::toComplexType(default_type())
                                                  : default_type();
    give_full(call, call.sizes("size"), type_of(call, t), value);
}
void like(Call& call, const c10::Scalar& value) {
    at::Tensor self = call.tensor("self");
    DType t = type_of(call, self.scalar_type());
    auto format = call.memory_format("memory_format").value_or(c10::MemoryFormat::Preserve);
    Layout l = layout_of(self);
    SymInts strides = format == c10::MemoryFormat::Preserve ? preserved_strides(l)
                                                            : format_strides(l.sizes, format);
    call.give(filled(call, l.sizes, t, value), strides, device_of(call));
}
void lower_zeros_like(Call& call) { like(call, 0); }
void lower_ones_like(Call& call) { like(call, 1); }
void lower_full_like(Call& call) { like(call, call.scalar_or("fill_value", 0)); }
void new_of(Call& call, const c10::Scalar& value) {
    give_full(call, call.sizes("size"), type_of(call, call.tensor("self").scalar_type()), value);
}
void lower_new_zeros(Call& call) { new_of(call, 0); }
void lower_new_ones(Call& call) { new_of(call, 1); }
void lower_new_full(Call& call) { new_of(call, call.scalar_or("fill_value", 0)); }
void lower_new_empty_strided(Call& call) {
    SymInts sizes = call.sizes("size");
    DType t = type_of(call, call.tensor("self").scalar_type());
    call.give(call.emit().full(t, sizes, cast_scalar(0, t)), call.sizes("stride"), device_of(call));
}
void lower_scalar_tensor(Call& call) {
    give_full(call, {}, type_of(call, default_type()), call.scalar_or("s", 0));
}
/// A number without a fraction, symbolic or not.
std::optional<c10::SymInt> whole(const c10::Scalar& s) {
    if (s.isIntegral(true)) return s.isBoolean() ? c10::SymInt(s.toBool() ? 1 : 0) : s.toSymInt();
    constexpr double kExact = 0x1p53;
    const double value = s.toDouble();
    if (value != std::trunc(value) || std::fabs(value) >= kExact) return std::nullopt;
    return c10::SymInt(static_cast<std::int64_t>(value));
}
void lower_arange(Call& call) {
    const c10::Scalar start = call.scalar_or("start", 0), end = call.scalar_or("end", 0),
                      step = call.number_or("step", 1);
    const bool ints = start.isIntegral(true) && end.isIntegral(true) && step.isIntegral(true);
    c10::ScalarType t = call.target.defined() ? call.target.scalar_type()
                        : ints                ? c10::kLong
                                              : default_type();
    DType type = type_of(call, t);
    if (type == DType::Bool || is_complex(type)) throw NotSupported("arange of such a type");
    refuse_rare(type);
    const auto first = whole(start), last = whole(end), stride = whole(step);
    c10::SymInt n = 0;
    if (first && last && stride) {
        const std::int64_t s = concrete(*stride);
        if (s == 0 || (s > 0 ? *last < *first : *last > *first))
            throw UserError("arange: bounds and step do not fit");
        n = s > 0 ? (*last - *first + (s - 1)) / s : (*first - *last + (-s - 1)) / -s;
    } else {
        double a = start.toDouble(), b = end.toDouble(), s = step.toDouble();
        n = static_cast<std::int64_t>(std::ceil((b - a) / s));
        if (s == 0 || n < 0) throw UserError("arange: bounds and step do not fit");
    }
    Emitter& e = call.emit();
    const bool open = first && !first->maybe_as_int();
    const auto from_start = [&](ValueId v) { return open ? e.add(v, e.size_like(v, *first)) : v; };
    if (is_integral(type)) {
        const std::int64_t a = open ? 0 : start.toLong();
        call.give(from_start(e.iota(type, {n}, 0, a, step.toLong())), {1}, device_of(call));
    } else {
        // Eager's arithmetic: start + i * step in the accumulation type (double on CPU for f32).
        const double a = open ? 0 : start.toDouble();
        ValueId v = from_start(e.iota(DType::F64, {n}, 0, a, step.toDouble()));
        call.give(e.convert(v, type), {1}, device_of(call));
    }
}
void lower_linspace(Call& call) {
    if (!call.at("start").isScalar() || !call.at("end").isScalar())
        throw NotSupported("linspace between tensors");
    std::int64_t n = call.integer("steps");
    DType type =
        call.target.defined() ? to_dtype(call.target.scalar_type()) : type_of(call, default_type());
    if (!is_float(type)) throw NotSupported("linspace of integers");
    refuse_rare(type);
    Emitter& e = call.emit();
    DType wide = compute_type(type);
    double a = call.real("start"), b = call.real("end");
    if (wide == DType::F32) a = static_cast<float>(a), b = static_cast<float>(b);
    double step = n > 1 ? (b - a) / static_cast<double>(n - 1) : 0;
    if (wide == DType::F32)
        step =
            n > 1 ? (static_cast<float>(b) - static_cast<float>(a)) / static_cast<float>(n - 1) : 0;
    // The first half counts from the start, the second from the end.
    ValueId i = e.iota(wide, {n}, 0, 0.0, 1.0);
    ValueId low = e.add(e.mul(i, step), a);
    ValueId back = e.sub(e.number(i, static_cast<double>(n - 1)), i);
    ValueId high = e.sub(e.number(i, b), e.mul(back, step));
    ValueId first = e.compare(Prim::Lt, i, static_cast<double>(n / 2));
    if (n == 1) high = e.number(i, a);
    call.give(e.convert(e.select(first, low, high), type), {1}, device_of(call));
}
void lower_eye(Call& call) {
    const c10::SymInt n = call.size("n"), m = call.size_or("m", n);
    DType type =
        call.target.defined() ? to_dtype(call.target.scalar_type()) : type_of(call, default_type());
    refuse_rare(type);
    Emitter& e = call.emit();
    ValueId same = e.op(Prim::Eq, {e.iota(DType::I64, {n, m}, 0), e.iota(DType::I64, {n, m}, 1)});
    call.give(e.convert(same, type), contiguous({n, m}), device_of(call));
}

/// A tensor that the program made from Python numbers: its data become part of the graph.
void lower_lift_fresh(Call& call) {
    at::Tensor self = call.tensor("self");
    if (as_promise(self.unsafeGetTensorImpl()) != nullptr) return call.give(self);
    if (self.layout() != c10::kStrided || !self.device().is_cpu() || self.sym_numel() > 65536) {
        call.give(call.read(self), contiguous(self.sym_sizes().vec()), self.device());
        return;
    }
    Emitter& e = call.emit();
    DType type = to_dtype(self.scalar_type());
    SymInts sizes = self.sym_sizes().vec();
    ValueId v = kNone;
    if (self.sym_numel() == 1 && !is_reduced_float(type)) {
        v = e.full(type, sizes, cast_scalar(self.item(), type));
    } else {
        at::Tensor plain = self.contiguous();
        const auto* begin = static_cast<const std::uint8_t*>(plain.const_data_ptr());
        auto data =
            std::make_shared<const std::vector<std::uint8_t>>(begin, begin + plain.nbytes());
        v = e.op(Prim::Constant, {}, {{"dtype", type}, {"sizes", to_sizes(sizes)}, {"data", data}});
    }
    call.give(v, contiguous(sizes), self.device());
}

/// Zeros that forward-mode derivatives and PyTorch's own rules for such know by their key: to those
/// they stay zeros whatever they are multiplied by.
void lower_efficientzerotensor(Call& call) {
    const SymInts sizes = call.sizes("size");
    const DType t = type_of(call, default_type());
    const at::Tensor zeros = call.state().fresh(call.emit().full(t, sizes, cast_scalar(0, t)),
                                                contiguous(sizes), device_of(call));
    call.promise(zeros).set_zero();
    call.give(zeros);
}

/// Asked before a tangent is kept as it is: whether its memory could stand for the tensor's.
void lower_has_same_storage_numel(Call& call) {
    const auto extent = [](const Promise& p) {
        const Cell& base = *p.cell();
        c10::SymInt last = base.offset + 1;
        for (std::size_t d = 0; d < base.sizes.size(); ++d) {
            if (base.sizes[d] == 0) return c10::SymInt(0);
            last = last + (base.sizes[d] - 1) * base.strides[d];
        }
        return last;
    };
    call.give_value(extent(call.promise(call.tensor("self"))) ==
                    extent(call.promise(call.tensor("other"))));
}

}  // namespace

std::span<const LoweringEntry> creation_lowerings() {
    static constexpr LoweringEntry table[] = {
        {"empty", lower_empty},
        {"empty_strided", lower_empty_strided},
        {"empty_like", lower_zeros_like},
        {"zeros", lower_empty},
        {"zeros_like", lower_zeros_like},
        {"ones", lower_ones},
        {"ones_like", lower_ones_like},
        {"full", lower_full},
        {"full_like", lower_full_like},
        {"new_empty", lower_new_zeros},
        {"new_empty_strided", lower_new_empty_strided},
        {"new_zeros", lower_new_zeros},
        {"new_ones", lower_new_ones},
        {"new_full", lower_new_full},
        {"scalar_tensor", lower_scalar_tensor},
        {"arange", lower_arange},
        {"linspace", lower_linspace},
        {"eye", lower_eye},
        {"lift_fresh", lower_lift_fresh},
        {"_efficientzerotensor", lower_efficientzerotensor},
        {"_has_same_storage_numel", lower_has_same_storage_numel},
    };
    return table;
}

}  // namespace ingot::trace
