// See jit_worker.h. The pipeline is short on purpose: the IR that arrives is explicitly vectorised
// and mostly straight-line, so cleaning (common subexpressions, invariants out of loops) is all
// that pays.
#include "codegen/llvm/jit_worker.h"

#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/PassManager.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/raw_ostream.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/LICM.h>
#include <llvm/Transforms/Scalar/LoopPassManager.h>
#include <llvm/Transforms/Scalar/SROA.h>
#include <llvm/Transforms/Scalar/SimplifyCFG.h>

#include <array>
#include <optional>

#include "ir/error.h"

namespace ingot::codegen {

namespace {

llvm::FunctionPassManager function_pipeline(int level) {
    using namespace llvm;
    FunctionPassManager fpm;
    if (level == 0) return fpm;
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

/// `Less` gives the same code as `Default` for kernels, 8 % sooner.
llvm::CodeGenOptLevel code_level(int optimization) {
    if (optimization == 0) return llvm::CodeGenOptLevel::None;
    return optimization < 3 ? llvm::CodeGenOptLevel::Less : llvm::CodeGenOptLevel::Default;
}

std::unique_ptr<llvm::TargetMachine> make_machine(const TargetInfo& target, int optimization) {
    std::string message;
    const llvm::Target* t = llvm::TargetRegistry::lookupTarget(target.triple, message);
    if (!t) throw NotSupported("LLVM has no target for " + target.triple + ": " + message);
    llvm::TargetOptions flags;
    // Which operations may fuse into an FMA is said by the instructions' own flags.
    flags.AllowFPOpFusion = llvm::FPOpFusion::Standard;
    std::unique_ptr<llvm::TargetMachine> machine(t->createTargetMachine(
        target.triple, target.cpu, target.features, flags, llvm::Reloc::PIC_,
        target.is_gpu() ? std::nullopt : std::optional(llvm::CodeModel::Small),
        code_level(optimization)));
    if (!machine) throw NotSupported("LLVM has no target machine for " + target.triple);
    return machine;
}

/// LLVM's code generator for one kind of file. Its pass manager may run again and again (llc's
/// option -compile-twice tests that).
struct Emitter {
    Emitter(llvm::TargetMachine& machine, llvm::CodeGenFileType type) : stream(bytes) {
        if (machine.addPassesToEmitFile(passes, stream, nullptr, type, /*DisableVerify=*/true))
            throw InternalError("LLVM cannot emit this kind of file");
    }
    llvm::SmallVector<char, 0> bytes;
    llvm::raw_svector_ostream stream;
    llvm::legacy::PassManager passes;
};

}  // namespace

struct JitWorker::Impl {
    Impl(const TargetInfo& target, int optimization)
        : machine(make_machine(target, optimization)),
          builder(machine.get()),
          pipeline(function_pipeline(optimization)) {
        builder.registerModuleAnalyses(modules);
        builder.registerCGSCCAnalyses(call_graphs);
        builder.registerFunctionAnalyses(functions);
        builder.registerLoopAnalyses(loops);
        builder.crossRegisterProxies(loops, functions, call_graphs, modules);
    }

    std::unique_ptr<llvm::TargetMachine> machine;
    llvm::LoopAnalysisManager loops;
    llvm::FunctionAnalysisManager functions;
    llvm::CGSCCAnalysisManager call_graphs;
    llvm::ModuleAnalysisManager modules;
    llvm::PassBuilder builder;
    llvm::FunctionPassManager pipeline;
    std::optional<Emitter> object, assembly;
};

JitWorker::JitWorker(const TargetInfo& target, int optimization)
    : impl_(std::make_unique<Impl>(target, optimization)) {}

JitWorker::~JitWorker() = default;

std::string JitWorker::data_layout() const {
    return impl_->machine->createDataLayout().getStringRepresentation();
}

void JitWorker::optimize(llvm::Module& module) {
    for (llvm::Function& f : module)
        if (!f.isDeclaration()) impl_->pipeline.run(f, impl_->functions);
    // Analyses are keyed by address, and the next module's functions may get the same ones.
    impl_->loops.clear();
    impl_->functions.clear();
    impl_->call_graphs.clear();
    impl_->modules.clear();
}

llvm::ArrayRef<char> JitWorker::emit(llvm::Module& module, llvm::CodeGenFileType type) {
    std::optional<Emitter>& emitter =
        type == llvm::CodeGenFileType::ObjectFile ? impl_->object : impl_->assembly;
    // NVPTX's printer keeps pointers into the module it printed: text gets a pipeline of its own.
    if (!emitter || type == llvm::CodeGenFileType::AssemblyFile)
        emitter.emplace(*impl_->machine, type);
    emitter->bytes.clear();
    emitter->passes.run(module);
    return emitter->bytes;
}

}  // namespace ingot::codegen
