// Functions that many kernels call: the inner loops of contractions. A function's name says all
// that decides its code (for one target), so it is compiled once in a process and every kernel that
// calls it is linked to that copy: a convolutional net's sixty contractions cost a dozen inner
// loops, half of its compile time. Between the kernel loader and the Jit.
#pragma once
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/llvm/jit.h"

namespace ingot::runtime {

/// Compiled and loaded. The object is kept because it goes into the disk cache with every kernel
/// that needs it.
struct SharedFunction {
    std::string name;
    codegen::CompiledObject object;
    std::shared_ptr<codegen::LoadedCode> code;
    void* address = nullptr;
};

class CodeLibrary {
  public:
    /// `jit` must outlive the library.
    explicit CodeLibrary(const codegen::Jit& jit) : jit_(jit) {}

    /// The function of this name: known, or made from the object that `make` gives. Several threads
    /// that ask at once wait for one of them. Rethrows what `make` throws, and forgets it.
    std::shared_ptr<const SharedFunction> get(const std::string& name,
                                              const std::function<codegen::CompiledObject()>& make);

  private:
    using Made = std::shared_ptr<const SharedFunction>;
    const codegen::Jit& jit_;
    std::mutex mutex_;
    std::map<std::string, std::shared_future<Made>> functions_;
};

/// Turns the module's shareable functions into declarations; returns their names.
std::vector<std::string> take_out_shared(codegen::IrModule& module);

/// Makes the shareable function of this name the only one that the module defines.
void keep_only(codegen::IrModule& module, std::string_view name);

/// What a kernel's object is linked with.
codegen::SymbolTable symbols_of(std::span<const std::shared_ptr<const SharedFunction>> functions);

}  // namespace ingot::runtime
