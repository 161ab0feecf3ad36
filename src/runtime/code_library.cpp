// See code_library.h.
#include "runtime/code_library.h"

#include "codegen/contraction/micro_kernel.h"

namespace ingot::runtime {

std::shared_ptr<const SharedFunction> CodeLibrary::get(
    const std::string& name, const std::function<codegen::CompiledObject()>& make) {
    std::promise<Made> promise;
    {
        std::unique_lock lock(mutex_);
        const auto known = functions_.find(name);
        if (known != functions_.end()) {
            const std::shared_future<Made> made = known->second;
            lock.unlock();
            return made.get();
        }
        functions_.emplace(name, promise.get_future().share());
    }
    try {
        auto made = std::make_shared<SharedFunction>();
        made->name = name;
        made->object = make();
        made->code = jit_.load(made->object);
        made->address = reinterpret_cast<void*>(made->code->function<void()>(name));
        promise.set_value(made);
        return made;
    } catch (...) {
        promise.set_exception(std::current_exception());
        std::lock_guard lock(mutex_);
        functions_.erase(name);
        throw;
    }
}

std::vector<std::string> take_out_shared(codegen::IrModule& module) {
    std::vector<std::string> names;
    for (llvm::Function& f : *module.module) {
        if (f.isDeclaration() || !codegen::is_shareable(f.getName())) continue;
        names.push_back(f.getName().str());
        f.deleteBody();  // makes it external
        // It may lie beyond 2 GiB: its address comes from a table beside the kernel.
        f.setDSOLocal(false);
    }
    return names;
}

void keep_only(codegen::IrModule& module, std::string_view name) {
    for (llvm::Function& f : *module.module) {
        if (f.isDeclaration()) continue;
        if (f.getName() == llvm::StringRef(name))
            f.setLinkage(llvm::GlobalValue::ExternalLinkage);
        else
            f.deleteBody();
    }
}

codegen::SymbolTable symbols_of(std::span<const std::shared_ptr<const SharedFunction>> functions) {
    codegen::SymbolTable symbols;
    for (const auto& f : functions) symbols.emplace(f->name, f->address);
    return symbols;
}

}  // namespace ingot::runtime
