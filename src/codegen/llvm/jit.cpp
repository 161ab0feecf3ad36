// Optimisation, object emission and in-process linking. See jit.h.
//
// JITLink is used directly, without ORC's session and dylibs: a kernel has no symbols to share with
// another kernel, so lookups are one table and a LoadedCode owns exactly its own pages.
#include "codegen/llvm/jit.h"

#include <llvm/ExecutionEngine/JITLink/JITLink.h>
#include <llvm/ExecutionEngine/JITLink/JITLinkMemoryManager.h>
#include <llvm/IR/DiagnosticInfo.h>
#include <llvm/IR/DiagnosticPrinter.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/PassManager.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/ErrorHandling.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/Process.h>
#include <llvm/Support/SmallVectorMemoryBuffer.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/TargetParser/Triple.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/LICM.h>
#include <llvm/Transforms/Scalar/LoopPassManager.h>
#include <llvm/Transforms/Scalar/SROA.h>
#include <llvm/Transforms/Scalar/SimplifyCFG.h>

#include <cstdio>
#include <mutex>
#include <unordered_map>

#include "codegen/llvm/math_library.h"
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
    std::call_once(once, [] { llvm::install_fatal_error_handler(throw_fatal_error); });
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

llvm::FunctionPassManager function_pipeline(int level) {
    using namespace llvm;
    FunctionPassManager fpm;
    fpm.addPass(SROAPass(SROAOptions::PreserveCFG));
    fpm.addPass(EarlyCSEPass(/*UseMemorySSA=*/false));
    if (level < 2) return fpm;
    fpm.addPass(InstCombinePass(InstCombineOptions().setMaxIterations(1)));
    fpm.addPass(SimplifyCFGPass());
    LoopPassManager lpm;
    lpm.addPass(LICMPass(LICMOptions()));
    fpm.addPass(createFunctionToLoopPassAdaptor(std::move(lpm), /*UseMemorySSA=*/true));
    fpm.addPass(EarlyCSEPass(/*UseMemorySSA=*/true));
    return fpm;
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

    // Target machines are not safe to share while compiling, and making one costs 0.1 ms: a free
    // list.
    std::mutex mutex;
    std::vector<std::unique_ptr<llvm::TargetMachine>> idle;

    std::unique_ptr<llvm::TargetMachine> make_machine() const {
        std::string message;
        const llvm::Target* t = llvm::TargetRegistry::lookupTarget(target.triple, message);
        if (!t) throw NotSupported("LLVM has no target for " + target.triple + ": " + message);
        llvm::TargetOptions flags;
        // Which operations may fuse into an FMA is said by the instructions' own flags.
        flags.AllowFPOpFusion = llvm::FPOpFusion::Standard;
        flags.EmulatedTLS = false;
        std::unique_ptr<llvm::TargetMachine> machine(t->createTargetMachine(
            target.triple, target.cpu, target.features, flags, llvm::Reloc::PIC_,
            target.is_gpu() ? std::nullopt : std::optional(llvm::CodeModel::Small),
            options.optimization == 0 ? llvm::CodeGenOptLevel::None
                                      : llvm::CodeGenOptLevel::Default,
            /*JIT=*/false));
        if (!machine) throw NotSupported("LLVM has no target machine for " + target.triple);
        return machine;
    }

    /// A target machine of this thread's own for as long as it lives.
    class Lease {
      public:
        explicit Lease(Impl& owner) : owner_(owner) {
            {
                const std::lock_guard lock(owner.mutex);
                if (!owner.idle.empty()) {
                    machine_ = std::move(owner.idle.back());
                    owner.idle.pop_back();
                }
            }
            if (!machine_) machine_ = owner.make_machine();
        }
        /// Called after success only: a machine that an error went through is not trusted again.
        void give_back() {
            const std::lock_guard lock(owner_.mutex);
            owner_.idle.push_back(std::move(machine_));
        }
        llvm::TargetMachine& operator*() const { return *machine_; }
        llvm::TargetMachine* operator->() const { return machine_.get(); }

      private:
        Impl& owner_;
        std::unique_ptr<llvm::TargetMachine> machine_;
    };

    void optimize(IrModule& ir, llvm::TargetMachine& machine) const {
        if (options.verify) verify_module(*ir.module);
        if (options.optimization == 0) return;
        llvm::LoopAnalysisManager lam;
        llvm::FunctionAnalysisManager fam;
        llvm::CGSCCAnalysisManager cgam;
        llvm::ModuleAnalysisManager mam;
        llvm::PassBuilder builder(&machine);
        builder.registerModuleAnalyses(mam);
        builder.registerCGSCCAnalyses(cgam);
        builder.registerFunctionAnalyses(fam);
        builder.registerLoopAnalyses(lam);
        builder.crossRegisterProxies(lam, fam, cgam, mam);
        llvm::FunctionPassManager fpm = function_pipeline(options.optimization);
        for (llvm::Function& f : *ir.module)
            if (!f.isDeclaration()) fpm.run(f, fam);
    }

    llvm::SmallVector<char, 0> emit(IrModule& ir, llvm::TargetMachine& machine,
                                    llvm::CodeGenFileType type) const {
        llvm::SmallVector<char, 0> out;
        llvm::raw_svector_ostream stream(out);
        llvm::legacy::PassManager passes;
        if (machine.addPassesToEmitFile(passes, stream, nullptr, type, /*DisableVerify=*/true))
            throw InternalError("LLVM cannot emit this kind of file for " + target.triple);
        passes.run(*ir.module);
        return out;
    }

    llvm::SmallVector<char, 0> run(IrModule ir, llvm::CodeGenFileType type) {
        const Diagnostics diagnostics(*ir.context);
        Lease machine(*this);
        optimize(ir, *machine);
        llvm::SmallVector<char, 0> out = emit(ir, *machine, type);
        diagnostics.rethrow();
        machine.give_back();
        return out;
    }
};

Jit::Jit(TargetInfo target, JitOptions options, SymbolTable symbols)
    : impl_(std::make_unique<Impl>()) {
    initialize_llvm();
    install_error_handler();
    impl_->target = std::move(target);
    impl_->options = options;
    impl_->symbols = math_symbols();
    for (auto& [name, address] : symbols) impl_->symbols[name] = address;
    impl_->memory = unwrap(jl::InProcessMemoryManager::Create(), "JIT memory");
    Impl::Lease machine(*impl_);
    impl_->data_layout = machine->createDataLayout().getStringRepresentation();
    machine.give_back();
}

Jit::~Jit() = default;

const TargetInfo& Jit::target() const { return impl_->target; }
const JitOptions& Jit::options() const { return impl_->options; }

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
    const auto bytes = impl_->run(std::move(module), llvm::CodeGenFileType::ObjectFile);
    return CompiledObject{{bytes.begin(), bytes.end()}};
}

std::string Jit::assembly(IrModule module) const {
    const auto text = impl_->run(std::move(module), llvm::CodeGenFileType::AssemblyFile);
    return {text.begin(), text.end()};
}

std::string Jit::optimized_ir(IrModule module) const {
    Impl::Lease machine(*impl_);
    impl_->optimize(module, *machine);
    machine.give_back();
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

    LinkContext(jl::InProcessMemoryManager& memory, const SymbolTable& table, Result& result)
        : JITLinkContext(nullptr), memory_(memory), table_(table), result_(result) {}

    jl::JITLinkMemoryManager& getMemoryManager() override { return memory_; }

    void notifyFailed(llvm::Error error) override { result_.error = to_text(std::move(error)); }

    void lookup(const LookupMap& symbols,
                std::unique_ptr<jl::JITLinkAsyncLookupContinuation> next) override {
        jl::AsyncLookupResult found;
        std::string missing;
        for (const auto& [name, flags] : symbols) {
            const auto it = table_.find(std::string_view(name.data(), name.size()));
            if (it == table_.end())
                missing += " " + name.str();
            else
                found[name] = {llvm::orc::ExecutorAddr::fromPtr(it->second),
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
    jl::InProcessMemoryManager& memory_;
    const SymbolTable& table_;
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

std::shared_ptr<LoadedCode> Jit::load(std::span<const std::uint8_t> object) const {
    const llvm::MemoryBufferRef buffer(
        llvm::StringRef(reinterpret_cast<const char*>(object.data()), object.size()), "kernel");
    std::unique_ptr<jl::LinkGraph> graph =
        unwrap(jl::createLinkGraphFromObject(buffer), "malformed object");
    if (graph->getTargetTriple().getArch() != llvm::Triple(impl_->target.triple).getArch())
        throw InternalError("malformed object: it is for " + graph->getTargetTriple().str());
    LinkContext::Result result;
    jl::link(std::move(graph),
             std::make_unique<LinkContext>(*impl_->memory, impl_->symbols, result));
    if (!result.done) throw InternalError("linking: " + result.error);
    if (impl_->options.perf_map) append_perf_map(result);
    auto impl = std::make_unique<LoadedCode::Impl>();
    impl->memory = impl_->memory;
    impl->allocation = std::move(result.allocation);
    impl->symbols = std::move(result.symbols);
    impl->bytes = result.bytes;
    return std::shared_ptr<LoadedCode>(new LoadedCode(std::move(impl)));
}

std::shared_ptr<LoadedCode> Jit::load(const CompiledObject& object) const {
    return load(std::span<const std::uint8_t>(object.bytes));
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
