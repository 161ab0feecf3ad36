// The Jit: compile, load, unload, errors, other targets, many threads.
#include "codegen/llvm/jit.h"

#include <gtest/gtest.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsNVPTX.h>

#include <chrono>
#include <thread>

#include "codegen/llvm/build_identity.h"
#include "codegen/llvm/math.h"
#include "ir/error.h"

namespace ingot::codegen {
namespace {

/// float scale(float x) { return x * factor; }
IrModule scale_module(const Jit& jit, float factor) {
    IrModule ir = jit.make_module("scale");
    llvm::IRBuilder<> b(*ir.context);
    auto* type = llvm::FunctionType::get(b.getFloatTy(), {b.getFloatTy()}, false);
    auto* f = llvm::Function::Create(type, llvm::GlobalValue::ExternalLinkage, "scale", *ir.module);
    b.SetInsertPoint(llvm::BasicBlock::Create(*ir.context, "entry", f));
    b.CreateRet(b.CreateFMul(f->getArg(0), llvm::ConstantFP::get(b.getFloatTy(), factor)));
    return ir;
}

/// float call(float x) { return symbol(x); }
IrModule calling_module(const Jit& jit, const char* symbol) {
    IrModule ir = jit.make_module("call");
    llvm::IRBuilder<> b(*ir.context);
    auto* type = llvm::FunctionType::get(b.getFloatTy(), {b.getFloatTy()}, false);
    auto* f = llvm::Function::Create(type, llvm::GlobalValue::ExternalLinkage, "call", *ir.module);
    b.SetInsertPoint(llvm::BasicBlock::Create(*ir.context, "entry", f));
    b.CreateRet(b.CreateCall(ir.module->getOrInsertFunction(symbol, type), {f->getArg(0)}));
    return ir;
}

#ifdef __SANITIZE_ADDRESS__
using IgnoreLeaks = __lsan::ScopedDisabler;
#else
struct IgnoreLeaks {
    IgnoreLeaks() {}  // not trivial: an unused variable otherwise
};
#endif

float add_seven(float x) { return x + 7; }

TEST(Target, HostIsPlausible) {
    const TargetInfo t = host();
    EXPECT_GE(t.vector_bits, 128u);
    EXPECT_GE(t.l1_bytes, 8u << 10);
    EXPECT_GT(t.l2_bytes, t.l1_bytes);
    EXPECT_GE(t.cores, 1u);
    EXPECT_EQ(t.lanes(4), t.vector_bits / 32);
    EXPECT_FALSE(t.cpu.empty());
    EXPECT_EQ(t.key(), host().key());
}

TEST(Target, NamedTargetsHaveTheirFeatures) {
    EXPECT_EQ(target_named("x86-64-v2").vector_bits, 128u);
    const TargetInfo v3 = target_named("x86-64-v3");
    EXPECT_TRUE(v3.avx2 && v3.fma && !v3.avx512f);
    EXPECT_EQ(v3.vector_bits, 256u);
    const TargetInfo spr = target_named("sapphirerapids");
    EXPECT_TRUE(spr.avx512f && spr.avx512bf16 && spr.amx_bf16);
    const TargetInfo zen4 = target_named("znver4");
    EXPECT_TRUE(zen4.avx512bf16 && !zen4.amx_tile);
    EXPECT_TRUE(target_named("aarch64").neon);
    EXPECT_TRUE(target_named("sm_90").is_gpu());
    EXPECT_THROW(target_named("no-such-cpu"), UserError);
}

TEST(Jit, CompilesLoadsAndRuns) {
    const Jit jit(host());
    const CompiledObject object = jit.compile(scale_module(jit, 3));
    const auto code = jit.load(object);
    EXPECT_EQ(code->function<float(float)>("scale")(14), 42);
    EXPECT_EQ(code->find("missing"), nullptr);
    EXPECT_THROW(code->function<float(float)>("missing"), InternalError);
    EXPECT_GT(code->memory_bytes(), 0u);
}

TEST(Jit, EqualModulesGiveEqualObjects) {
    const Jit jit(host());
    EXPECT_EQ(jit.compile(scale_module(jit, 3)).bytes, jit.compile(scale_module(jit, 3)).bytes);
    EXPECT_NE(jit.compile(scale_module(jit, 3)).bytes, jit.compile(scale_module(jit, 4)).bytes);
}

TEST(Jit, TheCacheKeyNamesTargetAndEffort) {
    JitOptions plain;
    plain.optimization = 0;
    const std::string key = Jit(host()).cache_key();
    EXPECT_EQ(key, Jit(host()).cache_key());
    EXPECT_NE(key, Jit(host(), plain).cache_key());
    EXPECT_NE(key, Jit(target_named("x86-64-v2")).cache_key());
    EXPECT_NE(key.find(build_identity()), std::string::npos);
    EXPECT_GE(build_identity().size(), 16u);
}

TEST(Jit, ObjectsFromAnyOptimizationLevelAgree) {
    for (int level = 0; level <= 3; ++level) {
        JitOptions options;
        options.optimization = level;
        const Jit jit(host(), options);
        const auto code = jit.load(jit.compile(scale_module(jit, 3)));
        EXPECT_EQ(code->function<float(float)>("scale")(2), 6) << level;
    }
}

TEST(Jit, CodeOutlivesItsJit) {
    std::shared_ptr<LoadedCode> code;
    {
        const Jit jit(host());
        code = jit.load(jit.compile(scale_module(jit, 2)));
    }
    EXPECT_EQ(code->function<float(float)>("scale")(2), 4);
}

TEST(Jit, ResolvesTheGivenSymbolsOnly) {
    const Jit jit(host(), {}, {{"seven", reinterpret_cast<void*>(&add_seven)}});
    const auto code = jit.load(jit.compile(calling_module(jit, "seven")));
    EXPECT_EQ(code->function<float(float)>("call")(1), 8);
    const CompiledObject unknown = jit.compile(calling_module(jit, "puts"));
    EXPECT_THROW(jit.load(unknown), InternalError);
}

TEST(Jit, DamagedObjectsAreRefused) {
    const Jit jit(host());
    EXPECT_THROW(jit.load(CompiledObject{}), InternalError);
    EXPECT_THROW(jit.load(CompiledObject{std::vector<std::uint8_t>(500, 0x7f)}), InternalError);
    CompiledObject cut = jit.compile(scale_module(jit, 3));
    cut.bytes.resize(cut.bytes.size() / 2);
    EXPECT_THROW(jit.load(cut), InternalError);
    const Jit other(target_named("aarch64"));
    EXPECT_THROW(jit.load(other.compile(scale_module(other, 3))), InternalError);
}

TEST(Jit, FatalErrorsBecomeExceptions) {
    const Jit jit(target_named("x86-64-v2"));
    const auto unselectable = [&] {
        // An NVPTX intrinsic has no x86 code: "Cannot select" is fatal in LLVM.
        IrModule ir = jit.make_module("bad");
        llvm::IRBuilder<> b(*ir.context);
        auto* f = llvm::Function::Create(llvm::FunctionType::get(b.getInt32Ty(), false),
                                         llvm::GlobalValue::ExternalLinkage, "bad", *ir.module);
        b.SetInsertPoint(llvm::BasicBlock::Create(*ir.context, "entry", f));
        b.CreateRet(b.CreateIntrinsic(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x, {}, {}));
        return ir;
    };
    {
        const IgnoreLeaks what_llvm_held;
        for (int repeat = 0; repeat < 3; ++repeat)
            EXPECT_THROW(jit.compile(unselectable()), InternalError);
    }
    EXPECT_FALSE(jit.compile(scale_module(jit, 3)).bytes.empty());
}

TEST(Jit, InvalidIrIsRefusedWhenVerifying) {
    JitOptions options;
    options.verify = true;
    const Jit jit(host(), options);
    IrModule ir = scale_module(jit, 3);
    ir.module->getFunction("scale")->getEntryBlock().getTerminator()->eraseFromParent();
    EXPECT_THROW(jit.compile(std::move(ir)), InternalError);
}

TEST(Jit, ManyThreadsAtOnce) {
    const Jit jit(host());
    std::vector<std::thread> threads;
    std::vector<int> wrong(4, 0);
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            for (int k = 1; k <= 8; ++k) {
                const auto factor = static_cast<float>(t * 100 + k);
                const auto code = jit.load(jit.compile(scale_module(jit, factor)));
                if (code->function<float(float)>("scale")(2) != 2 * factor) ++wrong[t];
            }
        });
    for (std::thread& thread : threads) thread.join();
    for (const int count : wrong) EXPECT_EQ(count, 0);
}

TEST(Jit, PrintsAssemblyAndPtx) {
    const Jit x86(target_named("x86-64-v3"));
    EXPECT_NE(x86.assembly(scale_module(x86, 3)).find("vmulss"), std::string::npos);
    EXPECT_NE(x86.optimized_ir(scale_module(x86, 3)).find("fmul float"), std::string::npos);
    const Jit gpu(target_named("sm_90"));
    const std::string ptx = gpu.assembly(scale_module(gpu, 3));
    EXPECT_NE(ptx.find(".target sm_90"), std::string::npos);
    EXPECT_NE(ptx.find("mul.rn.f32"), std::string::npos);
    EXPECT_THROW(gpu.compile(scale_module(gpu, 3)), NotSupported);
    const Jit arm(target_named("neoverse-v1"));
    EXPECT_NE(arm.assembly(scale_module(arm, 3)).find("fmul"), std::string::npos);
}

}  // namespace
}  // namespace ingot::codegen
