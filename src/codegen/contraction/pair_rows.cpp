// See pair_rows.h.
#include "codegen/contraction/pair_rows.h"

#include <llvm/IR/IRBuilder.h>

#include <string>

#include "codegen/contraction/ir_loop.h"
#include "codegen/contraction/shared_function.h"

namespace ingot::codegen {

using llvm::Value;

llvm::Function* pair_rows(llvm::Module& module, const TileShape& tile) {
    llvm::IRBuilder<> b(module.getContext());
    auto* ptr = b.getPtrTy();
    auto* i64 = b.getInt64Ty();
    auto [f, is_new] = shared_function(module, "ingot_pair_rows_" + std::to_string(tile.columns()),
                                       {ptr, i64, ptr});
    if (!is_new) return f;
    b.SetInsertPoint(&f->getEntryBlock());
    const auto columns = static_cast<unsigned>(tile.columns());
    auto* row = llvm::FixedVectorType::get(b.getInt16Ty(), columns);
    llvm::SmallVector<int, 128> order;
    for (int n = 0; n < static_cast<int>(columns); ++n) {
        order.push_back(n);
        order.push_back(static_cast<int>(columns) + n);
    }
    emit_loop(b, "pair", b.getInt64(0), f->getArg(1), [&](Value* pair) {
        Value* offset = b.CreateMul(pair, b.getInt64(2 * columns));
        Value* from = b.CreateGEP(b.getInt16Ty(), f->getArg(0), offset);
        Value* first = b.CreateAlignedLoad(row, from, llvm::Align(2));
        Value* second = b.CreateAlignedLoad(
            row, b.CreateConstGEP1_64(b.getInt16Ty(), from, columns), llvm::Align(2));
        b.CreateAlignedStore(b.CreateShuffleVector(first, second, order),
                             b.CreateGEP(b.getInt16Ty(), f->getArg(2), offset), llvm::Align(2));
    });
    b.CreateRetVoid();
    return f;
}

}  // namespace ingot::codegen
