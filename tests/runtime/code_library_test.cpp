// Functions shared between kernels: made once, found again, forgotten after a failure.
#include "runtime/code_library.h"

#include <gtest/gtest.h>
#include <llvm/IR/IRBuilder.h>

#include <atomic>
#include <thread>

#include "codegen/contraction/micro_kernel.h"
#include "codegen/llvm/target.h"
#include "ir/error.h"

namespace ingot::runtime {
namespace {

codegen::IrModule two_packers(const codegen::Jit& jit) {
    codegen::IrModule module = jit.make_module("packers");
    codegen::row_packer(*module.module, llvm::Type::getFloatTy(*module.context));
    codegen::row_packer(*module.module, llvm::Type::getDoubleTy(*module.context));
    return module;
}

TEST(CodeLibrary, MakesAFunctionOnceForAllThreads) {
    const codegen::Jit jit(codegen::host());
    CodeLibrary library(jit);
    std::atomic<int> made = 0;
    std::vector<std::shared_ptr<const SharedFunction>> got(8);
    std::vector<std::thread> threads;
    for (auto& slot : got)
        threads.emplace_back([&] {
            slot = library.get("ingot_pack_f32", [&] {
                ++made;
                codegen::IrModule module = two_packers(jit);
                keep_only(module, "ingot_pack_f32");
                return jit.compile(std::move(module));
            });
        });
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(made, 1);
    for (const auto& f : got) EXPECT_EQ(f, got[0]);
    // One row of three numbers, packed as it is.
    const float row[] = {1, 2, 3};
    const float* table[] = {row};
    float out[3] = {};
    const float zero[3] = {};
    using Packer = void(const float**, std::int64_t, std::int64_t, std::int64_t, std::int64_t,
                        float*, const float*);
    reinterpret_cast<Packer*>(got[0]->address)(table, 1, 3, 1, 1, out, zero);
    EXPECT_EQ(std::vector<float>(out, out + 3), std::vector<float>(row, row + 3));
}

TEST(CodeLibrary, TriesAgainAfterAFailure) {
    const codegen::Jit jit(codegen::host());
    CodeLibrary library(jit);
    EXPECT_THROW(library.get("ingot_pack_f32",
                             []() -> codegen::CompiledObject { throw NotSupported("no"); }),
                 NotSupported);
    EXPECT_THROW(library.get("ingot_pack_f32", [] { return codegen::CompiledObject{{1, 2, 3}}; }),
                 InternalError);
    EXPECT_NE(library.get("ingot_pack_f32",
                          [&] {
                              codegen::IrModule module = two_packers(jit);
                              keep_only(module, "ingot_pack_f32");
                              return jit.compile(std::move(module));
                          }),
              nullptr);
}

// CUDA's libraries may take all the room between two pieces of code.
TEST(CodeLibrary, LinksSharedFunctionsThatLieFarAway) {
    const codegen::Jit jit(codegen::host());
    codegen::IrModule module = jit.make_module("far");
    llvm::IRBuilder<> b(*module.context);
    llvm::Function* packer =
        codegen::row_packer(*module.module, llvm::Type::getFloatTy(*module.context));
    const auto function = [&](const char* name, llvm::Type* result) {
        auto* f = llvm::Function::Create(llvm::FunctionType::get(result, false),
                                         llvm::GlobalValue::ExternalLinkage, name, *module.module);
        b.SetInsertPoint(llvm::BasicBlock::Create(*module.context, "entry", f));
    };
    function("address", b.getPtrTy());
    b.CreateRet(packer);
    function("call", b.getVoidTy());
    std::vector<llvm::Value*> zeros;
    for (llvm::Argument& a : packer->args())
        zeros.push_back(llvm::Constant::getNullValue(a.getType()));
    b.CreateCall(packer, zeros);
    b.CreateRetVoid();
    ASSERT_EQ(take_out_shared(module), std::vector<std::string>{"ingot_pack_f32"});
    const codegen::CompiledObject object = jit.compile(std::move(module));
    for (const std::uintptr_t far : {std::uintptr_t{0x10000}, std::uintptr_t{0x7ffffffff000}}) {
        const auto code = jit.load(object, {{"ingot_pack_f32", reinterpret_cast<void*>(far)}});
        EXPECT_EQ(code->function<void*()>("address")(), reinterpret_cast<void*>(far));
    }
}

TEST(CodeLibrary, TakesSharedFunctionsOutOfAModule) {
    const codegen::Jit jit(codegen::host());
    codegen::IrModule module = two_packers(jit);
    const std::vector<std::string> names = take_out_shared(module);
    EXPECT_EQ(names, (std::vector<std::string>{"ingot_pack_f32", "ingot_pack_f64"}));
    for (const llvm::Function& f : *module.module) EXPECT_TRUE(f.isDeclaration());
}

}  // namespace
}  // namespace ingot::runtime
