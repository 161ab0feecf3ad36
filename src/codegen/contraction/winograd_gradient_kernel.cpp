// See winograd_gradient_kernel.h.
#include "codegen/contraction/winograd_gradient_kernel.h"

#include <llvm/IR/IRBuilder.h>

#include <array>
#include <string>
#include <vector>

#include "codegen/contraction/ir_loop.h"
#include "codegen/contraction/shared_function.h"
#include "codegen/contraction/winograd_vectors.h"

namespace ingot::codegen {
namespace {

using llvm::Value;
using Builder = llvm::IRBuilder<>;

/// One direction of the results' form: four from two.
std::array<Value*, 4> results_form(Builder& b, Value* first, Value* second) {
    return {first, b.CreateFAdd(first, second), b.CreateFSub(first, second), b.CreateFNeg(second)};
}

/// Of the sums', back: three taps from four.
std::array<Value*, 3> taps_of(Builder& b, const std::array<Value*, 4>& u) {
    Value* half = llvm::ConstantFP::get(u[0]->getType(), 0.5);
    Value* outer = b.CreateFMul(half, b.CreateFAdd(u[1], u[2]));
    Value* inner = b.CreateFMul(half, b.CreateFSub(u[1], u[2]));
    return {b.CreateFAdd(u[0], outer), inner, b.CreateFAdd(outer, u[3])};
}

}  // namespace

llvm::Function* winograd_results(llvm::Module& module, const TileShape& tile) {
    Builder b(module.getContext());
    auto* ptr = b.getPtrTy();
    auto* i64 = b.getInt64Ty();
    auto [f, is_new] =
        shared_function(module, winograd_name("results", tile), {ptr, i64, i64, ptr, i64});
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    const WinogradVectors v(b, tile);
    Value *table = f->getArg(0), *tiles = f->getArg(1), *channels = f->getArg(2);
    Value *first_out = f->getArg(3), *plane = f->getArg(4);
    emit_loop(b, "tile", v.number(0), tiles, [&](Value* t) {
        std::array<Value*, 4> from;
        for (std::size_t n = 0; n < 4; ++n) {
            Value* place = b.CreateAdd(b.CreateMul(t, v.number(2)), b.getInt64(n % 2));
            if (n >= 2) place = b.CreateAdd(place, b.CreateMul(tiles, v.number(2)));
            from[n] = b.CreateLoad(ptr, b.CreateGEP(ptr, table, place));
        }
        Value* out = v.at(first_out, b.CreateMul(t, channels));
        emit_loop(b, "channel", v.number(0), channels, v.number(tile.lanes), {},
                  [&](Value* c, const std::vector<Value*>&) {
                      std::array<Value*, 4> y;
                      for (std::size_t n = 0; n < 4; ++n) y[n] = v.load(v.at(from[n], c));
                      const auto left = results_form(b, y[0], y[2]);
                      const auto right = results_form(b, y[1], y[3]);
                      Value* to = v.at(out, c);
                      for (std::size_t row = 0; row < 4; ++row)
                          for (Value* formed : results_form(b, left[row], right[row])) {
                              v.store(formed, to);
                              to = v.at(to, plane);
                          }
                      return std::vector<Value*>{};
                  });
    });
    b.CreateRetVoid();
    return f;
}

llvm::Function* winograd_taps(llvm::Module& module, const TileShape& tile) {
    Builder b(module.getContext());
    auto* ptr = b.getPtrTy();
    auto* i64 = b.getInt64Ty();
    auto [f, is_new] = shared_function(module, winograd_name("taps", tile),
                                       {ptr, i64, i64, i64, ptr}, b.getInt1Ty());
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    const WinogradVectors v(b, tile);
    Value *sums = f->getArg(0), *plane = f->getArg(1), *distance = f->getArg(2);
    Value *rows = f->getArg(3), *first_out = f->getArg(4);
    Value* of_tap = b.CreateMul(rows, v.number(tile.columns()));
    Value* zero = llvm::Constant::getNullValue(v.type);
    // Zero times a number is zero, times anything else no number; so are sums with that.
    Value* seen =
        emit_loop(b, "row", v.number(0), rows, v.number(1), {zero},
                  [&](Value* row, std::vector<Value*> carried) {
                      for (int n = 0; n < tile.vectors; ++n) {
                          Value* column = v.number(std::int64_t{n} * tile.lanes);
                          Value* from = v.at(v.at(sums, b.CreateMul(row, distance)), column);
                          std::array<std::array<Value*, 4>, 4> u;  // by column
                          for (std::size_t p = 0; p < 16; ++p) {
                              u[p % 4][p / 4] = v.load(from);
                              from = v.at(from, plane);
                          }
                          std::array<std::array<Value*, 3>, 4> down;
                          for (std::size_t x = 0; x < 4; ++x) down[x] = taps_of(b, u[x]);
                          Value* to = v.at(
                              v.at(first_out, b.CreateMul(row, v.number(tile.columns()))), column);
                          for (std::size_t y = 0; y < 3; ++y)
                              for (Value* tap :
                                   taps_of(b, {down[0][y], down[1][y], down[2][y], down[3][y]})) {
                                  v.store(tap, to);
                                  to = v.at(to, of_tap);
                                  carried[0] = b.CreateIntrinsic(llvm::Intrinsic::fma, {v.type},
                                                                 {tap, zero, carried[0]});
                              }
                      }
                      return carried;
                  })[0];
    b.CreateRet(b.CreateOrReduce(b.CreateFCmpUNO(seen, seen)));
    return f;
}

}  // namespace ingot::codegen
