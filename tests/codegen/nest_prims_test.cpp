// Every pointwise prim on every element type: the emitted code against the interpreter, and that
// nothing the reference can evaluate is missing.
#include <list>

#include "codegen/nest_support.h"
#include "ir/error.h"
#include "ir/philox.h"

namespace ingot::testing {
namespace {

DType result_type(Prim p, DType t) {
    switch (info(p).dtype_rule) {
        case DTypeRule::Bool:
            return DType::Bool;
        case DTypeRule::Real:
            return real_type(t);
        case DTypeRule::ToComplex:
            return t == DType::F64 ? DType::C128 : DType::C64;
        default:
            return t;
    }
}

/// out[i] = p(in0[i], in1[i], ...) over a length that leaves a masked rest.
Kernel kernel_of(Prim p, DType t, DType result, ExprPool& pool, std::int64_t n = 83) {
    Kernel k;
    k.name = name(p);
    Phase phase;
    const Expr i = pool.index("i", Expr(n));
    const int arity = info(p).arity;
    Inst prim;
    prim.prim = p;
    prim.dtype = result;
    prim.imm = p == Prim::Polygamma ? 2
               : p == Prim::Round2  ? 1
               : p == Prim::Philox  ? PhiloxLayout{270336, 8, false}.packed()
                                    : 0;
    for (int a = 0; a < arity; ++a) {
        const DType type = p == Prim::Select && a == 0 ? DType::Bool : t;
        k.buffers.push_back({type, Expr(n), BufferScope::Argument, true, false});
        Inst load;
        load.kind = InstKind::Load;
        load.dtype = type;
        load.buffer = a;
        load.offset = i;
        phase.insts.push_back(load);
        prim.operands.push_back(static_cast<InstId>(a));
    }
    phase.insts.push_back(prim);
    k.buffers.push_back({result, Expr(n), BufferScope::Argument, false, true});
    phase.stores.push_back({arity, i, static_cast<InstId>(arity)});
    Nest nest;
    nest.loops = {{i, Expr(n), LoopKind::Vector}};
    nest.phases = {phase};
    k.nests = {nest};
    return k;
}

bool makes_sense(Prim p, DType t) {
    // Undefined there: a division by zero is an error, other targets of bits have other tests.
    if (p == Prim::Bitcast || p == Prim::Convert) return false;
    if (is_integral(t) &&
        (p == Prim::TruncDiv || p == Prim::FloorDiv || p == Prim::Fmod || p == Prim::Remainder))
        return false;
    if (p == Prim::Complex && t != DType::F32 && t != DType::F64) return false;
    return true;
}

/// Whether the reference can evaluate the prim on this type at all.
bool reference_knows(const Kernel& k) {
    std::mt19937 random(1);
    std::vector<std::vector<std::uint8_t>> memory;
    std::vector<void*> pointers;
    for (const KernelBuffer& b : k.buffers) {
        memory.push_back(
            random_bytes(b.dtype, static_cast<std::size_t>(b.elements.constant()), random));
        pointers.push_back(memory.back().data());
    }
    try {
        evaluate(k, pointers, {});
        return true;
    } catch (const Error&) {
        return false;
    }
}

/// out[i] = the bits at place i + start.
Kernel kernel_of_neighbours(PhiloxLayout layout, ExprPool& pool, std::int64_t n,
                            std::int64_t start) {
    Kernel k;
    k.name = "philox";
    Phase phase;
    const Expr i = pool.index("i", Expr(n));
    Inst place;
    place.kind = InstKind::Index;
    place.dtype = DType::I64;
    place.offset = i + Expr(start);
    phase.insts.push_back(place);
    for (std::int32_t state = 0; state < 2; ++state) {
        k.buffers.push_back({DType::I64, Expr(1), BufferScope::Argument, true, false});
        Inst load;
        load.kind = InstKind::Load;
        load.dtype = DType::I64;
        load.buffer = state;
        load.offset = Expr(0);
        phase.insts.push_back(load);
    }
    Inst bits;
    bits.prim = Prim::Philox;
    bits.dtype = DType::I64;
    bits.operands = {0, 1, 2};
    bits.imm = layout.packed();
    phase.insts.push_back(bits);
    k.buffers.push_back({DType::I64, Expr(n), BufferScope::Argument, false, true});
    phase.stores.push_back({2, i, 3});
    Nest nest;
    nest.loops = {{i, Expr(n), LoopKind::Vector}};
    nest.phases = {phase};
    k.nests = {nest};
    return k;
}

// Neighbours that share a block of four numbers are computed together.
TEST(NestPhilox, AgreesWithTheReference) {
    for (std::int64_t width : {1, 2, 4, 8})
        for (bool small : {false, true})
            for (std::int64_t start : {0, 4, 3}) {
                ExprPool pool;
                SCOPED_TRACE(std::to_string(width) + " from " + std::to_string(start));
                compare_with_interpreter(
                    kernel_of_neighbours({256, width, small}, pool, 5003, start));
            }
}

class NestPrims : public ::testing::TestWithParam<DType> {};

TEST_P(NestPrims, AgreeWithTheReference) {
    const DType t = GetParam();
    int compared = 0;
    for (int p = 0; p < kPrimCount; ++p) {
        const Prim prim = static_cast<Prim>(p);
        if (!is_pointwise(prim) || !makes_sense(prim, t)) continue;
        ExprPool pool;
        const Kernel k = kernel_of(prim, t, result_type(prim, t), pool);
        if (!reference_knows(k)) continue;
        SCOPED_TRACE(std::string(name(prim)) + " of " + std::string(name(t)));
        const bool rough = kind(prim) == PrimKind::Pointwise &&
                           (prim == Prim::Pow || prim == Prim::Lgamma || prim == Prim::Digamma ||
                            prim == Prim::Zeta || prim == Prim::Polygamma);
        try {
            compare_with_interpreter(k, {.tolerance = rough ? 1e-5 : 4e-6});
            ++compared;
        } catch (const NotSupported& e) {
            // The reference computes anything in double; a prim without meaning for a type has no
            // code.
            EXPECT_FALSE(is_float(t)) << e.what();
        }
    }
    EXPECT_GT(compared, 20);
}

TEST_P(NestPrims, ConvertToEveryType) {
    const DType t = GetParam();
    for (int to = 0; to < kDTypeCount; ++to) {
        ExprPool pool;
        const Kernel k = kernel_of(Prim::Convert, t, static_cast<DType>(to), pool);
        SCOPED_TRACE(std::string(name(t)) + " to " + std::string(name(static_cast<DType>(to))));
        if (reference_knows(k)) compare_with_interpreter(k);
    }
}

INSTANTIATE_TEST_SUITE_P(Types, NestPrims,
                         ::testing::Values(DType::F32, DType::F64, DType::BF16, DType::F16,
                                           DType::I32, DType::I64, DType::U8, DType::Bool,
                                           DType::C64, DType::C128),
                         [](const auto& type) { return std::string(name(type.param)); });

}  // namespace
}  // namespace ingot::testing
