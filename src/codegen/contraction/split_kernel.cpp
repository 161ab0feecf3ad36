// Matrix tiles, splitters and the check as LLVM IR. See split_kernel.h.
#include "codegen/contraction/split_kernel.h"

#include <array>
#include <string>
#include <vector>

#include "codegen/contraction/ir_loop.h"
#include "codegen/contraction/matrix_writer.h"
#include "codegen/contraction/micro_kernel.h"
#include "codegen/contraction/shared_function.h"

namespace ingot::codegen {
namespace {

using llvm::Value;
using Values = std::vector<Value*>;

constexpr int kParts = 3;
constexpr unsigned kLanes = MatrixWriter::kLanes;
constexpr std::uint32_t kHigh = 0xFFFF0000U;

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
    /// The upper halves of x and y as 32 bf16: x's before y's, or taken in turns.
    Value* upper_halves(Value* x, Value* y, bool in_turns) {
        auto* halves = llvm::FixedVectorType::get(b.getInt16Ty(), 2 * kLanes);
        llvm::SmallVector<int, 32> mask;
        for (int n = 0; n < 32; ++n) {
            const int of_y = in_turns ? n % 2 : n / 16;
            mask.push_back(32 * of_y + 2 * (in_turns ? n / 2 : n % 16) + 1);
        }
        return b.CreateShuffleVector(b.CreateBitCast(x, halves), b.CreateBitCast(y, halves), mask);
    }
    /// 16 vectors as the rows of a matrix; the columns.
    Values transposed(Values rows) {
        for (int bit = 1; bit < 16; bit *= 2)
            for (int i = 0; i < 16; ++i) {
                if (i & bit) continue;
                const auto low = static_cast<std::size_t>(i), high = low | unsigned(bit);
                llvm::SmallVector<int, 16> even, odd;
                for (int lane = 0; lane < 16; ++lane) {
                    even.push_back(lane & bit ? 16 + (lane ^ bit) : lane);
                    odd.push_back(lane & bit ? 16 + lane : lane | bit);
                }
                Value* x = rows[low];
                Value* y = rows[high];
                rows[low] = b.CreateShuffleVector(x, y, even);
                rows[high] = b.CreateShuffleVector(x, y, odd);
            }
        return rows;
    }
};

/// Tile registers 0 to 3 are sums, 4 and 5 rows of A, 6 and 7 columns of B.
constexpr int kTileA = 4, kTileB = 6;

}  // namespace

llvm::Function* split_kernel(llvm::Module& module, int rows) {
    Writer w(module.getContext());
    llvm::IRBuilder<>& b = w.b;
    auto* ptr = b.getPtrTy();
    auto* word = b.getInt64Ty();
    auto [f, is_new] = shared_function(module, "ingot_split_" + std::to_string(rows),
                                       {ptr, word, ptr, ptr, ptr, b.getInt1Ty(), ptr, word});
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
    auto at_step = [&](Value* step) -> Step {
        return {
            w.bytes(f->getArg(0), b.CreateMul(step, w.index(kParts * rows * kRowBytes))),
            w.bytes(f->getArg(2), b.CreateMul(step, w.index(kParts * column_tiles * kTileBytes)))};
    };
    auto load = [&](Value* base, int first, int count, int part) {
        for (int n = 0; n < count; ++n)
            w.tile_load(first + n, w.bytes(base, (part * count + n) * kTileBytes), kRowBytes);
    };
    auto load_a = [&](const Step& at, int part) { load(at.a, kTileA, row_tiles, part); };
    auto load_b = [&](const Step& at, int part) { load(at.b, kTileB, column_tiles, part); };
    auto multiply = [&] {
        for (int r = 0; r < row_tiles; ++r)
            for (int c = 0; c < column_tiles; ++c)
                w.tile_multiply(r * column_tiles + c, kTileA + r, kTileB + c);
    };
    // The small products of all steps first: they round in their own size. Each load serves two
    // products where that is possible.
    Value* ahead_bytes = b.CreateMul(f->getArg(7), w.index(64));
    emit_loop(b, "small", w.index(0), f->getArg(1), [&](Value* step) {
        const Step at = at_step(step);
        load_a(at, 2), load_b(at, 0), multiply();
        load_a(at, 1), multiply();
        load_b(at, 1), multiply();
        load_a(at, 0), multiply();
        load_b(at, 2), multiply();
        Value* next = w.bytes(f->getArg(6), b.CreateMul(step, ahead_bytes));
        emit_loop(b, "ahead", w.index(0), f->getArg(7),
                  [&](Value* line) { w.prefetch(w.bytes(next, b.CreateMul(line, w.index(64)))); });
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

llvm::Function* row_splitter(llvm::Module& module) {
    Writer w(module.getContext());
    llvm::IRBuilder<>& b = w.b;
    auto* ptr = b.getPtrTy();
    auto* word = b.getInt64Ty();
    auto [f, is_new] = shared_function(module, "ingot_split_rows", {ptr, word, word, word, ptr});
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    Value* k = f->getArg(2);
    Value* rows = f->getArg(3);
    Value* steps = w.step_count(k);
    Value* part_bytes = b.CreateMul(rows, w.index(64));
    Value* step_bytes = b.CreateMul(part_bytes, w.index(kParts));
    emit_loop(b, "segment", w.index(0), f->getArg(1), [&](Value* segment) {
        Value* entries = b.CreateGEP(ptr, f->getArg(0), b.CreateMul(segment, rows));
        Value* of_segment =
            w.bytes(f->getArg(4), b.CreateMul(b.CreateMul(segment, steps), step_bytes));
        emit_loop(b, "step", w.index(0), steps, [&](Value* step) {
            Value* first = b.CreateMul(step, w.index(kMatrixStep));
            Value* left = b.CreateSub(k, first);
            Value* low = w.lanes_below(left);
            Value* high = w.lanes_below(b.CreateSub(left, w.index(kLanes)));
            Value* out = w.bytes(of_segment, b.CreateMul(step, step_bytes));
            emit_loop(b, "row", w.index(0), rows, [&](Value* row) {
                Value* from = b.CreateGEP(b.getFloatTy(),
                                          b.CreateLoad(ptr, b.CreateGEP(ptr, entries, row)), first);
                const auto x = w.parts(w.load(from, low));
                const auto y =
                    w.parts(w.load(b.CreateConstGEP1_64(b.getFloatTy(), from, kLanes), high));
                Value* to = w.bytes(out, b.CreateMul(row, w.index(64)));
                for (std::size_t p = 0; p < kParts; ++p) {
                    b.CreateAlignedStore(w.upper_halves(x[p], y[p], false), to, llvm::Align(64));
                    to = w.bytes(to, part_bytes);
                }
            });
        });
    });
    b.CreateRetVoid();
    return f;
}

llvm::Function* column_splitter(llvm::Module& module) {
    Writer w(module.getContext());
    llvm::IRBuilder<>& b = w.b;
    auto* ptr = b.getPtrTy();
    auto* word = b.getInt64Ty();
    auto [f, is_new] = shared_function(module, "ingot_split_columns", {ptr, word, word, ptr});
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    Value* k = f->getArg(1);
    Value* rows = f->getArg(2);
    Value* part_bytes = b.CreateMul(rows, w.index(64));
    Value* step_bytes = b.CreateMul(part_bytes, w.index(kParts));
    auto* halves = llvm::FixedVectorType::get(b.getInt16Ty(), kLanes);
    // In half steps of 16 k.
    Value* half_steps = b.CreateMul(w.step_count(k), w.index(2));
    emit_loop(b, "half", w.index(0), half_steps, [&](Value* half) {
        Value* first = b.CreateMul(half, w.index(kLanes));
        Value* out = w.bytes(f->getArg(3),
                             b.CreateAdd(b.CreateMul(b.CreateUDiv(half, w.index(2)), step_bytes),
                                         b.CreateMul(b.CreateURem(half, w.index(2)), w.index(32))));
        emit_loop(b, "rows", w.index(0), rows, w.index(kLanes), {}, [&](Value* row, const Values&) {
            Values lines;
            for (unsigned n = 0; n < kLanes; ++n) {
                Value* at = b.CreateAdd(first, w.index(n));
                Value* exists = b.CreateVectorSplat(kLanes, b.CreateICmpSLT(at, k));
                Value* from = b.CreateGEP(b.getFloatTy(), f->getArg(0),
                                          b.CreateAdd(b.CreateMul(at, rows), row));
                lines.push_back(w.load(from, exists));
            }
            lines = w.transposed(std::move(lines));
            for (unsigned n = 0; n < kLanes; ++n) {
                const auto parts = w.parts(lines[n]);
                Value* to = w.bytes(out, b.CreateMul(b.CreateAdd(row, w.index(n)), w.index(64)));
                for (std::size_t p = 0; p < kParts; ++p) {
                    Value* upper = b.CreateTrunc(b.CreateLShr(parts[p], w.word(16)), halves);
                    b.CreateAlignedStore(upper, to, llvm::Align(32));
                    to = w.bytes(to, part_bytes);
                }
            }
            return Values{};
        });
    });
    b.CreateRetVoid();
    return f;
}

llvm::Function* panel_splitter(llvm::Module& module) {
    Writer w(module.getContext());
    llvm::IRBuilder<>& b = w.b;
    auto* ptr = b.getPtrTy();
    auto* word = b.getInt64Ty();
    auto [f, is_new] = shared_function(module, "ingot_split_panel", {ptr, word, word, ptr});
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    Value* k = f->getArg(2);
    constexpr std::int64_t kPairs = kMatrixStep / 2;
    constexpr std::int64_t kRowsAhead = 32;
    auto place_of = [&](Value* n) {
        Value* step = b.CreateUDiv(n, w.index(kPairs));
        Value* within = b.CreateURem(n, w.index(kPairs));
        return w.bytes(f->getArg(3), b.CreateAdd(b.CreateMul(step, w.index(kParts * 2048)),
                                                 b.CreateMul(within, w.index(64))));
    };
    auto pair = [&](Value* n, Value* second_exists) {
        Value* row = b.CreateGEP(b.getFloatTy(), f->getArg(0),
                                 b.CreateMul(b.CreateMul(n, w.index(2)), f->getArg(1)));
        Value* to = place_of(n);
        for (std::int64_t column = 0; column < 2; ++column) {
            Value* from = b.CreateGEP(b.getFloatTy(), row, w.index(column * kLanes));
            for (std::int64_t further = kRowsAhead; further < kRowsAhead + 2; ++further)
                w.prefetch(
                    b.CreateGEP(b.getFloatTy(), from, b.CreateMul(f->getArg(1), w.index(further))));
            const auto x = w.parts(w.load(from));
            const auto y =
                w.parts(w.load(b.CreateGEP(b.getFloatTy(), from, f->getArg(1)), second_exists));
            for (std::int64_t p = 0; p < kParts; ++p)
                b.CreateAlignedStore(w.upper_halves(x[static_cast<std::size_t>(p)],
                                                    y[static_cast<std::size_t>(p)], true),
                                     w.bytes(to, w.index(p * 2048 + column * 1024)),
                                     llvm::Align(64));
        }
    };
    Value* pairs = b.CreateUDiv(k, w.index(2));
    emit_loop(b, "pair", w.index(0), pairs, [&](Value* n) { pair(n, nullptr); });
    // An odd k's last, and zeros to the end of the step.
    Value* with_odd = b.CreateUDiv(b.CreateAdd(k, w.index(1)), w.index(2));
    emit_loop(b, "odd", pairs, with_odd, [&](Value* n) {
        pair(n, llvm::Constant::getNullValue(w.lanes_below(k)->getType()));
    });
    Value* all = b.CreateMul(w.step_count(k), w.index(kPairs));
    emit_loop(b, "zero", with_odd, all, [&](Value* n) {
        Value* to = place_of(n);
        for (std::int64_t place = 0; place < 2 * std::int64_t{kParts}; ++place)
            b.CreateAlignedStore(llvm::Constant::getNullValue(w.words),
                                 w.bytes(to, w.index(place * 1024)), llvm::Align(64));
    });
    b.CreateRetVoid();
    return f;
}

llvm::Function* split_check(llvm::Module& module) {
    Writer w(module.getContext());
    llvm::IRBuilder<>& b = w.b;
    auto* ptr = b.getPtrTy();
    auto* word = b.getInt64Ty();
    auto [f, is_new] = shared_function(module, "ingot_split_check",
                                       {ptr, word, ptr, word, ptr, word, word}, b.getInt1Ty());
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    auto block = [&](const char* name) {
        return llvm::BasicBlock::Create(b.getContext(), name, f);
    };
    auto any = [&](Value* lanes) { return b.CreateOrReduce(lanes); };
    auto* none = llvm::Constant::getNullValue(w.lanes_below(f->getArg(1))->getType());
    Value* c = f->getArg(0);
    Value* k = f->getArg(6);
    constexpr std::uint32_t kMagnitude = 0x7FFFFFFF, kInfinity = 0x7F800000;
    constexpr std::uint32_t kSmallSum = 87U << 23;      // 2^-40
    constexpr std::uint32_t kSmallElement = 77U << 23;  // 2^-50

    Value* sums = b.CreateMul(f->getArg(1), w.index(kMatrixColumns));
    Value* strange = emit_loop(
        b, "sum", w.index(0), sums, w.index(kLanes), {none}, [&](Value* n, const Values& found) {
            Value* bits = b.CreateBitCast(w.load(b.CreateGEP(b.getFloatTy(), c, n)), w.words);
            Value* above = b.CreateSub(b.CreateAnd(bits, w.word(kMagnitude)), w.word(kSmallSum));
            return Values{
                b.CreateOr(found[0], b.CreateICmpUGE(above, w.word(kInfinity - kSmallSum)))};
        })[0];
    auto* usual = block("usual");
    auto* look = block("look");
    b.CreateCondBr(any(strange), look, usual);
    b.SetInsertPoint(usual);
    b.CreateRet(b.getFalse());

    b.SetInsertPoint(look);
    Value* wild = emit_loop(
        b, "wild", w.index(0), sums, w.index(kLanes), {none}, [&](Value* n, const Values& found) {
            Value* bits = b.CreateBitCast(w.load(b.CreateGEP(b.getFloatTy(), c, n)), w.words);
            return Values{b.CreateOr(
                found[0],
                b.CreateICmpUGE(b.CreateAnd(bits, w.word(kMagnitude)), w.word(kInfinity)))};
        })[0];
    auto* again = block("again");
    auto* operands = block("operands");
    b.CreateCondBr(any(wild), again, operands);
    b.SetInsertPoint(again);
    b.CreateRet(b.getTrue());

    // Elements other than zero that are tiny: |x| - 1 wraps for zero.
    b.SetInsertPoint(operands);
    auto tiny = [&](Value* bits) {
        Value* less_one = b.CreateSub(b.CreateAnd(bits, w.word(kMagnitude)), w.word(1));
        return b.CreateICmpULT(less_one, w.word(kSmallElement - 1));
    };
    Value* tiny_b = emit_loop(
        b, "right", w.index(0), k, w.index(1), {none}, [&](Value* n, const Values& found) {
            Value* row = b.CreateGEP(b.getFloatTy(), f->getArg(4), b.CreateMul(n, f->getArg(5)));
            Value* x = b.CreateBitCast(w.load(row), w.words);
            Value* y =
                b.CreateBitCast(w.load(b.CreateConstGEP1_64(b.getFloatTy(), row, kLanes)), w.words);
            return Values{b.CreateOr(found[0], b.CreateOr(tiny(x), tiny(y)))};
        })[0];
    // Of A the first parts, and the second where there is no first.
    Value* part_bytes = b.CreateMul(f->getArg(3), w.index(64));
    Value* tiny_a = emit_loop(
        b, "left", w.index(0), w.step_count(k), w.index(1), {none},
        [&](Value* step, const Values& outer) {
            Value* first =
                w.bytes(f->getArg(2), b.CreateMul(b.CreateMul(step, part_bytes), w.index(kParts)));
            return emit_loop(
                b, "half_row", w.index(0), part_bytes, w.index(32), outer,
                [&](Value* at, const Values& found) {
                    auto* halves = llvm::FixedVectorType::get(b.getInt16Ty(), kLanes);
                    auto load = [&](Value* base) {
                        Value* v = b.CreateAlignedLoad(halves, w.bytes(base, at), llvm::Align(32));
                        return b.CreateShl(b.CreateZExt(v, w.words), w.word(16));
                    };
                    Value* x = load(first);
                    Value* y = load(w.bytes(first, part_bytes));
                    Value* magnitude = w.word(kMagnitude);
                    Value* no_first = b.CreateICmpEQ(b.CreateAnd(x, magnitude), w.word(0));
                    Value* second = b.CreateICmpNE(b.CreateAnd(y, magnitude), w.word(0));
                    return Values{
                        b.CreateOr(found[0], b.CreateOr(tiny(x), b.CreateAnd(no_first, second)))};
                });
        })[0];
    b.CreateRet(any(b.CreateOr(tiny_a, tiny_b)));
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
                    Value* at = w.bytes(
                        of_row,
                        b.CreateAdd(b.CreateMul(b.CreateMul(step, part_bytes), w.index(kParts)),
                                    b.CreateMul(within, w.index(2))));
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
