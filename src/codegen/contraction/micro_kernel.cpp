// Register tiles and packers as LLVM IR with explicit vectors. See micro_kernel.h.
#include "codegen/contraction/micro_kernel.h"

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsX86.h>

#include <algorithm>
#include <string>
#include <vector>

#include "codegen/contraction/ir_loop.h"
#include "codegen/contraction/shared_function.h"

namespace ingot::codegen {
namespace {

using llvm::Value;
using Values = std::vector<Value*>;

/// How many sums of each element are kept, over every n-th k: a small tile has too few
/// accumulators to cover the latency of the FMA (8 to 10 in flight) with one.
int chains(const TileShape& tile) {
    int n = 1;
    while (n < 8 && tile.rows * tile.vectors * n < 8) n *= 2;
    return n;
}

/// How many k one turn of the loop takes. Two for a full tile: the loop's own instructions take
/// ports of the FMAs (2 to 4 % on Intel's processors). More gains nothing, and every copy costs
/// half a millisecond of compile time.
int unrolled(const TileShape& tile) { return std::max(2, chains(tile)); }

std::string tile_name(const char* kind, const TileShape& tile, std::int64_t ldb) {
    const char* type = tile.element->isDoubleTy()      ? "_f64_"
                       : !tile.element->isFloatTy()    ? "_i16_"
                       : tile.dot == DotKind::Elements ? "_f32_"
                       : tile.dot == DotKind::Pairs    ? "_bf16_"
                                                       : "_bf16i_";
    std::string name = std::string("ingot_") + kind + type + std::to_string(tile.rows) + "x" +
                       std::to_string(tile.vectors) + "v" + std::to_string(tile.lanes);
    if (ldb != kRuntimeStride) name += "_b" + std::to_string(ldb);
    if (tile.sum_block != kSumBlock) name += "_s" + std::to_string(tile.sum_block);
    if (tile.ahead) name += "_ahead";
    return name;
}

Value* take_last(Values& values) {
    Value* last = values.back();
    values.pop_back();
    return last;
}

/// Where the loop over k stands: in B, and in what is fetched ahead (null where nothing is).
struct Cursor {
    Value* b;
    Value* next;
};

/// The accumulators of one tile and the code that uses them.
class Tile {
  public:
    Tile(llvm::IRBuilder<>& b, const TileShape& shape, std::int64_t ldb_constant, Value* ldb,
         Value* next_step)
        : b_(b),
          shape_(shape),
          element_bytes_(shape.element->isDoubleTy() ? 8 : 4),
          vector_(llvm::FixedVectorType::get(shape.element, static_cast<unsigned>(shape.lanes))),
          ldb_(ldb_constant == kRuntimeStride
                   ? ldb
                   : b.getInt64(static_cast<std::uint64_t>(ldb_constant))),
          next_step_(next_step) {}

    Values initial() const {
        const int count = shape_.rows * shape_.vectors * chains(shape_);
        return Values(static_cast<std::size_t>(count), llvm::Constant::getNullValue(vector_));
    }

    /// The accumulators of all chains added up.
    Values joined(Values acc) {
        const auto tile = static_cast<std::size_t>(shape_.rows * shape_.vectors);
        while (acc.size() > tile) {
            const std::size_t half = acc.size() / 2;
            for (std::size_t n = 0; n < half; ++n) acc[n] = b_.CreateFAdd(acc[n], acc[n + half]);
            acc.resize(half);
        }
        return acc;
    }

    /// Stores the sums in C if `first`, else adds them to it. Adds basic blocks.
    void flush(const Values& chained, Value* c, Value* ldc, Value* first) {
        const Values acc = joined(chained);
        llvm::Function* f = b_.GetInsertBlock()->getParent();
        auto* store = llvm::BasicBlock::Create(b_.getContext(), "store", f);
        auto* add = llvm::BasicBlock::Create(b_.getContext(), "add", f);
        auto* done = llvm::BasicBlock::Create(b_.getContext(), "stored", f);
        b_.CreateCondBr(first, store, add);
        for (const bool adding : {false, true}) {
            b_.SetInsertPoint(adding ? add : store);
            std::size_t n = 0;
            for_each([&](int row, int v) {
                Value* at = c_address(c, ldc, row, v);
                Value* sum = acc[n++];
                if (adding) sum = b_.CreateFAdd(load_vector(at), sum);
                b_.CreateAlignedStore(sum, at, llvm::Align(element_bytes_));
            });
            b_.CreateBr(done);
        }
        b_.SetInsertPoint(done);
    }

    /// flush() when `since` k have been summed up, at least a block of them; the sums, the count
    /// and `first` to go on with.
    Values flush_if_long(const Values& acc, Value* since, Value* first, Value* c, Value* ldc) {
        llvm::Function* f = b_.GetInsertBlock()->getParent();
        auto* flushing = llvm::BasicBlock::Create(b_.getContext(), "flush", f);
        auto* next = llvm::BasicBlock::Create(b_.getContext(), "flushed", f);
        llvm::BasicBlock* before = b_.GetInsertBlock();
        b_.CreateCondBr(b_.CreateICmpUGE(since, b_.getInt64(shape_.sum_block)), flushing, next);
        b_.SetInsertPoint(flushing);
        flush(acc, c, ldc, first);
        llvm::BasicBlock* after = b_.GetInsertBlock();
        b_.CreateBr(next);
        b_.SetInsertPoint(next);
        Values result;
        const auto choose = [&](Value* flushed, Value* kept) {
            llvm::PHINode* phi = b_.CreatePHI(kept->getType(), 2);
            phi->addIncoming(flushed, after);
            phi->addIncoming(kept, before);
            result.push_back(phi);
        };
        for (Value* sum : acc) choose(llvm::Constant::getNullValue(vector_), sum);
        choose(b_.getInt64(0), since);
        choose(b_.getFalse(), first);
        return result;
    }

    /// Adds a[row] * b of one k to chain `chain` of `acc`. `a(row)` is the address of A's element.
    template <typename Address>
    void step(Values& acc, int chain, Value* b_row, Address&& a) {
        const Values columns = load_columns(b_row);
        auto n = static_cast<std::size_t>(chain * shape_.rows * shape_.vectors);
        for (int row = 0; row < shape_.rows; ++row) {
            // One broadcast for all of the row's vectors: a memory operand of its own for every
            // FMA would need more loads than a cycle has.
            Value* scalar =
                b_.CreateAlignedLoad(shape_.element, a(row), llvm::Align(element_bytes_));
            Value* splat = b_.CreateVectorSplat(static_cast<unsigned>(shape_.lanes), scalar);
            for (int v = 0; v < shape_.vectors; ++v, ++n)
                acc[n] = multiply_add(splat, columns[static_cast<std::size_t>(v)], acc[n]);
        }
    }

    /// The loop over k in [first, first + count): `address(k, u, row)` is A's element at k + u.
    /// Returns the accumulators and where B and what is fetched ahead go on behind the last k.
    template <typename Address>
    std::pair<Values, Cursor> over_k(Values acc, Value* first, Value* count, Cursor start,
                                     Address&& address) {
        const int unroll = unrolled(shape_);
        push(acc, start);
        auto body = [&](int steps) {
            return [&, steps](Value* k, Values carried) {
                Cursor at = pop(carried);
                for (int u = 0; u < steps; ++u) {
                    step(carried, u % chains(shape_),
                         b_.CreateGEP(shape_.element, at.b, times_ldb(u)),
                         [&](int row) { return address(k, u, row); });
                    if (shape_.ahead) at.next = fetch(at.next);
                }
                at.b = b_.CreateGEP(shape_.element, at.b, times_ldb(steps));
                push(carried, at);
                return carried;
            };
        };
        Value* blocked = b_.CreateAdd(
            first, b_.CreateAnd(count, b_.getInt64(~static_cast<std::uint64_t>(unroll - 1))));
        acc = emit_loop(b_, "k", first, blocked, b_.getInt64(static_cast<std::uint64_t>(unroll)),
                        acc, body(unroll));
        if (unroll > 1)
            acc = emit_loop(b_, "k_rest", blocked, b_.CreateAdd(first, count), b_.getInt64(1), acc,
                            body(1));
        const Cursor end = pop(acc);
        return {acc, end};
    }

    void push(Values& values, const Cursor& cursor) const {
        values.push_back(cursor.b);
        if (shape_.ahead) values.push_back(cursor.next);
    }
    Cursor pop(Values& values) const {
        Value* next = shape_.ahead ? take_last(values) : nullptr;
        return {take_last(values), next};
    }

  private:
    /// Asks for the line at `next`; where to ask with the next k.
    Value* fetch(Value* next) {
        constexpr std::uint32_t kRead = 0, kSecondCache = 2, kData = 1;
        b_.CreateIntrinsic(
            llvm::Intrinsic::prefetch, {b_.getPtrTy()},
            {next, b_.getInt32(kRead), b_.getInt32(kSecondCache), b_.getInt32(kData)});
        return b_.CreateGEP(b_.getInt8Ty(), next, next_step_);
    }

    llvm::Type* pairs() const {
        return llvm::FixedVectorType::get(b_.getBFloatTy(),
                                          static_cast<unsigned>(2 * shape_.lanes));
    }

    /// B's vectors for one k (or two, as pairs).
    Values load_columns(Value* b_row) {
        Values columns;
        if (shape_.dot != DotKind::Pairs) {
            for (int v = 0; v < shape_.vectors; ++v)
                columns.push_back(load_vector(b_.CreateConstGEP1_64(
                    shape_.element, b_row, static_cast<std::uint64_t>(v * shape_.lanes))));
            return columns;
        }
        // Two rows of bf16; their elements are interleaved in registers, beside the FMAs' ports.
        const int width = shape_.columns();
        auto* row = llvm::FixedVectorType::get(b_.getInt16Ty(), static_cast<unsigned>(width));
        Value* first = b_.CreateAlignedLoad(row, b_row, llvm::Align(2));
        Value* second =
            b_.CreateAlignedLoad(row, b_.CreateGEP(b_.getInt16Ty(), b_row, ldb_), llvm::Align(2));
        for (int v = 0; v < shape_.vectors; ++v) {
            llvm::SmallVector<int, 64> mask;
            for (int n = v * shape_.lanes; n < (v + 1) * shape_.lanes; ++n) {
                mask.push_back(n);
                mask.push_back(width + n);
            }
            columns.push_back(b_.CreateShuffleVector(first, second, mask));
        }
        return columns;
    }

    Value* multiply_add(Value* x, Value* y, Value* sum) {
        if (shape_.dot == DotKind::Elements)
            return b_.CreateIntrinsic(llvm::Intrinsic::fma, {vector_}, {x, y, sum});
        const llvm::Intrinsic::ID id =
            shape_.lanes == 16  ? llvm::Intrinsic::x86_avx512bf16_dpbf16ps_512
            : shape_.lanes == 8 ? llvm::Intrinsic::x86_avx512bf16_dpbf16ps_256
                                : llvm::Intrinsic::x86_avx512bf16_dpbf16ps_128;
        return b_.CreateIntrinsic(
            id, {}, {sum, b_.CreateBitCast(x, pairs()), b_.CreateBitCast(y, pairs())});
    }

    Value* times_ldb(int n) {
        return b_.CreateMul(ldb_, b_.getInt64(static_cast<std::uint64_t>(n)));
    }
    template <typename Body>
    void for_each(Body&& body) {
        for (int row = 0; row < shape_.rows; ++row)
            for (int v = 0; v < shape_.vectors; ++v) body(row, v);
    }
    Value* load_vector(Value* address) {
        return b_.CreateAlignedLoad(vector_, address, llvm::Align(element_bytes_));
    }
    Value* c_address(Value* c, Value* ldc, int row, int v) {
        Value* row_start = b_.CreateGEP(
            shape_.element, c, b_.CreateMul(ldc, b_.getInt64(static_cast<std::uint64_t>(row))));
        return b_.CreateConstGEP1_64(shape_.element, row_start,
                                     static_cast<std::uint64_t>(v * shape_.lanes));
    }

    llvm::IRBuilder<>& b_;
    TileShape shape_;
    unsigned element_bytes_;
    llvm::FixedVectorType* vector_;
    Value* ldb_;
    Value* next_step_;
};

/// min(length, the tile's block)
Value* shorter(llvm::IRBuilder<>& b, const TileShape& tile, Value* length) {
    Value* block = b.getInt64(tile.sum_block);
    return b.CreateSelect(b.CreateICmpSLT(length, block), length, block);
}

}  // namespace

llvm::Function* packed_kernel(llvm::Module& module, const TileShape& shape, std::int64_t ldb) {
    llvm::IRBuilder<> b(module.getContext());
    auto* ptr = b.getPtrTy();
    auto* i64 = b.getInt64Ty();
    auto [f, is_new] = shared_function(module, tile_name("packed", shape, ldb),
                                       {ptr, i64, ptr, i64, ptr, i64, b.getInt1Ty(), ptr, i64});
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    Tile tile(b, shape, ldb, f->getArg(3), f->getArg(8));
    Value* a = f->getArg(0);
    Value* count = f->getArg(1);
    // At least once, so that an empty sum is stored as zeros.
    Value* end = b.CreateSelect(b.CreateICmpEQ(count, b.getInt64(0)), b.getInt64(1), count);
    Values cursor;
    tile.push(cursor, {f->getArg(2), f->getArg(7)});
    Value* replace = b.CreateNot(f->getArg(6));
    emit_loop(b, "block", b.getInt64(0), end, b.getInt64(shape.sum_block), cursor,
              [&](Value* start, Values carried) {
                  Value* length = shorter(b, shape, b.CreateSub(count, start));
                  auto address = [&](Value* k, int u, int row) {
                      Value* at = b.CreateGEP(
                          shape.element, a,
                          b.CreateMul(b.CreateAdd(start, k),
                                      b.getInt64(static_cast<std::uint64_t>(shape.rows))));
                      return b.CreateConstGEP1_64(shape.element, at,
                                                  static_cast<std::uint64_t>(u * shape.rows + row));
                  };
                  auto [sum, behind] = tile.over_k(tile.initial(), b.getInt64(0), length,
                                                   tile.pop(carried), address);
                  Value* first = b.CreateAnd(replace, b.CreateICmpEQ(start, b.getInt64(0)));
                  tile.flush(sum, f->getArg(4), f->getArg(5), first);
                  tile.push(carried, behind);
                  return carried;
              });
    b.CreateRetVoid();
    return f;
}

llvm::Function* turned_kernel(llvm::Module& module, const TileShape& shape) {
    llvm::IRBuilder<> b(module.getContext());
    auto* ptr = b.getPtrTy();
    auto* i64 = b.getInt64Ty();
    auto [f, is_new] = shared_function(module, tile_name("turned", shape, kRuntimeStride),
                                       {ptr, i64, i64, ptr, i64, ptr, i64, b.getInt1Ty()});
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    Tile tile(b, shape, kRuntimeStride, f->getArg(4), nullptr);
    Value *a = f->getArg(0), *distance = f->getArg(1), *count = f->getArg(2);
    Values cursor;
    tile.push(cursor, {f->getArg(3), nullptr});
    Value* replace = b.CreateNot(f->getArg(7));
    emit_loop(b, "block", b.getInt64(0), count, b.getInt64(shape.sum_block), cursor,
              [&](Value* start, Values carried) {
                  Value* length = shorter(b, shape, b.CreateSub(count, start));
                  auto address = [&](Value* k, int u, int row) {
                      Value* at = b.CreateAdd(k, b.getInt64(static_cast<std::uint64_t>(u)));
                      at = b.CreateGEP(shape.element, a, b.CreateMul(at, distance));
                      return b.CreateConstGEP1_64(shape.element, at,
                                                  static_cast<std::uint64_t>(row));
                  };
                  auto [sum, behind] =
                      tile.over_k(tile.initial(), start, length, tile.pop(carried), address);
                  Value* first = b.CreateAnd(replace, b.CreateICmpEQ(start, b.getInt64(0)));
                  tile.flush(sum, f->getArg(5), f->getArg(6), first);
                  tile.push(carried, behind);
                  return carried;
              });
    b.CreateRetVoid();
    return f;
}

llvm::Function* rows_kernel(llvm::Module& module, const TileShape& shape, std::int64_t ldb) {
    llvm::IRBuilder<> b(module.getContext());
    auto* ptr = b.getPtrTy();
    auto* i64 = b.getInt64Ty();
    auto [f, is_new] =
        shared_function(module, tile_name("rows", shape, ldb),
                        {ptr, i64, i64, ptr, i64, ptr, i64, b.getInt1Ty(), i64, ptr, i64});
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    Tile tile(b, shape, ldb, f->getArg(4), f->getArg(10));
    Value* table = f->getArg(0);
    Value* count = f->getArg(2);
    Value* shift = b.CreateExactSDiv(
        f->getArg(8), b.getInt64(shape.element->isDoubleTy() ? sizeof(double) : sizeof(float)));
    // The sums, how many k they hold, whether C holds nothing yet, and where B goes on.
    Values carried = tile.initial();
    carried.insert(carried.end(), {b.getInt64(0), b.CreateNot(f->getArg(7))});
    tile.push(carried, {f->getArg(3), f->getArg(9)});
    carried = emit_loop(
        b, "segment", b.getInt64(0), f->getArg(1), b.getInt64(1), carried,
        [&](Value* segment, Values acc) {
            Value* entry = b.CreateGEP(
                ptr, table,
                b.CreateMul(segment, b.getInt64(static_cast<std::uint64_t>(shape.rows))));
            // The pointers as they are: what is added to all of them is added to the index, which
            // is one register. LLVM would keep a second dozen, and spill both.
            Values rows;
            for (int row = 0; row < shape.rows; ++row)
                rows.push_back(b.CreateLoad(
                    ptr, b.CreateConstGEP1_64(ptr, entry, static_cast<std::uint64_t>(row))));
            return emit_loop(
                b, "block", b.getInt64(0), count, b.getInt64(shape.sum_block), acc,
                [&](Value* start, Values inner) {
                    const Cursor cursor = tile.pop(inner);
                    Value* first = take_last(inner);
                    Value* since = take_last(inner);
                    Value* length = shorter(b, shape, b.CreateSub(count, start));
                    auto address = [&](Value* k, int u, int row) {
                        Value* at =
                            b.CreateGEP(shape.element, rows[static_cast<std::size_t>(row)], k);
                        return b.CreateConstGEP1_64(shape.element, at,
                                                    static_cast<std::uint64_t>(u));
                    };
                    auto [sum, behind] =
                        tile.over_k(inner, b.CreateAdd(shift, start), length, cursor, address);
                    Values next = tile.flush_if_long(sum, b.CreateAdd(since, length), first,
                                                     f->getArg(5), f->getArg(6));
                    tile.push(next, behind);
                    return next;
                });
        });
    tile.pop(carried);
    Value* first = take_last(carried);
    Value* since = take_last(carried);
    auto* rest = llvm::BasicBlock::Create(b.getContext(), "rest", f);
    auto* end = llvm::BasicBlock::Create(b.getContext(), "end", f);
    b.CreateCondBr(b.CreateOr(first, b.CreateICmpNE(since, b.getInt64(0))), rest, end);
    b.SetInsertPoint(rest);
    tile.flush(carried, f->getArg(5), f->getArg(6), first);
    b.CreateBr(end);
    b.SetInsertPoint(end);
    b.CreateRetVoid();
    return f;
}

namespace {

/// Transposes four vectors of 4 * n elements in groups of four: element 4 * q + e of row r becomes
/// element r of group q + ... ; result[e] holds, for each 128-bit-like group q, (r0, r1, r2, r3) of
/// element 4 * q + e.
std::array<Value*, 4> transpose_groups(llvm::IRBuilder<>& b, const std::array<Value*, 4>& rows,
                                       int lanes) {
    auto interleave = [&](Value* x, Value* y, bool high, int unit) {
        // unit 1: x0 y0 x1 y1 (or from 2), unit 2: pairs, in every group of four.
        llvm::SmallVector<int, 64> mask;
        for (int group = 0; group < lanes; group += 4)
            for (int n = 0; n < 4; ++n) {
                const int which = n / unit % 2;
                const int source = unit == 1 ? n / 2 + (high ? 2 : 0) : n % 2 + (high ? 2 : 0);
                mask.push_back(group + source + which * lanes);
            }
        return b.CreateShuffleVector(x, y, mask);
    };
    Value* low01 = interleave(rows[0], rows[1], false, 1);  // r0e0 r1e0 r0e1 r1e1
    Value* high01 = interleave(rows[0], rows[1], true, 1);  // r0e2 r1e2 r0e3 r1e3
    Value* low23 = interleave(rows[2], rows[3], false, 1);
    Value* high23 = interleave(rows[2], rows[3], true, 1);
    return {interleave(low01, low23, false, 2), interleave(low01, low23, true, 2),
            interleave(high01, high23, false, 2), interleave(high01, high23, true, 2)};
}

/// What a packer knows of one segment: `rows` pointers, each to `count` elements `step` apart.
struct PackedRows {
    Value* entries;
    Value* count;
    Value* step;
    Value* rows;
    Value* out;
};

/// If the rows are neighbours in memory and their elements are not (the operand is transposed),
/// copies them side by side, k by k. Returns whether it did.
Value* copy_neighbours(llvm::IRBuilder<>& b, llvm::Type* element, const PackedRows& p) {
    auto* ptr = b.getPtrTy();
    auto index = [&](std::int64_t v) { return b.getInt64(static_cast<std::uint64_t>(v)); };
    Value* first = b.CreateLoad(ptr, p.entries);
    // A row of zeros stands elsewhere, so it is no neighbour; one row alone may be of zeros.
    Value* several =
        b.CreateAnd(b.CreateICmpNE(p.step, index(1)), b.CreateICmpSGT(p.rows, index(1)));
    Value* alike = emit_loop(b, "near", index(1), p.rows, index(1), {several},
                             [&](Value* row, const Values& carried) {
                                 Value* at = b.CreateLoad(ptr, b.CreateGEP(ptr, p.entries, row));
                                 Value* near = b.CreateICmpEQ(at, b.CreateGEP(element, first, row));
                                 return Values{b.CreateAnd(carried[0], near)};
                             })[0];
    const llvm::Align align(element->isDoubleTy() ? 8 : 4);
    Value* count = b.CreateSelect(alike, p.count, index(0));
    emit_loop(b, "side", index(0), count, [&](Value* k) {
        Value* from = b.CreateGEP(element, first, b.CreateMul(k, p.step));
        Value* to = b.CreateGEP(element, p.out, b.CreateMul(k, p.rows));
        Value* done = index(0);
        for (const unsigned width : {16U, 4U, 1U}) {
            auto* type = width == 1 ? element : llvm::FixedVectorType::get(element, width);
            Value* end = b.CreateAnd(p.rows, index(~std::int64_t{width - 1}));
            emit_loop(b, "copy", done, end, index(width), {}, [&](Value* row, const Values&) {
                Value* v = b.CreateAlignedLoad(type, b.CreateGEP(element, from, row), align);
                b.CreateAlignedStore(v, b.CreateGEP(element, to, row), align);
                return Values{};
            });
            done = end;
        }
    });
    return alike;
}

}  // namespace

llvm::Function* row_packer(llvm::Module& module, llvm::Type* element) {
    llvm::IRBuilder<> b(module.getContext());
    auto* ptr = b.getPtrTy();
    auto* i64 = b.getInt64Ty();
    const std::string name = std::string("ingot_pack") + (element->isDoubleTy() ? "_f64" : "_f32");
    auto [f, is_new] = shared_function(module, name, {ptr, i64, i64, i64, i64, ptr, ptr});
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    constexpr int kLanes = 8;  // k at a time
    const llvm::Align align(element->isDoubleTy() ? 8 : 4);
    auto* wide = llvm::FixedVectorType::get(element, kLanes);
    Value* table = f->getArg(0);
    Value* count = f->getArg(2);
    Value* step = f->getArg(3);
    Value* rows = f->getArg(4);
    Value* zero = f->getArg(6);
    auto index = [&](std::int64_t v) { return b.getInt64(static_cast<std::uint64_t>(v)); };
    auto and_not = [&](Value* v, int low) { return b.CreateAnd(v, index(~std::int64_t{low})); };
    // Blocks of 4 rows by 8 k are transposed in registers, where k are consecutive. The last four
    // rows may repeat some of the four before.
    Value* in_blocks = b.CreateAnd(b.CreateICmpEQ(step, index(1)), b.CreateICmpSGE(rows, index(4)));
    Value* blocked_rows = b.CreateSelect(in_blocks, rows, index(0));
    Value* blocked_k = and_not(count, kLanes - 1);
    emit_loop(b, "segment", index(0), f->getArg(1), [&](Value* segment) {
        Value* entries = b.CreateGEP(ptr, table, b.CreateMul(segment, rows));
        Value* out =
            b.CreateGEP(element, f->getArg(5), b.CreateMul(b.CreateMul(segment, count), rows));
        // Rows that are neighbours in memory (a transposed operand) are copied side by side.
        Value* copied = copy_neighbours(b, element, {entries, count, step, rows, out});
        Value* first_left = b.CreateSelect(copied, rows, blocked_rows);
        // One row from k `from` on.
        auto one_row = [&](Value* row, Value* from) {
            Value* start = b.CreateLoad(ptr, b.CreateGEP(ptr, entries, row));
            Value* distance = b.CreateSelect(b.CreateICmpEQ(start, zero), index(0), step);
            emit_loop(b, "k", from, count, [&](Value* k) {
                Value* v =
                    b.CreateLoad(element, b.CreateGEP(element, start, b.CreateMul(k, distance)));
                b.CreateStore(v, b.CreateGEP(element, out, b.CreateAdd(b.CreateMul(k, rows), row)));
            });
        };
        emit_loop(b, "row", index(0), blocked_rows, index(4), {}, [&](Value* four, const Values&) {
            Value* last = b.CreateSub(rows, index(4));
            Value* row = b.CreateSelect(b.CreateICmpSLT(four, last), four, last);
            Values pointers;
            for (int r = 0; r < 4; ++r)
                pointers.push_back(
                    b.CreateLoad(ptr, b.CreateGEP(ptr, entries, b.CreateAdd(row, index(r)))));
            emit_loop(
                b, "block", index(0), blocked_k, index(kLanes), {}, [&](Value* k, const Values&) {
                    std::array<Value*, 4> loaded;
                    for (std::size_t r = 0; r < 4; ++r)
                        loaded[r] =
                            b.CreateAlignedLoad(wide, b.CreateGEP(element, pointers[r], k), align);
                    const auto turned = transpose_groups(b, loaded, kLanes);
                    Value* to = b.CreateGEP(element, out, b.CreateAdd(b.CreateMul(k, rows), row));
                    for (int n = 0; n < kLanes; ++n) {
                        const int q = 4 * (n / 4);
                        Value* of_k = b.CreateShuffleVector(turned[static_cast<std::size_t>(n % 4)],
                                                            {q, q + 1, q + 2, q + 3});
                        b.CreateAlignedStore(of_k, to, align);
                        to = b.CreateGEP(element, to, rows);
                    }
                    return Values{};
                });
            emit_loop(b, "rest", index(0), index(4),
                      [&](Value* r) { one_row(b.CreateAdd(row, r), blocked_k); });
            return Values{};
        });
        emit_loop(b, "row_rest", first_left, rows, [&](Value* row) { one_row(row, index(0)); });
    });
    b.CreateRetVoid();
    return f;
}

llvm::Function* panel_copier(llvm::Module& module, const TileShape& tile) {
    llvm::IRBuilder<> b(module.getContext());
    auto* ptr = b.getPtrTy();
    auto* i64 = b.getInt64Ty();
    auto [f, is_new] = shared_function(module, tile_name("panel", tile, kRuntimeStride),
                                       {ptr, i64, i64, i64, ptr});
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    const auto lanes = static_cast<unsigned>(tile.lanes);
    const llvm::Align align(tile.element->getPrimitiveSizeInBits() / 8);
    auto* vector = llvm::FixedVectorType::get(tile.element, lanes);
    llvm::SmallVector<llvm::Constant*, 64> iota;
    for (unsigned n = 0; n < lanes; ++n) iota.push_back(b.getInt64(n));
    Values masks;
    for (int v = 0; v < tile.vectors; ++v) {
        Value* limit =
            b.CreateSub(f->getArg(3), b.getInt64(static_cast<std::uint64_t>(v * tile.lanes)));
        masks.push_back(
            b.CreateICmpSLT(llvm::ConstantVector::get(iota), b.CreateVectorSplat(lanes, limit)));
    }
    emit_loop(b, "k", b.getInt64(0), f->getArg(2), [&](Value* k) {
        Value* from = b.CreateGEP(tile.element, f->getArg(0), b.CreateMul(k, f->getArg(1)));
        Value* to =
            b.CreateGEP(tile.element, f->getArg(4),
                        b.CreateMul(k, b.getInt64(static_cast<std::uint64_t>(tile.columns()))));
        for (int v = 0; v < tile.vectors; ++v) {
            const auto offset = static_cast<std::uint64_t>(v * tile.lanes);
            Value* loaded = b.CreateMaskedLoad(
                vector, b.CreateConstGEP1_64(tile.element, from, offset), align,
                masks[static_cast<std::size_t>(v)], llvm::Constant::getNullValue(vector));
            b.CreateAlignedStore(loaded, b.CreateConstGEP1_64(tile.element, to, offset), align);
        }
    });
    b.CreateRetVoid();
    return f;
}

}  // namespace ingot::codegen
