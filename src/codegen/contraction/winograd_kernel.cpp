// See winograd_kernel.h.
#include "codegen/contraction/winograd_kernel.h"

#include <llvm/IR/IRBuilder.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "codegen/contraction/ir_loop.h"
#include "codegen/contraction/shared_function.h"
#include "codegen/contraction/winograd_vectors.h"

namespace ingot::codegen {
namespace {

using llvm::Value;
using Builder = llvm::IRBuilder<>;
template <std::size_t rows, std::size_t columns>
using Grid = std::array<std::array<Value*, columns>, rows>;

/// One direction of the points' form: four from four.
std::array<Value*, 4> points_form(Builder& b, const std::array<Value*, 4>& d) {
    return {b.CreateFSub(d[0], d[2]), b.CreateFAdd(d[1], d[2]), b.CreateFSub(d[2], d[1]),
            b.CreateFSub(d[1], d[3])};
}

/// Of the taps': four from three.
std::array<Value*, 4> taps_form(Builder& b, const std::array<Value*, 3>& g) {
    Value* half = llvm::ConstantFP::get(g[0]->getType(), 0.5);
    Value* outer = b.CreateFMul(half, b.CreateFAdd(g[0], g[2]));
    Value* inner = b.CreateFMul(half, g[1]);
    return {g[0], b.CreateFAdd(outer, inner), b.CreateFSub(outer, inner), g[2]};
}

/// Of the sums', back: two from four.
std::array<Value*, 2> results(Builder& b, const std::array<Value*, 4>& m) {
    return {b.CreateFAdd(m[0], b.CreateFAdd(m[1], m[2])),
            b.CreateFSub(b.CreateFSub(m[1], m[2]), m[3])};
}

/// The same in both directions, first down the columns.
template <std::size_t to, std::size_t from, typename Form>
Grid<to, to> both_ways(const Grid<from, from>& grid, Form&& form) {
    Grid<to, from> down;
    for (std::size_t x = 0; x < from; ++x) {
        std::array<Value*, from> column;
        for (std::size_t y = 0; y < from; ++y) column[y] = grid[y][x];
        const std::array<Value*, to> formed = form(column);
        for (std::size_t y = 0; y < to; ++y) down[y][x] = formed[y];
    }
    Grid<to, to> result;
    for (std::size_t y = 0; y < to; ++y) result[y] = form(down[y]);
    return result;
}

Value* larger_of(Builder& b, Value* x, Value* y) {
    return b.CreateSelect(b.CreateFCmpOGT(x, y), x, y);
}

/// The largest magnitude in each of the four windows of three by three points.
Grid<2, 2> largest_of_windows(Builder& b, const Grid<4, 4>& points) {
    const auto three = [&](const std::array<Value*, 4>& line) -> std::array<Value*, 2> {
        Value* middle = larger_of(b, line[1], line[2]);
        return {larger_of(b, line[0], middle), larger_of(b, middle, line[3])};
    };
    Grid<4, 4> sizes;
    for (std::size_t n = 0; n < 16; ++n)
        sizes[n / 4][n % 4] = b.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, points[n / 4][n % 4]);
    return both_ways<2, 4>(sizes, three);
}

}  // namespace

llvm::Function* winograd_input(llvm::Module& module, const TileShape& tile) {
    Builder b(module.getContext());
    auto* ptr = b.getPtrTy();
    auto* i64 = b.getInt64Ty();
    auto [f, is_new] = shared_function(module, winograd_name("input", tile),
                                       {ptr, i64, i64, i64, ptr, i64, i64}, b.getInt1Ty());
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    const WinogradVectors v(b, tile);
    Value *table = f->getArg(0), *points = f->getArg(1), *channels = f->getArg(3);
    const std::vector<Value*> none(4, llvm::Constant::getNullValue(v.type));
    const auto each_tile = [&](Value* t, const std::vector<Value*>& rough) {
        Grid<4, 4> from;
        for (std::size_t y = 0; y < 4; ++y)
            for (std::size_t x = 0; x < 4; ++x) {
                Value* place = b.CreateAdd(b.CreateMul(points, b.getInt64(y)), b.getInt64(x));
                place = b.CreateAdd(place, b.CreateMul(t, v.number(2)));
                from[y][x] = b.CreateLoad(ptr, b.CreateGEP(ptr, table, place));
            }
        Value* out = v.at(f->getArg(4), b.CreateMul(t, f->getArg(5)));
        const auto each_channel = [&](Value* c, const std::vector<Value*>& largest) {
            Grid<4, 4> d;
            for (std::size_t y = 0; y < 4; ++y)
                for (std::size_t x = 0; x < 4; ++x) d[y][x] = v.load(v.at(from[y][x], c));
            const Grid<4, 4> formed =
                both_ways<4, 4>(d, [&](const auto& line) { return points_form(b, line); });
            Value* place = v.at(out, c);
            for (std::size_t n = 0; n < 16; ++n) {
                v.store(formed[n / 4][n % 4], place);
                place = v.at(place, f->getArg(6));
            }
            const Grid<2, 2> windows = largest_of_windows(b, d);
            std::vector<Value*> larger;
            for (std::size_t n = 0; n < 4; ++n)
                larger.push_back(larger_of(b, largest[n], windows[n / 2][n % 2]));
            return larger;
        };
        std::vector<Value*> largest = emit_loop(b, "channel", v.number(0), channels,
                                                v.number(tile.lanes), none, each_channel);
        Value *most = nullptr, *least = nullptr;
        for (Value*& window : largest) {
            window = b.CreateFPMaxReduce(window);
            most = most ? larger_of(b, most, window) : window;
            least = least ? b.CreateSelect(b.CreateFCmpOLT(least, window), least, window) : window;
        }
        Value* one = llvm::ConstantFP::get(v.element, 1);
        Value* limit = b.CreateFMul(larger_of(b, least, one),
                                    llvm::ConstantFP::get(v.element, kWinogradContrast));
        return std::vector<Value*>{b.CreateOr(rough[0], b.CreateFCmpUGT(most, limit))};
    };
    b.CreateRet(
        emit_loop(b, "tile", v.number(0), f->getArg(2), v.number(1), {b.getFalse()}, each_tile)[0]);
    return f;
}

namespace {

/// The taps of channel c and the tile's n-th vector of columns.
using LoadTaps = std::function<Grid<3, 3>(Builder& b, const WinogradVectors& v, llvm::Function* f,
                                          Value* c, std::int64_t column)>;

llvm::Function* weights_function(llvm::Module& module, const char* name, const TileShape& tile,
                                 const LoadTaps& load) {
    Builder b(module.getContext());
    auto* ptr = b.getPtrTy();
    auto* i64 = b.getInt64Ty();
    auto [f, is_new] =
        shared_function(module, winograd_name(name, tile), {ptr, i64, i64, i64, ptr, i64});
    if (!is_new) return f;
    llvm::Function* made = f;
    b.SetInsertPoint(&f->getEntryBlock());
    const WinogradVectors v(b, tile);
    emit_loop(b, "channel", v.number(0), f->getArg(1), [&](Value* c) {
        for (int n = 0; n < tile.vectors; ++n) {
            const std::int64_t column = std::int64_t{n} * tile.lanes;
            const Grid<3, 3> g = load(b, v, made, c, column);
            const Grid<4, 4> formed =
                both_ways<4, 3>(g, [&](const auto& line) { return taps_form(b, line); });
            Value* to = v.at(made->getArg(4), b.CreateAdd(b.CreateMul(c, v.number(tile.columns())),
                                                          v.number(column)));
            for (std::size_t p = 0; p < 16; ++p) {
                v.store(formed[p / 4][p % 4], to);
                to = v.at(to, made->getArg(5));
            }
        }
    });
    b.CreateRetVoid();
    return f;
}

}  // namespace

llvm::Function* winograd_weights(llvm::Module& module, const TileShape& tile) {
    return weights_function(
        module, "weights", tile,
        [](Builder& b, const WinogradVectors& v, llvm::Function* f, Value* c, std::int64_t column) {
            Grid<3, 3> g;
            Value* from =
                v.at(f->getArg(0), b.CreateAdd(b.CreateMul(c, f->getArg(2)), v.number(column)));
            for (std::size_t tap = 0; tap < 9; ++tap) {
                g[tap / 3][tap % 3] = v.load(from);
                from = v.at(from, f->getArg(3));
            }
            return g;
        });
}

llvm::Function* winograd_interleaved(llvm::Module& module, const TileShape& tile) {
    return weights_function(
        module, "interleaved", tile,
        [&tile](Builder& b, const WinogradVectors& v, llvm::Function* f, Value* c,
                std::int64_t column) {
            // In memory's order first; turned round, the last tap comes first.
            Value* forward = b.CreateICmpSGT(f->getArg(3), v.number(0));
            Value* base = v.at(f->getArg(0), b.CreateSelect(forward, v.number(0), v.number(-8)));
            base = v.at(base, b.CreateAdd(b.CreateMul(c, f->getArg(2)), v.number(9 * column)));
            auto* all =
                llvm::FixedVectorType::get(tile.element, static_cast<unsigned>(9 * tile.lanes));
            Value* loaded = b.CreateAlignedLoad(all, base, v.align);
            std::array<Value*, 9> taps;
            for (int tap = 0; tap < 9; ++tap) {
                std::vector<int> mask;
                for (int lane = 0; lane < tile.lanes; ++lane) mask.push_back(9 * lane + tap);
                taps[static_cast<std::size_t>(tap)] = b.CreateShuffleVector(loaded, mask);
            }
            Grid<3, 3> g;
            for (std::size_t tap = 0; tap < 9; ++tap)
                g[tap / 3][tap % 3] = b.CreateSelect(forward, taps[tap], taps[8 - tap]);
            return g;
        });
}

llvm::Function* winograd_output(llvm::Module& module, const TileShape& tile) {
    Builder b(module.getContext());
    auto* ptr = b.getPtrTy();
    auto* i64 = b.getInt64Ty();
    auto [f, is_new] = shared_function(module, winograd_name("output", tile),
                                       {ptr, i64, i64, ptr, i64}, b.getInt1Ty());
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    const WinogradVectors v(b, tile);
    Value* zero = llvm::Constant::getNullValue(v.type);
    Value *plane = f->getArg(1), *row = f->getArg(4);
    // Zero times a number is zero, times anything else no number; so are sums with that.
    Value* seen = emit_loop(
        b, "tile", v.number(0), f->getArg(2), v.number(1), {zero},
        [&](Value* t, std::vector<Value*> carried) {
            for (int n = 0; n < tile.vectors; ++n) {
                const std::int64_t column = std::int64_t{n} * tile.lanes;
                Value* from =
                    v.at(f->getArg(0),
                         b.CreateAdd(b.CreateMul(t, v.number(tile.columns())), v.number(column)));
                Grid<4, 4> m;
                for (std::size_t p = 0; p < 16; ++p) {
                    m[p / 4][p % 4] = v.load(from);
                    from = v.at(from, plane);
                }
                const Grid<2, 2> found =
                    both_ways<2, 4>(m, [&](const auto& line) { return results(b, line); });
                Value* to = v.at(
                    f->getArg(3),
                    b.CreateAdd(b.CreateMul(t, v.number(2 * tile.columns())), v.number(column)));
                for (std::size_t y = 0; y < 2; ++y, to = v.at(to, row)) {
                    v.store(found[y][0], to);
                    v.store(found[y][1], v.at(to, v.number(tile.columns())));
                    for (Value* result : found[y])
                        carried[0] = b.CreateIntrinsic(llvm::Intrinsic::fma, {v.type},
                                                       {result, zero, carried[0]});
                }
            }
            return carried;
        })[0];
    b.CreateRet(b.CreateOrReduce(b.CreateFCmpUNO(seen, seen)));
    return f;
}

}  // namespace ingot::codegen
