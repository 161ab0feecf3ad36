// Optimisation, object emission and in-process linking. See jit.h.
//
// JITLink is used directly, without ORC's session and dylibs: a kernel has no symbols to share with
// another kernel, so lookups are one table and a LoadedCode owns exactly its own pages.
#include "codegen/llvm/jit.h"

#include <llvm/Config/llvm-config.h>
#include <llvm/ExecutionEngine/JITLink/JITLink.h>
#include <llvm/ExecutionEngine/JITLink/JITLinkMemoryManager.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/DiagnosticPrinter.h>
#include <llvm/IR/Verifier.h>
#include <llvm/Support/ErrorHandling.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/TargetParser/Triple.h>

#include <cstdio>
#include <mutex>
#include <unordered_map>

#include "codegen/llvm/build_identity.h"
#include "codegen/llvm/jit_worker.h"
#include "codegen/llvm/math_library.h"
#include "codegen/llvm/special.h"
#include "ir/error.h"

#ifdef __linux__
#include <unistd.h>
#endif

namespace ingot::codegen {

namespace jl = llvm::jitlink;

namespace {

/// LLVM reports what it takes for hopeless (e.g. an instruction it cannot select) through this
/// handler and would exit afterwards. Its frames carry unwind tables, so the exception passes
/// through; what they held is leaked.
void throw_fatal_error(void* /*user*/, const char* reason, bool /*crash_diagnostics*/) {
    throw InternalError(std::string("LLVM: ") + reason);
}

void install_error_handler() {
    static std::once_flag once;
    std::call_once(once, [] {
        llvm::install_fatal_error_handler(throw_fatal_error);
        llvm::install_bad_alloc_error_handler(throw_fatal_error);
    });
}

std::string to_text(llvm::Error error) { return llvm::toString(std::move(error)); }

template <typename T>
T unwrap(llvm::Expected<T> value, const char* what) {
    if (!value) throw InternalError(std::string(what) + ": " + to_text(value.takeError()));
    return std::move(*value);
}

/// Collects what LLVM would print (and exit for).
class Diagnostics {
  public:
    explicit Diagnostics(llvm::LLVMContext& context) : context_(context) {
        context_.setDiagnosticHandlerCallBack(
            [](const llvm::DiagnosticInfo* info, void* self) {
                static_cast<Diagnostics*>(self)->add(*info);
            },
            this);
    }
    ~Diagnostics() { context_.setDiagnosticHandlerCallBack(nullptr); }
    Diagnostics(const Diagnostics&) = delete;
    Diagnostics& operator=(const Diagnostics&) = delete;

    void rethrow() const {
        if (!errors_.empty()) throw InternalError("LLVM: " + errors_);
    }

  private:
    void add(const llvm::DiagnosticInfo& info) {
        if (info.getSeverity() != llvm::DS_Error) return;
        llvm::raw_string_ostream stream(errors_);
        llvm::DiagnosticPrinterRawOStream printer(stream);
        info.print(printer);
        stream << '\n';
    }
    llvm::LLVMContext& context_;
    std::string errors_;
};

void verify_module(const llvm::Module& module) {
    std::string message;
    llvm::raw_string_ostream stream(message);
    if (llvm::verifyModule(module, &stream)) throw InternalError("invalid LLVM IR: " + message);
}

}  // namespace

// ---- compilation
// -----------------------------------------------------------------------------------------------

struct Jit::Impl {
    TargetInfo target;
    JitOptions options;
    SymbolTable symbols;
    std::string data_layout;
    std::shared_ptr<jl::InProcessMemoryManager> memory;

    std::mutex mutex;
    std::vector<std::unique_ptr<JitWorker>> idle;

    /// A worker of this thread's own for as long as it lives.
    class Lease {
      public:
        explicit Lease(Impl& owner) : owner_(owner) {
            {
                const std::lock_guard lock(owner.mutex);
                if (!owner.idle.empty()) {
                    worker_ = std::move(owner.idle.back());
                    owner.idle.pop_back();
                }
            }
            if (!worker_)
                worker_ = std::make_unique<JitWorker>(owner.target, owner.options.optimization);
        }
        /// Called after success only: a worker that an error went through is not used again.
        void give_back() {
            const std::lock_guard lock(owner_.mutex);
            owner_.idle.push_back(std::move(worker_));
        }
        JitWorker* operator->() const { return worker_.get(); }

      private:
        Impl& owner_;
        std::unique_ptr<JitWorker> worker_;
    };

    /// Optimises and emits; `Result` is made from the bytes.
    template <typename Result>
    Result run(IrModule ir, llvm::CodeGenFileType type) {
        const Diagnostics diagnostics(*ir.context);
        if (options.verify) verify_module(*ir.module);
        Lease worker(*this);
        worker->optimize(*ir.module);
        const llvm::ArrayRef<char> bytes = worker->emit(*ir.module, type);
        diagnostics.rethrow();
        Result result(bytes.begin(), bytes.end());
        worker.give_back();
        return result;
    }
};

Jit::Jit(TargetInfo target, JitOptions options, SymbolTable symbols)
    : impl_(std::make_unique<Impl>()) {
    initialize_llvm();
    install_error_handler();
    impl_->target = std::move(target);
    impl_->options = options;
    impl_->symbols = math_symbols();
    impl_->symbols.merge(special_symbols());
    for (auto& [name, address] : symbols) impl_->symbols[name] = address;
    impl_->memory = unwrap(jl::InProcessMemoryManager::Create(), "JIT memory");
    Impl::Lease worker(*impl_);
    impl_->data_layout = worker->data_layout();
    worker.give_back();
}

Jit::~Jit() = default;

const TargetInfo& Jit::target() const { return impl_->target; }
const JitOptions& Jit::options() const { return impl_->options; }

std::string Jit::cache_key() const {
    return impl_->target.key() + "|O" + std::to_string(impl_->options.optimization) +
           "|LLVM " LLVM_VERSION_STRING "|" + build_identity();
}

IrModule Jit::make_module(std::string_view name) const {
    IrModule ir;
    ir.context = std::make_unique<llvm::LLVMContext>();
    ir.module = std::make_unique<llvm::Module>(llvm::StringRef(name), *ir.context);
    ir.module->setTargetTriple(impl_->target.triple);
    ir.module->setDataLayout(impl_->data_layout);
    return ir;
}

CompiledObject Jit::compile(IrModule module) const {
    if (impl_->target.is_gpu()) throw NotSupported("GPU code is emitted as PTX, not as an object");
    return {impl_->run<std::vector<std::uint8_t>>(std::move(module),
                                                  llvm::CodeGenFileType::ObjectFile)};
}

std::string Jit::assembly(IrModule module) const {
    return impl_->run<std::string>(std::move(module), llvm::CodeGenFileType::AssemblyFile);
}

std::string Jit::optimized_ir(IrModule module) const {
    const Diagnostics diagnostics(*module.context);
    if (impl_->options.verify) verify_module(*module.module);
    Impl::Lease worker(*impl_);
    worker->optimize(*module.module);
    diagnostics.rethrow();
    worker.give_back();
    return print(module);
}

std::string print(const IrModule& module) {
    std::string text;
    llvm::raw_string_ostream stream(text);
    module.module->print(stream, nullptr);
    return text;
}

// ---- loading
// ---------------------------------------------------------------------------------------------------

struct LoadedCode::Impl {
    std::shared_ptr<jl::InProcessMemoryManager> memory;
    jl::JITLinkMemoryManager::FinalizedAlloc allocation;
    std::unordered_map<std::string, void*> symbols;
    std::size_t bytes = 0;

    ~Impl() {
        if (!allocation) return;
        // Nothing can be done about a failing munmap, and nothing depends on it.
        llvm::consumeError(memory->deallocate(std::move(allocation)));
    }
};

namespace {

/// Receives JITLink's callbacks for one object; they all run inside `link`, on this thread.
class LinkContext : public jl::JITLinkContext {
  public:
    struct Result {
        std::string error;
        std::unordered_map<std::string, void*> symbols;
        std::vector<std::pair<std::string, std::pair<std::uint64_t, std::uint64_t>>> functions;
        jl::JITLinkMemoryManager::FinalizedAlloc allocation;
        std::size_t bytes = 0;
        bool done = false;
    };

    LinkContext(jl::InProcessMemoryManager& memory, const SymbolTable& table,
                const SymbolTable& others, Result& result)
        : JITLinkContext(nullptr),
          memory_(memory),
          table_(table),
          others_(others),
          result_(result) {}

    jl::JITLinkMemoryManager& getMemoryManager() override { return memory_; }

    void notifyFailed(llvm::Error error) override { result_.error = to_text(std::move(error)); }

    void lookup(const LookupMap& symbols,
                std::unique_ptr<jl::JITLinkAsyncLookupContinuation> next) override {
        jl::AsyncLookupResult found;
        std::string missing;
        for (const auto& [name, flags] : symbols) {
            void* address = find(std::string_view(name.data(), name.size()));
            if (address == nullptr)
                missing += " " + name.str();
            else
                found[name] = {llvm::orc::ExecutorAddr::fromPtr(address),
                               llvm::JITSymbolFlags::Exported};
        }
        if (!missing.empty())
            next->run(llvm::createStringError("unknown external symbols:" + missing));
        else
            next->run(std::move(found));
    }

    llvm::Error notifyResolved(jl::LinkGraph& graph) override {
        for (const jl::Symbol* symbol : graph.defined_symbols()) {
            if (!symbol->hasName() || symbol->getScope() == jl::Scope::Local) continue;
            const std::string name = symbol->getName().str();
            result_.symbols.emplace(name, symbol->getAddress().toPtr<void*>());
            if (symbol->isCallable())
                result_.functions.emplace_back(
                    name, std::pair(symbol->getAddress().getValue(), symbol->getSize()));
        }
        for (const jl::Block* block : graph.blocks()) result_.bytes += block->getSize();
        return llvm::Error::success();
    }

    void notifyFinalized(jl::JITLinkMemoryManager::FinalizedAlloc allocation) override {
        result_.allocation = std::move(allocation);
        result_.done = true;
    }

  private:
    void* find(std::string_view name) const {
        for (const SymbolTable* table : {&others_, &table_})
            if (const auto it = table->find(name); it != table->end()) return it->second;
        return nullptr;
    }

    jl::InProcessMemoryManager& memory_;
    const SymbolTable& table_;
    const SymbolTable& others_;
    Result& result_;
};

/// Names for `perf report`; a failure to write them is of no consequence.
void append_perf_map(const LinkContext::Result& result) {
#ifdef __linux__
    const std::string path = "/tmp/perf-" + std::to_string(getpid()) + ".map";
    std::FILE* file = std::fopen(path.c_str(), "a");
    if (!file) return;
    for (const auto& [name, range] : result.functions)
        std::fprintf(file, "%llx %llx %s\n", static_cast<unsigned long long>(range.first),
                     static_cast<unsigned long long>(range.second), name.c_str());
    std::fclose(file);
#endif
}

}  // namespace

std::shared_ptr<LoadedCode> Jit::load(std::span<const std::uint8_t> object,
                                      const SymbolTable& others) const {
    const llvm::MemoryBufferRef buffer(
        llvm::StringRef(reinterpret_cast<const char*>(object.data()), object.size()), "kernel");
    std::unique_ptr<jl::LinkGraph> graph =
        unwrap(jl::createLinkGraphFromObject(buffer), "malformed object");
    if (graph->getTargetTriple().getArch() != llvm::Triple(impl_->target.triple).getArch())
        throw InternalError("malformed object: it is for " + graph->getTargetTriple().str());
    LinkContext::Result result;
    jl::link(std::move(graph),
             std::make_unique<LinkContext>(*impl_->memory, impl_->symbols, others, result));
    if (!result.done) throw InternalError("linking: " + result.error);
    if (impl_->options.perf_map) append_perf_map(result);
    auto impl = std::make_unique<LoadedCode::Impl>();
    impl->memory = impl_->memory;
    impl->allocation = std::move(result.allocation);
    impl->symbols = std::move(result.symbols);
    impl->bytes = result.bytes;
    return std::shared_ptr<LoadedCode>(new LoadedCode(std::move(impl)));
}

std::shared_ptr<LoadedCode> Jit::load(const CompiledObject& object,
                                      const SymbolTable& others) const {
    return load(std::span<const std::uint8_t>(object.bytes), others);
}

LoadedCode::LoadedCode(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LoadedCode::~LoadedCode() = default;

void* LoadedCode::find(std::string_view symbol) const {
    const auto it = impl_->symbols.find(std::string(symbol));
    return it == impl_->symbols.end() ? nullptr : it->second;
}

void* LoadedCode::require(std::string_view symbol) const {
    void* address = find(symbol);
    check(address != nullptr, "no symbol " + std::string(symbol) + " in the loaded code");
    return address;
}

std::size_t LoadedCode::memory_bytes() const { return impl_->bytes; }

}  // namespace ingot::codegen
