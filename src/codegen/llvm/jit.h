// From an LLVM module to callable machine code, inside the process: a light optimisation pipeline
// for code that is already explicitly vectorised, LLVM's code generator, JITLink. One kernel costs
// 1-3 ms; loading a ready object (from the disk cache) costs about 0.1 ms. Stands behind the
// emitters and before the runtime's program.
//
// A Jit is immutable once built: any number of threads may compile and load at once, and the caller
// spreads kernels over its own threads. Failures of any kind, LLVM's fatal errors included, arrive
// as ingot::Error.
#pragma once
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/llvm/target.h"

namespace ingot::codegen {

/// External functions that generated code may call: name in the module, address in this process.
using SymbolTable = std::map<std::string, void*, std::less<>>;

struct JitOptions {
    /// 0: no optimisation (debugging), 1: cheap cleaning only, 2: the whole light pipeline,
    /// 3: the same with LLVM's default code generation effort.
    int optimization = 2;
    /// Run LLVM's verifier on every module (about 5 % of the compile time).
    bool verify = false;
    /// Append every loaded function to /tmp/perf-<pid>.map, where `perf report` looks for names.
    bool perf_map = false;
};

/// A module with the context that owns its types, so that both can move together between threads.
struct IrModule {
    std::unique_ptr<llvm::LLVMContext> context;
    std::unique_ptr<llvm::Module> module;
};

/// A relocatable object (ELF): position-independent, what the disk cache stores.
struct CompiledObject {
    std::vector<std::uint8_t> bytes;
};

/// Machine code in this process. Its memory is freed with the last owner; no call may be running
/// then.
class LoadedCode {
  public:
    LoadedCode(const LoadedCode&) = delete;
    LoadedCode& operator=(const LoadedCode&) = delete;
    ~LoadedCode();

    /// Address of a function or variable that the object defines, or null.
    void* find(std::string_view symbol) const;
    /// `find` with the type of a function pointer; throws InternalError if the symbol is missing.
    template <typename Fn>
    Fn* function(std::string_view symbol) const {
        return reinterpret_cast<Fn*>(require(symbol));
    }
    /// Bytes of memory held (code and constants, whole pages).
    std::size_t memory_bytes() const;

  private:
    friend class Jit;
    struct Impl;
    explicit LoadedCode(std::unique_ptr<Impl> impl);
    void* require(std::string_view symbol) const;
    std::unique_ptr<Impl> impl_;
};

class Jit {
  public:
    /// `symbols` are added to the math library's own (`math_symbols()`), which are always known.
    explicit Jit(TargetInfo target, JitOptions options = {}, SymbolTable symbols = {});
    Jit(const Jit&) = delete;
    Jit& operator=(const Jit&) = delete;
    ~Jit();

    const TargetInfo& target() const;
    const JitOptions& options() const;
    /// Names everything that changes a kernel's machine code beside its text: target, options,
    /// LLVM's version, this build of Ingot. A part of the disk cache's keys.
    std::string cache_key() const;

    /// An empty module with this target's triple and data layout.
    IrModule make_module(std::string_view name) const;

    /// Optimises and emits. Throws InternalError with LLVM's message when the module is invalid or
    /// code generation fails, NotSupported for a target whose code cannot be loaded (NVPTX: use
    /// `assembly`).
    CompiledObject compile(IrModule module) const;

    /// Links an object into the process, its external symbols to `others` or the Jit's own. The
    /// bytes are copied and may go away afterwards; what `others` names must outlive the code.
    /// Throws InternalError for a malformed object or an unknown external symbol.
    std::shared_ptr<LoadedCode> load(std::span<const std::uint8_t> object,
                                     const SymbolTable& others = {}) const;
    std::shared_ptr<LoadedCode> load(const CompiledObject& object,
                                     const SymbolTable& others = {}) const;

    /// Optimises and prints assembly text; for an NVPTX target that is PTX.
    std::string assembly(IrModule module) const;
    /// Optimises and prints LLVM IR, for debugging.
    std::string optimized_ir(IrModule module) const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// The IR of a module as text.
std::string print(const IrModule& module);

}  // namespace ingot::codegen
