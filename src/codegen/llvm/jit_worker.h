// One thread's LLVM machinery for compiling modules of one target: target machine, pass pipelines,
// analyses. Making it costs 1 ms and most of a small kernel's compile time would be just that, so
// the Jit keeps workers and lends them.
#pragma once
#include <llvm/ADT/SmallVector.h>
#include <llvm/IR/Module.h>
#include <llvm/Support/CodeGen.h>

#include <memory>
#include <string>

#include "codegen/llvm/target.h"

namespace ingot::codegen {

/// Not safe for use by two threads at once. A worker that threw is to be destroyed.
class JitWorker {
  public:
    /// `optimization` as in JitOptions. Throws NotSupported when LLVM lacks the target.
    JitWorker(const TargetInfo& target, int optimization);
    ~JitWorker();
    JitWorker(const JitWorker&) = delete;
    JitWorker& operator=(const JitWorker&) = delete;

    std::string data_layout() const;
    void optimize(llvm::Module& module);
    /// The object file or assembly text of an optimised module; valid until the next call.
    llvm::ArrayRef<char> emit(llvm::Module& module, llvm::CodeGenFileType type);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace ingot::codegen
