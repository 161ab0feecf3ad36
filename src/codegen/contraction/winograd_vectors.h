// What the functions of minimal filtering share: their names, and vectors of the tile's elements.
// For winograd_kernel.cpp and winograd_gradient_kernel.cpp.
#pragma once
#include <llvm/IR/IRBuilder.h>

#include <cstdint>
#include <string>

#include "codegen/contraction/micro_kernel.h"

namespace ingot::codegen {

inline std::string winograd_name(const char* what, const TileShape& tile) {
    return std::string("ingot_winograd_") + what + "_" + std::to_string(tile.vectors) + "v" +
           std::to_string(tile.lanes);
}

struct WinogradVectors {
    llvm::IRBuilder<>& b;
    llvm::Type* element;
    llvm::FixedVectorType* type;
    llvm::Align align{4};

    WinogradVectors(llvm::IRBuilder<>& builder, const TileShape& tile)
        : b(builder),
          element(tile.element),
          type(llvm::FixedVectorType::get(tile.element, static_cast<unsigned>(tile.lanes))) {}
    llvm::Value* number(std::int64_t n) const { return b.getInt64(static_cast<std::uint64_t>(n)); }
    llvm::Value* at(llvm::Value* base, llvm::Value* index) const {
        return b.CreateGEP(element, base, index);
    }
    llvm::Value* load(llvm::Value* place) const { return b.CreateAlignedLoad(type, place, align); }
    void store(llvm::Value* v, llvm::Value* place) const { b.CreateAlignedStore(v, place, align); }
};

}  // namespace ingot::codegen
