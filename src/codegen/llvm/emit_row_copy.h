// Copies of rows that begin at odd places in memory: logits cut or filled up to a size that suits
// tensor cores, slices, parts of concatenations. An element at a time, as loop nests have it, most
// of the memory's time is lost; instead 16 bytes are written at once where they are aligned, put
// together by shifts from the two aligned 16 bytes that hold them. Used by the GPU's loop nests;
// some thirty instructions for 16 bytes.
#pragma once
#include <optional>

#include "codegen/llvm/emit_index.h"
#include "codegen/llvm/emit_memory.h"
#include "schedule/nest.h"

namespace ingot::codegen {

/// A nest that only copies, along its last loop.
struct RowCopy {
    const Inst* load = nullptr;
    const Store* store = nullptr;
    Expr along;               // the last loop's variable
    std::int64_t length = 0;  // of a row as it is written
    std::int64_t source = 0;  // of a row as it is read; zeros behind it
    std::int64_t chunk = 0;   // elements of 16 bytes
    /// Aligned chunks that a row may touch.
    std::int64_t chunks() const { return (length + chunk - 2) / chunk + 1; }
};

/// Nothing for nests that do more, or too little for it to pay.
std::optional<RowCopy> find_row_copy(const Kernel& kernel, const Nest& nest);

/// The code of one thread for one chunk: first all loads of all its chunks, then their stores.
class RowCopier {
  public:
    RowCopier(llvm::IRBuilder<>& b, const RowCopy& copy, IrValue from, IrValue to)
        : b_(b), copy_(copy), from_(from), to_(to) {}

    /// The rows begin at the elements `source` and `target`; `number` counts the row's chunks.
    void load(IrValue source, IrValue target, IrValue number);
    void store();

  private:
    struct Chunk {
        IrValue source, target;  // where the rows begin
        IrValue at;              // the chunk's first element in the row; before it for the first
        IrValue whole;           // i1: all of it is in the row and in the source's
        IrValue skip;            // of the first 16 bytes, i32
        std::vector<IrValue> words;
    };
    std::vector<IrValue> shifted(const Chunk& chunk);
    void store_elements(const Chunk& chunk);
    IrValue words_at(IrValue element);
    IrValue element(IrValue buffer, IrValue at);
    llvm::Type* element_type();

    llvm::IRBuilder<>& b_;
    const RowCopy& copy_;
    IrValue from_, to_;
    std::vector<Chunk> chunks_;
};

}  // namespace ingot::codegen
