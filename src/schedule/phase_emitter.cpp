// See phase_emitter.h.
#include "schedule/phase_emitter.h"

#include <bit>
#include <cstring>

#include "ir/tensor.h"

namespace ingot::sched {

namespace {

std::size_t mix(std::size_t h, std::size_t v) {
    return h ^ (v + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2));
}
std::size_t hash_of(Expr e) {
    return e.is_constant() ? static_cast<std::size_t>(e.constant()) * 3
                           : static_cast<std::size_t>(e.node()->id) * 7 + 1;
}
std::size_t hash_of(const Inst& i) {
    std::size_t h = static_cast<std::size_t>(i.kind) * 1009 + static_cast<std::size_t>(i.prim);
    h = mix(h, static_cast<std::size_t>(i.dtype));
    for (InstId o : i.operands) h = mix(h, o);
    h = mix(h, static_cast<std::size_t>(i.buffer));
    h = mix(h, hash_of(i.offset));
    return mix(h, i.mask);
}
bool same(const Inst& a, const Inst& b) {
    return a.kind == b.kind && a.prim == b.prim && a.dtype == b.dtype && a.operands == b.operands &&
           a.buffer == b.buffer && a.offset == b.offset && a.extent == b.extent &&
           a.mask == b.mask && a.constant == b.constant && a.phase == b.phase &&
           a.reduction == b.reduction && a.component == b.component && a.imm == b.imm;
}

template <class T>
T read_as(const std::uint8_t* p) {
    T t;
    std::memcpy(&t, p, sizeof t);
    return t;
}

float half_to_float(std::uint16_t h) {
    std::uint32_t sign = std::uint32_t{h & 0x8000u} << 16, exponent = (h >> 10) & 31u,
                  mantissa = h & 1023u;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0) {
        float tiny = static_cast<float>(mantissa) * 5.9604644775390625e-8f;
        return sign != 0 ? -tiny : tiny;
    }
    return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

// The only element of a constant; nothing for types without a plain reading.
std::optional<Scalar> single_element(DType t, const std::uint8_t* p) {
    switch (t) {
        case DType::Bool:
            return Scalar(*p != 0);
        case DType::U8:
            return Scalar(std::int64_t{*p});
        case DType::U16:
            return Scalar(std::int64_t{read_as<std::uint16_t>(p)});
        case DType::U32:
            return Scalar(std::int64_t{read_as<std::uint32_t>(p)});
        case DType::I8:
            return Scalar(std::int64_t{read_as<std::int8_t>(p)});
        case DType::I16:
            return Scalar(std::int64_t{read_as<std::int16_t>(p)});
        case DType::I32:
            return Scalar(std::int64_t{read_as<std::int32_t>(p)});
        case DType::U64:
        case DType::I64:
            return Scalar(read_as<std::int64_t>(p));
        case DType::F32:
            return Scalar(static_cast<double>(read_as<float>(p)));
        case DType::F64:
            return Scalar(read_as<double>(p));
        case DType::BF16:
            return Scalar(static_cast<double>(
                std::bit_cast<float>(std::uint32_t{read_as<std::uint16_t>(p)} << 16)));
        case DType::F16:
            return Scalar(static_cast<double>(half_to_float(read_as<std::uint16_t>(p))));
        default:
            return std::nullopt;
    }
}

// A number written into a kernel is one of its type, as it would be in memory: 0.1 is no bf16.
Scalar in_type(const Scalar& value, DType dtype) {
    return is_reduced_float(dtype) ? Scalar(round_float(value.to_double(), dtype)) : value;
}

}  // namespace

std::size_t PhaseEmitter::KeyHash::operator()(const Key& k) const {
    std::size_t h = mix(k.value, k.mask);
    for (const Expr& e : k.index) h = mix(h, hash_of(e));
    return h;
}

InstId PhaseEmitter::append(Inst inst) {
    std::size_t h = hash_of(inst);
    auto [first, last] = shared_.equal_range(h);
    for (auto it = first; it != last; ++it)
        if (same(phase_.insts[it->second], inst)) return it->second;
    auto id = static_cast<InstId>(phase_.insts.size());
    phase_.insts.push_back(std::move(inst));
    shared_.emplace(h, id);
    return id;
}

InstId PhaseEmitter::prim(Prim p, DType dtype, std::vector<InstId> operands, std::int64_t imm) {
    Inst i;
    i.kind = InstKind::Prim;
    i.prim = p;
    i.dtype = dtype;
    i.operands = std::move(operands);
    i.imm = imm;
    return append(std::move(i));
}

InstId PhaseEmitter::constant(Scalar value, DType dtype) {
    Inst i;
    i.kind = InstKind::Constant;
    i.dtype = dtype;
    i.constant = in_type(value, dtype);
    return append(std::move(i));
}

InstId PhaseEmitter::index_number(Expr e) {
    if (e.is_constant()) return constant(Scalar(e.constant()), DType::I64);
    Inst i;
    i.kind = InstKind::Index;
    i.dtype = DType::I64;
    i.offset = e;
    return append(std::move(i));
}

InstId PhaseEmitter::convert(InstId x, DType to) {
    if (phase_.insts[x].dtype == to) return x;
    return prim(Prim::Convert, to, {x});
}

std::int32_t PhaseEmitter::buffer_of(ValueId v) {
    for (std::size_t i = 0; i < draft_.values.size(); ++i)
        if (draft_.values[i] == v) return static_cast<std::int32_t>(i);
    // Argument buffers stand before the scratch ones: see emit.cpp.
    auto at = static_cast<std::int32_t>(draft_.values.size());
    const Type& t = c_.graph.type(v);
    const Sizes& strides = c_.layouts.strides(v);
    KernelBuffer b;
    b.dtype = t.dtype;
    b.elements = 1;
    for (std::size_t i = 0; i < strides.size(); ++i) {
        if (t.sizes[i].is(0)) b.elements = 0;
        if (!b.elements.is(0)) b.elements += (t.sizes[i] - Expr(1)) * strides[i];
    }
    draft_.kernel.buffers.push_back(b);
    draft_.values.push_back(v);
    return at;
}

InstId PhaseEmitter::load(ValueId v, const Sizes& index, InstId mask, Scalar otherwise) {
    Inst i;
    i.kind = InstKind::Load;
    i.dtype = c_.graph.type(v).dtype;
    i.buffer = buffer_of(v);
    i.offset = offset_of(index, c_.layouts.strides(v));
    i.mask = mask;
    if (mask != kNone) i.constant = in_type(otherwise, i.dtype);
    draft_.kernel.buffers[static_cast<std::size_t>(i.buffer)].read = true;
    return append(std::move(i));
}

bool PhaseEmitter::in_memory(ValueId v, const Sizes& index) {
    switch (c_.placement.home[v]) {
        case Home::Input:
        case Home::Extern:
            return true;
        case Home::Inlined:
            return false;
        default:
            return find_(v, index).where == Found::Where::Memory;
    }
}

InstId PhaseEmitter::value(ValueId v, const Sizes& index, InstId mask) {
    Key key{v, mask, index};
    if (auto it = known_.find(key); it != known_.end()) return it->second;
    InstId result;
    if (in_memory(v, index)) {
        result = load(v, index, mask, Scalar(0));
    } else if (c_.placement.home[v] == Home::Anchored) {
        Found f = find_(v, index);
        if (f.where == Found::Where::Compute) return compute(v, index, mask);
        Inst i;
        const DType dtype = c_.graph.type(v).dtype;
        if (f.where == Found::Where::Accumulator) {
            i.kind = InstKind::Accumulator;
            i.dtype = compute_type(dtype);
            result = convert(append(std::move(i)), dtype);
        } else if (f.where == Found::Where::Scratch) {
            i.kind = InstKind::Load;
            i.dtype = dtype;
            i.buffer = f.buffer;
            i.offset = f.offset;
            result = append(std::move(i));
        } else {
            const Node& n = *c_.graph.producer(v);
            bool arg = n.prim == Prim::Argmax || n.prim == Prim::Argmin;
            i.kind = InstKind::Reduced;
            i.phase = f.phase;
            i.reduction = f.reduction;
            i.component = arg ? 1 : 0;
            DType operand = c_.graph.type(n.operands[0]).dtype;
            i.dtype = arg ? DType::I64 : is_reduced_float(dtype) ? compute_type(operand) : dtype;
            result = convert(append(std::move(i)), dtype);
        }
    } else {
        return compute(v, index, mask);
    }
    known_.emplace(std::move(key), result);
    return result;
}

InstId PhaseEmitter::compute(ValueId v, const Sizes& index, InstId mask) {
    const Node& n = *c_.graph.producer(v);
    InstId result = kNone;
    if (is_movement(n.prim)) {
        result = movement(n, index, mask);
    } else if (n.prim == Prim::Take || n.prim == Prim::Gather) {
        result = indexing(n, index, mask);
    } else if (kind(n.prim) == PrimKind::Creation) {
        result = creation(n, index, mask);
    } else if (n.prim == Prim::ViewAsReal) {
        InstId x = value(n.operands[0], Sizes(index.begin(), index.end() - 1), mask);
        DType t = c_.graph.type(v).dtype;
        if (index.back().is_constant()) {
            result = prim(index.back().is(0) ? Prim::Real : Prim::Imag, t, {x});
        } else {
            InstId first = prim(Prim::Eq, DType::Bool,
                                {index_number(index.back()), constant(Scalar(0), DType::I64)});
            result =
                prim(Prim::Select, t, {first, prim(Prim::Real, t, {x}), prim(Prim::Imag, t, {x})});
        }
    } else if (n.prim == Prim::ViewAsComplex) {
        Sizes at = index;
        at.push_back(0);
        InstId re = value(n.operands[0], at, mask);
        at.back() = 1;
        result = prim(Prim::Complex, c_.graph.type(v).dtype, {re, value(n.operands[0], at, mask)});
    } else {
        check(is_pointwise(n.prim), "no instruction for " + std::string(name(n.prim)));
        std::vector<InstId> operands;
        for (ValueId o : n.operands) operands.push_back(value(o, index, mask));
        std::int64_t imm = 0;
        if (n.prim == Prim::Round2) imm = n.attrs.get<std::int64_t>("decimals");
        if (n.prim == Prim::Philox) imm = n.attrs.get<std::int64_t>("layout");
        if (n.prim == Prim::Polygamma) imm = n.attrs.get<std::int64_t>("order");
        DType t = c_.graph.type(v).dtype;
        result = n.prim == Prim::Convert ? convert(operands[0], t)
                                         : prim(n.prim, t, std::move(operands), imm);
    }
    known_.emplace(Key{v, mask, index}, result);
    return result;
}

InstId PhaseEmitter::condition(const std::vector<Condition>& valid) {
    InstId all = kNone;
    auto add = [&](InstId c) {
        all = all == kNone ? c : prim(Prim::LogicalAnd, DType::Bool, {all, c});
    };
    for (const Condition& c : valid) {
        if (c.low + Expr(1) == c.high) {
            add(prim(Prim::Eq, DType::Bool, {index_number(c.value), index_number(c.low)}));
            continue;
        }
        if (known_le(c.low, c.value) != true)
            add(prim(Prim::Ge, DType::Bool, {index_number(c.value), index_number(c.low)}));
        if (known_lt(c.value, c.high) != true)
            add(prim(Prim::Lt, DType::Bool, {index_number(c.value), index_number(c.high)}));
    }
    return all;
}

InstId PhaseEmitter::guarded(ValueId v, const Sizes& index, const std::vector<Condition>& valid) {
    InstId holds = condition(valid);
    if (holds == kNone) return value(v, index);
    if (in_memory(v, index)) return load(v, index, holds, Scalar(0));
    const DType dtype = c_.graph.type(v).dtype;
    return prim(Prim::Select, dtype, {holds, value(v, index, holds), constant(Scalar(0), dtype)});
}

// Nested choices, the last source innermost.
InstId PhaseEmitter::movement(const Node& n, const Sizes& index, InstId mask) {
    const DType dtype = c_.graph.type(n.results[0]).dtype;
    std::vector<Source> from = *sources(c_.graph, n, index);
    bool total = !from.empty() && from.back().valid.empty();
    if (total && from.size() == 1) return value(n.operands[from[0].operand], from[0].index, mask);
    Scalar otherwise = n.prim == Prim::Pad ? n.attrs.get<Scalar>("value") : Scalar(0);
    InstId result = kNone;
    for (std::size_t k = from.size(); k-- > 0;) {
        Source& s = from[k];
        ValueId operand = n.operands[s.operand];
        InstId holds = condition(s.valid);
        InstId inner = mask;
        if (holds != kNone)
            inner = mask == kNone ? holds : prim(Prim::LogicalAnd, DType::Bool, {mask, holds});
        if (result == kNone && holds != kNone && in_memory(operand, s.index)) {
            result = load(operand, s.index, inner, otherwise);
            continue;
        }
        InstId x = value(operand, s.index, inner);
        if (holds == kNone) {
            result = x;
            continue;
        }
        if (result == kNone) result = constant(otherwise, dtype);
        result = prim(Prim::Select, dtype, {holds, x, result});
    }
    return result == kNone ? constant(otherwise, dtype) : result;
}

InstId PhaseEmitter::indexing(const Node& n, const Sizes& index, InstId mask) {
    const Sizes& sizes = c_.graph.type(n.operands[0]).sizes;
    // `take` counts negative indices from the end, `gather` refuses them.
    const BindCheck check = n.prim == Prim::Take ? kBindFromEnds : kBindFromStart;
    auto bind = [&](InstId number, Expr extent) {
        // An index that is not asked for is no error.
        DType type = phase_.insts[number].dtype;
        if (mask != kNone)
            number = prim(Prim::Select, type, {mask, number, constant(Scalar(0), type)});
        for (const Inst& i : phase_.insts)
            if (i.kind == InstKind::Bind && i.operands[0] == number && i.extent == extent &&
                i.imm == check)
                return i.offset;
        Inst b;
        b.kind = InstKind::Bind;
        b.dtype = DType::I64;
        b.operands = {number};
        b.extent = extent;
        b.offset = loop_variable(c_.graph.pool(), "b", draft_.bound.size(), extent);
        b.imm = check;
        draft_.bound.push_back(b.offset);
        return phase_.insts[append(std::move(b))].offset;
    };
    if (n.prim == Prim::Gather) {
        auto dim = static_cast<std::size_t>(n.attrs.get<std::int64_t>("dim"));
        Sizes at = index;
        at[dim] = bind(value(n.operands[1], index, mask), sizes[dim]);
        return value(n.operands[0], at, mask);
    }
    const Ints& dims = n.attrs.get<Ints>("dims");
    auto first = static_cast<std::size_t>(dims[0]);
    auto rank = static_cast<std::size_t>(c_.graph.type(n.operands[1]).rank());
    Sizes where(index.begin() + static_cast<std::ptrdiff_t>(first),
                index.begin() + static_cast<std::ptrdiff_t>(first + rank));
    Sizes at;
    std::size_t next = 0;
    for (std::size_t d = 0, k = 0; d < sizes.size(); ++d) {
        if (next == first) next += rank;
        if (k < dims.size() && dims[k] == static_cast<std::int64_t>(d)) {
            at.push_back(bind(value(n.operands[1 + k], where, mask), sizes[d]));
            ++k;
        } else {
            at.push_back(index[next++]);
        }
    }
    return value(n.operands[0], at, mask);
}

InstId PhaseEmitter::creation(const Node& n, const Sizes& index, InstId mask) {
    const Type& t = c_.graph.type(n.results[0]);
    switch (n.prim) {
        case Prim::Full:
            return constant(n.attrs.get<Scalar>("value"), t.dtype);
        case Prim::Empty:
            return constant(Scalar(0), t.dtype);
        case Prim::SizeValue:
            return convert(index_number(n.attrs.get<Expr>("size")), t.dtype);
        case Prim::Iota: {
            const Scalar &start = n.attrs.get<Scalar>("start"), &step = n.attrs.get<Scalar>("step");
            Expr i = index[static_cast<std::size_t>(n.attrs.get<std::int64_t>("dim"))];
            if (is_integral(t.dtype))
                return convert(index_number(Expr(start.to_int()) + Expr(step.to_int()) * i),
                               t.dtype);
            InstId x = convert(index_number(i), DType::F64);
            x = prim(Prim::Mul, DType::F64, {x, constant(step.to_double(), DType::F64)});
            x = prim(Prim::Add, DType::F64, {constant(start.to_double(), DType::F64), x});
            return convert(x, t.dtype);
        }
        default: {
            check(n.prim == Prim::Constant, "an unknown creation prim");
            using Data = std::shared_ptr<const std::vector<std::uint8_t>>;
            if (auto s = single_element(t.dtype, n.attrs.get<Data>("data")->data()))
                return constant(*s, t.dtype);
            return load(n.results[0], index, mask, Scalar(0));
        }
    }
}

}  // namespace ingot::sched
