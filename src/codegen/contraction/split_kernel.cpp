// Matrix tiles, splitters and the check as LLVM IR. See split_kernel.h.
#include "codegen/contraction/split_kernel.h"

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "codegen/contraction/ir_loop.h"
#include "codegen/contraction/matrix_writer.h"
#include "codegen/contraction/micro_kernel.h"
#include "codegen/contraction/shared_function.h"
#include "codegen/llvm/emit_transpose.h"

namespace ingot::codegen {
namespace {

using llvm::Value;
using Values = std::vector<Value*>;

constexpr int kParts = 3;
constexpr unsigned kLanes = MatrixWriter::kLanes;
constexpr std::uint32_t kHigh = 0xFFFF0000U, kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;

/// The arithmetic of parts, for the writer of one of the functions.
struct Writer : MatrixWriter {
    using MatrixWriter::MatrixWriter;

    Value* word(std::uint32_t v) { return b.CreateVectorSplat(kLanes, b.getInt32(v)); }

    /// Words whose upper halves are the three bf16; lower halves are anything.
    std::array<Value*, kParts> parts(Value* x) {
        Value* bits = b.CreateBitCast(x, words);
        Value* first = b.CreateBitCast(b.CreateAnd(bits, word(kHigh)), floats);
        // An infinity has no rest; everything else leaves one of 16 bits.
        constexpr unsigned kInfinities = 0x08 | 0x10;
        Value* infinite = b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_fpclass_ps_512, {},
                                            {x, b.getInt32(kInfinities)});
        Value* rest =
            b.CreateSelect(infinite, llvm::Constant::getNullValue(floats), b.CreateFSub(x, first));
        // Rounded, so that the last part has either sign and what is left out no bias.
        Value* second = b.CreateAdd(b.CreateBitCast(rest, words), word(0x8000));
        Value* third =
            b.CreateFSub(rest, b.CreateBitCast(b.CreateAnd(second, word(kHigh)), floats));
        return {bits, second, b.CreateBitCast(third, words)};
    }
    /// Extremes (see split_kernel.h) of no elements, in each lane.
    Values no_extremes() { return {word(0xFFFFFFFF), word(0)}; }
    Values widened(const Values& extremes, Value* x) {
        Value* magnitude = b.CreateAnd(b.CreateBitCast(x, words), word(kMagnitude));
        // Less one, zero is the largest of all.
        Value* less_one = b.CreateSub(magnitude, word(1));
        return {b.CreateBinaryIntrinsic(llvm::Intrinsic::umin, extremes[0], less_one),
                b.CreateBinaryIntrinsic(llvm::Intrinsic::umax, extremes[1], magnitude)};
    }
    void note(const Values& extremes, Value* at) {
        auto widen = [&](llvm::Intrinsic::ID reduce, llvm::Intrinsic::ID two, Value* lanes,
                         Value* place) {
            Value* one = b.CreateUnaryIntrinsic(reduce, lanes);
            Value* known = b.CreateLoad(b.getInt32Ty(), place);
            b.CreateStore(b.CreateBinaryIntrinsic(two, one, known), place);
        };
        widen(llvm::Intrinsic::vector_reduce_umin, llvm::Intrinsic::umin, extremes[0],
              bytes(at, std::int64_t{offsetof(Extremes, smallest)}));
        widen(llvm::Intrinsic::vector_reduce_umax, llvm::Intrinsic::umax, extremes[1],
              bytes(at, std::int64_t{offsetof(Extremes, largest)}));
    }
    /// Pairs of bf16: the upper halves of x's words below those of y's.
    Value* paired(Value* x, Value* y) {
        return b.CreateOr(b.CreateLShr(x, word(16)), b.CreateAnd(y, word(kHigh)));
    }
    Value* none() { return llvm::Constant::getNullValue(lanes_below(index(0))->getType()); }
};

/// Tile registers 0 to 3 are sums, 4 and 5 rows of A, 6 and 7 columns of B.
constexpr int kTileA = 4, kTileB = 6;

}  // namespace

namespace {

/// split_kernel, and for images split_image_kernel.
llvm::Function* kernel_of(llvm::Module& module, int rows, bool image) {
    Writer w(module.getContext());
    llvm::IRBuilder<>& b = w.b;
    auto* ptr = b.getPtrTy();
    auto* word = b.getInt64Ty();
    std::vector<llvm::Type*> types{ptr, word, ptr, ptr, ptr, b.getInt1Ty(), ptr, word, word, word};
    if (image) types.insert(types.end(), {word, word});
    auto [f, is_new] = shared_function(
        module, (image ? "ingot_split_image_" : "ingot_split_") + std::to_string(rows), types);
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    const int row_tiles = rows / 16, column_tiles = 2;
    constexpr std::int64_t kTileBytes = 1024, kRowBytes = 64;
    const std::int64_t c_row = kMatrixColumns * 4;
    auto for_sums = [&](const auto& body) {
        for (int r = 0; r < row_tiles; ++r)
            for (int c = 0; c < column_tiles; ++c)
                body(r * column_tiles + c, r * 16 * c_row + std::int64_t{c} * 64);
    };
    for_sums([&](int n, std::int64_t) { w.tile_zero(n); });
    struct Step {
        Value *a, *b;
    };
    auto at_step = [&, f = f](Value* step) -> Step {
        Value* right =
            w.bytes(f->getArg(2), b.CreateMul(step, w.index(kParts * column_tiles * kTileBytes)));
        if (!image)
            return {w.bytes(f->getArg(0), b.CreateMul(step, w.index(kParts * rows * kRowBytes))),
                    right};
        Value* points = b.CreateLoad(ptr, b.CreateGEP(ptr, f->getArg(0), step));
        return {w.bytes(points, f->getArg(10)), right};
    };
    auto load = [&](Value* part, int first, int count) {
        for (int n = 0; n < count; ++n)
            w.tile_load(first + n, w.bytes(part, n * kTileBytes), kRowBytes);
    };
    Value* a_part_bytes = image ? f->getArg(11) : w.index(row_tiles * kTileBytes);
    auto load_a = [&](const Step& at, int part) {
        load(w.bytes(at.a, b.CreateMul(a_part_bytes, w.index(part))), kTileA, row_tiles);
    };
    auto load_b = [&](const Step& at, int part) {
        load(w.bytes(at.b, part * column_tiles * kTileBytes), kTileB, column_tiles);
    };
    auto multiply = [&] {
        for (int r = 0; r < row_tiles; ++r)
            for (int c = 0; c < column_tiles; ++c)
                w.tile_multiply(r * column_tiles + c, kTileA + r, kTileB + c);
    };
    // The small products of all steps first: they round in their own size. Each load serves two
    // products where that is possible.
    emit_loop(b, "small", w.index(0), f->getArg(1), [&](Value* step) {
        const Step at = at_step(step);
        load_a(at, 2), load_b(at, 0), multiply();
        load_a(at, 1), multiply();
        load_b(at, 1), multiply();
        load_a(at, 0), multiply();
        load_b(at, 2), multiply();
        w.prefetch_ahead(step, f->getArg(6), f->getArg(7), f->getArg(8), f->getArg(9));
    });
    emit_loop(b, "large", w.index(0), f->getArg(1), [&](Value* step) {
        const Step at = at_step(step);
        load_a(at, 0), load_b(at, 0), multiply();
    });
    auto store = [&](Value* to) {
        for_sums([&](int n, std::int64_t offset) { w.tile_store(n, w.bytes(to, offset), c_row); });
    };
    auto* add = llvm::BasicBlock::Create(b.getContext(), "add", f);
    auto* replace = llvm::BasicBlock::Create(b.getContext(), "replace", f);
    b.CreateCondBr(f->getArg(5), add, replace);
    b.SetInsertPoint(replace);
    store(f->getArg(3));
    b.CreateRetVoid();
    b.SetInsertPoint(add);
    store(f->getArg(4));
    emit_loop(b, "sum", w.index(0), w.index(rows * kMatrixColumns), w.index(4 * kLanes), {},
              [&](Value* at, const Values&) {
                  for (unsigned n = 0; n < 4; ++n) {
                      Value* place = b.CreateAdd(at, w.index(n * kLanes));
                      Value* to = b.CreateGEP(b.getFloatTy(), f->getArg(3), place);
                      Value* part = w.load(b.CreateGEP(b.getFloatTy(), f->getArg(4), place));
                      b.CreateAlignedStore(b.CreateFAdd(w.load(to), part), to, llvm::Align(4));
                  }
                  return Values{};
              });
    b.CreateRetVoid();
    return f;
}

}  // namespace

llvm::Function* split_kernel(llvm::Module& module, int rows) {
    return kernel_of(module, rows, false);
}

llvm::Function* split_image_kernel(llvm::Module& module, int rows) {
    return kernel_of(module, rows, true);
}

llvm::Function* row_splitter(llvm::Module& module) {
    Writer w(module.getContext());
    llvm::IRBuilder<>& b = w.b;
    auto* ptr = b.getPtrTy();
    auto* word = b.getInt64Ty();
    auto [f, is_new] =
        shared_function(module, "ingot_split_rows", {ptr, word, word, word, ptr, ptr});
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    Value* k = f->getArg(2);
    Value* rows = f->getArg(3);
    Value* steps = w.step_count(k);
    Value* part_bytes = b.CreateMul(rows, w.index(64));
    Value* step_bytes = b.CreateMul(part_bytes, w.index(kParts));
    Value* segments = f->getArg(1);
    auto one_row = [&](Value* entry, Value* first, Value* out, const Values& seen) {
        Value* left = b.CreateSub(k, first);
        Value* low = w.lanes_below(left);
        Value* high = w.lanes_below(b.CreateSub(left, w.index(kLanes)));
        Value* from = b.CreateGEP(b.getFloatTy(), b.CreateLoad(ptr, entry), first);
        for (const unsigned further : {2U * kMatrixStep, 2U * kMatrixStep + kLanes})
            w.prefetch(b.CreateConstGEP1_64(b.getFloatTy(), from, further));
        Value* lower = w.load(from, low);
        Value* upper = w.load(b.CreateConstGEP1_64(b.getFloatTy(), from, kLanes), high);
        const auto x = w.parts(lower), y = w.parts(upper);
        for (std::size_t p = 0; p < kParts; ++p) {
            b.CreateAlignedStore(w.paired(x[p], y[p]), out, llvm::Align(64));
            out = w.bytes(out, part_bytes);
        }
        return w.widened(w.widened(seen, lower), upper);
    };
    const Values seen = emit_loop(
        b, "segment", w.index(0), segments, w.index(1), w.no_extremes(),
        [&](Value* segment, const Values& before) {
            Value* entries = b.CreateGEP(ptr, f->getArg(0), b.CreateMul(segment, rows));
            Value* of_segment =
                w.bytes(f->getArg(4), b.CreateMul(b.CreateMul(segment, steps), step_bytes));
            return emit_loop(b, "step", w.index(0), steps, w.index(1), before,
                             [&](Value* step, const Values& in_steps) {
                                 Value* first = b.CreateMul(step, w.index(kMatrixStep));
                                 Value* out = w.bytes(of_segment, b.CreateMul(step, step_bytes));
                                 return emit_loop(
                                     b, "row", w.index(0), rows, w.index(1), in_steps,
                                     [&](Value* row, const Values& in_rows) {
                                         return one_row(b.CreateGEP(ptr, entries, row), first,
                                                        w.bytes(out, b.CreateMul(row, w.index(64))),
                                                        in_rows);
                                     });
                             });
        });
    w.note(seen, f->getArg(5));
    b.CreateRetVoid();
    return f;
}

namespace {

/// The parts of pairs of a step, half[j] and half[16 + j] of `lines`, as [part][j].
std::array<Values, kParts> paired_parts(Writer& w, const Values& lines, Values& seen) {
    std::array<Values, kParts> result;
    for (std::size_t j = 0; j < kLanes; ++j) {
        const auto x = w.parts(lines[j]), y = w.parts(lines[kLanes + j]);
        seen = w.widened(w.widened(seen, lines[j]), lines[kLanes + j]);
        for (std::size_t p = 0; p < kParts; ++p) result[p].push_back(w.paired(x[p], y[p]));
    }
    return result;
}

/// Vectors of pairs as columns of 16 lines of 64 bytes; parts `part_bytes` apart.
void store_turned(Writer& w, const std::array<Values, kParts>& parts, Value* out,
                  Value* part_bytes) {
    for (const Values& part : parts) {
        const Values turned = emit_transpose(w.b, part);
        for (unsigned n = 0; n < kLanes; ++n)
            w.b.CreateAlignedStore(turned[n], w.bytes(out, w.index(64 * n)), llvm::Align(64));
        out = w.bytes(out, part_bytes);
    }
}

}  // namespace

llvm::Function* column_splitter(llvm::Module& module) {
    Writer w(module.getContext());
    llvm::IRBuilder<>& b = w.b;
    auto* ptr = b.getPtrTy();
    auto* word = b.getInt64Ty();
    auto [f, is_new] =
        shared_function(module, "ingot_split_columns", {ptr, word, word, word, word, ptr, ptr});
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    Value* distance = f->getArg(1);
    Value* k = f->getArg(2);
    Value* rows = f->getArg(3);
    Value* part_bytes = b.CreateMul(rows, w.index(64));
    Value* step_bytes = b.CreateMul(part_bytes, w.index(kParts));
    Value* step_distance = b.CreateMul(distance, w.index(kMatrixStep));
    auto one_step = [&](Value* step, const Values& before) {
        Value* first = b.CreateMul(step, w.index(kMatrixStep));
        Value* of_step = w.bytes(f->getArg(5), b.CreateMul(step, step_bytes));
        auto some_rows = [&](Value* row, Values seen) {
            Value* exist = w.lanes_below(b.CreateSub(f->getArg(4), row));
            Values lines;
            for (unsigned n = 0; n < kMatrixStep; ++n) {
                Value* at = b.CreateAdd(first, w.index(n));
                Value* from = b.CreateGEP(b.getFloatTy(), f->getArg(0),
                                          b.CreateAdd(b.CreateMul(at, distance), row));
                w.prefetch(b.CreateGEP(b.getFloatTy(), from, step_distance));
                lines.push_back(
                    w.load(from, b.CreateSelect(b.CreateICmpSLT(at, k), exist, w.none())));
            }
            const auto parts = paired_parts(w, lines, seen);
            store_turned(w, parts, w.bytes(of_step, b.CreateMul(row, w.index(64))), part_bytes);
            return seen;
        };
        return emit_loop(b, "rows", w.index(0), rows, w.index(kLanes), before, some_rows);
    };
    w.note(emit_loop(b, "step", w.index(0), w.step_count(k), w.index(1), w.no_extremes(), one_step),
           f->getArg(6));
    b.CreateRetVoid();
    return f;
}

llvm::Function* panel_row_splitter(llvm::Module& module) {
    Writer w(module.getContext());
    llvm::IRBuilder<>& b = w.b;
    auto* ptr = b.getPtrTy();
    auto* word = b.getInt64Ty();
    auto [f, is_new] =
        shared_function(module, "ingot_split_panel_rows", {ptr, word, word, ptr, ptr});
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    Value* k = f->getArg(2);
    auto one_step = [&](Value* step, const Values& before) {
        Value* first = b.CreateMul(step, w.index(kMatrixStep));
        Value* left = b.CreateSub(k, first);
        Value* low = w.lanes_below(left);
        Value* high = w.lanes_below(b.CreateSub(left, w.index(kLanes)));
        Value* of_step = w.bytes(f->getArg(3), b.CreateMul(step, w.index(kParts * 2048)));
        Value* at = b.CreateAdd(f->getArg(1), first);
        auto some_columns = [&](Value* half, Values seen) {
            Value* entries = b.CreateGEP(ptr, f->getArg(0), b.CreateMul(half, w.index(kLanes)));
            Values lower, upper;
            for (unsigned n = 0; n < kLanes; ++n) {
                Value* start = b.CreateLoad(ptr, b.CreateConstGEP1_64(ptr, entries, n));
                Value* from = b.CreateGEP(b.getFloatTy(), start, at);
                lower.push_back(w.load(from, low));
                upper.push_back(w.load(b.CreateConstGEP1_64(b.getFloatTy(), from, kLanes), high));
            }
            lower.insert(lower.end(), upper.begin(), upper.end());
            const auto parts = paired_parts(w, lower, seen);
            store_turned(w, parts, w.bytes(of_step, b.CreateMul(half, w.index(1024))),
                         w.index(2048));
            return seen;
        };
        return emit_loop(b, "columns", w.index(0), w.index(2), w.index(1), before, some_columns);
    };
    w.note(emit_loop(b, "step", w.index(0), w.step_count(k), w.index(1), w.no_extremes(), one_step),
           f->getArg(4));
    b.CreateRetVoid();
    return f;
}

namespace {

/// Where row `k` of a panel begins, in a function's own terms.
using RowOf = llvm::function_ref<Value*(Writer& w, llvm::Function* f, Value* k)>;

/// void f(x, y, k, out, extremes): splits k rows, of which x and y say where they lie.
llvm::Function* splitter_of_panels(llvm::Module& module, const char* name, const RowOf& row_of) {
    Writer w(module.getContext());
    llvm::IRBuilder<>& b = w.b;
    auto* ptr = b.getPtrTy();
    auto* word = b.getInt64Ty();
    auto [f, is_new] = shared_function(module, name, {ptr, word, word, ptr, ptr});
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    Value* k = f->getArg(2);
    // Rows j and 16 + j of a step, of which those below `left` exist.
    auto one_step = [&, f = f](Value* step, Value* left, const Values& before) {
        Value* first = b.CreateMul(step, w.index(kMatrixStep));
        Value* out = w.bytes(f->getArg(3), b.CreateMul(step, w.index(kParts * 2048)));
        auto one_pair = [&](Value* j, Values seen) {
            Value* upper_j = b.CreateAdd(j, w.index(kLanes));
            auto mask = [&](Value* at) -> Value* {
                if (!left) return nullptr;
                return b.CreateVectorSplat(kLanes, b.CreateICmpSLT(at, left));
            };
            auto row = [&](Value* in_step, std::int64_t further) {
                return row_of(w, f, b.CreateAdd(first, b.CreateAdd(in_step, w.index(further))));
            };
            Value* lower_exists = mask(j);
            Value* upper_exists = mask(upper_j);
            Value* to = w.bytes(out, b.CreateMul(j, w.index(64)));
            // The next step's rows in the order in which they lie.
            Value* twice = b.CreateMul(j, w.index(2));
            Value *lower_row = row(j, 0), *upper_row = row(upper_j, 0);
            Value *even_row = row(twice, kMatrixStep), *odd_row = row(twice, kMatrixStep + 1);
            for (std::int64_t column = 0; column < 2; ++column) {
                const std::int64_t line = column * 64;
                w.prefetch(w.bytes(even_row, line));
                w.prefetch(w.bytes(odd_row, line));
                Value* lower = w.load(w.bytes(lower_row, line), lower_exists);
                Value* upper = w.load(w.bytes(upper_row, line), upper_exists);
                const auto x = w.parts(lower), y = w.parts(upper);
                seen = w.widened(w.widened(seen, lower), upper);
                for (std::int64_t p = 0; p < kParts; ++p)
                    b.CreateAlignedStore(
                        w.paired(x[static_cast<std::size_t>(p)], y[static_cast<std::size_t>(p)]),
                        w.bytes(to, w.index(p * 2048 + column * 1024)), llvm::Align(64));
            }
            return seen;
        };
        return emit_loop(b, "pair", w.index(0), w.index(kLanes), w.index(1), before, one_pair);
    };
    Value* whole = b.CreateUDiv(k, w.index(kMatrixStep));
    Values seen =
        emit_loop(b, "step", w.index(0), whole, w.index(1), w.no_extremes(),
                  [&](Value* step, const Values& s) { return one_step(step, nullptr, s); });
    // The rest of k, and zeros to the end of the step.
    Value* left = b.CreateURem(k, w.index(kMatrixStep));
    seen = emit_loop(b, "rest", whole, w.step_count(k), w.index(1), seen,
                     [&](Value* step, const Values& s) { return one_step(step, left, s); });
    w.note(seen, f->getArg(4));
    b.CreateRetVoid();
    return f;
}

}  // namespace

llvm::Function* panel_splitter(llvm::Module& module) {
    return splitter_of_panels(
        module, "ingot_split_panel", [](Writer& w, llvm::Function* f, Value* k) {
            return w.b.CreateGEP(w.b.getFloatTy(), f->getArg(0), w.b.CreateMul(k, f->getArg(1)));
        });
}

llvm::Function* panel_point_splitter(llvm::Module& module) {
    return splitter_of_panels(
        module, "ingot_split_panel_points", [](Writer& w, llvm::Function* f, Value* k) {
            Value* row =
                w.b.CreateLoad(w.b.getPtrTy(), w.b.CreateGEP(w.b.getPtrTy(), f->getArg(0), k));
            return w.b.CreateGEP(w.b.getFloatTy(), row, f->getArg(1));
        });
}

llvm::Function* split_check(llvm::Module& module) {
    Writer w(module.getContext());
    llvm::IRBuilder<>& b = w.b;
    auto* ptr = b.getPtrTy();
    auto* word = b.getInt64Ty();
    auto [f, is_new] =
        shared_function(module, "ingot_split_check", {ptr, word, word, ptr, ptr}, b.getInt1Ty());
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    auto block = [&](const char* name) {
        return llvm::BasicBlock::Create(b.getContext(), name, f);
    };
    auto exponent = [&](Value* extremes, std::size_t offset) {
        Value* bits =
            b.CreateLoad(b.getInt32Ty(), w.bytes(extremes, static_cast<std::int64_t>(offset)));
        return b.CreateSub(b.CreateLShr(bits, b.getInt32(23)), b.getInt32(127));
    };
    auto number = [&](std::int32_t v) { return b.getInt32(static_cast<std::uint32_t>(v)); };
    auto larger = [&](Value* x, Value* y) {
        return b.CreateBinaryIntrinsic(llvm::Intrinsic::smax, x, y);
    };
    Value* least_a = exponent(f->getArg(3), offsetof(Extremes, smallest));
    Value* least_b = exponent(f->getArg(4), offsetof(Extremes, smallest));
    Value* most_a = exponent(f->getArg(3), offsetof(Extremes, largest));
    Value* most_b = exponent(f->getArg(4), offsetof(Extremes, largest));
    // k < 2^k_bits
    Value* zeros = b.CreateIntrinsic(llvm::Intrinsic::ctlz, {word}, {f->getArg(2), b.getFalse()});
    Value* k_bits = b.CreateTrunc(b.CreateSub(w.index(64), zeros), b.getInt32Ty());
    // The last part of x is at least 2^-24 x and kept from 2^-126 on; so are products of parts.
    Value* usual = b.CreateICmpSGE(b.CreateAdd(least_a, least_b), number(-100));
    for (Value* least : {least_a, least_b})
        usual = b.CreateAnd(usual, b.CreateICmpSGE(least, number(-100)));
    Value* most = b.CreateAdd(b.CreateAdd(most_a, most_b), k_bits);
    usual = b.CreateAnd(usual, b.CreateICmpSLE(most, number(118)));
    auto* fine = block("fine");
    auto* look = block("look");
    b.CreateCondBr(usual, fine, look);
    b.SetInsertPoint(fine);
    b.CreateRet(b.getFalse());

    // Six products of parts lose up to 2^-126 each, and parts that are lost up to 3 * 2^-126 times
    // the other operand, for each k: 2^-27 of a sum that is 2^(k_bits - 96) times the larger
    // operand, or times 1.
    b.SetInsertPoint(look);
    Value* scale = larger(b.getInt32(0), b.CreateAdd(larger(most_a, most_b), b.getInt32(1)));
    Value* biased = b.CreateAdd(b.CreateAdd(scale, k_bits), number(127 - 96));
    Value* small = b.CreateVectorSplat(kLanes, b.CreateShl(biased, b.getInt32(23)));
    Value* range = b.CreateSub(w.word(kInfinity), small);
    Value* sums = b.CreateMul(f->getArg(1), w.index(kMatrixColumns));
    Value* strange =
        emit_loop(b, "sum", w.index(0), sums, w.index(kLanes), {w.none()},
                  [&](Value* n, const Values& found) {
                      Value* at = b.CreateGEP(b.getFloatTy(), f->getArg(0), n);
                      Value* bits = b.CreateBitCast(w.load(at), w.words);
                      Value* above = b.CreateSub(b.CreateAnd(bits, w.word(kMagnitude)), small);
                      return Values{b.CreateOr(found[0], b.CreateICmpUGE(above, range))};
                  })[0];
    b.CreateRet(b.CreateOrReduce(strange));
    return f;
}

llvm::Function* split_repair(llvm::Module& module) {
    Writer w(module.getContext());
    llvm::IRBuilder<>& b = w.b;
    auto* ptr = b.getPtrTy();
    auto* word = b.getInt64Ty();
    auto [f, is_new] =
        shared_function(module, "ingot_split_repair", {ptr, word, ptr, word, ptr, word, word});
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    Value* k = f->getArg(6);
    Value* part_bytes = b.CreateMul(f->getArg(3), w.index(64));
    emit_loop(b, "row", w.index(0), f->getArg(1), [&](Value* row) {
        Value* of_row = w.bytes(f->getArg(2), b.CreateMul(row, w.index(64)));
        Values sums{llvm::Constant::getNullValue(w.floats), llvm::Constant::getNullValue(w.floats)};
        // In blocks, as every other way of computing a sum.
        auto block = [&](Value* from, const Values& before) {
            Value* left = b.CreateSub(k, from);
            Value* end = b.CreateAdd(
                from, b.CreateBinaryIntrinsic(llvm::Intrinsic::smin, left, w.index(kSumBlock)));
            const Values zero{llvm::Constant::getNullValue(w.floats),
                              llvm::Constant::getNullValue(w.floats)};
            Values part =
                emit_loop(b, "k", from, end, w.index(1), zero, [&](Value* n, const Values& acc) {
                    Value* step = b.CreateUDiv(n, w.index(kMatrixStep));
                    Value* within = b.CreateURem(n, w.index(kMatrixStep));
                    // Element j of a step lies beside 16 + j.
                    Value* pair = b.CreateMul(b.CreateURem(within, w.index(kLanes)), w.index(4));
                    Value* of_pair = b.CreateMul(b.CreateUDiv(within, w.index(kLanes)), w.index(2));
                    Value* at = w.bytes(
                        of_row,
                        b.CreateAdd(b.CreateMul(b.CreateMul(step, part_bytes), w.index(kParts)),
                                    b.CreateAdd(pair, of_pair)));
                    Value* a = nullptr;
                    for (int p = 0; p < kParts; ++p) {
                        Value* half = b.CreateAlignedLoad(b.getInt16Ty(), at, llvm::Align(2));
                        Value* x = b.CreateBitCast(
                            b.CreateShl(b.CreateZExt(half, b.getInt32Ty()), b.getInt32(16)),
                            b.getFloatTy());
                        a = a ? b.CreateFAdd(a, x) : x;
                        at = w.bytes(at, part_bytes);
                    }
                    Value* spread = b.CreateVectorSplat(kLanes, a);
                    Value* right =
                        b.CreateGEP(b.getFloatTy(), f->getArg(4), b.CreateMul(n, f->getArg(5)));
                    Values next;
                    for (unsigned c = 0; c < 2; ++c)
                        next.push_back(b.CreateIntrinsic(
                            llvm::Intrinsic::fma, {w.floats},
                            {spread,
                             w.load(b.CreateConstGEP1_64(b.getFloatTy(), right, c * kLanes)),
                             acc[c]}));
                    return next;
                });
            for (unsigned c = 0; c < 2; ++c) part[c] = b.CreateFAdd(before[c], part[c]);
            return part;
        };
        sums = emit_loop(b, "block", w.index(0), k, w.index(kSumBlock), sums, block);
        Value* to =
            b.CreateGEP(b.getFloatTy(), f->getArg(0), b.CreateMul(row, w.index(kMatrixColumns)));
        for (unsigned c = 0; c < 2; ++c)
            b.CreateAlignedStore(sums[c], b.CreateConstGEP1_64(b.getFloatTy(), to, c * kLanes),
                                 llvm::Align(4));
    });
    b.CreateRetVoid();
    return f;
}

}  // namespace ingot::codegen
