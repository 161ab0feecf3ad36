// Running emitted kernels in tests: compile, call every launch in pieces, compare with the
// interpreter of loop nests.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "codegen/llvm/emit.h"
#include "codegen/llvm/jit.h"
#include "schedule/interpret.h"
#include "schedule/nest.h"

namespace ingot::testing {

/// A kernel in machine code.
class CompiledKernel {
  public:
    CompiledKernel(const Kernel& kernel, const codegen::TargetInfo& target,
                   const codegen::EmitOptions& options = {})
        : kernel_(kernel), jit_(target, {.verify = true}) {
        codegen::IrModule ir = jit_.make_module("test");
        code_ = codegen::emit_kernel(*ir.module, kernel, target, "k", options);
        loaded_ = jit_.load(jit_.compile(std::move(ir)));
    }

    std::int64_t number(Expr e, std::span<const std::int64_t> sizes) const {
        return evaluate(e, [&](Expr s) -> std::int64_t {
            for (std::size_t i = 0; i < kernel_.sizes.size(); ++i)
                if (kernel_.sizes[i] == s) return sizes[i];
            throw InternalError("unknown size");
        });
    }

    /// Runs all launches, each split into `pieces`, the pieces in reverse order. Returns the error
    /// flag.
    std::int64_t run(std::span<void* const> buffers, std::span<const std::int64_t> sizes,
                     std::int64_t pieces = 1) const {
        std::int64_t error = 0;
        for (const Launch& launch : code_.launches) {
            auto* f = loaded_->function<std::remove_pointer_t<KernelFn>>(launch.symbol);
            const std::int64_t work = number(launch.work, sizes);
            std::vector<std::uint8_t> scratch(
                static_cast<std::size_t>(number(launch.scratch_bytes, sizes)) + 64, 0xcd);
            void* aligned = reinterpret_cast<void*>(
                (reinterpret_cast<std::uintptr_t>(scratch.data()) + 63) & ~std::uintptr_t{63});
            for (std::int64_t p = pieces; p-- > 0;)
                f(buffers.data(), sizes.data(), work * p / pieces, work * (p + 1) / pieces, aligned,
                  &error);
        }
        return error;
    }
    const KernelCode& code() const { return code_; }

  private:
    Kernel kernel_;
    codegen::Jit jit_;
    KernelCode code_;
    std::shared_ptr<codegen::LoadedCode> loaded_;
};

inline double element(DType t, const std::uint8_t* p) {
    auto as = [&](auto zero) {
        std::memcpy(&zero, p, sizeof zero);
        return zero;
    };
    auto from_bits = [](std::uint32_t bits) {
        float f;
        std::memcpy(&f, &bits, 4);
        return static_cast<double>(f);
    };
    switch (t) {
        case DType::Bool:
        case DType::U8:
            return as(std::uint8_t{});
        case DType::I8:
            return as(std::int8_t{});
        case DType::U16:
            return as(std::uint16_t{});
        case DType::I16:
            return as(std::int16_t{});
        case DType::U32:
            return as(std::uint32_t{});
        case DType::I32:
            return as(std::int32_t{});
        case DType::U64:
            return static_cast<double>(as(std::uint64_t{}));
        case DType::I64:
            return static_cast<double>(as(std::int64_t{}));
        case DType::F32:
        case DType::C64:
            return as(float{});
        case DType::F64:
        case DType::C128:
            return as(double{});
        case DType::BF16:
            return from_bits(static_cast<std::uint32_t>(as(std::uint16_t{})) << 16);
        case DType::F16:
            return static_cast<double>(as(_Float16{}));
        default:
            return as(std::uint8_t{});  // f8: compared by bits
    }
}

/// Random memory for a buffer: numbers of moderate size, every bit pattern valid for its type.
inline std::vector<std::uint8_t> random_bytes(DType t, std::size_t count, std::mt19937& random,
                                              std::int64_t index_bound = 0) {
    std::vector<std::uint8_t> r(count * static_cast<std::size_t>(bytes(t)));
    std::normal_distribution<float> normal;
    auto put = [&](std::size_t i, auto v) { std::memcpy(r.data() + i * sizeof v, &v, sizeof v); };
    const std::size_t n = is_complex(t) ? count * 2 : count;
    for (std::size_t i = 0; i < n; ++i) {
        const float x = normal(random) * 2;
        const auto whole = static_cast<std::int64_t>(
            index_bound > 0
                ? static_cast<std::int64_t>(random() % static_cast<unsigned>(index_bound))
                : static_cast<std::int64_t>(random() % 23) - 9);
        switch (real_type(t)) {
            case DType::Bool:
                put(i, static_cast<std::uint8_t>(random() & 1));
                break;
            case DType::U8:
            case DType::I8:
                put(i, static_cast<std::int8_t>(whole));
                break;
            case DType::U16:
            case DType::I16:
                put(i, static_cast<std::int16_t>(whole));
                break;
            case DType::U32:
            case DType::I32:
                put(i, static_cast<std::int32_t>(whole));
                break;
            case DType::U64:
            case DType::I64:
                put(i, whole);
                break;
            case DType::F16:
                put(i, static_cast<_Float16>(x));
                break;
            case DType::BF16: {
                std::uint32_t bits;
                std::memcpy(&bits, &x, 4);
                put(i, static_cast<std::uint16_t>(bits >> 16));
                break;
            }
            case DType::F32:
                put(i, x);
                break;
            case DType::F64:
                put(i, static_cast<double>(x));
                break;
            default:
                put(i, static_cast<std::uint8_t>(random() % 0x70 + (random() & 1) * 0x80));
        }
    }
    return r;
}

/// Compiles and runs `kernel` on random memory and on the interpreter, with the work in one piece
/// and in several, and compares all buffers. `tolerance`: relative to the largest element, for
/// floats; reduced floats get one unit in the last place of theirs.
struct Comparison {
    double tolerance = 2e-6;
    std::vector<std::int64_t> sizes;
    std::int64_t index_bound = 0;  // integers are drawn from [0, bound)
    unsigned seed = 1;
    codegen::TargetInfo target = codegen::host();
    bool expect_error = false;
};

inline void compare_with_interpreter(const Kernel& kernel, const Comparison& how = {}) {
    std::mt19937 random(how.seed);
    const CompiledKernel compiled(kernel, how.target);
    using Memory = std::vector<std::vector<std::uint8_t>>;
    Memory start;
    std::vector<DType> types;
    for (const KernelBuffer& b : kernel.buffers) {
        if (b.scope == BufferScope::Scratch) continue;
        const auto count = static_cast<std::size_t>(compiled.number(b.elements, how.sizes));
        start.push_back(random_bytes(b.dtype, count, random, how.index_bound));
        types.push_back(b.dtype);
    }
    auto pointers = [](Memory& m) {
        std::vector<void*> p;
        for (auto& v : m) p.push_back(v.data());
        return p;
    };
    Memory expected = start;
    const bool fine = evaluate(kernel, pointers(expected), how.sizes);
    EXPECT_EQ(fine, !how.expect_error);
    for (std::int64_t pieces : {1, 3}) {
        Memory actual = start;
        const std::int64_t error = compiled.run(pointers(actual), how.sizes, pieces);
        EXPECT_EQ(error != 0, how.expect_error) << kernel.name;
        if (how.expect_error) continue;
        for (std::size_t b = 0; b < actual.size(); ++b) {
            const DType t = types[b];
            const std::size_t width = static_cast<std::size_t>(bytes(real_type(t)));
            const std::size_t n = actual[b].size() / width;
            double largest = 0;
            for (std::size_t i = 0; i < n; ++i) {
                const double x = element(t, &expected[b][i * width]);
                if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
            }
            double allowed = is_float(t) || is_complex(t) ? how.tolerance * largest : 0;
            for (std::size_t i = 0; i < n; ++i) {
                const double x = element(t, &actual[b][i * width]);
                const double y = element(t, &expected[b][i * width]);
                if (std::isnan(y) || std::isinf(y)) {
                    ASSERT_TRUE(x == y || (std::isnan(x) && std::isnan(y)))
                        << kernel.name << " buffer " << b << " element " << i << ": " << x
                        << " for " << y;
                    continue;
                }
                double limit = allowed;
                if (t == DType::BF16) limit += std::abs(y) / 128;
                if (t == DType::F16) limit += std::abs(y) / 1024;
                if (bytes(real_type(t)) == 1 && is_float(t)) limit = 1;
                ASSERT_LE(std::abs(x - y), limit) << kernel.name << " buffer " << b << " element "
                                                  << i << ": " << x << " for " << y;
            }
        }
    }
}

}  // namespace ingot::testing
